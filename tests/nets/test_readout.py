"""A classifier that grows with the classes, behind the same verbs as one head per task."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import afec
from afec.nets import DigitsBackbone, MultiHead, Readout, SingleHead, make_backbone


def make(kind="linear", tasks=((7, 2), (5, 0, 9)), **options):
    torch.manual_seed(0)
    net = SingleHead(DigitsBackbone(), kind, **options)
    for classes in tasks:
        net.begin_task(classes)
    return net


X = torch.linspace(-1, 1, 4 * 64).reshape(4, 1, 8, 8)


def test_the_outputs_are_all_classes_so_far_whatever_the_task_is():
    net = make()
    features = net.features(X)
    by_hand = torch.cat([F.linear(features, block.weight, block.bias) for block in net.blocks], 1)
    for task in (0, 1, 5):
        assert net(X, task=task).equal(by_hand)
        assert net.features(X, task).equal(net.backbone(X))
    assert by_hand.shape == (4, 5)
    assert (net.classes, net.task_classes, net.sizes) == ([7, 2, 5, 0, 9], [(7, 2), (5, 0, 9)], [2, 3])


def test_a_cosine_is_the_cosine_times_the_scale_and_its_gradient_reaches_all_three():
    net = make("cosine")
    with torch.no_grad():
        net.scale.fill_(3.0)
    features = net.features(X)
    rows = torch.cat([block.weight for block in net.blocks])
    by_hand = 3 * torch.stack([torch.stack([F.cosine_similarity(f, row, dim=0) for row in rows]) for f in features])
    torch.testing.assert_close(net(X), by_hand)
    net(X)[:, 3].sum().backward()
    assert net.scale.grad.item() == pytest.approx(float(by_hand[:, 3].detach().sum()) / 3, rel=1e-5)
    assert net.blocks[1].weight.grad[1].abs().max() > 0
    assert not net.blocks[0].weight.grad.any()


def test_proxies_by_hand():
    """Cosines 1 and 0 with the two rows of the first class, whose softmax is e/(e+1) and 1/(e+1); twice 0 with the second."""
    net = SingleHead(nn.Identity(), "proxies", features=2, proxies=2)
    net.begin_task((4, 7))
    with torch.no_grad():
        net.blocks[0].weight.copy_(torch.tensor([[[5.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [0.0, -0.0]]]))
        net.scale.fill_(3.0)
    e = math.e
    expected = torch.tensor([[e / (e + 1), 0.0]])
    torch.testing.assert_close(net.classify(torch.tensor([[2.0, 0.0]]), scaled=False), expected)
    torch.testing.assert_close(net(torch.tensor([[2.0, 0.0]])), 3 * expected)


def test_new_classes_change_no_tensor_that_was_there():
    net = make(tasks=[(1, 2)])
    before = dict(net.named_parameters())
    outputs = net(X)
    assert net.begin_task([3]) == 1
    assert all(net.get_parameter(name) is weight for name, weight in before.items())
    assert net(X)[:, :2].equal(outputs)
    assert set(net.state_dict()) - set(before) == {"blocks.1.weight", "blocks.1.bias"}


def test_targets_are_the_places_of_the_classes_and_heads_have_their_own():
    net, inside = make(), torch.tensor([0, 2, 1])
    assert net.output_targets(1, inside).tolist() == [2, 4, 3]
    assert net.output_targets(0, inside[:1]).tolist() == [0]
    assert MultiHead(DigitsBackbone(), [2, 3]).output_targets(1, inside).tolist() == [0, 2, 1]


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_all_weights_are_guarded_and_old_rows_are_pulled_back_while_new_rows_are_free(kind):
    net, guard = make(kind, tasks=[(0, 1)]), afec.EWC(1e3)
    assert {id(p) for p in net.guarded_parameters()} == {id(p) for p in net.parameters()}
    data = torch.rand(12, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 2
    loss = nn.CrossEntropyLoss()
    predict = lambda model, batch: model(batch[0])  # noqa: E731
    with guard.learning(net, torch.optim.SGD(net.parameters(), 0.1), data, lambda m, b: loss(m(b[0]), b[1]),
                        predict=predict, likelihood="categorical"):  # fmt: skip
        pass
    net.begin_task((2, 3))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with guard.learning(net, optimizer, (data[0], data[1] + 2), lambda m, b: loss(m(b[0]), b[1]),
                        predict=predict, likelihood="categorical") as task:  # fmt: skip
        with torch.no_grad():
            for block in net.blocks:
                block.weight += 0.1
        task.accept()
        for weight in net.parameters():
            weight.grad = torch.zeros_like(weight)
        task.pull()
        assert net.blocks[0].weight.grad.abs().max() > 0
        assert not net.blocks[1].weight.grad.any()
    precision = guard.state_dict()["states"]["ewc"]["precision"]
    assert precision["blocks.1.weight"].abs().max() > 0  # from the next task on it is old


def test_rows_at_zero_and_the_precision_of_the_backbone():
    assert not any(weight.any() for weight in make(zero=True).blocks.parameters())
    double = SingleHead(DigitsBackbone().double(), "cosine")
    double.begin_task([4])
    assert {block.weight.dtype for block in double.blocks} == {torch.float64}


def test_what_cannot_be():
    with pytest.raises(ValueError, match="unknown kind of classifier 'cosin'; did you mean 'cosine'"):
        SingleHead(DigitsBackbone(), "cosin")
    with pytest.raises(ValueError, match="rows of zeros have no direction"):
        SingleHead(DigitsBackbone(), "cosine", zero=True)
    with pytest.raises(ValueError, match="the task is not known; use batch_norm='shared'"):
        SingleHead(make_backbone("resnet10", width=2, batch_norm="per-task"))
    with pytest.raises(TypeError, match="SingleHead needs the width of the backbone's output"):
        SingleHead(nn.Flatten())
    with pytest.raises(IndexError, match="no classes yet"):
        SingleHead(DigitsBackbone())(X)
    net = make()
    for classes in ((4, 7), (4, 4)):
        with pytest.raises(ValueError, match=rf"of which {classes[1]} is there already: .*no class comes twice"):
            net.begin_task(classes)
    with pytest.raises(ValueError, match="a task needs at least 1 output"):
        net.begin_task([])
    assert net.sizes == [2, 3]
    with pytest.raises(TypeError, match="abstract"):
        Readout(DigitsBackbone())
