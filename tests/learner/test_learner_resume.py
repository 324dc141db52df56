"""A learner saved after any epoch and loaded into fresh objects ends as the one that was never stopped, bit for bit."""

import io
from dataclasses import replace

import pytest
from small_learning import few_tasks, same, small_learner

import afec
from afec.files import load_tree, save_tree

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
    "ewc+afec own epochs": sums("default", epochs=3)["ewc+afec"],
    "ewc+afec sampled": lambda: afec.EWC(1.0, fisher="sample") + afec.AFEC(0.5, fisher="sample"),
    **{f"{name} official": lambda make=make: make(1.0, preset="official") for name, make in BASES.items()},
    **{f"{name} official": make for name, make in sums("official").items()},
}


def numbers(took):
    return [replace(one, seconds={}) for one in took]


class Story:
    """A whole stream learned without a stop, with the state after every epoch and every task as a file."""

    def __init__(self, make, folder, **options):
        self.make, self.options, self.tasks = make, options, few_tasks(3)
        self.files, self.places = [], []

        def save(place):
            self.files.append(folder / f"{len(self.files)}.safetensors")
            self.places.append(place)
            save_tree(self.files[-1], learner.state_dict())

        learner = small_learner(
            self.tasks, make(), on_phase=lambda p: save((p.task, p.phase, p.epoch.number)), **options
        )
        self.took = []
        for number, task in enumerate(self.tasks):
            self.took.append(learner.learn(task))
            save((number, "learned", 0))
        self.end = learner.state_dict()

    def check(self, file):
        """Go on from a file, in fresh objects."""
        learner = small_learner(self.tasks, self.make(), **{**self.options, "seed": 99})  # the seed is in the state too
        learner.load_state_dict(load_tree(file))
        done = len(learner.tasks_learned)
        took = [learner.learn(task) for task in self.tasks[done:]]
        assert numbers(took) == numbers(self.took[done:])
        assert same(learner.state_dict(), self.end)


@pytest.mark.parametrize("name", ["ewc+afec", "si official", "rwalk+afec"])
def test_going_on_from_the_last_epoch_of_each_phase(name, tmp_path):
    story = Story(GUARDS[name], tmp_path)
    last = {place[:2]: file for place, file in zip(story.places, story.files, strict=True) if place[0] > 0}
    assert ("afec" not in name) or {phase for _, phase in last} == {"theta_e", "train", "learned"}
    for file in last.values():
        story.check(file)


@pytest.mark.slow
@pytest.mark.parametrize("name", GUARDS)
def test_going_on_from_any_epoch(name, tmp_path):
    story = Story(GUARDS[name], tmp_path)
    assert len(story.files) >= 9
    for file in story.files:
        story.check(file)


@pytest.mark.parametrize("options", [{"optimizer": "sgd"}, {"best_weights": False}, {"patience": None}], ids=str)
def test_going_on_under_other_schedules(options, tmp_path):
    from small_learning import SHORT

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
