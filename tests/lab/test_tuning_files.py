"""What a tuning writes, and what `afec run` makes of it."""

from __future__ import annotations

import csv
import re
import tomllib

import pytest

from afec.cli import main
from afec.experiments import RETURN
from afec.experiments.supervised import Supervised
from afec.lab import (
    SpecError,
    find_runs,
    plan,
)
from afec.lab.choice import Trial
from afec.lab.spec import load_tuned
from afec.lab.tuning import Tuned, tune
from afec.report.search import draw_search, trials_table
from small_lab import TEXT, quick_file
from small_tuning import GRIDS, how, peak


def test_the_file_of_a_sum_and_of_a_single_term():
    tuned = Tuned("ewc+afec", {"ewc.strength": 10.0, "afec.forgetting": 1e-05}, (), Supervised)
    assert tuned.to_toml("a\nb").startswith("# a\n# b\n")
    assert tomllib.loads(tuned.to_toml("")) == {
        "method": {"ewc+afec": {"ewc": {"strength": 10}, "afec": {"forgetting": 1e-5}}}
    }
    assert tomllib.loads(Tuned("ewc", {"ewc.strength": 10.0}, (), Supervised).to_toml("")) == {
        "method": {"ewc": {"strength": 10}}
    }


def test_the_csv_has_a_line_for_each_trial_and_seed():
    values = {"ewc.strength": 10.0, "afec.forgetting": 1 / 3}
    trials = (Trial("ewc", {"ewc.strength": 10.0}, (0.5, 0.25)), Trial("ewc+afec", values, ()))
    lines = list(csv.DictReader(Tuned("ewc+afec", values, trials, Supervised).to_csv().splitlines()))
    assert [line["validation_aac"] for line in lines] == ["0.500000", "0.250000", "nan"]
    assert [line["seed_number"] for line in lines] == ["0", "1", "0"]
    assert lines[0]["settings"] == "ewc.strength=10"
    assert float(lines[2]["settings"].rpartition("=")[2]) == 1 / 3  # nothing is rounded away


@pytest.mark.parametrize("together", [False, True])
def test_what_was_found_is_what_a_run_takes(fake, tmp_path, together):
    fake(peak())
    tuned = tune(how(together=together, sets={"training": {"lr": 0.02}}), tmp_path / "runs", 1)
    (tmp_path / "t.toml").write_text(tuned.to_toml("found"))
    file = quick_file(tmp_path, TEXT + GRIDS)
    sets = ["method.ewc.strength=10", "method.afec.forgetting=1", "training.lr=0.02"]
    (by_set,) = plan([file], ["ewc+afec"], [0], "tiny", sets)
    (by_file,) = plan([file], ["ewc+afec"], [0], "tiny", ["training.lr=0.02"], load_tuned(tmp_path / "t.toml"))
    assert by_file.config.hash == by_set.config.hash
    trial = max(
        (d for d in find_runs(tmp_path / "runs") if d.config.method == "ewc+afec"),
        key=lambda d: d.matrix("validation")[1, 0],
    )
    assert trial.config.hash == by_set.config.hash  # the run is the very trial that won
    (alone,) = plan([file], ["ewc"], [0], "tiny", [], load_tuned(tmp_path / "t.toml"))
    assert alone.config.settings["ewc"]["strength"] == 10  # the file's own: a sum's strengths are the sum's


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[method.ewc", "t.toml: cannot be read as the settings of a tuning"),
        ("[method.ewcc]\nstrength = 1", "method.ewcc"),
        ("[method.ewc]\nstrenght = 1", "method.ewc: ewc has no setting 'strenght'; did you mean 'strength'"),
        ("[methods.ewc]\nstrength = 1", "methods: unknown key; did you mean 'method'"),
        ("method = 3", "method"),
        ('[method."ewc+afec"]\nstrength = 1', 'method."ewc+afec".strength: expected a table of settings'),
    ],
)
def test_broken_files_of_a_tuning_are_refused(text, message, tmp_path, capsys):
    (tmp_path / "t.toml").write_text(text)
    with pytest.raises(SpecError, match=re.escape(message)):  # by itself, or for the benchmark that it is used with
        plan(["digits"], ["ewc"], [0], tuned=load_tuned(tmp_path / "t.toml"))
    command = ["run", "digits", "--scale", "smoke", "--tuned", str(tmp_path / "t.toml"), "--runs", str(tmp_path / "r")]
    assert main(command) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


def test_binary_and_missing_files_of_a_tuning_are_refused(tmp_path):
    (tmp_path / "t.toml").write_bytes(b"\xff\x00")
    for name in ("t.toml", "gone.toml"):
        with pytest.raises(SpecError, match=f"{name}: cannot be read as the settings of a tuning"):
            load_tuned(tmp_path / name)


def columns(table):
    """The cells column by column, what is taken in stars."""
    return [[f"*{cell}*" if cell.best else str(cell) for cell in cells] for cells in zip(*table.rows, strict=True)]


def test_the_table_marks_what_noise_leaves_open():
    """√(½·½/103) is 4.9 points."""
    scores = {1.0: 0.2, 10.0: 0.5, 100.0: 0.48}
    trials = tuple(Trial("ewc", {"ewc.strength": key}, (score,), images=100) for key, score in scores.items())
    cells = columns(trials_table(Tuned("ewc", trials[2].values, trials, Supervised)))
    assert cells[2] == ["20.0", "50.0", "*48.0*"]
    assert cells[3][1] == "4.9"
    assert cells[4] == ["", "best mean", "taken, within noise of the best"]


def test_table_and_picture_of_any_outcome(tmp_path):
    one = Trial("ewc", {"ewc.strength": 0.0}, (0.5,))
    two = Trial("ewc", {"ewc.strength": 10.0}, ())
    last = Trial("ewc+afec", {"ewc.strength": 0.0, "afec.beta": 0.5}, (0.5, 0.7))
    tuned = Tuned("ewc+afec", last.values, (one, two, last), Supervised)
    cells = columns(trials_table(tuned))
    assert cells[1] == ["ewc.strength=0", "ewc.strength=10", "ewc.strength=0, afec.beta=0.5"]
    assert cells[2] == ["*50.0*", "failed", "*60.0 ± 14.1*"]
    assert cells[3] == ["0.0", "", "10.0"]
    assert cells[4] == ["taken, best mean", "", "taken, best mean"]
    draw_search(tmp_path / "new" / "p.svg", tuned, "title")
    picture = (tmp_path / "new" / "p.svg").read_text()
    assert "<svg" in picture
    assert "β of afec" in picture
    assert picture.count("validation AAC") == 2


def test_a_return_is_tuned_in_its_own_words(tmp_path):
    """By hand: −12 and −10 are −11 in the mean, with 1.4 as their standard deviation and 1.0 as its standard error."""

    class Game(Supervised):
        score = RETURN

    trials = tuple(
        Trial("rest", {"rest.strength": key}, scores, kind=RETURN)
        for key, scores in ((1.0, (-12.0, -10.0)), (10.0, (-12.7, -9.9)), (100.0, (-30.0, -40.0)))
    )
    tuned = Tuned("rest", trials[1].values, trials, Game)
    table = trials_table(tuned)
    assert columns(table)[2] == ["−11.0 ± 1.4", "*−11.3 ± 2.0*", "−35.0 ± 7.1"]
    assert columns(table)[3][0] == "1.0"
    said = " ".join([table.title, *(column.name for column in table.columns), *tuned.remarks, tuned.to_toml("")])
    assert "validation average return" in said
    assert "has the highest mean, -11.0. It cannot be told apart from rest.strength=10 " in said
    assert "(lower by 0.3, one standard error is 0.4)" in said
    assert not any(word in said for word in ("%", "accuracy", "points", "AAC", "too few validation images"))
    assert tuned.to_csv().startswith("stage,settings,seed_number,validation_average_return\n")
    draw_search(tmp_path / "p.svg", tuned, "title")
    assert "validation average return" in (tmp_path / "p.svg").read_text()
    assert "%" not in "".join(re.findall(r"<!-- (.*?) -->", (tmp_path / "p.svg").read_text()))  # all its words
