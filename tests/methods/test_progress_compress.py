"""Progress & compress: its equations by hand, and each of its parts on real digits."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import afec
from afec.learner import Learner, Memo, Schedule
from afec.learner.machine import Machine
from afec.learner.tasks import BatchLoss
from afec.methods.progress_compress import Distillation
from afec.nets import MultiHead, make_backbone
from afec.randomness import forked
from small_learning import few_tasks, numbers, same

SCHEDULE = Schedule(batch_size=16, lr=1e-2, max_epochs=3, patience=None, best_weights=False)


class Says(nn.Module):
    """Its outputs, whatever the input."""

    def __init__(self, outputs):
        super().__init__()
        self.outputs = nn.Parameter(torch.tensor(outputs))

    def forward(self, x, task):
        return self.outputs.expand(len(x), -1)


def distance(kind, outputs, targets, temperature=1.0):
    loss = Distillation(BatchLoss(0, kind, Machine()), temperature)
    return loss(Says(outputs), (torch.zeros(2, 1), torch.tensor([targets] * 2))).item()


def test_distillation_by_hand():
    """The column says (¾, ¼), the base (½, ½): KL = ¾·ln(¾/½) + ¼·ln(¼/½)."""
    kl = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert distance("cross_entropy", [0.0, 0.0], [math.log(3), 0.0]) == pytest.approx(kl, rel=1e-6)
    # T = 2: the softer column says (3, 1)^½ / (√3 + 1), and the loss counts T² = 4 times.
    p = math.sqrt(3) / (math.sqrt(3) + 1)
    soft = 4 * (p * math.log(p / 0.5) + (1 - p) * math.log((1 - p) / 0.5))
    assert distance("cross_entropy", [0.0, 0.0], [math.log(3), 0.0], 2.0) == pytest.approx(soft, rel=1e-6)
    assert distance("cross_entropy", [1.0, 3.0], [1.0, 3.0]) == pytest.approx(0, abs=1e-7)
    assert distance("cross_entropy", [0.0, 0.0], [math.log(3), 0.0]) != distance(
        "cross_entropy", [math.log(3), 0.0], [0.0, 0.0]
    )  # KL(column ‖ base), not the other way round


def test_a_regression_matches_the_columns_outputs():
    assert distance("mse", [1.0, 0.0], [3.0, 0.0]) == 2.0  # (4 + 0)/2
    assert distance("mse", [1.0, 0.0], [3.0, 0.0], 5.0) == 2.0  # no temperature
    assert distance("cosine", [1.0, 0.0], [0.0, 2.0]) == pytest.approx(1.0)
    assert distance("angular", [0.0], [math.pi]) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("decay", "of_first", "of_second"), [(0.5, 0.5, 1.0), (1.0, 1.0, 1.0), (0.0, 0.0, 1.0), ("mean", 0.5, 0.5)]
)
def test_the_online_fisher_by_hand(decay, of_first, of_second):
    """F ← γ·F + F_t, from the Fisher of each task alone."""
    with forked(0):
        model, data = nn.Linear(3, 2), [(torch.randn(8, 3), torch.randint(0, 2, (8,))) for _ in range(2)]

    def precision(guard, tasks):
        for task in tasks:
            with guard.learning(model, None, task, nn.CrossEntropyLoss()):
                pass  # the weights stay: so each Fisher is that of the task alone
        return guard.state_dict()["states"]["ewc"]["precision"]

    alone = [precision(afec.EWC(1.0), [task]) for task in data]
    both = precision(afec.EWC(1.0, decay=decay), data)
    for name, found in both.items():
        assert torch.allclose(found, of_first * alone[0][name] + of_second * alone[1][name], rtol=1e-5)


def learner_of(tasks, method, name="digits", **options):
    with forked(1):
        net = MultiHead(make_backbone(name), [task.outputs for task in tasks])
    return Learner(net, method, **{"schedule": SCHEDULE, "seed": 3, **options})


def test_progress_leaves_the_base_alone_and_compress_brings_it_to_the_column():
    tasks, seen = few_tasks(2), []

    def look(phase):
        run = learner._run
        fit = run.running[1]
        seen.append((phase.task, phase.phase, {k: v.clone() for k, v in learner.net.state_dict().items()}, fit.loss_fn))
        if phase.phase == "compress":
            targets = run.task_state["targets"][0]
            with torch.no_grad():
                says = learner.net.eval()(tasks[phase.task].train.inputs, task=phase.task)
            distances.append(float(F.mse_loss(torch.softmax(says, 1), torch.softmax(targets, 1))))

    distances = []
    learner = learner_of(tasks, afec.ProgressCompress(10.0), on_progress=look)
    entry = {k: v.clone() for k, v in learner.net.state_dict().items()}
    for task in tasks:
        learner.learn(task)
    assert [place[1] for place in seen] == (["progress"] * 3 + ["compress"] * 3) * 2
    for number in (0, 1):
        for _, _, net, loss in (place for place in seen if place[:2] == (number, "progress")):
            assert same(net, entry)
            assert isinstance(loss, BatchLoss)
        entry = seen[6 * number + 5][2]
    assert isinstance(seen[3][3], Distillation)
    assert distances[2] < distances[0]
    assert distances[5] < distances[3]


def test_what_it_costs():
    tasks, phases = few_tasks(2), []
    learner = learner_of(tasks, afec.ProgressCompress(10.0, progress_epochs=1, compress_epochs=2))
    learner.on_progress = lambda p: phases.append((p.task, p.phase, p.epoch.number))
    took = [learner.learn(task) for task in tasks]
    of_task = [("progress", 1), ("compress", 1), ("compress", 2)]
    assert phases == [(number, *place) for number in (0, 1) for place in of_task]
    # 48 images a pass; the column says what it knows of 48 + 30 images; one Fisher pass.
    assert [one.samples for one in took] == [(1 + 2) * 48 + 48 + 30 + 48] * 2
    assert [(one.epochs, one.best_epoch, one.epochs_theta_e) for one in took] == [(3, 2, 0)] * 2
    assert set(took[1].seconds) == {"progress", "compress", "fisher"}
    both = learner_of(tasks, afec.ProgressCompress(10.0, progress_epochs=1, compress_epochs=2) + afec.AFEC(0.1))
    took = [both.learn(task) for task in tasks]
    assert [one.epochs_theta_e for one in took] == [0, 3]
    assert took[1].samples == (1 + 2 + 3) * 48 + 48 + 30 + 48 + 48  # θ_e and F_e as well
    assert set(took[1].seconds) == {"progress", "compress", "expand", "fisher"}


BASE = {"strength": 10.0, "decay": 0.5}
SWITCHES = {
    "strength": {"strength": 0.0},
    "decay": {"decay": "mean"},
    "no decay": {"decay": 1.0},
    "column": {"column": "kept"},
    "adapters": {"adapters": False},
    "adapter_width": {"adapter_width": 0.5},
    "temperature": {"temperature": 2.0},
    "progress_epochs": {"progress_epochs": 1},
    "compress_epochs": {"compress_epochs": 1},
    "preset": {"preset": "official"},
}


def learned(options, tasks, **others):
    learner = learner_of(tasks, afec.ProgressCompress(**{**BASE, **options}), **others)
    took = [learner.learn(task) for task in tasks]
    return learner, took


@pytest.fixture(scope="module")
def base():
    tasks = few_tasks(3)
    return tasks, learned({}, tasks)[0]


@pytest.mark.parametrize("switch", SWITCHES)
def test_every_switch_changes_what_is_learned_from_digits(switch, base):
    tasks, whole = base
    other, _ = learned(SWITCHES[switch], tasks)
    assert not same(dict(other.net.state_dict()), dict(whole.net.state_dict()))
    kept = other.strategy.state["column"]
    assert (kept is not None) is (switch == "column")
    assert kept is None or not any(name.startswith("heads.") for name in kept)


def test_the_first_progress_is_shared_by_all_strengths(tmp_path):
    tasks, memo = few_tasks(2), Memo(tmp_path)
    expected, took = learned({}, tasks)
    learned({"strength": 3.0}, tasks, memo=memo)
    ran = []
    again, took_again = learned({}, tasks, memo=memo, on_progress=lambda p: ran.append((p.task, p.phase)))
    assert (0, "progress") not in ran
    assert (1, "progress") in ran  # there the column listens to the base
    assert same(again.state_dict(), expected.state_dict())
    assert numbers(took_again) == numbers(took)


@pytest.mark.parametrize("batch_norm", ["shared", "per-task"])
@pytest.mark.parametrize("method", [lambda: afec.ProgressCompress(1.0), lambda: afec.AGSCL(1.0)])
def test_batch_norm_of_either_kind(batch_norm, method):
    tasks = few_tasks(2)
    with forked(1):
        net = MultiHead(make_backbone("vgg11bn", channels=1, size=8, width=2, batch_norm=batch_norm), [2, 2])
    learner = Learner(net, method(), schedule=SCHEDULE)
    for task in tasks:
        learner.learn(task)
    assert all(0 <= found <= 1 for found in learner.evaluate(tasks))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strength": -1}, "strength .* must be a finite number ≥ 0; got -1"),
        ({"decay": 1.5}, r"decay .* must be in \[0, 1\], or 'mean'; got 1.5"),
        ({"decay": "sum"}, "decay .* must be in .*, or 'mean'; got 'sum'"),
        ({"column": "old"}, "column must be one of 'fresh', 'kept'; got 'old'"),
        ({"adapters": 1}, "adapters must be True or False; got 1"),
        ({"adapter_width": 0}, "adapter_width must be a finite number > 0; got 0"),
        ({"temperature": 0}, "temperature must be a finite number > 0; got 0"),
        ({"progress_epochs": 0}, "progress_epochs must be an integer ≥ 1; got 0"),
        ({"compress_epochs": 2.5}, "compress_epochs must be an integer ≥ 1; got 2.5"),
        ({"fisher": "mine"}, "fisher must be one of"),
    ],
)
def test_options_that_are_none(options, message):
    with pytest.raises(ValueError, match=message):
        afec.ProgressCompress(**{"strength": 1.0, **options})
