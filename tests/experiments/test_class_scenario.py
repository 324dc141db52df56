"""The scenario `class` from the command line to scores.csv: what is measured, what a stop leaves, what is warned of."""

from __future__ import annotations

import csv
import os
import random
import re
import signal
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from afec.cli import main
from afec.data.root import data_root_is
from afec.experiments import Context, supervised
from afec.experiments.supervised import LEARNER, Supervised, build, training_of
from afec.lab import Place, find_runs, load_benchmark, resolve, run
from afec.lab.spec import parse_benchmark
from afec.learner import Learner
from afec.methods.expression import METHODS, make_method
from afec.metrics import class_summary, pooled_curve
from afec.nets import SingleHead
from afec.report.reading import load_learner
from afec.strategy import ScenarioWarning
from small_lab import TEXT, quick_config, quick_file
from small_processes import ForkedCommand, afec, all_scores, wait_until
from stopped_runs import in_task, run_until

REAL = Path(os.environ.get("AFEC_DATA", "no data"))
CLASS = {"scenario": "class"}
FOUR = ["finetune", "joint", "ewc", "ewc+afec"]
BATCH_NORM = {
    "resnet10": 'name = "resnet10"\nchannels = 1\nsize = 8\nwidth = 2\nbatch_norm = "shared"\n',
    "vgg11bn": 'name = "vgg11bn"\nchannels = 1\nsize = 8\nwidth = 2\nbatch_norm = "shared"\n',
}
RWALK = {"rwalk": {"strength": 1}}
NO_EXAMPLES = "no examples of old classes are kept, and in the scenario 'class' that does not work well"


OWN_NET = 'name = "digits"\nchannels = 4\nfeatures = 8\n'


def class_config(method, scale="three", net=None, **stream):
    """A row of the small benchmark in the scenario `class`: with its own net, with a cosine classifier, or with batch-norm."""
    benchmark = parse_benchmark(TEXT.replace(OWN_NET, BATCH_NORM.get(net, OWN_NET)), "quick", "quick.toml")
    few = {
        name: {"per_class": 5} for name in method.split("+") if "per_class" in getattr(METHODS.get(name), "options", ())
    }
    replays = any(getattr(METHODS[term].make, "needs_classes", False) for term in method.split("+") if term in METHODS)
    kind = "cosine" if net == "cosine" else "method" if replays else None
    sets = {"stream": {**CLASS, **stream}, "net": {"classifier": kind} if kind else {}, "method": {**RWALK, **few}}
    return resolve(benchmark, method, scale, sets)


def learner_of(config, seed):
    """The stream, and a learner as a user makes one."""
    stream, net = build(config, seed)
    method = None if config.reference else make_method(config.method, config.settings)
    schedule, machine = training_of(config.training)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScenarioWarning)
        return stream, Learner(net, method, schedule=schedule, machine=machine, seed=seed, progress=False)


def seen_so_far(tasks):
    """Which task is measured after how many: those that were learned."""
    return [(after, task) for after in range(1, tasks + 1) for task in range(1, after + 1)]


def phase(name, task=1):
    """After the first epoch of this phase of a task, counted from 0."""
    return lambda seen: (seen[-1].task, seen[-1].phase) == (task, name)


# -- what is measured ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "net"),
    [*((method, None) for method in FOUR), ("joint", "cosine"), ("ewc+afec", "cosine"), ("ewc+afec", "resnet10")],
)
def test_a_run_gives_the_numbers_of_a_loop_by_hand(method, net, tmp_path):
    config = class_config(method, net=net)
    stream, learner = learner_of(config, 3)
    assert isinstance(learner.net, SingleHead)
    expected = []
    for after in range(1, 4):
        learner.learn_jointly(stream.tasks[:after]) if method == "joint" else learner.learn(stream.tasks[after - 1])
        assert learner.net.sizes == stream.outputs[:after]  # the classifier grows
        for number, task in enumerate(stream.tasks[:after], start=1):
            found = []
            for inputs, targets in (task.validation, task.test):
                truth = torch.tensor(task.classes)[targets]
                found.append(learner.predict(inputs).eq(truth).float().mean().item())
            expected.append((after, number, task.name, *(f"{one:.6f}" for one in found), str(task.test.size)))
    with (run(config, 3, tmp_path).path / "scores.csv").open() as file:
        head, *rows = csv.reader(file)
    assert head == ["after", "task", "name", "validation", "test", "size", "answers"]
    assert [(int(after), int(task), *rest) for after, task, *rest, _ in rows] == expected
    assert all(sum(map(int, answers.split())) == int(size) for *_, size, answers in rows)
    assert [row[:2] for row in expected] == seen_so_far(3)


def test_the_accuracy_over_all_classes_so_far_is_that_of_all_their_images(tmp_path):
    """Tasks of 2, 5 and 3 classes: a mean over tasks is another number."""
    config = class_config("joint", "full", sizes=[2, 5, 3])
    found = run(config, 0, tmp_path)
    stream, learner = learner_of(config, 0)
    sizes, right, every = [task.test.size for task in stream.tasks], [], []
    for after in range(1, 4):
        learner.learn_jointly(stream.tasks[:after])
        images = torch.cat([task.test.inputs for task in stream.tasks[:after]])
        truth = torch.cat([torch.tensor(task.classes)[task.test.targets] for task in stream.tasks[:after]])
        predicted = learner.predict(images)
        assert set(predicted.tolist()) <= set(truth.tolist())  # never a class that has not come yet
        right.append(predicted.eq(truth).float().mean().item())
        every.append(len(truth))
    assert [score.size for score in found.scores() if score.after == 3] == sizes
    assert every == np.cumsum(sizes).tolist()
    np.testing.assert_allclose(pooled_curve(found.matrix(), sizes), right, atol=1e-6)
    summary = class_summary(found.matrix(), sizes)
    assert summary["final_accuracy"] == pytest.approx(right[-1], abs=1e-6)
    assert summary["average_incremental_accuracy"] == pytest.approx(np.mean(right), abs=1e-6)
    assert summary["final_accuracy"] != pytest.approx(np.nanmean(found.matrix()[-1]), abs=1e-3)


def test_joint_learning_is_clearly_above_fine_tuning(tmp_path):
    ends = {}
    for method in ("finetune", "joint", "ewc"):
        config = quick_config(
            method,
            stream={**CLASS, "sizes": [4, 3, 3], "test": 0.3},
            net={"channels": 8, "features": 32},
            training={"lr": 3e-3, "max_epochs": 6, "patience": "off"},
        )
        found = run(config, 0, tmp_path)
        ends[method] = class_summary(found.matrix(), [score.size for score in found.scores() if score.after == 3])
    assert ends["joint"]["final_accuracy"] > 0.8
    for method in ("finetune", "ewc"):  # the last three of ten classes are all that is left: 30 % at most
        assert ends[method]["final_accuracy"] < 0.4
        assert ends[method]["old_class_accuracy"] < 0.1
        assert ends[method]["new_class_accuracy"] > 0.8


# -- class orders -------------------------------------------------------------------------------------------------


def classes_of(found):
    """The classes of each task, as its name in scores.csv has them."""
    names = {score.task: score.name for score in found.scores()}
    return [[int(word) for word in names[task].split()[1:]] for task in sorted(names)]


def test_class_orders_by_name_and_from_a_file(tmp_path, in_process):
    (tmp_path / "mine.txt").write_text("\n".join("9876543210"))
    lucir = np.random.RandomState(1993).permutation(10).tolist()
    orders = {"sorted": list(range(10)), "lucir-1993": lucir, str(tmp_path / "mine.txt"): list(range(9, -1, -1))}
    sets = ["stream.scenario=class", "stream.sizes=[4,3,3]", f"stream.class_order={','.join(orders)}"]
    command = ["run", quick_file(tmp_path), "--method", "finetune", "joint", "--seeds", "2", "--set", *sets]
    assert main([*command, "--runs", str(tmp_path / "runs")]) == 0
    runs = find_runs(tmp_path / "runs")
    assert len(runs) == 2 * 2 * 3
    for found in runs:  # the same order for every seed and method
        order = orders[found.config.stream["class_order"]]
        assert classes_of(found) == [order[:4], order[4:7], order[7:]]


# -- stop and resume ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "net", "when"),
    [
        ("finetune", None, in_task(0)),  # no score is there yet
        ("finetune", None, in_task(1)),
        ("joint", None, in_task(2)),
        ("ewc", None, in_task(1)),
        ("ewc+afec", None, phase("train")),
        ("ewc+afec", None, phase("theta_e")),
        ("ewc+afec", "cosine", phase("theta_e")),
        ("ewc+afec", "resnet10", phase("train")),
        ("ewc+afec", "resnet10", phase("theta_e")),
        ("joint", "vgg11bn", in_task(1)),
        ("ewc+afec", "vgg11bn", phase("theta_e")),
    ],
)
def test_a_run_that_was_stopped_comes_to_the_same_bytes(method, net, when, tmp_path):
    config = class_config(method, net=net)
    whole = run(config, 0, tmp_path / "whole")
    run_until(when, config, tmp_path / "stopped")
    again = run(config, 0, tmp_path / "stopped")
    assert (again.path / "scores.csv").read_bytes() == (whole.path / "scores.csv").read_bytes()
    assert [(task["epochs"], task["samples"]) for task in again.tasks()] == [
        (task["epochs"], task["samples"]) for task in whole.tasks()
    ]


def test_where_the_weights_are_from_is_noted_once(tmp_path, monkeypatch):
    """Before the first task there is nothing to measure here, so an empty table does not mean a new run."""
    monkeypatch.setattr(supervised, "_origin", lambda net: "initial weights from a test")
    config = class_config("finetune")
    run_until(in_task(0), config, tmp_path)
    events = [event["event"] for event in run(config, 0, tmp_path).events()]
    assert events.count("origin") == 1


@pytest.mark.slow
def test_a_study_that_is_killed_comes_to_the_same_bytes(tmp_path):
    text = TEXT.replace("max_epochs = 2\npatience = 1", "max_epochs = 6\npatience = 6")
    sets = ["--set", "stream.scenario=class", "--seeds", "1", "--workers", "2"]
    command = ["run", quick_file(tmp_path, text), "--method", *FOUR, "--scale", "three", *sets, "--runs"]
    assert ForkedCommand(*command, tmp_path / "whole").wait() == 0
    killed, draws = tmp_path / "killed", random.Random(1)
    for _ in range(2):
        process = ForkedCommand(*command, killed)
        wait_until(lambda: list(killed.rglob("lock-holder")))
        time.sleep(draws.uniform(0, 0.5))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert ForkedCommand(*command, killed).wait() == 0
    assert all_scores(killed) == all_scores(tmp_path / "whole")
    assert len(all_scores(killed)) == 4


# -- what is warned of and refused --------------------------------------------------------------------------------


def test_a_regulariser_alone_is_warned_of_once_for_all_runs_of_a_command(tmp_path, in_process):
    command = ["run", quick_file(tmp_path), "--scale", "tiny", "--seeds", "2", "--method", *FOUR, "ewc@long"]
    sets = ["--set", "stream.scenario=class", "training.lr=0.01,0.02", "--runs", str(tmp_path / "runs")]
    with pytest.warns(ScenarioWarning) as seen:
        assert main([*command, *sets]) == 0
    assert len(find_runs(tmp_path / "runs")) == 2 * 2 * 5
    (text,) = [str(one.message) for one in seen]
    assert text.startswith(f"ewc, ewc+afec: {NO_EXAMPLES}: every batch has new classes only")
    assert "Use a method that trains on old examples again ('joint' trains on all of them" in text
    assert text.endswith("or the scenario 'task'")


def test_a_tuning_warns_once(tmp_path, in_process):
    text = TEXT + '[tune.ewc]\nstrength = [1, 10]\nfisher = "exact"\n'
    command = ["tune", quick_file(tmp_path, text), "--method", "ewc", "--scale", "tiny", "--seeds", "2"]
    with pytest.warns(ScenarioWarning, match=f"ewc: {NO_EXAMPLES}") as seen:
        assert main([*command, "--set", "stream.scenario=class", "--runs", str(tmp_path / "runs")]) == 0
    assert len(seen) == 1


@pytest.mark.slow
def test_worker_processes_do_not_warn_again(tmp_path):
    command = ["run", quick_file(tmp_path), "--scale", "tiny", "--seeds", "2", "--method", "ewc", "ewc+afec"]
    with (tmp_path / "said").open("w") as said:
        sets = ["--set", "stream.scenario=class", "--workers", "1", "--runs", tmp_path / "runs"]
        assert afec(*command, *sets, stdout=said, stderr=said).wait() == 0
    assert (tmp_path / "said").read_text().count(NO_EXAMPLES) == 1


@pytest.mark.parametrize("method", ["finetune", "joint"])
def test_what_promises_nothing_is_not_warned_of(method):
    assert class_config(method).kind.check([class_config(method)], Context(0)) == []  # a warning were an error
    assert Supervised.check([quick_config("ewc")], Context(0)) == []


@pytest.mark.parametrize(
    ("method", "sets", "words"),
    [
        ("scratch", ["stream.scenario=class"], "scratch learns each task alone, .* got the scenario 'class'"),
        ("ags-cl", ["stream.scenario=class"], "ags-cl needs outputs of its own for each task"),
        ("progress-compress", ["stream.scenario=class"], "progress-compress needs outputs of its own for each task"),
        ("finetune", ["net.classifier=cosine"], "net.classifier='cosine' is for the scenario 'class'"),
        ("finetune", ["stream.scenario=clas"], "unknown scenario 'clas'; did you mean 'class'"),
        ("joint", ["stream.scenario=class", "net.classifier=cosin"], "unknown classifier 'cosin'; did you mean"),
        ("joint", ["stream.scenario=class", "net.classifier=cosine", "net.zero_heads=true"], "cannot start at zero"),
        ("finetune", ["stream.scenario=class", "stream.class_order=lucir"], "unknown class order 'lucir'"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(method, sets, words, tmp_path, capsys):
    command = ["run", quick_file(tmp_path), "--method", method, "--set", *sets, "--runs", str(tmp_path / "runs")]
    assert main(command) == 2
    assert re.search(words, capsys.readouterr().err)
    assert not list(tmp_path.rglob("config.toml"))


def test_statistics_per_task_are_refused(tmp_path, capsys):
    text = TEXT.replace(OWN_NET, BATCH_NORM["resnet10"].replace("shared", "per-task"))
    command = ["run", quick_file(tmp_path, text), "--method", "finetune", "--set", "stream.scenario=class"]
    assert main([*command, "--runs", str(tmp_path / "runs")]) == 2
    assert "batch-norm statistics for each task" in capsys.readouterr().err


def test_the_benchmark_of_the_package_takes_a_cosine_classifier():
    """Its heads start at zero; rows of a cosine classifier cannot."""
    sets = {"stream": CLASS, "net": {"classifier": "cosine"}}
    config = resolve(load_benchmark("digits"), "ewc", "smoke", sets)
    _, net = build(config, 0)
    assert (net.kind, net.zero) == ("cosine", False)
    _, linear = build(resolve(load_benchmark("digits"), "ewc", "smoke", {"stream": CLASS}), 0)
    assert (linear.kind, linear.zero) == ("linear", True)


# -- what is kept of a run ----------------------------------------------------------------------------------------

EVERY = ["finetune", "joint", *(name for name in METHODS if name != "afec"), "afec", "ags-cl+afec", "ewc+afec"]


def refused_in(scenario, method):
    """Whether a method knows the other scenario only."""
    needs = "needs_classes" if scenario == "task" else "needs_heads"
    return any(getattr(METHODS[term].make, needs, False) for term in method.split("+") if term in METHODS)


ROWS = [(one, method, None) for one in ("task", "class") for method in EVERY if not refused_in(one, method)]
ROWS += [("class", method, net) for method in FOUR for net in ("cosine", "resnet10")]


QUICK = ("finetune", "ewc+afec", "ags-cl+afec", "recycle")


@pytest.mark.parametrize(
    ("scenario", "method", "net"),
    [pytest.param(*row, marks=() if row[1] in QUICK else pytest.mark.slow) for row in ROWS],
)
def test_the_learner_of_a_run_predicts_as_the_run_has_measured(scenario, method, net, tmp_path):
    config = class_config(method, "tiny", net) if scenario == "class" else quick_config(method, "tiny", method=RWALK)
    found = run(config, 0, tmp_path)
    stream, net = build(config, 0)
    expected = [score.test for score in found.scores() if score.after == len(stream.tasks)]
    _, mine = learner_of(config, 0)
    for learner in (mine.load(found.path / LEARNER), load_learner(net, config, found)):
        assert learner.tasks_learned == [task.name for task in stream.tasks]
        assert learner.net.task_classes[0] == (stream.tasks[0].classes if scenario == "class" else (0, 1))
        assert learner.evaluate(stream.tasks) == pytest.approx(expected, abs=1e-6)
        with pytest.raises(RuntimeError, match="saved for prediction only"):
            learner.learn(stream.tasks[0])


# -- images in folders, and the real files ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Real digits as files: three tasks of two classes, 20 images each."""
    root, data = tmp_path_factory.mktemp("pictures"), load_digits()
    for task, classes in {"low": (0, 1), "middle": (4, 5), "high": (8, 9)}.items():
        for label in classes:
            (root / task / str(label)).mkdir(parents=True)
            for number, image in enumerate(data.images[data.target == label][:20]):
                Image.fromarray((image * 15).astype(np.uint8)).save(root / task / str(label) / f"{number}.png")
    return root


@pytest.mark.parametrize("order", ["sorted", "lucir-1993", "file"])
def test_a_folder_of_images(order, pictures, tmp_path, in_process):
    (tmp_path / "order.txt").write_text("low\nmiddle\nhigh\n")
    names = {"sorted": ["high", "low", "middle"], "file": ["low", "middle", "high"]}
    names["lucir-1993"] = [names["sorted"][k] for k in np.random.RandomState(1993).permutation(3)]
    text = f"""
stream = {{ name = "folder:{pictures}", size = 8, mode = "grey" }}
net = {{ name = "digits", channels = 4, features = 8 }}
training = {{ batch_size = 8, lr = 1e-2, max_epochs = 2, patience = 1 }}
method = {{ ewc = {{ strength = 10 }}, afec = {{ forgetting = 0.1 }} }}
"""
    sets = ["stream.scenario=class", f"stream.class_order={tmp_path / 'order.txt' if order == 'file' else order}"]
    command = ["run", quick_file(tmp_path, text), "--method", *FOUR, "--seeds", "1", "--set", *sets]
    with pytest.warns(ScenarioWarning):
        assert main([*command, "--runs", str(tmp_path / "runs")]) == 0
    runs = find_runs(tmp_path / "runs")
    assert len(runs) == 4
    for found in runs:
        rows = [(score.after, score.task) for score in found.scores()]
        assert (rows, [score.name for score in found.scores() if score.after == 3]) == (seen_so_far(3), names[order])
        assert {score.size for score in found.scores()} == {8}


FILES = {"cifar100": "cifar-100-python", "omniglot": "omniglot", "imagenet100": "imagenet100"}


def real_config(name, method, **sections):
    if not any(REAL.glob(f"{FILES[name]}*")):
        pytest.skip(f"AFEC_DATA has no {FILES[name]}")
    stream = {**CLASS, "class_order": "lucir-1993"}
    return resolve(load_benchmark(name), method, "smoke", {"stream": stream, **sections})


@pytest.mark.slow
@pytest.mark.parametrize("method", FOUR)
@pytest.mark.parametrize("name", FILES)
def test_real_files(name, method, tmp_path):
    config = real_config(name, method)
    found = run(config, 0, tmp_path / "whole", place=Place(data=REAL))
    assert [(score.after, score.task) for score in found.scores()] == seen_so_far(3)
    with data_root_is(REAL):
        stream, learner = learner_of(config, 0)
        assert [score.size for score in found.scores() if score.after == 3] == [t.test.size for t in stream.tasks]
        if name != "omniglot":  # there the order is one of alphabets
            order = np.random.RandomState(1993).permutation(100)
            classes = [number for task in stream.tasks for number in task.classes]
            assert classes == order[: len(classes)].tolist()
        learner.load(found.path / LEARNER)
        assert learner.net.classes == [number for task in stream.tasks for number in task.classes]
        final = [score.test for score in found.scores() if score.after == 3]
        assert learner.evaluate(stream.tasks) == pytest.approx(final, abs=1e-6)
    run_until(phase("theta_e" if "afec" in method else "train"), config, tmp_path / "stopped", place=Place(data=REAL))
    again = run(config, 0, tmp_path / "stopped", place=Place(data=REAL))
    assert (again.path / "scores.csv").read_bytes() == (found.path / "scores.csv").read_bytes()


SIX = ["icarl", "icarl+afec", "lucir", "lucir+afec", "podnet", "podnet+afec"]
REPLAYED = [*(("cifar100", method) for method in SIX), ("imagenet100", "icarl+afec")]


@pytest.mark.slow
@pytest.mark.parametrize(("data", "method"), REPLAYED)
def test_replay_on_real_files(data, method, tmp_path):
    """Every strategy of the paper with and without AFEC: exemplars, order of classes, and a stop in the second phase."""
    if not any(REAL.glob(f"{FILES[data]}*")):
        pytest.skip(f"AFEC_DATA has no {FILES[data]}")
    config = resolve(load_benchmark(f"{data}-b50-5"), method, "smoke")
    found = run(config, 0, tmp_path / "whole", place=Place(data=REAL))
    scores = found.scores()
    assert [(score.after, score.task) for score in scores] == seen_so_far(3)
    assert all(sum(score.answers) == score.size for score in scores)
    with data_root_is(REAL):
        stream, learner = learner_of(config, 0)
        learner.load(found.path / LEARNER)
        assert learner.net.classes == np.random.RandomState(1993).permutation(100)[:20].tolist()
        assert learner.evaluate(stream.tasks) == pytest.approx([s.test for s in scores if s.after == 3], abs=1e-6)
    last = found.tasks()[-1]
    images = 40 * 3 * 32 * 32 / 1e6  # of two exemplars of each class; a photograph is larger, and stays on disk
    assert last["kept_mb"] == pytest.approx(images) if data == "cifar100" else last["kept_mb"] > images
    where = "theta_e" if "afec" in method else "finetune" if method == "podnet" else "train"
    run_until(phase(where), config, tmp_path / "stopped", place=Place(data=REAL))
    again = run(config, 0, tmp_path / "stopped", place=Place(data=REAL))
    assert (again.path / "scores.csv").read_bytes() == (found.path / "scores.csv").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("net", ["resnet10", "vgg11bn"])
def test_batch_norm_on_real_images(net, tmp_path):
    config = real_config("cifar100", "ewc+afec", net={"name": net, "width": 8, "classifier": "cosine"})
    found = run(config, 0, tmp_path / "whole", place=Place(data=REAL))
    run_until(phase("theta_e"), config, tmp_path / "stopped", place=Place(data=REAL))
    again = run(config, 0, tmp_path / "stopped", place=Place(data=REAL))
    assert (again.path / "scores.csv").read_bytes() == (found.path / "scores.csv").read_bytes()


@pytest.mark.slow
def test_on_cifar_the_pull_of_afec_changes_weights_and_answers_and_nothing_before_it(tmp_path):
    """λ_e = 0 is plain replay bit for bit; λ_e = 1 has the same base phase, and another net after the next one."""
    if not any(REAL.glob("cifar-100-python*")):
        pytest.skip("AFEC_DATA has no cifar-100-python")
    small = {
        "stream": {"sizes": [10, 5], "images_per_class": 60},
        "net": {"width": 4},
        "training": {"batch_size": 32, "max_epochs": 4},
    }
    found = {}
    for name, settings in (
        ("plain", {}), ("off", {"afec": {"forgetting": 0}}), ("on", {"afec": {"forgetting": 1}})
    ):  # fmt: skip
        method = {"icarl": {"per_class": 5}, **settings}
        config = resolve(load_benchmark("cifar100-b50-5"), "+".join(method), "brief", {**small, "method": method})
        one = run(config, 0, tmp_path, place=Place(data=REAL))
        with data_root_is(REAL):
            stream, learner = learner_of(config, 0)
        learner.load(one.path / LEARNER)
        weights = torch.cat([value.flatten().double() for value in learner.net.backbone.parameters()])
        answers = torch.cat([learner.predict(task.test.inputs, task) for task in stream.tasks])
        found[name] = one.matrix(), weights, answers
    base = [matrix[1, 0] for matrix, *_ in found.values()]
    assert base[0] == base[1] == base[2]
    assert base[0] > 0.1, "the base phase has learned nothing"
    assert torch.equal(found["plain"][1], found["off"][1])
    assert torch.equal(found["plain"][2], found["off"][2])
    assert not torch.equal(found["plain"][1], found["on"][1])
    assert (found["plain"][2] != found["on"][2]).float().mean() > 0.02
