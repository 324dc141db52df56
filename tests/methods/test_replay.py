"""The replay strategies: every term by hand, every switch on real digits, and the seam that they share."""

from __future__ import annotations

import inspect
import math
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from test_options import lines_of_code
from torch import nn
from torch.nn import functional as F

import afec
from afec.learner import Learner, Memo, Schedule
from afec.methods.derpp import DarkReplay
from afec.methods.distillation import sigmoid_cross_entropy, softened_divergence
from afec.methods.icarl import SigmoidLoss, class_means
from afec.methods.lucir import UnifiedLoss, less_forget, margin_ranking
from afec.methods.lwf import Distilled
from afec.methods.podnet import PooledLoss, k_means, nca, pod_spatial, pooled
from afec.nets import DigitsBackbone, MultiHead, SingleHead, make_backbone
from afec.randomness import forked
from afec.strategy import Exemplars, ScenarioWarning
from afec.streams import digits

QUICK = Schedule(batch_size=32, lr=3e-3, max_epochs=2, patience=None, best_weights=False)
EVERY = {
    "er": afec.ER,
    "derpp": afec.DERPP,
    "icarl": afec.ICaRL,
    "lucir": afec.LUCIR,
    "podnet": afec.PODNet,
}


def stream(seed=0, sizes=(4, 2)):
    return digits(seed, sizes=list(sizes), scenario="class")


def learned(method, seed=0, sizes=(4, 2), schedule=QUICK, **options):
    """A learner after all phases."""
    with forked(7):
        backbone = DigitsBackbone(channels=4, features=8)
    learner = Learner(backbone, method, schedule=schedule, seed=seed, progress=False, **options)
    for task in stream(seed, sizes).tasks:
        learner.learn(task)
    return learner


def weights(learner):
    return torch.cat([value.flatten() for value in learner.net.state_dict().values()])


# -- terms by hand ------------------------------------------------------------------------------------------------


def test_softmax_distillation_by_hand():
    """Outputs (0, 0), targets (2·ln 3, 0), T = 2: KL((¾, ¼) ‖ (½, ½)) = ¾·ln 1.5 + ¼·ln ½, times 4."""
    outputs, targets = torch.zeros(1, 2), torch.tensor([[2 * math.log(3), 0.0]])
    expected = 4 * (0.75 * math.log(1.5) + 0.25 * math.log(0.5))
    assert softened_divergence(outputs, targets, 2.0).item() == pytest.approx(expected, rel=1e-5)
    assert softened_divergence(targets, targets, 2.0).item() == pytest.approx(0, abs=1e-7)


def test_sigmoid_distillation_by_hand():
    """Outputs (0, ln 3), so ½ and ¾, with the targets ½ and 1: ln 2 − ln ¾; a sum over the outputs."""
    outputs, targets = torch.tensor([[0.0, math.log(3)]]), torch.tensor([[0.5, 1.0]])
    assert sigmoid_cross_entropy(outputs, targets).item() == pytest.approx(math.log(2) - math.log(0.75), rel=1e-5)
    twice = sigmoid_cross_entropy(outputs.repeat(2, 1), targets.repeat(2, 1))  # and a mean over the batch
    assert twice.item() == pytest.approx(math.log(2) - math.log(0.75), rel=1e-5)


def test_the_mean_of_a_class_by_hand():
    """(3, 0) and (0, 0.1) at length 1 are (1, 0) and (0, 1): their mean points to 45°."""
    features, targets = torch.tensor([[3.0, 0.0], [0.0, 0.1], [0.0, -2.0]]), torch.tensor([0, 0, 1])
    expected = torch.tensor([[0.5**0.5, 0.5**0.5], [0.0, -1.0]])
    torch.testing.assert_close(class_means(features, targets), expected)


def test_less_forget_by_hand():
    """Angles of 0° and 90°, whatever the lengths: the mean of 0 and 1."""
    now, before = torch.tensor([[2.0, 0.0], [0.0, 3.0]]), torch.tensor([[5.0, 0.0], [1.0, 0.0]])
    assert less_forget(now, before).item() == pytest.approx(0.5)


def test_margin_ranking_by_hand():
    """Two old classes, three new ones, m = 0.5, K = 2.

    Sample 1, class 0 with 0.9: new cosines 0.6, 0.1, 0.5, of which 0.6 and 0.5 count: (0.2)₊ and (0.1)₊.
    Sample 2, class 1 with 0.2: 0.0 and −0.1 count: 0.3 and 0.2. Sample 3 is of a new class and does not count.
    """
    cosines = torch.tensor([[0.9, 0.0, 0.6, 0.1, 0.5], [0.0, 0.2, -0.3, 0.0, -0.1], [0.9, 0.9, 0.0, 0.0, 0.0]])
    found = margin_ranking(cosines, torch.tensor([0, 1, 2]), 2, margin=0.5, nearest=2)
    assert found.item() == pytest.approx((0.2 + 0.1 + 0.3 + 0.2) / 4)
    assert margin_ranking(cosines, torch.tensor([2, 3, 4]), 2, 0.5, 2).item() == 0


def test_nca_by_hand():
    """Similarities 0.8, 0.2, 0.4 with η = 2, δ = 0.6 and the true class 0: ln(e^0.4 + e^0.8) − 2·(0.8 − 0.6)."""
    similarities, target = torch.tensor([[0.8, 0.2, 0.4]]), torch.tensor([0])
    expected = math.log(math.exp(0.4) + math.exp(0.8)) - 0.4
    assert nca(similarities, target, 2.0, 0.6).item() == pytest.approx(expected, rel=1e-5)
    # Right by more than the margin: nothing to learn, but for the loss without its hinge.
    far = torch.tensor([[1.0, -1.0, -1.0]])
    assert nca(far, target, 5.0, 0.6).item() == 0
    assert nca(far, target, 5.0, 0.6, hinge=False).item() == pytest.approx(math.log(2) - 5 - 5 * 0.4, rel=1e-5)


def test_the_margin_of_nca_does_not_cancel():
    """In the released code it does: there the loss is the same for every margin."""
    similarities, target = torch.tensor([[0.5, 0.2, 0.4]]), torch.tensor([0])
    low, high = (nca(similarities, target, 2.0, margin, hinge=False).item() for margin in (0.0, 0.6))
    assert high - low == pytest.approx(2.0 * 0.6, rel=1e-5)


def test_the_scale_of_nca_does_not_learn_from_the_margin():
    """Where all similarities are equal nothing speaks for another η; η·δ would push it below zero, where the loss is 0."""
    scale = torch.tensor(1.0, requires_grad=True)
    nca(torch.full((1, 4), 0.5), torch.tensor([0]), scale, 0.6).backward()
    assert scale.grad.item() == pytest.approx(0.0, abs=1e-6)
    scale.grad = None
    nca(torch.tensor([[0.9, 0.1, 0.1]]), torch.tensor([0]), scale, 0.6).backward()
    assert scale.grad.item() == pytest.approx(0.1 - 0.9, rel=1e-5)  # the mean of the others less the true one: η grows


def test_nca_has_a_finite_gradient():
    similarities, scale = torch.tensor([[0.5, 0.2]], requires_grad=True), torch.tensor(1.0, requires_grad=True)
    nca(similarities, torch.tensor([0]), scale, 0.6).backward()
    assert similarities.grad.isfinite().all()
    assert scale.grad.item() == pytest.approx(0.2 - 0.5, rel=1e-5)  # of scale·0.2 − scale·0.5, and not of the margin


def test_pooled_maps_by_hand():
    """A map of 1×2 pixels, 1 and 2: squares 1 and 4; over the width 5, over the height 1 and 4; length √42."""
    found = pooled(torch.tensor([[[[1.0, 2.0]]]]))
    torch.testing.assert_close(found, torch.tensor([[5.0, 1.0, 4.0]]) / 42**0.5)


def test_pod_spatial_by_hand():
    """(5, 1, 4)/√42 against (5, 4, 1)/√42: √18/√42; a second pair of maps that are alike halves the mean."""
    one, other = torch.tensor([[[[1.0, 2.0]]]]), torch.tensor([[[[2.0, -1.0]]]])
    assert pod_spatial([one], [other]).item() == pytest.approx((18 / 42) ** 0.5, rel=1e-5)
    assert pod_spatial([one, one], [other, one]).item() == pytest.approx((18 / 42) ** 0.5 / 2, rel=1e-5)


def test_k_means_finds_clusters():
    points = torch.tensor([[0.0], [0.2], [10.0], [10.2]])
    assert sorted(k_means(points, 2, seed=0).flatten().tolist()) == pytest.approx([0.1, 10.1], abs=1e-5)
    assert k_means(points[:1], 3, seed=0).flatten().tolist() == [0.0, 0.0, 0.0]  # fewer points than centers


class OneLayer:
    """A task's loss over a bare net, for batches by hand."""

    kind = "cross_entropy"

    def inputs(self, model, batch):
        return batch[0]

    def outputs(self, model, batch):
        return model(batch[0])

    def between(self, outputs, targets):
        return F.cross_entropy(outputs, targets)


def test_dark_replay_by_hand():
    """One new sample and one exemplar, whose outputs of the first class only were kept."""
    outputs = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    kept = torch.tensor([[3.0, torch.nan]])
    loss = DarkReplay(OneLayer(), torch.tensor([1]), kept, alpha=0.5, beta=0.25)
    found = loss(nn.Identity(), (outputs, torch.tensor([0, -1])))
    expected = math.log(2) + 0.25 * math.log(1 + math.e) + 0.5 * (1.0 - 3.0) ** 2
    assert found.item() == pytest.approx(expected, rel=1e-5)


def test_the_sigmoid_loss_of_a_later_phase_by_hand():
    """An old class by what the old net says (½, whatever the label), a new one by its label, 1."""
    net, old = nn.Identity(), lambda inputs: torch.zeros_like(inputs)
    loss = SigmoidLoss(OneLayer(), old, 1, strength=2.0)
    found = loss(net, (torch.tensor([[math.log(3), math.log(3)]]), torch.tensor([1])))
    of_old = -(0.5 * math.log(0.75) + 0.5 * math.log(0.25))
    assert found.item() == pytest.approx(-math.log(0.75) + 2 * of_old, rel=1e-5)


def test_the_loss_with_softmax_distillation_by_hand():
    """Two old outputs, of which the old net says ¾ and ¼ at T = 2, and two new ones, told among themselves or among all."""
    old = lambda inputs: torch.tensor([[2 * math.log(3), 0.0, 9.0, 9.0]])  # noqa: E731
    batch = torch.tensor([[0.0, 0.0, 1.0, 0.0]]), torch.tensor([2])
    distilled = 4 * (0.75 * math.log(1.5) + 0.25 * math.log(0.5))
    for first, own in ((2, math.log(1 + math.exp(-1))), (0, math.log(1 + 3 * math.exp(-1)))):
        found = Distilled(OneLayer(), old, 2, strength=3.0, temperature=2.0, first=first)(nn.Identity(), batch)
        assert found.item() == pytest.approx(own + 3 * distilled, rel=1e-5)


class Line(nn.Module):
    """Images of 1×2 pixels, which are their own map and their own features."""

    out_features = 2

    def maps(self, x):
        return [x]

    def after_maps(self, last):
        return last.flatten(1)

    def forward(self, x):
        return self.after_maps(self.maps(x)[-1])


def two_classes(kind):
    """One class along each axis, the first of them old; the scale is 2."""
    net = SingleHead(Line(), kind, proxies=1)
    for task, row in enumerate(([4.0, 0.0], [0.0, 1.0])):
        net.begin_task((task,))
        with torch.no_grad():
            net.blocks[task].weight.copy_(torch.tensor(row).view_as(net.blocks[task].weight))
            net.scale.fill_(2.0)
    return net


class Turned(SingleHead):
    """An old net that gave the two pixels the other way round."""

    def features(self, x, task=0):
        return super().features(x.flip(3), task)


IMAGE = torch.tensor([[[[3.0, 4.0]]]]), torch.tensor([0])  # its cosines with the two rows are 0.6 and 0.8


def test_the_three_terms_of_lucir_by_hand():
    """Features (3, 4) now and (4, 3) before: 1 − 24/25. The new class is ahead by 0.2, and should be behind by 0.5."""
    net, old = two_classes("cosine"), Turned(Line(), "cosine")
    terms = math.log(1 + math.exp(2 * 0.2)), 0.04, 0.7
    for strength, ranking in ((5.0, 3.0), (0.0, 3.0), (5.0, 0.0)):
        loss = UnifiedLoss(OneLayer(), old, 1, 1, strength, ranking, margin=0.5, nearest=2)
        expected = terms[0] + strength * terms[1] + ranking * terms[2]
        assert loss(net, IMAGE).item() == pytest.approx(expected, rel=1e-5)
    loss(net, IMAGE).backward()
    assert net.blocks[0].weight.grad is None  # frozen
    assert net.blocks[1].weight.grad.abs().max() > 0


def test_the_three_terms_of_podnet_by_hand():
    """NCA 2·0.8 − 2·(0.6 − 0.5). Pooled (25, 9, 16) now and (25, 16, 9) before, both of length √962. Features as in LUCIR's."""
    net, old = two_classes("proxies"), SingleHead(Line(), "proxies")
    old.backbone.maps = lambda x: [x.flip(3)]
    for spatial, flat in ((3.0, 2.0), (0.0, 2.0), (3.0, 0.0), (0.0, 0.0)):
        found = PooledLoss(OneLayer(), old, 1, margin=0.5, hinge=True, spatial=spatial, flat=flat)(net, IMAGE)
        assert found.item() == pytest.approx(1.4 + spatial * (98 / 962) ** 0.5 + flat * 0.04, rel=1e-5)


# -- what new rows begin as ---------------------------------------------------------------------------------------


def begun(method):
    """A learner that stands at the beginning of its second phase, with the net that is trained there."""
    seen = {}

    class StoppedHereError(Exception):
        pass

    learner = learned(method, sizes=(4,))
    training = type(method).training

    def look(self, context, memory):
        seen["context"], seen["memory"] = context, memory
        raise StoppedHereError

    task = stream().tasks[1]
    try:
        type(method).training = look
        with pytest.raises(StoppedHereError):
            learner.learn(task)
    finally:
        type(method).training = training
    return learner, seen["context"], task


def test_imprinted_rows_are_the_mean_direction_of_their_classes():
    learner, context, task = begun(afec.LUCIR(per_class=2))
    features = F.normalize(context.features(learner.net, task.train.inputs), dim=1)
    length = learner.net.blocks[0].weight.norm(dim=1).mean()
    for row in range(2):
        mean = features[task.train.targets == row].mean(0)
        torch.testing.assert_close(learner.net.blocks[1].weight[row], length * mean / mean.norm())


def test_imprinted_proxies_are_k_means_of_their_classes():
    learner, context, task = begun(afec.PODNet(per_class=2))
    features = F.normalize(context.features(learner.net, task.train.inputs), dim=1)
    length = learner.net.blocks[0].weight.norm(dim=2).mean()
    for row in range(2):
        centers = k_means(features[task.train.targets == row], 10, context.seed("proxies", 4 + row))
        torch.testing.assert_close(learner.net.blocks[1].weight[row], length * F.normalize(centers, dim=1))


def test_the_old_net_is_the_net_of_the_phase_before():
    learner, context, _ = begun(afec.ICaRL(per_class=2))
    before = learned(afec.ICaRL(per_class=2), sizes=(4,)).net.state_dict()
    assert all(torch.equal(context.task_state["old"][name], value) for name, value in before.items())


def test_old_classes_count_by_the_root_of_how_many_there_are():
    """Four old classes and two new ones: √(4/2) for LUCIR, √(6/2) for PODNet."""
    for method, key, plain, root in ((afec.LUCIR, "strength", 5.0, 2), (afec.PODNet, "spatial", 3.0, 3)):
        for adaptive in (True, False):
            learner, context, _ = begun(method(per_class=2, adaptive=adaptive))
            loss = learner.strategy.training(context, Exemplars.of(context.state["exemplars"])).loss
            assert getattr(loss, key) == pytest.approx(plain * (root**0.5 if adaptive else 1))
            assert loss.frozen == 1


def test_the_fine_tuning_is_on_exemplars_alone_as_many_of_each_class():
    for method in (afec.LUCIR(per_class=2, finetune_epochs=3), afec.PODNet(per_class=2, finetune_epochs=3)):
        learner, context, _ = begun(method)
        memory = Exemplars.of(context.state["exemplars"])
        (training,) = learner.strategy.after(context, memory)
        assert training.data[1].bincount().tolist() == [2] * 4
        assert (training.schedule.max_epochs, training.schedule.lr_steps) == (3, ())
        assert training.schedule.lr == pytest.approx(method.finetune_lr * QUICK.lr)
        assert not training.guarded


# -- on real digits -----------------------------------------------------------------------------------------------

SWITCHES = [
    ("er", {"per_class": 3}),
    ("er", {"choice": "random"}),
    ("er", {"total": 12}),
    ("derpp", {"alpha": 0.0}),
    ("derpp", {"beta": 0.0}),
    ("icarl", {"strength": 0.0}),
    ("icarl", {"temperature": 1.0}),
    ("icarl", {"distillation": "sigmoid"}),
    ("lucir", {"strength": 0.0}),
    ("lucir", {"adaptive": False}),
    ("lucir", {"ranking": 0.0}),
    ("lucir", {"margin": 0.1}),
    ("lucir", {"nearest": 1}),
    ("lucir", {"imprint": False}),
    ("lucir", {"freeze": False}),
    ("lucir", {"finetune_epochs": 1}),
    ("podnet", {"spatial": 0.0}),
    ("podnet", {"flat": 0.0}),
    ("podnet", {"adaptive": False}),
    ("podnet", {"imprint": False}),
    ("podnet", {"freeze": False}),
    ("podnet", {"finetune_epochs": 0}),
]
PLAIN = {}


def plain(name):
    if name not in PLAIN:
        PLAIN[name] = weights(learned(EVERY[name](per_class=5)))
    return PLAIN[name]


@pytest.mark.parametrize(("name", "switch"), SWITCHES, ids=lambda value: str(value))
def test_every_part_changes_the_result(name, switch):
    found = weights(learned(EVERY[name](**{"per_class": 5, **switch})))
    assert not torch.equal(found, plain(name))


def test_the_hinge_of_podnet_leaves_samples_alone_that_are_right_by_the_margin():
    long = Schedule(batch_size=32, lr=0.02, max_epochs=8, patience=None, best_weights=False)
    options = ({"margin": 0.0}, {"margin": 0.0, "hinge": False}, {"margin": 0.6})
    hinge, none, wide = (weights(learned(afec.PODNet(per_class=5, **one), schedule=long)) for one in options)
    assert not torch.equal(hinge, none)
    assert not torch.equal(hinge, wide)


def test_lwf_without_its_parts():
    found = [weights(learned(afec.LwF(**options))) for options in ({}, {"strength": 0.0}, {"among": "all"})]
    assert not torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    with_all = weights(learned(afec.LwF(strength=0.0, among="all")))
    assert torch.equal(with_all, weights(_finetuned()))


def _finetuned():
    with forked(7):
        net = SingleHead(DigitsBackbone(channels=4, features=8))
    learner = Learner(net, None, schedule=QUICK, progress=False)
    for task in stream().tasks:
        learner.learn(task)
    return learner


def test_rows_of_old_classes_stay_while_later_phases_are_trained():
    for method, moves in ((afec.LUCIR(per_class=5), False), (afec.LUCIR(per_class=5, freeze=False), True)):
        first, last = (learned(method.__class__(per_class=5, freeze=method.freeze), sizes=s) for s in ((4,), (4, 2)))
        same = torch.equal(first.net.blocks[0].weight, last.net.blocks[0].weight)
        assert same is not moves


def test_the_fine_tuning_of_podnet_moves_the_classifier_alone():
    whole, without = (learned(afec.PODNet(per_class=5, finetune_epochs=n)) for n in (2, 0))
    pairs = zip(whole.net.backbone.state_dict().values(), without.net.backbone.state_dict().values(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    assert not torch.equal(whole.net.blocks[0].weight, without.net.blocks[0].weight)


def test_prediction_by_means_and_by_the_classifier():
    learner = learned(afec.ICaRL(per_class=5))
    inputs = stream().tasks[0].test.inputs
    by_means = learner.outputs(inputs)
    memory = Exemplars.of(learner.strategy.state["exemplars"])
    assert memory.targets.tolist() == [k for k in range(6) for _ in range(5)]
    with torch.no_grad():
        learner.net.eval()
        units = F.normalize(learner.net.features(inputs), dim=1)
        means = class_means(learner.net.features(memory.inputs), memory.targets)
    torch.testing.assert_close(by_means, -torch.cdist(units, means), atol=1e-4, rtol=1e-4)
    learner.strategy.prediction = "classifier"
    with torch.no_grad():
        torch.testing.assert_close(learner.outputs(inputs), learner.net(inputs))


def test_a_learned_phase_says_what_its_exemplars_take():
    """After the first phase 4 · 5, after the second 6 · 5 images of 64 floats; of photographs, what their files take."""
    learner = learned(afec.ER(per_class=5), sizes=(4,))
    taken = [learner.strategy.kept_megabytes(stream().tasks[0]), learner.learn(stream().tasks[1]).kept_mb]
    assert taken == pytest.approx([20 * 256 / 1e6, 30 * 256 / 1e6])
    assert learned(afec.LwF()).strategy.kept_megabytes(stream().tasks[0]) == 0
    method = afec.ER()
    method.state = {"exemplars": {"inputs": torch.tensor([2, 0]), "targets": torch.tensor([0, 1])}}
    images = SimpleNamespace(images=SimpleNamespace(sizes=torch.tensor([10, 20, 400])))
    assert method.kept_megabytes(SimpleNamespace(prepare=images)) == pytest.approx(410 / 1e6)


def test_a_file_for_prediction_has_means_and_no_image(tmp_path):
    learner = learned(afec.ICaRL(per_class=5))
    learner.save(tmp_path / "small.safetensors", prediction_only=True)
    again = Learner(DigitsBackbone(channels=4, features=8), afec.ICaRL(per_class=5), progress=False)
    again.load(tmp_path / "small.safetensors")
    inputs = stream().tasks[1].test.inputs
    assert torch.equal(learner.predict(inputs), again.predict(inputs))
    assert set(again.strategy.state) == {"means"}


# -- with a guard -------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:lwf")  # which keeps no examples
@pytest.mark.parametrize("name", [*EVERY, "lwf"])
def test_each_adds_with_guards(name):
    make = afec.LwF if name == "lwf" else lambda: EVERY[name](per_class=5)
    alone = weights(learned(make()))
    for guard, expected in (
        (afec.AFEC(1.0), f"{name}+afec"),
        (afec.EWC(100.0), f"{name}+ewc"),
        (afec.MAS(10.0), f"{name}+mas"),
    ):
        method = make() + guard
        assert method.method == expected
        assert not torch.equal(weights(learned(method)), alone)


def test_a_guard_beside_replay_pulls_the_backbone_alone():
    method = afec.ER(per_class=5) + afec.EWC(100.0)
    learner = learned(method)
    names = set(learner.strategy.guard.state_dict()["states"]["ewc"]["precision"])
    assert names
    assert all(name.startswith("backbone.") for name in names)


def test_theta_e_learns_the_new_classes_alone_if_nothing_else_is_said():
    """By default its samples are those of the new classes; with exemplars there are 20 more in the second phase."""
    found = {}
    for data in ("new", "with-exemplars"):
        with forked(7):
            backbone = DigitsBackbone(channels=4, features=8)
        method = afec.ER(per_class=5, guard_data=data) + afec.AFEC(1.0, fisher="empirical")
        learner = Learner(backbone, method, schedule=QUICK, progress=False)
        found[data] = [learner.learn(task).samples for task in stream().tasks]
    assert found["new"][0] == found["with-exemplars"][0]
    # two epochs of θ_e, and one pass for F_e, over 20 exemplars more
    assert found["with-exemplars"][1] - found["new"][1] == 20 * (QUICK.max_epochs + 1)


def test_the_base_phase_is_trained_once_for_each_classifier_and_loss(tmp_path):
    """Whoever comes later takes it from the memo, θ_e as well, and ends bit for bit where it ends without one."""
    rows = {
        "er": lambda: afec.ER(per_class=5),
        "derpp": lambda: afec.DERPP(per_class=5),
        "lwf": lambda: afec.LwF(),
        "er+afec": lambda: afec.ER(per_class=5) + afec.AFEC(1.0),
        "icarl+ewc+afec": lambda: afec.ICaRL(per_class=5) + afec.EWC(1.0) + afec.AFEC(1.0),
        "sigmoid": lambda: afec.ICaRL(per_class=5, distillation="sigmoid"),
        "lucir": lambda: afec.LUCIR(per_class=5),
        "lucir+afec": lambda: afec.LUCIR(per_class=5) + afec.AFEC(1.0),
        "podnet": lambda: afec.PODNet(per_class=5),
        "podnet+mas": lambda: afec.PODNet(per_class=5) + afec.MAS(1.0),
    }
    trained = {}
    for name, make in rows.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ScenarioWarning)
            trained[name] = ran = set()
            learner = learned(make(), memo=Memo(tmp_path), on_progress=lambda at, ran=ran: ran.add((at.task, at.phase)))
            assert torch.equal(weights(learner), weights(learned(make()))), name
    assert [name for name, ran in trained.items() if (0, "train") in ran] == ["er", "sigmoid", "lucir", "podnet"]
    assert [name for name, ran in trained.items() if (1, "theta_e") in ran] == ["er+afec", "lucir+afec"]
    assert all((1, "train") in ran for ran in trained.values())


# -- what is said about bad input ---------------------------------------------------------------------------------


def test_too_few_images_of_a_class():
    tasks = stream().tasks
    with pytest.raises(
        ValueError, match=r"er keeps 2000 exemplars of each class, and class \d of 'digits .*' has \d+ images"
    ):
        afec.ER(per_class=2000).check_tasks(tasks)
    afec.ER(per_class=5).check_tasks(tasks)
    with pytest.raises(ValueError, match="a memory of 5 exemplars in all cannot hold one of each of 6 classes"):
        afec.ER(total=5).check_tasks(tasks)


def test_the_scenario_task_is_refused():
    for method in (afec.ER(), afec.LwF()):
        with pytest.raises(ValueError, match=r"knows the scenario 'class' only; the net is a MultiHead.*Set stream"):
            Learner(MultiHead(DigitsBackbone()), method, progress=False)


def test_another_classifier_is_refused():
    with pytest.raises(
        ValueError, match=r"lucir is defined with a classifier of the kind 'cosine'; the net has 'linear'"
    ):
        Learner(SingleHead(DigitsBackbone()), afec.LUCIR(), progress=False)
    Learner(SingleHead(DigitsBackbone(), "cosine"), afec.ICaRL(), progress=False)  # its own is a default only


def test_a_class_in_two_phases_is_refused():
    learner = learned(afec.ER(per_class=5), sizes=(4,))
    task = replace(stream().tasks[0], name="again")
    with pytest.raises(ValueError, match="is there already: in the scenario 'class' no class comes twice"):
        learner.learn(task)


def test_a_backbone_without_feature_size_or_maps():
    with pytest.raises(
        TypeError, match="needs the width of the backbone's output, but Sequential has no integer attribute"
    ):
        Learner(nn.Sequential(nn.Linear(4, 3)), afec.ER(), progress=False)
    with pytest.raises(ValueError, match=r"podnet compares feature maps, and CNN6 does not give any: use resnet32"):
        Learner(make_backbone("cnn6"), afec.PODNet(), progress=False)


# -- the house ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [afec.ER, afec.DERPP, afec.LwF])
def test_plain_baselines_are_short(method):
    assert lines_of_code(Path(inspect.getfile(method)).read_text()) < 60
