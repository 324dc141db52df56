"""Batch-norm with statistics shared or per task: whose statistics a call uses, and that no importance pass moves them."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from afec.fisher import KINDS, Problem, estimate
from afec.nets import MultiHead, TaskBatchNorm2d, make_backbone
from afec.nets.norm import SharedBatchNorm2d, task_norms

BATCH_NORMS = ["shared", "per-task"]


FIRST = {"vgg11bn": ("features.0.weight", "features.1.weight"), "resnet10": ("conv1.weight", "bn1.weight")}


def net_of(name="vgg11bn", batch_norm="per-task", heads=(3, 3), width=4):
    """A net for digits in which every task has seen other images."""
    torch.manual_seed(0)
    net = MultiHead(make_backbone(name, channels=1, size=8, width=width, batch_norm=batch_norm), heads)
    for task in range(len(heads)):
        for seed in range(8):
            net(images(20, seed) * (task + 1), task)
    return net


def images(count=10, seed=0):
    rows = torch.randperm(1797, generator=torch.Generator().manual_seed(seed))[:count]
    return torch.as_tensor(load_digits().images, dtype=torch.float32)[rows].unsqueeze(1) / 16


def statistics(net, task=None):
    """Copies of all statistics, or of one task's."""
    wanted = "" if task is None else f".tasks.{task}."
    return {name: buffer.clone() for name, buffer in net.named_buffers() if wanted in name}


def equal(one, other):
    assert list(one) == list(other)
    return all(torch.equal(one[name], other[name]) for name in one)


# The layer.


@given(
    calls=st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(2, 4)), max_size=8), seed=st.integers(0, 99)
)
@settings(max_examples=40, deadline=None)
def test_it_is_a_batch_norm_of_each_tasks_own_with_one_weight_and_bias(calls, seed):
    """Any order of tasks, in training and evaluation: outputs and statistics are those of separate batch-norms."""
    generator = torch.Generator().manual_seed(seed)
    norm, apart = TaskBatchNorm2d(3), [nn.BatchNorm2d(3) for _ in range(3)]
    norm.make_tasks(3)
    with torch.no_grad():
        norm.weight.copy_(torch.rand(3, generator=generator))
        norm.bias.copy_(torch.rand(3, generator=generator))
    for one in apart:
        one.weight, one.bias = norm.weight, norm.bias
    for task, training, size in calls:
        x = torch.randn(size, 3, 2, 2, generator=generator) * (task + 1) + task
        norm.train(training).select(task)
        assert norm(x).equal(apart[task].train(training)(x))
    for own, one in zip(norm.tasks, apart, strict=True):
        assert own.running_mean.equal(one.running_mean)
        assert own.running_var.equal(one.running_var)


def test_its_statistics_by_hand():
    norm = TaskBatchNorm2d(1)
    norm.make_tasks(2)
    norm.select(1)
    out = norm(torch.tensor([1.0, 3.0]).reshape(2, 1, 1, 1))
    assert out.flatten().tolist() == pytest.approx([-1.0, 1.0], rel=1e-4)  # mean 2, variance 1
    assert norm.running_mean.item() == pytest.approx(0.9 * 0 + 0.1 * 2)
    assert norm.running_var.item() == pytest.approx(0.9 * 1 + 0.1 * 2)  # the running one is unbiased: 2
    norm.select(0)
    assert (norm.running_mean.item(), norm.running_var.item()) == (0.0, 1.0)


@pytest.mark.parametrize("make", [SharedBatchNorm2d, TaskBatchNorm2d])
def test_a_lone_value_is_normalised_by_the_running_statistics_which_stay(make):
    norm = make(2)
    norm.running_mean.copy_(torch.tensor([1.0, 2.0]))
    norm.running_var.copy_(torch.tensor([4.0, 9.0]))
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    out = norm.train()(torch.tensor([5.0, -1.0]).reshape(1, 2, 1, 1))
    assert out.flatten().tolist() == pytest.approx([2.0, -1.0], rel=1e-4)
    assert equal(before, norm.state_dict())
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        nn.BatchNorm2d(2)(torch.zeros(1, 2, 1, 1))
    norm(torch.zeros(1, 2, 1, 2))  # one sample and two pixels: that is a variance, as ever
    assert not norm.running_mean.equal(before[next(name for name in before if name.endswith("running_mean"))])


def test_the_shared_one_is_pytorchs_otherwise():
    torch.manual_seed(0)
    ours, theirs, x = SharedBatchNorm2d(3), nn.BatchNorm2d(3), torch.randn(4, 3, 2, 2)
    for training in (True, True, False):
        assert ours.train(training)(x).equal(theirs.train(training)(x))
    assert equal(ours.state_dict(), theirs.state_dict())


def test_a_task_without_statistics_is_refused():
    norm = TaskBatchNorm2d(1)
    with pytest.raises(
        IndexError, match=r"task must be 0 to 0: .* the statistics of 1 tasks; got 1. make_tasks\(2\) adds"
    ):
        norm.select(1)


# In a net.


@pytest.mark.parametrize("name", ["vgg11bn", "resnet10"])
def test_a_call_for_a_task_uses_and_moves_its_statistics_alone(name):
    net, x = net_of(name), images()
    before = [statistics(net, task) for task in (0, 1)]
    assert before[0]
    net.train()(x, task=1)
    assert equal(statistics(net, 0), before[0])
    assert all(not value.equal(before[1][key]) for key, value in statistics(net, 1).items())
    net.eval()
    as_task_1 = net.backbone(x)  # a plain call uses those that were selected last
    net(x, task=0)
    as_task_0 = net.backbone(x)
    assert not torch.allclose(as_task_0, as_task_1)
    net(x, task=1)
    assert net.backbone(x).equal(as_task_1)


@pytest.mark.parametrize("name", ["vgg11bn", "resnet10"])
def test_every_head_brings_fresh_statistics_and_names_stay(name):
    def make(sizes):
        torch.manual_seed(0)
        return MultiHead(make_backbone(name, channels=1, size=8, width=2, batch_norm="per-task"), sizes)

    grown, whole = make([]), make([3, 3, 3])
    assert {len(norm.tasks) for _, norm in task_norms(grown)} == {1}  # for plain calls of the backbone
    for _ in range(3):
        grown.begin_task(range(3))
        grown.train()(images(), task=len(grown.heads) - 1)
    assert sorted(grown.state_dict()) == sorted(whole.state_dict())
    grown.begin_task(range(3))
    fresh = statistics(grown, 3)
    assert len(fresh) == 2 * len(list(task_norms(grown)))
    assert all(value.eq(float(key.endswith("var"))).all() for key, value in fresh.items())
    whole.begin_task(range(3))
    whole.load_state_dict(grown.state_dict())
    assert equal(statistics(whole), statistics(grown))


def test_statistics_are_where_the_weights_are():
    net = net_of(heads=[2]).double()
    net.begin_task(range(2))
    assert {buffer.dtype for buffer in net.buffers()} == {torch.float64}
    assert net(images().double(), task=1).dtype == torch.float64
    away = net_of(heads=[2]).to("meta")
    away.begin_task(range(2))
    assert all(buffer.is_meta for buffer in away.buffers())


def test_what_belongs_to_one_task_is_known_by_its_name():
    net = net_of()
    of_one = {name for name in net.state_dict() if name.startswith(net.task_prefixes())}
    assert of_one == {name for name in net.state_dict() if name.startswith("heads.") or ".tasks." in name}
    assert net_of(batch_norm="shared").task_prefixes() == ("heads.",)
    bare = MultiHead(TaskBatchNorm2d(2), [1], features=2)  # a backbone that is the layer
    names = {name for name in bare.state_dict() if name.startswith(bare.task_prefixes())}
    assert set(bare.state_dict()) - names == {"backbone.weight", "backbone.bias"}


@pytest.mark.parametrize("batch_norm", BATCH_NORMS)
def test_statistics_are_no_guarded_weights(batch_norm):
    net = net_of(batch_norm=batch_norm)
    guarded = {id(weight) for weight in net.guarded_parameters()}
    affine = [p for m in net.modules() if isinstance(m, SharedBatchNorm2d | TaskBatchNorm2d) for p in m.parameters()]
    assert len(affine) == 16
    assert {id(p) for p in affine} <= guarded
    assert not guarded & {id(buffer) for buffer in net.buffers()}


def test_a_copy_is_its_own():
    net = net_of()
    twin = copy.deepcopy(net)
    twin.train()(images(), task=0)
    assert not equal(statistics(net, 0), statistics(twin, 0))
    assert net.backbone(images()).shape == (10, 32)


# Importance passes.


def problem(net, task=1):
    def predict(model, batch):
        return model(batch[0], task=task)

    return Problem(net, lambda m, batch: F.cross_entropy(predict(m, batch), batch[1]), predict, "categorical")


def batches(count=9, size=5, seed=0):
    x = images(count, seed)
    return list(zip(x.split(size), (torch.arange(count) % 3).split(size), strict=True))


def measured(net, kind, **options):
    return estimate(problem(net), dict(net.backbone.named_parameters()), batches(), kind=kind, chunk=4, **options)


@pytest.mark.parametrize("batch_norm", BATCH_NORMS)
@pytest.mark.parametrize("name", ["vgg11bn", "resnet10"])
def test_no_pass_moves_a_statistic_and_every_pass_uses_them(name, batch_norm):
    net = net_of(name, batch_norm)
    before = statistics(net)
    passes = [{"kind": kind} for kind in KINDS] + [{"kind": "empirical", "power": 1}]
    found = [measured(net, **options) for options in passes]
    of_batch = measured(net, "batched", train=True)  # as preset `official` does
    assert equal(statistics(net), before)
    assert net.training
    with torch.no_grad():
        for key, buffer in net.named_buffers():
            if key.endswith("var"):
                buffer.mul_(3)
    for options, one in zip(passes, found, strict=True):
        other = measured(net, **options)
        for key in FIRST[name]:
            assert one.squares[key].max() > 0
            assert not torch.allclose(one.squares[key], other.squares[key], rtol=0.01, atol=0)
    # In training mode the batch's own statistics are used.
    again = measured(net, "batched", train=True)
    assert all(torch.equal(again.squares[key], of_batch.squares[key]) for key in of_batch.squares)


@pytest.mark.parametrize("kind", ["exact", "sample", "empirical"])
@pytest.mark.parametrize("batch_norm", BATCH_NORMS)
@pytest.mark.parametrize("name", ["vgg11bn", "resnet10"])
def test_hooks_serve_every_weight(name, batch_norm, kind):
    assert set(measured(net_of(name, batch_norm), kind).routes.values()) == {"fast"}


@pytest.mark.parametrize("batch_norm", BATCH_NORMS)
@pytest.mark.parametrize("name", ["vgg11bn", "resnet10"])
def test_the_fisher_is_what_one_backward_pass_per_sample_gives(name, batch_norm):
    net = net_of(name, batch_norm).double().eval()
    weights = dict(net.backbone.named_parameters())
    expected = {key: torch.zeros_like(weight) for key, weight in weights.items()}
    data = [(x.double(), y) for x, y in batches()]
    for x, y in data:
        for i in range(len(x)):
            loss = F.cross_entropy(net(x[i : i + 1], task=1), y[i : i + 1])
            for key, grad in zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True):
                expected[key] += grad.square()
    net.train()
    found = estimate(problem(net), weights, data, kind="empirical", chunk=4)
    assert found.count == 9
    for key, square in expected.items():
        torch.testing.assert_close(found.squares[key], square)
        assert square.max() > 0


@pytest.mark.parametrize("batch_norm", BATCH_NORMS)
def test_a_last_batch_of_one_sample_in_training_mode(batch_norm):
    """`batched` as preset `official` has it: 9 images in batches of 4, 4 and 1, on maps of one pixel."""
    net = net_of(batch_norm=batch_norm)
    before = statistics(net)
    weights = dict(net.backbone.named_parameters())
    found = estimate(problem(net), weights, batches(9, 4), kind="batched", batch_size=4, train=True)
    assert found.count == 9 / 4
    assert all(square.isfinite().all() for square in found.squares.values())
    assert equal(statistics(net), before)
