"""`afec report`: tables, exports and figures of what is there; strength curves; cases of a benchmark."""

from __future__ import annotations

import csv
import json
import math
import re
import tomllib

import pytest

from afec.cli import main
from afec.experiments.supervised import write_transfers
from afec.lab import RunDirectory, find_runs, resolve, run
from afec.lab.spec import SpecError, load_benchmark, parse_benchmark
from afec.learner import LinearProbe
from afec.report.figures import series_of
from afec.report.reading import read
from afec.report.rows import problems, rows_of
from stopped_runs import run_until
from written_runs import after_two, written

SMOKE = ["run", "digits-regression", "--scale", "smoke", "--seeds", "2", "--set", "training.max_epochs=1"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A grid of strengths with and without AFEC, and one transfer run: real ones, on real digits."""
    root = tmp_path_factory.mktemp("report") / "runs"
    benchmark = load_benchmark("digits-regression")
    short = {"training": {"max_epochs": 1}}
    for strength in (10, 1000):
        sets = {**short, "method": {"ewc": {"strength": strength}}}
        for method in ("ewc", "ewc+afec"):
            for seed in (0, 1):
                run(resolve(benchmark, method, "smoke", sets), seed, root)
    run(resolve(benchmark, "finetune", "smoke", short), 0, root)
    run(resolve(benchmark, "finetune", "smoke", {**short, "stream": {"setting": "transfer"}}), 0, root)
    return root


def test_tables_of_all_and_of_some(runs, capsys):
    assert main(["report", str(runs)]) == 0
    shown = capsys.readouterr().out
    assert "setting two-task: test accuracy" in shown
    assert "setting transfer: test accuracy" in shown
    assert "10 finished" in shown
    assert main(["report", str(runs), "--where", "stream.setting=two-task", "seed=1", "method=ewc,ewc+afec"]) == 0
    shown = capsys.readouterr().out
    assert "test accuracy in %, one seed" in shown
    assert "│ finetune" not in shown
    assert "4 finished" in shown
    assert main(["report", str(runs), "--where", "method.ewc.strength=10"]) == 0
    assert "λ=1000" not in capsys.readouterr().out


def test_every_seed_as_csv(runs, tmp_path):
    out = tmp_path / "deep" / "table.csv"
    assert main(["report", str(runs), "-o", str(out)]) == 0
    found = list(csv.DictReader(out.read_text().splitlines()))
    assert len(found) == 10
    for row in found:
        directory = next(d for d in find_runs(runs) if d.path.parts[-2:] == (row["hash"], f"seed{row['seed']}"))
        matrix = directory.matrix()
        assert float(row["aac"]) == pytest.approx(matrix[-1].mean(), abs=1e-6)
        assert float(row["old_accuracy"]) == pytest.approx(matrix[2, 0], abs=1e-6)
        assert int(row["epochs"]) == directory.epochs
        assert bool(row["transfer"]) == (directory.config.stream["setting"] == "transfer")


def test_the_tables_as_markdown(runs, tmp_path):
    out = tmp_path / "table.md"
    assert main(["report", str(runs), "--where", "stream.setting=two-task", "-o", str(out)]) == 0
    text = out.read_text()
    assert "| method | AAC | compute | old tasks | new task |" in text
    assert "| `ewc+afec (λ=10, λ_e=0.03)` |" in text
    assert "| `ewc+afec (λ=10, λ_e=0.03)` | `ewc (λ=10)` | AAC | " in text
    assert "AAC: the mean test accuracy of all tasks after the last one was learned" in text


def test_strengths_are_the_lines_of_each_lambda(runs):
    found = [(d.config, d) for d in find_runs(runs) if d.config.stream["setting"] == "two-task"]
    series = series_of(rows_of(found))
    assert set(series) == {"ewc"}
    assert {one.label: sorted(one.points) for one in series["ewc"]} == {
        "ewc": [10.0, 1000.0],
        "ewc+afec (λ_e=0.03)": [10.0, 1000.0],
    }
    weak = next(one for one in series["ewc"] if one.label == "ewc").points[10.0]
    alone = [d.matrix()[2, 0] for c, d in found if c.method == "ewc" and c.settings["ewc"]["strength"] == 10]
    assert sorted(weak.values("old_accuracy")) == pytest.approx(sorted(alone))


@pytest.mark.parametrize("figure", ["strength", "trade-off", "study"])
def test_figures(runs, tmp_path, figure):
    out = tmp_path / f"{figure}.png"
    command = ["report", str(runs), "--figure", figure, "-o", str(out), "--where", "stream.setting=two-task"]
    assert main(command) == 0
    assert out.read_bytes().startswith(b"\x89PNG")
    assert out.stat().st_size > 5000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--figure", "strengths"], "unknown figure 'strengths'; did you mean 'strength'"),
        (["-o", "x.docx"], "expected a file name that ends in .html, .png"),
        (["--where", "scale"], "expected key=value"),
        (["--where", "net.nmae=lenet"], "--where net.nmae=lenet: none of the 10 runs"),
        (["--figure", "strength"], "give the file to draw it into, e.g. -o strength.png"),
        (["--where", "scale=none"], "--where scale=none: unknown scale 'none'. Known: "),
        (
            ["--figure", "strength", "-o", "x.png"],
            "different tasks, nets, memories or prediction rules (setting two-task; setting transfer)",
        ),
        (["--figure", "strength", "-o", "x.png", "--where", "stream.setting=transfer"], "run a grid first"),
    ],
)
def test_what_is_refused(runs, arguments, message, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(runs), *arguments]) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["a-file/r.html", "a-file/deeper/r.tex", "a-file/r.png", "taken.html", "taken.csv"])
def test_a_place_that_cannot_be_written_is_refused_at_once(tmp_path, capsys, name):
    (tmp_path / "a-file").write_text("kept")
    for taken in ("taken.html", "taken.csv"):
        (tmp_path / taken).mkdir()
    (tmp_path / "runs").mkdir()
    assert main(["report", str(tmp_path / "runs"), "-o", str(tmp_path / name)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"--out {tmp_path / name} cannot be written: " in said
    assert "give a file in a directory that you may write to" in said
    assert (tmp_path / "a-file").read_text() == "kept"


@pytest.mark.parametrize("name", ["r.html", "r.csv"])
def test_a_disk_that_fails_is_said_in_words(runs, tmp_path, capsys, monkeypatch, name):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    assert main(["report", str(runs), "-o", str(tmp_path / name), "--no-pictures"]) == 2
    assert "cannot be written: No space left on device" in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())


def test_a_directory_without_runs_makes_a_page_that_says_so(tmp_path, capsys):
    (tmp_path / "runs").mkdir()
    assert main(["report", str(tmp_path / "runs"), "-o", str(tmp_path / "r.html")]) == 0
    assert "no run at all" in (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "give the directory that `afec run` wrote to" in " ".join(capsys.readouterr().out.split())


def test_no_such_directory(tmp_path, capsys):
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert "there is no directory" in capsys.readouterr().err


def test_unfinished_failed_and_damaged_runs_are_counted(runs, tmp_path, capsys):
    import shutil

    root = tmp_path / "runs"
    shutil.copytree(runs, root)
    found = [d for d in find_runs(root) if d.config.stream["setting"] == "two-task"]
    (found[0].path / "DONE").unlink()
    (found[1].path / "DONE").unlink()
    (found[1].path / "FAILED").write_text("Traceback …")
    (found[2].path / "config.toml").write_text("no = [toml")
    assert main(["report", str(root)]) == 0
    assert "7 finished, 1 unfinished, 1 failed, 1 damaged" in capsys.readouterr().out


# -- transfer in a run ----------------------------------------------------------------------------------------------


def test_transfer_is_written_shown_and_read_back(runs):
    directory = next(d for d in find_runs(runs) if d.config.stream["setting"] == "transfer")
    found = read(directory.config, directory).transfers
    assert [t.name for t in found] == [f"arrangement 1 turned by {d}°" for d in (60, 120, 180, 240, 300)]
    (row,) = [row for _, group in problems(rows_of([(directory.config, directory)])) for row in group]
    assert row.values("transfer") == pytest.approx([sum(t.test for t in found) / 5])
    phases = [event for event in directory.events() if event.get("phase") == "transfer"]
    assert len(phases) == sum(t.epochs for t in found)


def test_a_run_that_stops_in_its_transfer_ends_as_one_that_did_not(runs, tmp_path):
    whole = next(d for d in find_runs(runs) if d.config.stream["setting"] == "transfer")
    run_until(lambda seen: [one.phase for one in seen].count("transfer") == 2, whole.config, tmp_path)
    assert not (RunDirectory.of(tmp_path, whole.config, 0).path / "transfer.csv").exists()
    again = run(whole.config, 0, tmp_path)
    for name in ("scores.csv", "transfer.csv"):
        assert (again.path / name).read_bytes() == (whole.path / name).read_bytes()
    assert [task["task"] for task in again.tasks()] == [1, 2]


@pytest.mark.parametrize(
    ("line", "words"),
    [("a,x,0.5,3", "could not convert"), ("a,0.5,7.5,3", "an accuracy is no fraction from 0 to 1")],
)
def test_a_damaged_transfer_file_is_named(tmp_path, line, words):
    config, directory = written(tmp_path, "finetune", 0, after_two(0.5, 0.7))
    write_transfers(directory.path, [LinearProbe("a, b", 0.25, 0.5, 3), LinearProbe("c", math.nan, 0.75, 4)])
    found = read(config, directory).transfers
    assert found[0] == LinearProbe("a, b", 0.25, 0.5, 3)
    assert (found[1].name, math.isnan(found[1].validation), found[1].test) == ("c", True, 0.75)
    (directory.path / "transfer.csv").write_text(f"name,validation,test,epochs\n{line}\n")
    damaged = read(config, directory)
    assert damaged.state == "damaged"
    assert f"{directory.path / 'transfer.csv'} cannot be read" in damaged.fault
    assert words in damaged.fault


# -- cases ----------------------------------------------------------------------------------------------------------

CASES = """
[stream]
name = "digits"
[net]
name = "digits"
[training]
lr = 0.1
[method.ewc]
strength = 1
[scale.big]
net = { channels = 32 }
method = { ewc = { strength = 2 } }
[case."net.channels=32"]
training = { lr = 0.01 }
method = { ewc = { strength = 3 } }
[variant.strong]
method = { ewc = { strength = 4 } }
"""


def strength_of(method="ewc", scale="full", sets=None):
    config = resolve(parse_benchmark(CASES, "cases", "cases.toml"), method, scale, sets)
    return config.settings["ewc"]["strength"], config.training["lr"]


def test_a_case_lies_above_the_scale_and_below_variant_and_set():
    assert strength_of() == (1, 0.1)
    assert strength_of(sets={"net": {"channels": 32}}) == (3, 0.01)
    assert strength_of(scale="big") == (3, 0.01)
    assert strength_of(scale="big", sets={"net": {"channels": 8}}) == (2, 0.1)
    assert strength_of("ewc@strong", "big") == (4, 0.01)
    assert strength_of(scale="big", sets={"method": {"ewc": {"strength": 5}}}) == (5, 0.01)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ('[case."channels=32"]\n', 'case."channels=32": expected section.key=value'),
        ('[case."method.ewc=32"]\n', "expected section.key=value with stream, net or training"),
        ('[case."net.channel=32"]\n', "channel: unknown key; did you mean 'channels'?"),
        ('[case."net.name=vgg"]\n', "unknown net 'vgg'"),
        ('[case."net.channels=8"]\ntraining = { lrr = 1 }\n', "lrr"),
        ('[case."net.channels=8"]\nmethod = { ewcc = { strength = 1 } }\n', "ewcc"),
    ],
)
def test_cases_that_cannot_be(section, message):
    with pytest.raises(SpecError) as caught:
        parse_benchmark(CASES + section, "cases", "cases.toml")
    assert message in str(caught.value)
    assert str(caught.value).startswith("cases.toml")


def test_events_are_json_lines(runs):
    for directory in find_runs(runs):
        for line in (directory.path / "events.jsonl").read_text().splitlines():
            json.loads(line)
        tomllib.loads((directory.path / "config.toml").read_text())


# -- what a user may find in the way --------------------------------------------------------------------------------


def test_multiples_of_a_variant_are_of_what_is_run():
    text = CASES + '[variant.twice]\ntraining = { lr = "*2" }\n'
    benchmark = parse_benchmark(text, "cases", "cases.toml")
    assert resolve(benchmark, "ewc@twice").training["lr"] == pytest.approx(0.2)
    assert resolve(benchmark, "ewc@twice", sets={"training": {"lr": 0.3}}).training["lr"] == pytest.approx(0.6)
    assert resolve(benchmark, "ewc@twice", "big").training["lr"] == pytest.approx(0.02)


def test_a_case_holds_for_a_default_too():
    benchmark = parse_benchmark(CASES + '[case."net.features=32"]\ntraining = { lr = 0.5 }\n', "cases", "cases.toml")
    assert resolve(benchmark, "ewc").training["lr"] == 0.5
    assert resolve(benchmark, "ewc", sets={"net": {"features": 8}}).training["lr"] == 0.1


def test_a_report_from_inside_the_runs(runs, monkeypatch, capsys):
    monkeypatch.chdir(runs / "digits-regression")
    assert main(["report", "."]) == 0
    assert "10 finished" in capsys.readouterr().out


def damaged_number(directory):
    file = directory.path / "scores.csv"
    file.write_text(re.sub(r"(?m)^(2,1,.*),[\d.]+,(\d+)$", r"\1,7.5,\2", file.read_text()))


def huge_task(directory):
    with (directory.path / "scores.csv").open("a") as file:
        file.write("2,200000,x,0.1,0.1,9\n")


def long_field(directory):
    with (directory.path / "scores.csv").open("a") as file:
        file.write(f"2,1,{'x' * 200_000},0.1,0.1,9\n")


def event_without_epochs(directory):
    with (directory.path / "events.jsonl").open("a") as file:
        file.write('{"event": "task", "task": 2}\n')


def cut_transfer(directory):
    (directory.path / "transfer.csv").write_text("name,validation,test,epochs\na,0.1,0.")


@pytest.mark.parametrize("damage", [damaged_number, huge_task, long_field, event_without_epochs, cut_transfer])
def test_a_damaged_run_is_named_and_the_others_are_shown(runs, tmp_path, damage, capsys):
    import shutil

    root = tmp_path / "runs"
    shutil.copytree(runs, root)
    hurt = next(d for d in find_runs(root) if d.config.method == "ewc" and d.seed == 1)
    damage(hurt)
    with pytest.warns(RuntimeWarning, match=f"skipped: .*{hurt.path.parent.name}"):
        assert main(["report", str(root), "--where", "stream.setting=two-task"]) == 0
    assert "ewc+afec" in capsys.readouterr().out


def test_a_copy_beside_a_run_stops_nothing(runs, tmp_path, capsys):
    import shutil

    root = tmp_path / "runs"
    shutil.copytree(runs, root)
    one = find_runs(root)[0].path
    shutil.copytree(one, one.with_name("seed0-backup"))
    assert main(["report", str(root)]) == 0
    assert "10 finished, 1 damaged" in capsys.readouterr().out


def test_a_picture_of_different_tasks_is_refused_before_the_work(capsys, tmp_path):
    command = [*SMOKE, "--method", "finetune", "--set", "stream.setting=two-task,ten-task", "--runs", str(tmp_path)]
    assert main([*command, "--picture", str(tmp_path / "x.png")]) == 2
    assert "runs of the same tasks and net" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_net_that_does_not_fit_the_images_is_said_before_the_work(capsys, tmp_path):
    command = [*SMOKE, "--method", "finetune", "--set", "net.name=lenet", "--runs", str(tmp_path)]
    assert main(command) == 2
    assert "afec: digits-regression:" in capsys.readouterr().err


def test_a_cosine_runs_with_the_benchmarks_own_guards():
    for name in ("digits-regression", "cifar10-regression"):
        config = resolve(load_benchmark(name), "ewc+afec", sets={"stream": {"loss": "cosine"}})
        assert {config.settings[term]["fisher"] for term in ("ewc", "afec")} == {"empirical"}
