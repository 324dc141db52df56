"""Studies as files: what they may say, what those that ship say, and `afec study` as a user calls it."""

from __future__ import annotations

import csv
import math

import pytest

from afec.cli import main
from afec.lab import SpecError, find_runs, job, load_benchmark
from afec.lab.studies import load_study, parse_study, study_names
from afec.lab.toml_file import packaged
from afec.lab.tuning import Plan, planned
from small_lab import TEXT, quick_file
from small_tuning import GRIDS

SMALL = """
description = "two pairs of digits"

[[tune]]
benchmark = "quick.toml"
methods = ["ewc", "ewc+afec"]
scale = "tiny"
seeds = 1

[[runs]]
benchmarks = ["quick.toml"]
methods = ["finetune", "ewc", "ewc+afec"]
scale = "tiny"
seeds = 2
tuned = true

[[outputs]]
file = "seeds.csv"

[[outputs]]
file = "table.md"

[[outputs]]
file = "ewc.csv"
where = ["method=ewc"]

[scale.smoke]
seeds = 1
"""
RUNS = '[[runs]]\nbenchmarks = ["digits"]\nmethods = ["ewc"]\n'
WHOLE = f'description = "d"\n{RUNS}[[outputs]]\nfile = "seeds.csv"\n'


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A study file beside its benchmark, in the present directory."""
    monkeypatch.chdir(tmp_path)
    quick_file(tmp_path, TEXT + GRIDS)
    (tmp_path / "small.toml").write_text(SMALL)
    return tmp_path


def seeds(part):
    return set(range(part.first_seed, part.first_seed + part.seeds))


# -- what a file may say ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("runs = [", "s.toml: this is no TOML"),
        ('name = "s"\n' + WHOLE, "s.toml: name: unknown key; the file name is the study's name"),
        (RUNS, "s.toml: description: Field required"),
        ("publish = true\n" + WHOLE, "s.toml: publish: unknown key; did you mean 'published'?"),
        (WHOLE.replace("[[runs]]", "[[runs]]\nseed = 3"), "s.toml: runs.0.seed: unknown key; did you mean 'seeds'?"),
        (
            WHOLE.replace("[[runs]]", "[[runs]]\nseeds = 0"),
            "s.toml: runs.0.seeds: .* greater than or equal to 1; got 0",
        ),
        (WHOLE.replace('"digits"', '"digit"'), "s.toml: unknown benchmark 'digit'; did you mean 'digits'?"),
        (WHOLE.replace('"ewc"', '"ewx"'), "s.toml: .*unknown method 'ewx'"),
        (WHOLE.replace("[[runs]]", '[[runs]]\nscale = "tall"'), "s.toml: unknown scale of digits 'tall'"),
        (WHOLE.replace("[[runs]]", '[[runs]]\nset = ["training.lrr=1"]'), "s.toml: .*lrr"),
        (
            WHOLE.replace("[[runs]]", "[[runs]]\ntuned = true"),
            r"s.toml: runs: tuned = true, and there is no \[\[tune\]\]",
        ),
        (WHOLE + "[scale.short]\nseedz = 1\n", "s.toml: scale.short.seedz: unknown key; did you mean 'seeds'?"),
        (WHOLE + '[scale.short]\nscale = "tall"\n', "s.toml: unknown scale of digits 'tall'"),
        (WHOLE + 'figure = "strength"\n', "s.toml: outputs: seeds.csv has a figure, so its name ends in .png"),
        (WHOLE.replace("seeds.csv", "../seeds.csv"), "s.toml: outputs: ../seeds.csv: give a name inside the folder"),
        (WHOLE.replace("seeds.csv", "/seeds.csv"), "s.toml: outputs: /seeds.csv: give a name inside the folder"),
    ],
)
def test_a_mistake_is_named_with_its_file_and_key(text, words):
    with pytest.raises(SpecError, match=words):
        parse_study(text, "s", "s.toml")


@pytest.mark.parametrize(
    ("tune", "scale"),
    [
        ("first_seed = 4", ""),
        ("first_seed = 0\nseeds = 1", ""),
        ("", "seeds = 101"),  # reported up to 100, tuned from 100 on
        ("", "first_seed = 50"),  # both
    ],
)
def test_a_tuning_seed_that_is_also_reported_is_refused_at_every_scale(tune, scale):
    search = f'[[tune]]\nbenchmark = "digits"\nmethods = ["ewc"]\n{tune}\n'
    with pytest.raises(SpecError, match=r"s.toml: tune: seed \d+ is also reported; give another first_seed"):
        parse_study(f"{WHOLE}{search}[scale.other]\n{scale}\n", "s", "s.toml")


def test_a_study_that_does_not_exist_is_answered_with_those_that_do(tmp_path):
    with pytest.raises(SpecError, match="unknown study 'strengh'; did you mean 'strength'?.*path of a .toml file"):
        load_study("strengh")
    with pytest.raises(SpecError, match="nowhere.toml: cannot be read as a study"):
        load_study(str(tmp_path / "nowhere.toml"))
    with pytest.raises(SpecError, match="unknown scale of the study strength 'tall'"):
        load_study("strength").at("tall")


# -- those that ship ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", study_names())
def test_every_study_that_ships_has_jobs_and_outputs_at_every_scale(name):
    study = load_study(name)
    for scale in study.scales:
        scaled = study.at(scale)
        jobs = scaled.jobs()
        wanted = {seed for part in scaled.runs for seed in seeds(part)}
        assert {job.seed for job in jobs} == wanted
        assert len({(job.config.benchmark, job.config.label, job.config.hash, job.seed) for job in jobs}) == len(jobs)
        assert not any(seeds(search) & wanted for search in scaled.tune)
        assert len({output.file for output in scaled.outputs}) == len(scaled.outputs)


@pytest.mark.parametrize("name", [name for name in study_names() if "[[tune]]" in packaged("study", name)])
def test_every_method_of_a_search_has_the_same_number_of_trials(name):
    """Stage by stage, for all methods that are searched on one benchmark, each with the same number of seeds."""
    for scale in load_study(name).scales:
        found: dict[tuple[str, str], set[tuple[int, int]]] = {}
        for search in load_study(name).at(scale).tune:
            for method in search.methods:
                for _, space in planned(Plan(load_benchmark(search.benchmark), method, search.scale)):
                    trials = math.prod(map(len, space.values()))
                    found.setdefault((search.benchmark, search.scale), set()).add((trials, search.seeds))
        assert all(len(numbers) == 1 for numbers in found.values()), found


def test_the_tables_and_figures_of_the_paper_are_there():
    papers = {load_study(name).paper for name in study_names()}
    assert {"Table 1", "Table 2", "Table 4", "Figure 3", "Figure 5", "Figure 6"} <= papers


# -- as a user calls it -------------------------------------------------------------------------------------------------


def test_list_and_show(small, capsys):
    assert main(["study", "list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in study_names())
    assert main(["study", "show", "small.toml"]) == 0
    shown = capsys.readouterr().out
    assert "tune: quick.toml at tiny: ewc, ewc+afec; 1 seed from 100 on" in shown
    assert "quick, ewc+afec (λ=10, λ_e=1)" in shown  # nothing is tuned yet: the benchmark's
    assert "6 runs: 0 done" in shown
    assert "writes ewc.csv  of method=ewc" in shown
    assert main(["study", "run", "small.toml", "--dry-run"]) == 0
    assert capsys.readouterr().out == shown
    assert not (small / "runs").exists()


def test_run_tunes_runs_and_writes_and_does_nothing_twice(small, in_process, capsys):
    assert main(["study", "run", "small.toml", "--scale", "smoke"]) == 0
    folder = small / "results" / "small-smoke"
    assert sorted(path.name for path in folder.iterdir()) == ["ewc.csv", "seeds.csv", "table.md"]
    with (folder / "seeds.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["method"].split(" ")[0] for row in rows} == {"finetune", "ewc", "ewc+afec"}
    assert {row["seed"] for row in rows} == {"0"}
    assert all(0 <= float(row["aac"]) <= 1 for row in rows)
    with (folder / "ewc.csv").open(newline="") as file:
        assert [row["method"].split(" ")[0] for row in csv.DictReader(file)] == ["ewc"]
    assert "| `finetune` |" in (folder / "table.md").read_text()
    before = (folder / "seeds.csv").read_bytes()
    capsys.readouterr()
    assert main(["study", "run", "small.toml", "--scale", "smoke", "--out", "elsewhere"]) == 0
    assert ": done" not in capsys.readouterr().out
    assert (small / "elsewhere" / "seeds.csv").read_bytes() == before


def test_tuned_rows_have_what_the_search_has_found_and_others_have_not(small, fake, capsys):
    """Validation accuracy is best at λ = 1 and λ_e = 10; the benchmark has 10 and 1."""

    def score(settings, seed):
        good = settings.get("ewc", {}).get("strength") == 1 and settings.get("afec", {}).get("forgetting", 10) == 10
        return (0.9 if good else 0.1), 0.5

    ran, text = fake(score), SMALL.replace('"finetune"', '"mas"')
    (small / "small.toml").write_text(text)
    assert main(["study", "run", "small.toml"]) == 0
    reported = {(config.method, seed): config.settings for config, seed in ran if seed < 100}
    assert reported.keys() == {(method, seed) for method in ("mas", "ewc", "ewc+afec") for seed in (0, 1)}
    assert [reported["ewc", seed]["ewc"]["strength"] for seed in (0, 1)] == [1, 1]
    assert [reported["ewc+afec", seed]["ewc"]["strength"] for seed in (0, 1)] == [1, 1]
    assert [reported["ewc+afec", seed]["afec"]["forgetting"] for seed in (0, 1)] == [10, 10]
    assert {seed for _, seed in ran if seed not in (0, 1)} == {100}
    assert "ewc+afec (λ=1, λ_e=10)" in capsys.readouterr().out
    ran.clear()
    (small / "plain.toml").write_text(text.replace("tuned = true", ""))
    assert main(["study", "run", "plain.toml"]) == 0
    assert {config.settings["ewc"]["strength"] for config, _ in ran if "ewc" in config.settings} == {10}


def test_a_scale_may_search_a_part_of_each_grid(small, fake, capsys):
    (small / "small.toml").write_text(SMALL + "trials = 1\n")  # of [scale.smoke]
    ran = fake(lambda settings, seed: (0.5, 0.5))
    assert main(["study", "show", "small.toml", "--scale", "smoke"]) == 0
    assert "1 seed from 100 on, 1 trial of each grid" in capsys.readouterr().out
    assert main(["study", "run", "small.toml", "--scale", "smoke"]) == 0
    assert sorted(config.method for config, seed in ran if seed == 100) == ["ewc", "ewc+afec"]


def test_a_study_that_is_stopped_goes_on(small, in_process, monkeypatch, capsys):
    """Ctrl-C in the third run: the first two are kept, and the same command runs the rest and writes the tables."""
    search = SMALL[SMALL.index("[[tune]]") : SMALL.index("[[runs]]")]
    (small / "small.toml").write_text(SMALL.replace("tuned = true", "").replace(search, ""))
    real, begun = job.run, []

    def stopped(config, seed, *arguments, **options):
        begun.append((config.label, seed))
        if len(begun) == 3:
            raise KeyboardInterrupt
        return real(config, seed, *arguments, **options)

    monkeypatch.setattr(job, "run", stopped)
    assert main(["study", "run", "small.toml"]) == 130
    assert "stopped; finished runs are kept" in capsys.readouterr().err
    assert sum(run.done for run in find_runs(small / "runs")) == 2
    assert not (small / "results").exists()
    assert {seed for _, seed in begun} == {0}  # seed by seed: the first seeds are whole comparisons
    assert main(["study", "run", "small.toml"]) == 0
    assert len(begun) == 3 + 4
    with (small / "results" / "small" / "seeds.csv").open(newline="") as file:
        assert sum(1 for _ in csv.DictReader(file)) == 6


def test_a_study_that_is_wrong_runs_nothing(small, capsys):
    (small / "small.toml").write_text(SMALL.replace("seeds = 2", "seeds = 200"))
    assert main(["study", "run", "small.toml"]) == 2
    assert "small.toml: tune: seed 100 is also reported; give another first_seed" in capsys.readouterr().err
    assert not (small / "runs").exists()
