"""What a learner tells the guard: how θ_e is trained, which weights stay; and what it asks: each pull's own value."""

from __future__ import annotations

import copy

import pytest
import torch

from afec import AFEC, EWC, MAS, SI


def learn(setting, guard, data, **options):
    with guard.learning(setting.model, setting.optimizer, data, setting.loss, **options) as task:
        setting.train(data, 1)
    return task


def test_train_is_run_exactly_as_expand_is(setting):
    results = []
    for where in ("expand", "train"):
        own, seen = copy.deepcopy(setting), []
        own.optimizer = torch.optim.Adam(own.model.parameters(), 1e-2)

        def train(own=own, seen=seen):
            seen.append(torch.rand(()).item())  # the same draw: it is seeded alike
            own.train(own.tasks[1], 2)

        guard = EWC(30.0) + (AFEC(1.0, expand=train) if where == "expand" else AFEC(1.0))
        for data in own.tasks[:2]:
            learn(own, guard, data, **({} if where == "expand" else {"train": train}))
        assert len(seen) == 1  # not in the first task
        results.append((seen, [p.detach().clone() for p in own.model.parameters()]))
    assert results[0][0] == results[1][0]
    assert all(map(torch.equal, results[0][1], results[1][1]))


def test_without_any_way_to_train_the_first_block_raises_and_nothing_is_learned(setting):
    guard = EWC(1.0) + AFEC(0.1)
    before = copy.deepcopy(setting.model.state_dict())
    with pytest.raises(ValueError, match=r"how long to train θ_e: epochs=20, or expand=.*learning\(…, train="):
        learn(setting, guard, setting.tasks[0])
    assert guard.tasks_done == 0
    assert not guard.in_task
    assert all(torch.equal(before[name], value) for name, value in setting.model.state_dict().items())
    with pytest.raises(ValueError, match="how long to train"):
        guard.begin(setting.model, setting.optimizer, setting.tasks[0], setting.loss)


def test_the_preflight_names_it(setting):
    arguments = (setting.model, setting.optimizer, setting.tasks[0], setting.loss)
    report = (EWC(1.0) + AFEC(0.1)).check(*arguments, seconds=0.5)
    assert any("how long to train θ_e" in warning for warning in report.warnings)
    report = (EWC(1.0) + AFEC(0.1)).check(*arguments, train=lambda: None, seconds=0.5)
    assert not any("how long to train θ_e" in warning for warning in report.warnings)
    assert report.verdicts["afec"].judgement == "not measured"


def never():
    raise AssertionError("AFEC has its own way")


@pytest.mark.parametrize("own", ["epochs", "expand", "interleaved"])
def test_what_afec_says_itself_wins(setting, own):
    how = {
        "epochs": {"epochs": 1},
        "expand": {"expand": lambda: setting.train(setting.tasks[1], 1)},
        "interleaved": {"schedule": "interleaved"},
    }[own]
    guard = EWC(1.0) + AFEC(0.1, **how)
    for data in setting.tasks[:2]:
        with guard.learning(setting.model, setting.optimizer, data, setting.loss, train=never) as task:
            task.epoch()
            setting.train(data, 1)
    assert guard.tasks_done == 2


def test_off_needs_nothing(setting):
    guard = EWC(1.0) + AFEC(0.0)
    for data in setting.tasks[:2]:
        learn(setting, guard, data)
    assert guard.tasks_done == 2


def test_penalties_are_the_kinds_of_pull_apart(setting):
    guard = EWC(30.0) + AFEC(2.0, epochs=2)
    with guard.learning(setting.model, setting.optimizer, setting.tasks[0], setting.loss) as task:
        setting.train(setting.tasks[0], 1)
        assert {name: float(value) for name, value in task.penalties().items()} == {"old": 0.0, "forgetting": 0.0}
    with guard.learning(setting.model, setting.optimizer, setting.tasks[1], setting.loss) as task:
        setting.train(setting.tasks[1], 2)
        found, saved = task.penalties(), guard.state_dict()
        for name, weight, part in (
            ("old", 30.0, saved["states"]["ewc"]),
            ("forgetting", 2.0, saved["task_states"]["afec"]),
        ):
            weights = dict(setting.model.named_parameters())
            value = sum((f * (weights[n] - part["mean"][n]) ** 2).sum() for n, f in part["precision"].items())
            torch.testing.assert_close(found[name], weight / 2 * value.detach())
            assert value.item() > 0
        torch.testing.assert_close(found["old"] + found["forgetting"], task.penalty())


def test_ewc_and_afec_ignore_bookmarks(setting):
    guard = EWC(30.0) + AFEC(2.0, epochs=1)
    for data in setting.tasks[:2]:
        with guard.learning(setting.model, setting.optimizer, data, setting.loss) as task:
            task.return_to_bookmark()
            before = guard.state_dict()["task_states"]
            task.bookmark()
            setting.train(data, 1)
            task.return_to_bookmark()
            assert guard.state_dict()["task_states"] == before
    with pytest.raises(RuntimeError, match="ended already"):
        task.bookmark()


class Late(EWC):
    """Does something at every epoch."""

    def begin_epoch(self, task, state, task_state):
        return task_state


def test_a_guard_is_idle_where_it_will_neither_pull_nor_watch_in_this_task(setting):
    found = {}
    for name, guard in {
        "ewc": EWC(1.0), "mas": MAS(1.0), "si": SI(1.0), "afec": AFEC(1.0, epochs=1), "official": AFEC(1.0, preset="official"),
        "interleaved": AFEC(1.0, schedule="interleaved"), "off": EWC(0.0) + AFEC(0.0),
    }.items():  # fmt: skip
        for data in setting.tasks[:2]:
            with guard.learning(setting.model, setting.optimizer, data, setting.loss) as task:
                found.setdefault(name, []).append(task.idle)
                task.epoch()
                setting.train(data, 1)
    early, never, always = [True, False], [False, False], [True, True]
    assert found == {
        "ewc": early, "mas": early, "si": never, "afec": early, "official": early, "interleaved": early, "off": always
    }  # fmt: skip
    assert Late(1.0).acts_later({})
    assert not EWC(1.0).acts_later({})


@pytest.mark.parametrize("kept", [True, False], ids=["the old one lives on", "the old one is gone"])
def test_theta_e_follows_the_rate_of_an_optimiser_that_has_not_stepped_yet(setting, kept):
    guard, old = AFEC(1.0, schedule="interleaved"), []
    learn(setting, guard, setting.tasks[0])
    with guard.learning(setting.model, setting.optimizer, setting.tasks[1], setting.loss) as task:
        for rate in (1e-2, 3e-3, 1e-3):
            old.append(setting.optimizer if kept else None)
            setting.optimizer = torch.optim.Adam(setting.model.parameters(), rate)
            task.epoch(setting.optimizer)
            assert task.task_states["afec"]["lrs"] == [rate]
            setting.train(setting.tasks[1], 1)
            task.epoch()  # one that has stepped is known
            assert task.task_states["afec"]["lrs"] == [rate]


def test_samples_of_fisher_passes_are_counted(setting):
    guard = EWC(1.0) + AFEC(1.0, epochs=2)
    first = learn(setting, guard, setting.tasks[0])
    assert first.samples_measured == 48  # EWC's Fisher at the end
    with guard.learning(setting.model, setting.optimizer, setting.tasks[1], setting.loss) as task:
        assert task.samples_measured == 48  # F_e at the entry
        setting.train(setting.tasks[1], 1)
    assert task.samples_measured == 96


def test_aborting_the_first_task_gives_the_seed_back(setting):
    guard = EWC(1.0)
    arguments = (setting.model, setting.optimizer, setting.tasks[0], setting.loss)
    torch.manual_seed(5)
    guard.begin(*arguments)
    assert guard.state_dict()["seed"] == 5
    guard.task.abort()
    assert guard.state_dict()["seed"] is None
    torch.manual_seed(6)
    with pytest.raises(KeyboardInterrupt), guard.learning(*arguments):
        raise KeyboardInterrupt
    assert guard.state_dict()["seed"] is None
    torch.manual_seed(7)
    learn(setting, guard, setting.tasks[0])
    assert guard.state_dict()["seed"] == 7
    guard.begin(setting.model, setting.optimizer, setting.tasks[1], setting.loss).abort()
    assert guard.state_dict()["seed"] == 7  # of a later task it is the guard's own
