"""A learner saved after any epoch and loaded into fresh objects ends as the one that was never stopped, bit for bit."""

import copy
import io
from dataclasses import replace

import pytest

import afec
from afec.files import load_tree, save_tree
from afec.streams import Split
from small_learning import SHORT, few_tasks, numbers, same, small_learner

BASES = {"ewc": afec.EWC, "mas": afec.MAS, "si": afec.SI, "rwalk": afec.RWALK}


def sums(preset, **options):
    """Each method with AFEC."""
    return {
        f"{name}+afec": lambda make=make: make(1.0, preset=preset) + afec.AFEC(0.5, preset=preset, **options)
        for name, make in BASES.items()
    }


GUARDS = {
    "finetune": lambda: None,
    "afec": lambda: afec.AFEC(0.5),
    **{name: lambda make=make: make(1.0) for name, make in BASES.items()},
    **sums("default"),
    "ewc+afec from main": sums("default", expand_from="main")["ewc+afec"],
    "ewc+afec carried": sums("default", expand_from="carry")["ewc+afec"],
    "ewc+afec merged": sums("default", start="merged")["ewc+afec"],
    "ewc+afec own epochs": sums("default", epochs=3)["ewc+afec"],
    "ewc+afec sampled": lambda: afec.EWC(1.0, fisher="sample") + afec.AFEC(0.5, fisher="sample"),
    **{f"{name} official": lambda make=make: make(1.0, preset="official") for name, make in BASES.items()},
    **{f"{name} official": make for name, make in sums("official").items()},
    **{f"{name} auto": lambda make=make: make("auto") for name, make in BASES.items()},
    "si auto+afec": lambda: afec.SI("auto") + afec.AFEC(0.5),
    "ags-cl": lambda: afec.AGSCL(100.0, mu=5),
    "ags-cl by step+ewc": lambda: afec.AGSCL(100.0, mu=5, proximal="step") + afec.EWC(1.0),
    "ags-cl+rwalk+afec": lambda: afec.AGSCL(100.0, mu=5) + afec.RWALK(1.0) + afec.AFEC(0.5),
    "progress-compress": lambda: afec.ProgressCompress(10.0),
    "progress-compress kept": lambda: afec.ProgressCompress(10.0, column="kept", decay="mean"),
    "progress-compress+afec": lambda: afec.ProgressCompress(10.0) + afec.AFEC(0.5),
    "progress-compress+si official": lambda: afec.ProgressCompress(10.0, preset="official") + afec.SI(1.0),
}
PHASES = {
    "ewc+afec": {"theta_e", "train"},
    "si official": {"train"},
    "ewc auto": {"reference", "train"},
    "si auto+afec": {"theta_e", "train"},
    "rwalk+afec": {"theta_e", "train"},
    "ags-cl+rwalk+afec": {"theta_e", "train"},
    "progress-compress+afec": {"progress", "theta_e", "compress"},
    "progress-compress kept": {"progress", "compress"},
}

QUICK = ("ewc+afec", "ewc auto", "ags-cl+rwalk+afec", "progress-compress+afec")


class Story:
    """A whole stream learned without a stop, with the state after every epoch and every task as a file."""

    def __init__(self, make, folder, tasks=None, **options):
        self.make, self.options, self.tasks = make, options, tasks or few_tasks(3)
        self.files, self.places = [], []

        def save(place):
            self.files.append(folder / f"{len(self.files)}.safetensors")
            self.places.append(place)
            save_tree(self.files[-1], learner.state_dict())

        learner = small_learner(
            self.tasks, make(), on_progress=lambda p: save((p.task, p.phase, p.epoch.number)), **options
        )
        self.took, self.ends = [], []
        for number, task in enumerate(self.tasks):
            self.took.append(learner.learn(task))
            save((number, "learned", 0))
            self.ends.append(copy.deepcopy(learner.state_dict()))

    def check(self, file, tasks=None):
        """Go on from a file, in fresh objects: to the very end, or so many tasks."""
        learner = small_learner(self.tasks, self.make(), **{**self.options, "seed": 99})  # the seed is in the state too
        learner.load_state_dict(load_tree(file))
        left = slice(len(learner.tasks_learned), tasks and len(learner.tasks_learned) + tasks)
        took = [learner.learn(task) for task in self.tasks[left]]
        assert numbers(took) == numbers(self.took[left])
        assert same(learner.state_dict(), self.ends[len(learner.tasks_learned) - 1])


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in PHASES]
)
def test_going_on_from_the_last_epoch_of_each_phase(name, tmp_path):
    story = Story(GUARDS[name], tmp_path)
    last = {place[:2]: file for place, file in zip(story.places, story.files, strict=True) if place[0] > 0}
    assert {phase for _, phase in last} == {*PHASES[name], "learned"}
    for file in last.values():
        story.check(file)


@pytest.mark.slow
@pytest.mark.parametrize("name", GUARDS)
def test_going_on_from_any_epoch(name, tmp_path):
    """To the end of the task: the states at the ends of tasks are among those that are gone on from, so the rest follows."""
    story = Story(GUARDS[name], tmp_path)
    assert len(story.files) >= 9
    for file in story.files:
        story.check(file, tasks=1)


@pytest.mark.parametrize("options", [{"optimizer": "sgd"}, {"best_weights": False}, {"patience": None}], ids=str)
def test_going_on_under_other_schedules(options, tmp_path):
    story = Story(GUARDS["si"], tmp_path, schedule=replace(SHORT, lr=1e-2, **options))
    for file in story.files[-4:]:
        story.check(file)


def test_a_state_that_was_loaded_can_be_saved_again_before_learning_goes_on(tmp_path):
    story = Story(GUARDS["ewc+afec"], tmp_path)
    for place, file in zip(story.places, story.files, strict=True):
        learner = small_learner(story.tasks, story.make())
        learner.load_state_dict(load_tree(file))
        if place[0] == 1:
            save_tree(tmp_path / "again.safetensors", learner.state_dict())
            assert same(load_tree(tmp_path / "again.safetensors"), load_tree(file))
            story.check(tmp_path / "again.safetensors")


def test_states_are_plain_data():
    import torch

    learner = small_learner(few_tasks(1), afec.EWC(1.0))
    learner.learn(few_tasks(1)[0])
    file = io.BytesIO()
    torch.save(learner.state_dict(), file)
    file.seek(0)
    assert same(dict(torch.load(file, weights_only=True)), learner.state_dict())


@pytest.mark.parametrize("name", ["afec official", "ewc+afec official"])
def test_theta_e_follows_the_rate_over_several_decays_and_goes_on_after_each(name, tmp_path):
    """Wrong labels to validate on: the better it learns, the worse it looks, and the rate falls after every other epoch."""
    wrong = [replace(t, validation=Split(t.validation.inputs, 1 - t.validation.targets)) for t in few_tasks(2)]
    schedule = replace(SHORT, max_epochs=6, lr_min=1e-6)
    make, rates = {**GUARDS, "afec official": lambda: afec.AFEC(0.5, preset="official")}[name], []

    def look(phase):
        if phase.task == 1:
            rates.append((phase.epoch.lr, *learner.guard.task.task_states["afec"]["lrs"]))

    learner = small_learner(wrong, make(), schedule=schedule, on_progress=look)
    for task in wrong:
        learner.learn(task)
    assert len({main for main, _ in rates}) >= 3
    assert [theta_e for _, theta_e in rates] == [main for main, _ in rates]
    story = Story(make, tmp_path, wrong, schedule=schedule)
    assert same(story.ends[-1], learner.state_dict())
    inside = [file for place, file in zip(story.places, story.files, strict=True) if place[:2] == (1, "train")]
    for file in inside:
        story.check(file)


def in_the_middle(tmp_path, phase, guard):
    """A file of a learner in the middle of its second task, and the tasks."""
    tasks, file = few_tasks(3), tmp_path / "middle.safetensors"

    def save(at):
        if (at.task, at.phase, at.epoch.number) == (1, phase, 1):
            learner.save(file)

    learner = small_learner(tasks, guard, on_progress=save)
    for task in tasks[:2]:
        learner.learn(task)
    return tasks, file, learner


@pytest.mark.parametrize("phase", ["theta_e", "train"])
def test_a_learner_that_was_loaded_in_the_middle_of_a_task_refuses_another_one(phase, tmp_path):
    tasks, file, whole = in_the_middle(tmp_path, phase, GUARDS["ewc+afec"]())
    learner = small_learner(tasks, GUARDS["ewc+afec"]()).load(file)
    assert (learner.state_dict()["inside"]["tasks"], learner.state_dict()["inside"]["phase"]) == (
        [tasks[1].name],
        phase,
    )
    message = f"in the middle of the task '{tasks[1].name}', so that is to be learned next; got '{tasks[2].name}'"
    for _ in range(2):  # and nothing of it is lost by asking
        with pytest.raises(ValueError, match=message):
            learner.learn(tasks[2])
    learner.learn(tasks[1])
    assert learner.state_dict()["inside"] is None
    assert same(learner.state_dict(), whole.state_dict())
    learner.learn(tasks[2])


def test_nothing_unfinished_is_left_over_where_the_phase_does_not_come_again(tmp_path):
    """Saved while θ_e was trained, and gone on without active forgetting: there is no θ_e to go on with."""
    tasks, file, _ = in_the_middle(tmp_path, "theta_e", GUARDS["ewc+afec"]())
    learner = small_learner(tasks, afec.EWC(1.0) + afec.AFEC(0.0)).load(file)
    assert learner.learn(tasks[1]).epochs_theta_e == 0
    assert learner.state_dict()["inside"] is None
    learner.learn(tasks[2])


@pytest.mark.parametrize(("phase", "samples"), [("theta_e", 0), ("train", 2 * 48 + 48)])
def test_samples_of_fisher_passes_before_the_stop_are_counted_once(phase, samples, tmp_path):
    tasks, file, _ = in_the_middle(tmp_path, phase, GUARDS["ewc+afec"]())
    learner = small_learner(tasks, GUARDS["ewc+afec"]()).load(file)
    assert learner.state_dict()["inside"]["cost"]["samples"] == samples  # F_e comes after θ_e and before θ
    assert learner.learn(tasks[1]).samples == (2 + 2) * 48 + 48 + 48
