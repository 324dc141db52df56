"""A stop by a token: where it stops, and that it goes on bit for bit, in every phase."""

import copy

import pytest

import afec
from afec.files import load_tree
from afec.learner import StoppedError
from afec.learner.fit import Stop
from small_learning import few_tasks, numbers, same, small_learner


class After:
    """Asks to stop when it was looked at so many times."""

    def __init__(self, looks):
        self.left = looks

    @property
    def asked(self):
        self.left -= 1
        return self.left == 0


METHODS = {
    "finetune": lambda: None,
    "ewc+afec": lambda: afec.EWC(1.0) + afec.AFEC(0.5),
    "rwalk official": lambda: afec.RWALK(1.0, preset="official"),
    "progress-compress+afec": lambda: afec.ProgressCompress(10.0) + afec.AFEC(0.5),
    "joint": lambda: None,
}

QUICK = ("ewc+afec", "progress-compress+afec", "joint")


def learn(learner, name, tasks, number):
    return learner.learn_jointly(tasks[: number + 1]) if name == "joint" else learner.learn(tasks[number])


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in METHODS]
)
def test_stopped_after_any_epoch_the_same_learner_and_a_fresh_one_go_on_bit_for_bit(name, tmp_path):
    tasks, seen = few_tasks(2), []
    whole = small_learner(tasks, METHODS[name](), on_progress=seen.append)
    took = [learn(whole, name, tasks, number) for number in range(2)]
    first = sum(at.task == 0 for at in seen)
    for epoch in range(1, len(seen) - first + 1):
        learner = small_learner(tasks, METHODS[name]())
        learn(learner, name, tasks, 0)
        learner.stop = After(epoch)
        with pytest.raises(StoppedError, match="stopped after epoch"):
            learn(learner, name, tasks, 1)
        assert learner.tasks_learned == [tasks[0].name]
        learner.save(tmp_path / "stopped.safetensors")
        fresh = small_learner(tasks, METHODS[name](), seed=99).load(tmp_path / "stopped.safetensors")
        for one in (learner, fresh):
            one.stop = None
            assert numbers([learn(one, name, tasks, 1)]) == numbers(took[1:])
            assert same(one.state_dict(), whole.state_dict())


def test_the_state_is_complete_when_progress_is_told_and_the_token_is_looked_at_after_it():
    tasks, order, states = few_tasks(1), [], []

    class Token:
        @property
        def asked(self):
            order.append("looked")
            return len(order) == 4

    def on_progress(at):
        order.append("told")
        states.append(copy.deepcopy(learner.state_dict()))

    token: Stop = Token()
    learner = small_learner(tasks, on_progress=on_progress, stop=token)
    with pytest.raises(StoppedError):
        learner.learn(tasks[0])
    assert order == ["told", "looked"] * 2
    assert same(dict(learner.state_dict()), states[-1])


def test_a_joint_training_is_taken_up_after_any_epoch_and_by_nothing_else(tmp_path):
    tasks, files = few_tasks(3, sizes=[2, 3, 2]), []

    def save(at):
        files.append((at.task, tmp_path / f"{len(files)}.safetensors"))
        learner.save(files[-1][1])

    learner = small_learner(tasks, on_progress=save)
    took = [learner.learn_jointly(tasks[: number + 1]) for number in range(3)]
    assert len(files) == 6
    for number, file in files:
        again = small_learner(tasks, seed=99).load(file)
        with pytest.raises(ValueError, match="loaded in the middle of the task"):
            again.learn(tasks[2 if number < 2 else 1])
        assert numbers([again.learn_jointly(tasks[: n + 1]) for n in range(number, 3)]) == numbers(took[number:])
        assert same(again.state_dict(), learner.state_dict())
    assert load_tree(files[-1][1])["inside"]["tasks"] == [task.name for task in tasks]


def test_a_linear_probe_stops_and_leaves_nothing_behind():
    tasks = few_tasks(2)
    learner = small_learner(tasks)
    learner.learn(tasks[0])
    before, learner.stop = copy.deepcopy(learner.state_dict()), After(1)
    with pytest.raises(StoppedError):
        learner.linear_probe(tasks[1])
    assert same(learner.state_dict(), before)
