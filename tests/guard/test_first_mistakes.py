"""What newcomers get wrong first, and what they are told: at once, in words, with what to do."""

import numpy as np
import pytest
import torch
from torch import nn

from afec import AFEC, EWC, Learner, Schedule
from afec.cli import main
from afec.nets import DigitsBackbone
from afec.streams import Split, Task, digits

X, CLASSES = torch.arange(24.0).reshape(6, 4) / 24, torch.tensor([0, 1, 2, 0, 1, 2])
GOOD = Split(X, CLASSES)


def task(split=GOOD, **changes):
    options = {"outputs": 3, "loss": "cross_entropy", **changes}
    return Task("mine", split, split, split, **options)


@pytest.mark.parametrize(
    ("split", "changes", "message"),
    [
        (
            GOOD,
            {"loss": "crossentropy"},
            "must be one of 'cross_entropy', 'mse', 'cosine', 'angular'; got 'crossentropy'",
        ),
        (GOOD, {"outputs": 2}, "has classes 0 to 2, but the task has outputs=2: classes are 0 to 1"),
        (Split(X, CLASSES.float()), {}, "needs class numbers as targets, int64 of shape (samples,); got torch.float32"),
        (Split(X, CLASSES[:, None]), {}, "got torch.int64 of shape (6, 1)"),
        (Split(X, CLASSES[:5]), {}, "has 6 inputs and 5 targets"),
        ((X.numpy(), CLASSES.numpy()), {}, "two tensors (torch.as_tensor); got ndarray, ndarray"),
        ((X,), {}, "must be Split(inputs, targets)"),
        (Split(X, torch.zeros(6, 1)), {"loss": "mse", "outputs": 1}, "is a regression, so it needs decode="),
        (Split(X, torch.zeros(6)), {"loss": "mse", "outputs": 1}, "needs targets of shape (samples, outputs) = (6, 1)"),
    ],
)
def test_a_task_that_cannot_be_is_refused_when_it_is_made(split, changes, message):
    with pytest.raises((ValueError, TypeError)) as caught:
        task(split, **changes)
    assert message in str(caught.value)


def test_plain_tuples_are_splits_and_a_task_prints_short():
    mine = task((X, CLASSES))
    assert mine.train.size == 6
    assert repr(mine) == "Task('mine', cross_entropy, 3 outputs, 6/6/6 samples for training/validation/test)"


@pytest.mark.parametrize("wrong", [{"method": "ewc"}, {"schedule": {"lr": 1}}, {"machine": "cpu"}])
def test_a_learner_wants_objects(wrong):
    with pytest.raises(TypeError, match=f"Learner's {next(iter(wrong))} must be a "):
        Learner(DigitsBackbone(), **wrong)


def test_predict_takes_the_task_itself_and_tensors_only():
    stream = digits(seed=0)
    learner = Learner(DigitsBackbone(), schedule=Schedule(max_epochs=1))
    learner.learn(stream.tasks[0])
    x = stream.tasks[0].test.inputs[:5]
    assert learner.predict(x, stream.tasks[0]).equal(learner.predict(x, 0))
    with pytest.raises(TypeError, match="must be a tensor .*; got ndarray"):
        learner.predict(np.zeros((2, 1, 8, 8)), 0)


def test_an_optimiser_of_another_model_is_noticed_on_entry():
    model, other = nn.Linear(4, 3), nn.Linear(4, 3)
    optimizer = torch.optim.Adam(other.parameters())
    with pytest.raises(ValueError, match="the Adam that was given holds no weight of this model"):
        EWC(1.0).begin(model, optimizer, (X, CLASSES), nn.CrossEntropyLoss())


@pytest.mark.parametrize("guard", [EWC(1.0, fisher="exact"), AFEC(1.0, epochs=1, fisher="sample")], ids=["ewc", "afec"])
def test_a_fisher_without_its_likelihood_is_noticed_on_entry(guard):
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(ValueError, match="likelihood"):
        guard.begin(model, optimizer, (X, CLASSES), lambda model, batch: model(batch[0]).square().mean())
    assert guard.task is None


def test_a_word_is_no_strength():
    with pytest.raises(ValueError, match="are numbers, or lists of them; got '0.1'"):
        AFEC(forgetting="0.1", epochs=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "afec+finetune"], "finetune is no method at all, so it adds to nothing"),
        (["--method", "ewc+ewc"], "has one method twice; add each at most once\n"),
        (
            ["--method", "ewx"],
            "Known: afec, ags-cl, average, derpp, er, ewc, finetune, icarl, lucir, lwf, mas, merge, podnet, prior, "
            "progress-compress, recycle, rwalk, si, joint, scratch",
        ),
        (["--method", "ewc", "--set", "method.mas.strength=1"], "mas is part of none of the methods ewc"),
        (["--method", "ewc", "--set", "stream.tasks=7"], "digits: "),
        (["--method", "ewc", "--set", "net.features=-1"], "digits: "),
    ],
)
def test_the_command_line_says_it_in_one_line(arguments, message, capsys, tmp_path):
    assert main(["run", "digits", "--runs", str(tmp_path), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
