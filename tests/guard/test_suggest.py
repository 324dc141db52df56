"""The sweep over strengths: it finds what the same trainings by hand find, and changes nothing."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import afec
from afec import AFEC, EWC, MAS, Prior, Recycle
from small_learning import same


def accuracy(model, data):
    return float((model(data[0]).argmax(1) == data[1]).float().mean())


class Case:
    """A guard that has learned one task, and the functions that `suggest` wants for the second."""

    def __init__(self, setting, guard):
        self.setting, self.guard = setting, guard
        self.data = setting.tasks[0]
        with self.learning():
            setting.train(self.data, 30)
        self.data = setting.tasks[1]

    def learning(self):
        setting = self.setting
        alone = {"train": lambda: setting.train(self.data)}
        return self.guard.learning(setting.model, setting.optimizer, self.data, setting.loss, **alone)

    def train(self, model, optimizer):
        assert model is self.setting.model
        assert optimizer is self.setting.optimizer
        self.setting.train(self.data, 20)

    def score(self, model):
        assert not model.training
        assert not torch.is_grad_enabled()
        return (accuracy(model, self.setting.tasks[0]) + accuracy(model, self.setting.tasks[1])) / 2

    def suggest(self, **options):
        given = {"train": self.train, "score": self.score} | options
        setting = self.setting
        return self.guard.suggest(setting.model, setting.optimizer, given.pop("data", self.data), setting.loss, **given)


def everything(setting, guard):
    """Copies of all that must stay, and which object is where."""
    model, optimizer = setting.model, setting.optimizer
    return {
        "states": copy.deepcopy((model.state_dict(), optimizer.state_dict(), guard.state_dict())),
        "grads": [None if p.grad is None else (id(p.grad), p.grad.clone()) for p in model.parameters()],
        "modes": [module.training for module in model.modules()],
        "attributes": {key: id(value) for key, value in vars(optimizer).items()},
        "random": (torch.get_rng_state(), repr(random.getstate()), repr(np.random.get_state())),
        "data": [tensor.clone() for task in setting.tasks for tensor in task],
    }


@pytest.mark.parametrize(
    "make",
    [
        lambda: EWC(100.0),
        lambda: EWC("auto"),
        lambda: afec.SI(1.0) + AFEC(0.1, epochs=2),
        lambda: MAS(1.0) + Prior(0.1) + Recycle(threshold=0.1),
        lambda: EWC(1.0) + AFEC(0.1),  # θ_e is trained by the user's function
    ],
    ids=["ewc", "auto", "si+afec", "mas+prior+recycle", "untold"],
)
def test_nothing_is_touched_to_the_last_bit(setting, make):
    case = Case(setting, make())
    setting.model.eval()
    generator = torch.Generator().manual_seed(5)
    loader = DataLoader(TensorDataset(*case.data), 16, shuffle=True, generator=generator)

    def train(model, optimizer):
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        random.random(), np.random.rand(), torch.rand(1)
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            setting.loss(model(x), y).backward()
            optimizer.step()
            scheduler.step()

    before, drawn = everything(setting, case.guard), generator.get_state()
    found = case.suggest(train=train, data=loader, strengths=[1, 100])
    assert [trial.strength for trial in found.trials] == [1, 100]
    assert same(before, everything(setting, case.guard))
    assert torch.equal(drawn, generator.get_state())
    with case.learning() as task:  # no weight is held any more
        task.epoch(loss=1.0)
        setting.train(case.data, 1)
        task.epoch(loss=1.0)


def test_each_score_is_that_of_the_same_training_by_hand(setting):
    case = Case(setting, EWC(100.0))
    found = case.suggest(strengths=[10, 0, 1000, 10])
    assert [trial.strength for trial in found.trials] == [0, 10, 1000]
    state, weights = case.guard.state_dict(), copy.deepcopy(setting.model.state_dict())
    for trial in found.trials:
        guard = EWC(trial.strength)
        guard.load_state_dict(state)
        setting.model.load_state_dict(weights)
        setting.optimizer = torch.optim.Adam(setting.model.parameters(), 1e-2)
        with guard.learning(setting.model, setting.optimizer, case.data, setting.loss):
            setting.train(case.data, 20)
        with torch.no_grad():
            assert case.score(setting.model.eval()) == trial.score
        setting.model.train()
    assert len({trial.score for trial in found.trials}) > 1
    assert found.strength == max(found.trials, key=lambda trial: trial.score).strength


@pytest.mark.parametrize("strength", [1e-4, 10.0, 1e8, "auto"])
def test_the_default_grid_lies_around_a_pull_that_is_at_work(setting, strength):
    case = Case(setting, EWC(strength))
    found = case.suggest()
    strengths = [trial.strength for trial in found.trials]
    assert strengths == pytest.approx([strengths[2] * 10.0**power for power in (-2, -1, 0, 1, 2)])
    middle = EWC(strengths[2])
    middle.load_state_dict(case.guard.state_dict())
    report = middle.check(setting.model, setting.optimizer, case.data, setting.loss, seconds=20)
    assert report.verdicts["ewc"].judgement == "at work"


def test_the_table_says_what_was_tried_and_what_is_suggested():
    trials = tuple(afec.guard.Trial(*pair) for pair in ((1.0, 0.5), (10.0, 0.75), (100.0, 0.75), (1000.0, 0.25)))
    found = afec.guard.Suggestion("ewc", trials)
    assert found.strength == 100  # of equal scores the larger strength
    assert str(found).splitlines() == [
        "strengths of ewc",
        "      strength       score",
        "             1         0.5",
        "            10        0.75",
        "           100        0.75  suggested",
        "          1000        0.25",
    ]
    assert "at an end of the grid" in str(afec.guard.Suggestion("ewc", trials[:3]))
    assert "end of the grid" not in str(afec.guard.Suggestion("ewc", trials[:1]))


def test_mistakes_are_said_before_anything_is_trained(setting):
    def never(*arguments):
        raise AssertionError

    arguments = setting.model, setting.optimizer, setting.tasks[0], setting.loss
    told = {"train": never, "score": never}
    with pytest.raises(RuntimeError, match="has learned no task yet, so there is nothing to hold"):
        EWC(1.0).suggest(*arguments, **told)
    with pytest.raises(ValueError, match=r"holds old tasks \(EWC, MAS, SI, RWALK\), and this guard has none: prior"):
        Prior(1.0).suggest(*arguments, **told)
    both = EWC(1.0) + MAS(1.0)
    with pytest.raises(ValueError, match="one strength at a time: say which by of=, one of 'ewc', 'mas'; got of=None"):
        both.suggest(*arguments, **told)
    with pytest.raises(TypeError, match="train must be a function; got 3"):
        EWC(1.0).suggest(*arguments, train=3, score=never)
    case = Case(setting, EWC(1.0))
    with pytest.raises(ValueError, match="got no strengths to try"):
        case.suggest(strengths=[], **told)
    with pytest.raises(ValueError, match=r"each of strengths must be a finite number ≥ 0; got -1"):
        case.suggest(strengths=[-1], **told)
    with pytest.raises(ValueError, match="there is no optimiser. Say which: strengths="):
        case.guard.suggest(setting.model, None, case.data, setting.loss, **told)
    with (
        case.guard.learning(*arguments),
        pytest.raises(RuntimeError, match="call it before the block"),
    ):
        case.suggest(**told)


def test_one_of_two_strengths_is_searched_beside_the_other(setting):
    case = Case(setting, EWC(1.0) + MAS(1.0))
    assert case.suggest(of="mas", strengths=[1]).method == "mas"


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"score": lambda model: float("nan")}, FloatingPointError, "is nan after training with strength 3"),
        ({"score": lambda model: None}, TypeError, "must return one number, higher is better; got None"),
        ({"train": lambda model, optimizer: None}, ValueError, "took no step on a guarded weight"),
        ({"train": lambda model, optimizer: 1 / 0}, ZeroDivisionError, "division"),
    ],
)
def test_a_trial_that_fails_leaves_everything_as_it_was(setting, wrong, error, message):
    case = Case(setting, EWC(1.0))
    before = everything(setting, case.guard)
    with pytest.raises(error, match=message):
        case.suggest(strengths=[3], **wrong)
    assert same(before, everything(setting, case.guard))


def test_a_worthless_trial_is_never_suggested(setting):
    case = Case(setting, EWC(1.0))
    scores = iter([0.5, float("-inf")])
    assert case.suggest(strengths=[1, 10], score=lambda model: next(scores)).strength == 1


def test_heads_that_only_the_loss_knows_are_put_back(setting):
    """An optimiser may hold more than the model."""
    case = Case(setting, EWC(1.0))
    head = nn.Linear(3, 3)
    setting.optimizer.add_param_group({"params": list(head.parameters())})
    before = copy.deepcopy(head.state_dict())

    def train(model, optimizer):
        setting.loss(head(model(case.data[0])), case.data[1]).backward()
        optimizer.step()

    case.suggest(strengths=[1], train=train)
    assert same(before, head.state_dict())
