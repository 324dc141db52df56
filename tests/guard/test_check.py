"""The preflight: it finds what it is for, and changes nothing."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import afec
from afec import AFEC, EWC
from small_learning import same


def everything(setting, guard):
    return copy.deepcopy(
        (setting.model.state_dict(), setting.optimizer.state_dict(), guard.state_dict())
    ), torch.get_rng_state()


@pytest.mark.parametrize("tasks_done", [0, 1])
def test_it_changes_nothing_and_reports_every_layer(setting, tasks_done, capsys):
    guard = EWC(100.0) + AFEC(1.0, epochs=50)
    setting.train(setting.tasks[0], 1)  # so that the optimiser has a state
    for _ in range(tasks_done):
        with guard.learning(setting.model, setting.optimizer, setting.tasks[0], setting.loss):
            setting.train(setting.tasks[0])
    setting.model.eval()
    before = everything(setting, guard)
    report = guard.check(setting.model, setting.optimizer, setting.tasks[1], setting.loss, seconds=1)
    assert same(before, everything(setting, guard))
    assert not setting.model.training
    assert all(p.grad is not None for p in setting.model.parameters())  # the user's own, untouched
    assert [row.name for row in report.layers] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert all(row.gradient > 0 and row.pulls["old"] > 0 and row.pulls["forgetting"] > 0 for row in report.layers)
    assert "the pull arrives at 4 of 4 guarded weights" in report.facts
    assert str(report) in capsys.readouterr().out


def judged(guard, setting, optimizer=None, data=None):
    optimizer = setting.optimizer if optimizer is None else optimizer
    return guard.check(setting.model, optimizer, setting.tasks[1] if data is None else data, setting.loss, seconds=600)


def learned(setting, strength, forgetting):
    guard = EWC(strength) + AFEC(forgetting, epochs=20)
    with guard.learning(setting.model, setting.optimizer, setting.tasks[0], setting.loss):
        setting.train(setting.tasks[0], 10)
    return guard


@pytest.mark.parametrize(
    ("strength", "forgetting", "expected"),
    [
        (10.0, 1.0, ("at work", "at work")),
        (1e-3, 1.0, ("inert", "at work")),
        (10.0, 1e-3, ("at work", "inert")),
        (1e7, 1.0, ("too strong", "at work")),
        (10.0, 1e7, ("at work", "too strong")),
    ],
)
def test_each_term_is_judged_under_adam(setting, strength, forgetting, expected):
    report = judged(learned(setting, strength, forgetting), setting)
    assert tuple(report.verdicts) == ("ewc", "afec")
    assert tuple(verdict.judgement for verdict in report.verdicts.values()) == expected
    for name, verdict in report.verdicts.items():
        assert f"  {name}: {verdict.judgement} (changes the steps by " in str(report)
        said = [
            warning for warning in report.warnings if warning.startswith(f"{name} is {verdict.judgement}: in 50 steps")
        ]
        assert len(said) == (verdict.judgement != "at work")


def test_a_pull_of_a_thousandth_of_the_gradient_is_inert_and_one_of_thousands_too_strong(setting):
    """The ratios of the norms, beside the verdicts that follow from them."""
    weak = judged(learned(setting, 10.0, 3e-3), setting)
    assert 1e-4 < weak.norm("forgetting") / weak.norm() < 3e-3
    assert weak.verdicts["afec"].judgement == "inert"
    strong = judged(EWC(1e9), setting)
    assert strong.norm("old") / strong.norm() > 1e4
    assert strong.verdicts["ewc"].judgement == "too strong"
    assert "so the task is not learned. Lower its strength" in strong.warnings[0]


class OfOnePull(afec.guard.Term):
    """It pulls as its `preview` says, and learns nothing."""

    name = "one-pull"

    def described(self):
        return f"{type(self).__name__}()"

    @property
    def is_off(self):
        return False

    def quadratics(self, task, state, task_state):
        return self.preview(task, state, 0.0)

    def end_task(self, task, state, task_state):
        return {}


def test_adam_makes_full_steps_of_a_tiny_pull_where_there_is_no_gradient():
    """Input 1 is silent in the new task, so nothing but the pull moves its weight: by lr in each step, however weak."""

    class Held(OfOnePull):
        name = "held"

        def preview(self, task, state, seconds):
            mean = {name: value + 1 for name, value in task.values().items()}
            silent = {name: torch.zeros_like(value) for name, value in mean.items()}
            silent["weight"][:, 1] = 1.0
            return [(1e-6, afec.gaussian.Gaussian(mean, silent))]

    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    x = torch.randn(32, 1)
    data = (torch.cat([x, torch.zeros_like(x)], 1), 10 * x)
    adam, sgd = (
        make(model.parameters(), 1e-2, **o) for make, o in ((torch.optim.Adam, {"eps": 1e-16}), (torch.optim.SGD, {}))
    )
    report = Held().check(model, adam, data, nn.MSELoss(), seconds=20)
    assert report.verdicts["held"].judgement == "at work"
    assert report.verdicts["held"].change > 0.3  # one weight of three that move
    assert report.norm("old") < 1e-5 * report.norm()
    assert Held().check(model, sgd, data, nn.MSELoss(), seconds=20).verdicts["held"].judgement == "inert"


def test_under_plain_sgd_the_shares_are_those_worked_out_by_hand():
    """One weight, gradient θ−3 from θ = 0, and a pull 2·(θ−θ*) to θ* = 0, at lr 0.1."""

    class Pulled(OfOnePull):
        name = "pulled"

        def preview(self, task, state, seconds):
            return [(2.0, afec.gaussian.Gaussian(task.values(), {"weight": torch.ones(1, 1)}))]

    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    data = (torch.ones(4, 1), torch.full((4, 1), 3.0))
    sgd = torch.optim.SGD(model.parameters(), 0.1)

    def half_square(output, target):
        return ((output - target) ** 2).mean() / 2

    report = Pulled().check(model, sgd, data, half_square, seconds=20)

    def walk(pull, norms=None):
        theta, seen = 0.0, []
        for step in range(50):
            gradient = theta - 3.0
            seen.append(abs(gradient))
            gradient = gradient if norms is None else -gradient / abs(gradient) * norms[step]
            theta -= 0.1 * (gradient + pull * theta)
        return theta, seen

    (free, norms), (under, own) = walk(0.0), walk(2.0)
    turned, opposite = walk(0.0, norms)[0], walk(2.0, own)[0]
    verdict = report.verdicts["pulled"]
    assert verdict.change == pytest.approx(abs(under - free) / free, rel=1e-4)
    assert verdict.left == pytest.approx(
        abs(under - opposite) / max(abs(under + opposite), abs(free - turned)), rel=1e-4
    )
    assert verdict.judgement == "at work"


def test_a_learning_rate_of_zero_measures_nothing(setting):
    sgd = torch.optim.SGD(setting.model.parameters(), 0.0)
    report = judged(EWC(1.0), setting, sgd)
    assert report.verdicts["ewc"].judgement == "not measured"
    assert any("moves no weight: is its learning rate 0?" in warning for warning in report.warnings)


def test_batches_made_on_demand_are_the_same_in_every_walk(setting):
    """Else the noise of new data would count as the work of a pull."""
    generator = torch.Generator().manual_seed(0)

    def rollouts():
        rows = torch.randint(0, 48, (3, 16), generator=generator)
        return [(setting.tasks[1][0][part], setting.tasks[1][1][part]) for part in rows]

    report = judged(EWC(1e-6, fisher="batched"), setting, data=rollouts)
    assert report.verdicts["ewc"].judgement == "inert"
    assert report.verdicts["ewc"].change < 1e-4


def test_a_strength_that_makes_sgd_diverge_is_named(setting):
    sgd = torch.optim.SGD(setting.model.parameters(), 0.1)
    report = EWC(1e4).check(setting.model, sgd, setting.tasks[0], setting.loss, seconds=1)
    assert any("> 2: plain SGD will diverge" in warning for warning in report.warnings)
    assert report.verdicts["ewc"].judgement == "too strong"
    assert any("its pull overshoots" in warning for warning in report.warnings)
    assert max(row.stiffness for row in report.layers) > 2
    assert not EWC(1.0).check(setting.model, sgd, setting.tasks[0], setting.loss, seconds=1).warnings


def test_the_stiffness_is_lr_times_the_largest_curvature(setting):
    guard = EWC(7.0)
    with guard.learning(setting.model, setting.optimizer, setting.tasks[0], setting.loss):
        setting.train(setting.tasks[0])
    report = guard.check(setting.model, setting.optimizer, setting.tasks[1], setting.loss, seconds=1)
    precision = guard.state_dict()["states"]["ewc"]["precision"]
    for row in report.layers:
        assert row.stiffness == pytest.approx(1e-2 * 7.0 * float(precision[row.name].max()), rel=1e-5)


def test_a_loss_that_is_no_mean_is_named(setting):
    def total(model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")

    report = EWC(1.0, fisher="batched").check(setting.model, setting.optimizer, setting.tasks[0], total, seconds=1)
    assert any("not the mean of its samples' losses" in w and 'fisher="batched"' in w for w in report.warnings)


def test_an_optimizer_that_the_guard_cannot_see_raises(setting):
    class Blind:
        def __init__(self, parameters):
            self.param_groups = [{"params": list(parameters), "lr": 0.1}]
            self.state = {}

        def zero_grad(self):
            for p in self.param_groups[0]["params"]:
                p.grad = None

        @torch.no_grad()
        def step(self):
            for p in self.param_groups[0]["params"]:
                p -= 0.1 * p.grad

    before = copy.deepcopy(setting.model.state_dict())
    with pytest.raises(afec.WeightMovedError, match="not inside an optimiser's step that the guard sees"):
        EWC(1.0).check(setting.model, Blind(setting.model.parameters()), setting.tasks[0], setting.loss)
    assert same(before, setting.model.state_dict())


def test_without_an_optimizer_nothing_is_called_ok_that_was_not_measured(setting):
    report = (EWC(1.0) + AFEC(1.0, expand=lambda: None)).check(setting.model, None, setting.tasks[0], setting.loss)
    assert [verdict.judgement for verdict in report.verdicts.values()] == ["not measured", "not measured"]
    assert any(w.startswith("no optimiser was given") and "AdamW(model.parameters()" in w for w in report.warnings)
    assert report.layers == []
    assert "0 steps" not in str(report)


def test_an_expansion_of_the_users_own_is_not_run(setting):
    report = (EWC(1.0) + AFEC(1.0, expand=lambda: 1 / 0)).check(*arguments_of(setting), seconds=60)
    assert str(report.verdicts["afec"]) == "not measured (how it is trained is known in a task only)"
    assert report.verdicts["ewc"].judgement == "at work"


def arguments_of(setting):
    return setting.model, setting.optimizer, setting.tasks[0], setting.loss


def test_data_that_cannot_be_passed_over_again(setting):
    class Once:
        def __init__(self, batches):
            self.batches = iter(batches)

        def __iter__(self):
            yield from self.batches

    with pytest.raises(ValueError, match="the data are empty"):
        EWC(1.0).check(setting.model, setting.optimizer, Once([setting.tasks[0]]), setting.loss)
