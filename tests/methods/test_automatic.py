"""`strength="auto"`: its equation by hand, in a loop of one's own, in the learner, and what it refuses."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

import afec
from afec.methods.automatic import LONG, UNKNOWN, Pace, after_epoch, first_strength
from small_learning import few_tasks, same, small_learner

START, FACTOR, HORIZON, WINDOW = Pace.of(LONG)
REGULARISERS = [afec.EWC, afec.MAS, afec.SI, afec.RWALK]


# -- the rule, by hand ------------------------------------------------------------------------------------------------


def test_the_first_strength_is_the_gain_by_the_cost_of_the_way_to_the_reference():
    # From 2.0 down to 0.5 gains 1.5; at λ = 1 the way there costs 0.03: 1.5 / 0.03 = 50.
    assert first_strength(2.0, 0.5, 0.03, LONG)["path"] == [pytest.approx(START * 50)]
    assert first_strength(2.0, 0.5, 3.0, LONG)["path"] == [pytest.approx(START * 0.5)]  # a hundred times the importance


def test_the_pace_by_hand():
    assert (START, FACTOR, HORIZON, WINDOW) == (100, 1.2, 40, 5)
    assert Pace.of(10 * LONG) == Pace.of(LONG)
    # Of 80 epochs 20 are a quarter: 100^(1/4) = 3.16. Twenty steps of 1000^(1/20) = 1.41 are a factor of 1000.
    assert Pace.of(20) == pytest.approx((3.1623, 1.4125, 10, 5), rel=1e-4)
    assert Pace.of(3) == pytest.approx((1.1885, 10, 1.5, 1), rel=1e-4)
    assert first_strength(2.0, 0.5, 0.03, None) == first_strength(2.0, 0.5, 0.03, UNKNOWN)


@pytest.mark.parametrize("epochs", [1, 3, 10, 79])
def test_a_short_training_can_reach_a_thousandth_of_its_first_strength(epochs):
    known = first_strength(1.0, 0.0, 1.0, epochs)
    for _ in range(epochs + WINDOW):  # as many epochs as the window needs to see that nothing moves
        known = after_epoch(known, 1.0, 0.05)
    assert known["path"][-1] <= known["path"][0] / 999


def test_no_unit_of_the_loss_matters():
    # −log p in nats, and the same in bits and shifted.
    losses = [1.9, *[1.5] * 12, 1.2, 0.4]
    one, other = (
        first_strength(2.0, 0.5, 0.1, LONG),
        first_strength(2 / math.log(2) + 7, 0.5 / math.log(2) + 7, 0.1 / math.log(2), LONG),
    )
    for loss in losses:
        one, other = after_epoch(one, loss, 0.05), after_epoch(other, loss / math.log(2) + 7, 0.05)
    assert one["path"] == pytest.approx(other["path"])
    assert one["path"][-1] < one["path"][0]


def test_it_falls_where_the_new_task_is_stuck():
    # Gain 1, τ = 0.1. The loss stays at 0.6, so m = 0.6; what is missing to τ is 0.5, and within HORIZON epochs the rate of the
    # latest WINDOW epochs would have to make it: (1 − 0.6)/k for k ≤ WINDOW epochs from the start, then 0.
    known = first_strength(1.0, 0.0, 1.0, LONG)
    assert known["path"] == [START]
    for epoch in range(1, WINDOW + 1):
        known = after_epoch(known, 0.6, 0.1)
        assert (0.4 / epoch * HORIZON >= 0.5) == (known["path"][-1] == START)
    known = after_epoch(known, 0.6, 0.1)  # log(0.6/0.1) is beyond the clip
    assert known["path"][-1] == pytest.approx(known["path"][-2] / FACTOR)
    near = after_epoch(
        {**known, "missed": [0.12] * WINDOW}, 0.12, 0.1
    )  # close to τ the steps are small: log(1.2) of log
    assert near["path"][-1] == pytest.approx(known["path"][-1] * FACTOR ** -math.log(1.2))


def test_it_rises_where_the_new_task_has_more_than_it_needs_and_never_above_its_start():
    known = {**first_strength(1.0, 0.0, 1.0, LONG), "path": [START, START / 10]}
    low = after_epoch(known, 0.05, 0.1)  # log(0.05/0.1) = −0.69, inside the clip
    assert low["path"][-1] == pytest.approx(START / 10 * FACTOR ** math.log(2))
    below = after_epoch(known, -0.3, 0.1)  # better than the reference
    assert below["path"][-1] == pytest.approx(START / 10 * FACTOR)
    for _ in range(100):
        below = after_epoch(below, 0.0, 0.1)
    assert below["path"][-1] == START


def test_where_the_reference_learned_nothing_it_stays():
    known = first_strength(1.0, 1.0, 0.3, LONG)
    assert after_epoch(known, 2.0, 0.1)["path"] == [START, START]


# -- in a loop of one's own -------------------------------------------------------------------------------------------


def loss_of(digits, model, number):
    x, y = digits.tasks[number]
    with torch.no_grad():
        return float(nn.functional.cross_entropy(model(x), y))


def learned(digits, guard, *, tell="loss", epochs=6, optimizer=torch.optim.Adam, stop=None, told=None):
    """Both tasks under the guard; the model and λ of each epoch of the second one."""
    torch.manual_seed(0)
    model = copy.deepcopy(digits.model)
    steps = optimizer(model.parameters(), 1e-2)
    for number, (x, y) in enumerate(digits.tasks):
        options = {"evaluate": lambda number=number: loss_of(digits, model, number)} if tell == "evaluate" else {}
        with guard.learning(model, steps, (x, y), nn.CrossEntropyLoss(), epochs=told, **options) as task:
            for epoch in range(epochs):
                for rows in torch.arange(len(x)).split(50):
                    steps.zero_grad()
                    nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
                    steps.step()
                if (number, epoch) == stop:
                    return guard.state_dict(), {k: v.clone() for k, v in model.state_dict().items()}, steps.state_dict()
                if tell == "loss":
                    task.epoch(loss=loss_of(digits, model, number))
                elif tell is not None:
                    task.epoch()
            paths = task.strengths()
    return model, paths


@pytest.mark.parametrize("method", REGULARISERS)
def test_every_regulariser_finds_a_strength_in_a_plain_loop(digits, method):
    model, paths = learned(digits, method("auto", reference_epochs=3))
    (path,) = paths.values()
    assert len(path) == 7
    assert all(0 < one < math.inf for one in path)
    free, nothing = learned(digits, method(1e-9))
    assert nothing == {}
    assert loss_of(digits, model, 0) < loss_of(digits, free, 0)  # the old task is held


def test_few_epochs_are_enough(digits):
    """At the pace of a long training λ would hardly have moved, and the new task would not be learned."""
    (short, _), (slow, _) = (
        learned(digits, afec.EWC("auto", reference_epochs=6), told=told) for told in (6, 10 * LONG)
    )
    assert loss_of(digits, short, 1) < 0.7 * loss_of(digits, slow, 1)


def test_the_reference_is_as_long_as_the_training(digits, monkeypatch):
    seen = []
    monkeypatch.setattr("afec.methods.regulariser.train_theta_e", lambda task, optimizers, epochs: seen.append(epochs))
    for given, told in ((None, 6), (3, 6), (None, None)):
        learned(digits, afec.EWC("auto", reference_epochs=given), told=told)
    assert [len(epochs) for epochs in seen] == [6, 3, 10]


def test_the_tolerance_changes_the_result(digits):
    strict, loose = (
        learned(digits, afec.EWC("auto", tolerance=t, reference_epochs=3), epochs=25, told=LONG) for t in (0.01, 0.9)
    )
    assert min(strict[1]["ewc"]) < min(loose[1]["ewc"])
    assert loss_of(digits, strict[0], 1) < loss_of(digits, loose[0], 1)


def test_the_unit_of_the_importance_does_not_matter(digits):
    """`half=False` doubles the pull at the same λ; `auto` finds half the λ and the same weights."""
    (one, paths), (other, halves) = (learned(digits, afec.SI("auto", half=half)) for half in (True, False))
    assert halves["si"] == pytest.approx([strength / 2 for strength in paths["si"]], rel=1e-4)
    for here, there in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(here, there, rtol=1e-3, atol=1e-4)


def test_evaluate_is_as_good_as_telling(digits):
    def evaluated(tell):
        return learned(digits, afec.EWC("auto", reference_epochs=2), tell=tell)[1]["ewc"]

    assert len(evaluated("evaluate")) == len(evaluated("loss"))


def test_the_penalty_has_the_strength_of_the_moment(digits):
    guard = afec.EWC("auto", reference_epochs=2)
    learned(digits, guard)
    model = copy.deepcopy(digits.model)
    x, y = digits.tasks[0]
    with guard.learning(model, torch.optim.SGD(model.parameters(), 0.1), (x, y), nn.CrossEntropyLoss()) as task:
        state = guard.state_dict()["states"]["ewc"]
        weights = dict(model.named_parameters())
        half = sum(
            0.5 * (f * (weights[k].detach() - state["mean"][k]) ** 2).sum() for k, f in state["precision"].items()
        )
        assert float(task.penalty()) == pytest.approx(task.strengths()["ewc"][-1] * float(half), rel=1e-4)


def test_the_reference_leaves_everything_as_it_was(digits):
    guard = afec.EWC("auto", reference_epochs=2)
    learned(digits, guard)
    model, (x, y) = copy.deepcopy(digits.model), digits.tasks[1]
    steps = torch.optim.Adam(model.parameters(), 1e-2)
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    task = guard.begin(model, steps, (x, y), nn.CrossEntropyLoss())
    assert same(dict(model.state_dict()), dict(before))
    assert torch.equal(torch.get_rng_state(), random)
    assert not steps.state
    task.abort()


def test_afecs_theta_e_is_the_reference(digits, monkeypatch):
    trained = []
    monkeypatch.setattr("afec.methods.regulariser.Regulariser._learn_alone", lambda *_: trained.append(1))
    guard = afec.EWC("auto") + afec.AFEC(0.1, epochs=2)
    assert len(learned(digits, guard)[1]["ewc"]) == 7
    assert not trained


def test_it_goes_on_bit_for_bit_in_the_middle_of_a_task(digits):
    whole = afec.MAS("auto", reference_epochs=2)
    model, paths = learned(digits, whole)
    state, weights, optimizer = learned(digits, afec.MAS("auto", reference_epochs=2), stop=(1, 2))
    guard, twin = afec.MAS("auto", reference_epochs=2), copy.deepcopy(digits.model)
    guard.load_state_dict(state)
    twin.load_state_dict(weights)
    steps, (x, y) = torch.optim.Adam(twin.parameters(), 1e-2), digits.tasks[1]
    steps.load_state_dict(optimizer)
    with guard.learning(twin, steps, (x, y), nn.CrossEntropyLoss()) as task:
        task.epoch(loss=loss_of(digits, twin, 1))
        assert task.strengths()["mas"] == paths["mas"][:4]


# -- in the learner ---------------------------------------------------------------------------------------------------


def test_the_learner_tells_the_validation_loss_and_counts_the_reference():
    tasks, seen = few_tasks(2), []
    learner = small_learner(tasks, afec.EWC("auto"), on_progress=seen.append)
    first, second = (learner.learn(task) for task in tasks)
    assert first.epochs_theta_e == 0 < second.epochs_theta_e
    assert "reference" in second.seconds
    phases = [(one.task, one.phase) for one in seen]
    assert phases[0] == (0, "train")
    assert (1, "reference") in phases
    assert [set(one.strengths) for one in seen] == [{"ewc"} if (n, p) == (1, "train") else set() for n, p in phases]


def test_the_best_weights_are_judged_by_the_strength_of_the_moment():
    """Where λ has changed, what was best is compared with what is new under one λ: `Fit.judge_best_again`."""
    tasks = few_tasks(2)
    learner = small_learner(tasks, afec.EWC("auto"))
    judged = []
    from afec.learner import fit

    plain = fit.Fit.judge_best_again
    fit.Fit.judge_best_again = lambda self, extra: (judged.append(self._best_loss + extra), plain(self, extra))[1]
    try:
        for task in tasks:
            learner.learn(task)
    finally:
        fit.Fit.judge_best_again = plain
    assert judged
    assert all(map(math.isfinite, judged))


# -- what it refuses --------------------------------------------------------------------------------------------------


def test_a_loop_that_never_tells_its_loss_is_an_error(digits):
    with pytest.raises(
        RuntimeError, match=r'EWC\(strength="auto"\) finds λ by the loss of every epoch, and was told none'
    ):
        learned(digits, afec.EWC("auto", reference_epochs=1), tell=None)
    with pytest.raises(ValueError, match=r"call task.epoch\(loss=…\) with the loss of the epoch that has ended"):
        learned(digits, afec.EWC("auto", reference_epochs=1), tell="nothing")


def test_losses_that_are_none(digits):
    guard = afec.EWC("auto", reference_epochs=1)
    learned(digits, guard)
    model, (x, y) = copy.deepcopy(digits.model), digits.tasks[1]
    task = guard.begin(model, torch.optim.SGD(model.parameters(), 0.1), (x, y), nn.CrossEntropyLoss())
    with pytest.raises(FloatingPointError, match="is nan: training diverged"):
        task.epoch(loss=float("nan"))
    with pytest.raises(TypeError, match="must be one number"):
        task.epoch(loss=torch.zeros(3))
    task.abort()


def test_what_does_not_fit_is_said_before_anything_is_learned(digits):
    model, (x, y) = copy.deepcopy(digits.model), digits.tasks[0]
    with pytest.raises(ValueError, match="learns the new task alone first, and there is no optimiser"):
        afec.EWC("auto").begin(model, None, (x, y), nn.CrossEntropyLoss())
    steps = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(ValueError, match="these data are made on demand; give learning"):
        afec.EWC("auto").begin(model, steps, lambda: [(x, y)], nn.CrossEntropyLoss())
    for given in (0, 2.5):
        with pytest.raises(ValueError, match=rf"epochs must be a whole number ≥ 1, or None; got {given}"):
            afec.EWC("auto").begin(model, steps, (x, y), nn.CrossEntropyLoss(), epochs=given)
    with pytest.raises(ValueError, match=r"tolerance is of strength='auto' only; got tolerance=0.1 with strength=1.0"):
        afec.EWC(1.0, tolerance=0.1)
    with pytest.raises(ValueError, match="tolerance .* must be a finite number > 0; got 0"):
        afec.EWC("auto", tolerance=0.0)
