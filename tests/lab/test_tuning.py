"""Tuning: what is searched, what is looked at, what is kept, and what `afec run` makes of it."""

from __future__ import annotations

import csv
import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest
from small_lab import TEXT, quick_file

from afec.cli import main
from afec.files import write_text
from afec.lab import (
    RunDirectory,
    RunError,
    SpecError,
    benchmark_names,
    engine,
    find_runs,
    load_benchmark,
    plan,
    resolve,
)
from afec.lab.directory import Row
from afec.lab.spec import load_tuned, parse_benchmark
from afec.lab.tuning import Plan, Trial, Tuned, planned, search_space, stages, trials_of, tune
from afec.methods.expression import METHODS
from afec.report.search import draw_search, trials_table

GRIDS = """
[tune.ewc]
strength = [1, 10, 100]
fisher = "exact"

[tune.mas]
strength = [0.1, 1, 10]

[tune.afec]
forgetting = [0.1, 1, 10]
beta = [0.1, 0.5, 0.9]
fisher = "exact"
"""


def bench(grids=GRIDS, text=TEXT):
    return parse_benchmark(text + grids, "quick", "quick.toml")


def how(method="ewc+afec", **options):
    options = {"scale": "tiny", "seeds": (100, 101), "benchmark": bench()} | options
    return Plan(method=method, **options)


@pytest.fixture
def fake(in_process, monkeypatch):
    """`fake(score)`: a run takes no time, and its accuracies are score(settings, seed) -> (validation, test).

    Everything around it (jobs, failures, directories) is real. Gives the list of what was run.
    """

    def install(score):
        ran = []

        def run(config, seed, root, on_phase=None, **options):
            ran.append((config, seed))
            validation, test = score(config.settings, seed)
            directory = RunDirectory.of(root, config, seed)
            write_text(directory.path / "config.toml", config.to_toml())
            directory.write_accuracy([Row(0, 1, "digits", 0.1, 0.1), Row(1, 1, "digits", validation, test)])
            directory.finish({"wall_seconds": 1.0})
            return directory

        monkeypatch.setattr(engine, "run", run)
        return ran

    return install


def peak(strength=10, forgetting=1):
    """Validation is best at these two, and test where validation is worst."""

    def score(settings, seed):
        distance = abs(settings["ewc"]["strength"] - strength) / 100
        if "afec" in settings:
            distance += abs(settings["afec"]["forgetting"] - forgetting) / 100
        away = distance / (1 + distance)
        return 0.9 - away / 2, 0.1 + away / 2

    return score


# -- stages and spaces --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "together", "expected"),
    [
        ("ewc", False, [("ewc", ["ewc"])]),
        ("ewc+afec", False, [("ewc", ["ewc"]), ("ewc+afec", ["afec"])]),
        ("afec+ewc", False, [("ewc", ["ewc"]), ("ewc+afec", ["afec"])]),
        ("ewc+afec", True, [("ewc+afec", ["ewc", "afec"])]),
        ("ewc+mas+afec", False, [("ewc+mas", ["ewc", "mas"]), ("ewc+mas+afec", ["afec"])]),
        ("afec", False, [("afec", ["afec"])]),
        ("ewc+afec@long", False, [("ewc@long", ["ewc"]), ("ewc+afec@long", ["afec"])]),
        ("mas@long", True, [("mas@long", ["mas"])]),
    ],
)
def test_the_strength_comes_first_and_without_afec(method, together, expected):
    assert stages(resolve(bench(), method), together=together) == expected


@pytest.mark.parametrize("method", ["finetune", "joint", "scratch"])
def test_what_has_no_strength_is_refused(method):
    with pytest.raises(SpecError, match=f"{method} has nothing to tune; give a method with a strength"):
        planned(how(method))


def test_what_each_stage_searches():
    strengths, forgettings = (1.0, 10.0, 100.0), (0.1, 1.0, 10.0)
    first = ("ewc", {"ewc.strength": strengths})
    assert planned(how()) == [first, ("ewc+afec", {"afec.forgetting": forgettings})]
    assert planned(how(beta=True)) == [first, ("ewc+afec", {"afec.beta": (0.1, 0.5, 0.9)})]
    both = {"ewc.strength": strengths, "afec.forgetting": forgettings}
    assert planned(how(together=True)) == [("ewc+afec", both)]
    assert [trials_of(how(**o)) for o in ({}, {"together": True}, {"trials": 2}, {"trials": 99})] == [6, 9, 4, 6]
    assert [trials_of(how(search="tpe", **o)) for o in ({}, {"together": True}, {"trials": 3})] == [40, 20, 6]


@pytest.mark.parametrize("name", benchmark_names())
def test_the_grids_of_the_package_give_every_method_and_stage_the_same_number_of_trials(name):
    found = load_benchmark(name)
    methods = [name for name in METHODS if name != "afec"]
    for beta in (False, True):
        spaces = [
            space for m in methods for _, space in planned(Plan(found, f"{m}+afec", "smoke", seeds=(1,), beta=beta))
        ]
        assert len(spaces) == 2 * len(methods)
        assert len({len(values) for space in spaces for values in space.values()}) == 1


def test_a_missing_grid_is_named():
    only = bench('[tune.ewc]\nstrength = [1]\n[tune.afec]\nforgetting = [1]\nfisher = "exact"\n')
    with pytest.raises(SpecError, match=r"quick has no grid for mas: .* \[tune.mas\] strength = \[1, 10, 100\]"):
        planned(how("mas", benchmark=only))
    with pytest.raises(SpecError, match=r"no grid for afec in β: .* \[tune.afec\] beta = \[0.1"):
        planned(how(benchmark=only, beta=True))
    with pytest.raises(SpecError, match=r"no grid for afec: .* \[tune.afec\] forgetting = "):
        planned(how(benchmark=bench("[tune.ewc]\nstrength = [1]\n[tune.afec]\nbeta = [0.5]\n")))


@pytest.mark.parametrize(
    ("grids", "message"),
    [
        ("[tune.ewcc]\nstrength = [1]", "quick.toml: tune.ewcc: unknown method 'ewcc'; did you mean 'ewc'"),
        ("[tune.ewc]\nstrenght = [1]", "quick.toml: tune.ewc: ewc has no setting 'strenght'; did you mean 'strength'"),
        ("[tune.ewc]\nstrength = 1", "quick.toml: tune.ewc.strength: expected a list of numbers"),
        ("[tune.ewc]\nstrength = []", "quick.toml: tune.ewc.strength: expected a list of numbers"),
        ("[tune.ewc]\nstrength = [-1]", "quick.toml: tune.ewc.strength: expected a list of numbers"),
        ('[tune.ewc]\nstrength = ["1"]', "quick.toml: tune.ewc.strength: expected a list of numbers"),
        ("[tune.ewc]\nstrength = [true]", "quick.toml: tune.ewc.strength: expected a list of numbers"),
        ("[tune.ewc]\nstrength = [inf]", "quick.toml: tune.ewc.strength: expected a list of numbers"),
        ("[tune.ewc]\nstrength = [1, nan]", "quick.toml: tune.ewc.strength: expected a list of numbers"),
        ("[tune.ewc]\nstrength = [1]\nfisher_batch = 0", "quick.toml: tune.ewc.fisher_batch: expected the number of"),
        ("[tune.ewc]\nstrength = [1]\nfisher_batch = 2.5", "quick.toml: tune.ewc.fisher_batch: expected the number of"),
        (
            '[tune.ewc]\nstrength = [1]\nfisher_batch = "20"',
            "quick.toml: tune.ewc.fisher_batch: expected the number of",
        ),
        (
            "[tune.ewc]\nstrength = [1]\nfisher_batch = true",
            "quick.toml: tune.ewc.fisher_batch: expected the number of",
        ),
        ('[tune.ewc]\nstrength = [1]\nfisher = "exakt"', "quick.toml: tune.ewc.fisher: unknown Fisher kind 'exakt'"),
        ("[tune]\newc = [1]", "quick.toml: tune.ewc"),
    ],
    ids=lambda text: text.replace("\n", " ") if text.startswith("[") else "",
)
def test_a_wrong_grid_is_refused_with_file_and_key(grids, message):
    with pytest.raises(SpecError, match=re.escape(message)):
        bench(grids)


def test_a_beta_of_one_is_refused():
    with pytest.raises(SpecError, match=re.escape("quick: tune.afec.beta: β lies in [0, 1); got [0.5, 1]")):
        planned(how("afec", benchmark=bench("[tune.afec]\nbeta = [0.5, 1]\n"), beta=True))


# -- Fisher kinds -------------------------------------------------------------------------------------------------


def converted(grid, **settings):
    """λ = 3 of this grid under these settings of the run."""
    found = bench(f"[tune.ewc]\nstrength = [3]\n{grid}\n")
    ((value,),) = search_space(found, resolve(found, "ewc", sets={"method": {"ewc": settings}}), "ewc").values()
    return value


@pytest.mark.parametrize(
    ("grid", "settings", "expected"),
    [
        ('fisher = "empirical"', {"fisher": "empirical"}, 3),
        ('fisher = "empirical"', {"fisher": "batched", "fisher_batch": 20}, 60),
        ('fisher = "empirical"', {"preset": "paper"}, 3),
        ('fisher = "empirical"', {"preset": "official"}, 60),
        ('fisher = "batched"', {"preset": "official"}, 3),
        ('fisher = "batched"', {"fisher": "empirical"}, 3 / 20),
        ('fisher = "batched"\nfisher_batch = 10', {"fisher": "empirical"}, 3 / 10),
        ('fisher = "batched"\nfisher_batch = 10', {"fisher": "batched", "fisher_batch": 20}, 6),
        ('fisher = "batched"\nfisher_batch = 20', {"fisher": "batched", "fisher_batch": 10}, 1.5),
        ('fisher = "exact"', {}, 3),
        ('fisher = "exact"', {"fisher": "sample"}, 3),
        ('fisher = "sample"', {"fisher": "auto"}, 3),
        ('fisher = "auto"', {"fisher": "exact"}, 3),
        ("", {"fisher": "batched"}, 3),  # it does not say what it belongs to
    ],
)
def test_a_grid_is_converted_to_the_kind_of_the_run(grid, settings, expected):
    assert converted(grid, **settings) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("there", "here"), [("exact", "batched"), ("batched", "exact"), ("sample", "empirical"), ("empirical", "auto")]
)
def test_what_cannot_be_converted_is_refused(there, here):
    message = (
        f"the grid of ewc in quick belongs to the `{there}` Fisher, and this run uses `{here}`: their λ are different numbers "
        f'and cannot be converted. Use --set method.ewc.fisher={there}, or a grid with fisher = "{here}"'
    )
    with pytest.raises(SpecError, match=re.escape(message)):
        converted(f'fisher = "{there}"', fisher=here)


def test_beta_is_converted_as_its_lambda_e():
    found = bench('[tune.afec]\nforgetting = [0.25, 1]\nbeta = [0.2, 0.5]\nfisher = "empirical"\n')
    config = resolve(found, "afec", sets={"method": {"afec": {"fisher": "batched", "fisher_batch": 20}}})
    assert search_space(found, config, "afec") == {"afec.forgetting": (5.0, 20.0)}
    ((low, high),) = search_space(found, config, "afec", beta=True).values()  # λ_e = β/(1−β): 1/4 and 1, times 20
    assert (low, high) == pytest.approx((5 / 6, 20 / 21))


def test_only_strengths_are_converted():
    found = bench('[tune.si]\nstrength = [1]\ndamping = [0.1, 0.2]\n[tune.ewc]\nstrength = [1]\nfisher = "empirical"\n')
    config = resolve(found, "si")
    assert search_space(found, config, "si") == {"si.strength": (1.0,), "si.damping": (0.1, 0.2)}


# -- the search ---------------------------------------------------------------------------------------------------


def test_the_best_is_chosen_on_validation_though_test_says_otherwise(fake, tmp_path):
    ran = fake(peak(strength=10, forgetting=1))
    tuned = tune(how(), tmp_path, 1)
    assert tuned.best == {"ewc.strength": 10.0, "afec.forgetting": 1.0}
    assert tuned.method == "ewc+afec"
    tests = [
        (directory.matrix("test")[1, 0], directory.config.settings["ewc"]["strength"])
        for directory in find_runs(tmp_path)
    ]
    assert max(tests)[1] == 100  # where the test accuracy would have led
    assert len(ran) == 2 * 2 * 3
    assert {seed for _, seed in ran} == {100, 101}


def test_what_the_first_stage_found_is_kept_in_the_second(fake, tmp_path):
    fake(peak(strength=100, forgetting=10))
    tuned = tune(how(), tmp_path, 1)
    first, second = tuned.trials[:3], tuned.trials[3:]
    assert [trial.values for trial in first] == [{"ewc.strength": s} for s in (1.0, 10.0, 100.0)]
    assert [trial.stage for trial in tuned.trials] == ["ewc"] * 3 + ["ewc+afec"] * 3
    assert [trial.values for trial in second] == [{"ewc.strength": 100.0, "afec.forgetting": f} for f in (0.1, 1, 10)]
    assert tuned.best == {"ewc.strength": 100.0, "afec.forgetting": 10.0}


def test_together_finds_what_stage_by_stage_misses(fake, tmp_path):
    def score(settings, seed):  # without AFEC λ = 1 is best; with it, λ = 100 and λ_e = 10
        good = settings["ewc"]["strength"] == (100 if settings.get("afec", {}).get("forgetting") == 10 else 1)
        return (0.95 if good and "afec" in settings and settings["ewc"]["strength"] == 100 else 0.5 + 0.2 * good), 0.5

    fake(score)
    assert tune(how(), tmp_path / "a", 1).best["ewc.strength"] == 1
    tuned = tune(how(together=True), tmp_path / "b", 1)
    assert tuned.best == {"ewc.strength": 100.0, "afec.forgetting": 10.0}
    assert len(tuned.trials) == 9


def test_the_mean_over_the_seeds_decides(fake, tmp_path):
    table = {(1, 100): 0.9, (1, 101): 0.1, (10, 100): 0.6, (10, 101): 0.6, (100, 100): 0.5, (100, 101): 0.5}
    fake(lambda settings, seed: (table[settings["ewc"]["strength"], seed], 0.5))
    tuned = tune(how("ewc"), tmp_path, 1)
    assert [trial.scores for trial in tuned.trials] == [(0.9, 0.1), (0.6, 0.6), (0.5, 0.5)]
    assert tuned.best == {"ewc.strength": 10.0}


def test_of_equal_trials_the_first_of_the_grid_wins(fake, tmp_path):
    fake(lambda settings, seed: (0.5, 0.5))
    assert tune(how(), tmp_path, 1).best == {"ewc.strength": 1.0, "afec.forgetting": 0.1}


def test_beta_is_run_as_its_lambda_e(fake, tmp_path):
    ran = fake(peak(strength=10, forgetting=9))
    tuned = tune(how(beta=True), tmp_path, 1)
    assert tuned.best == {"ewc.strength": 10.0, "afec.beta": 0.9}
    weights = sorted({config.settings["afec"]["forgetting"] for config, _ in ran if "afec" in config.settings})
    assert weights == pytest.approx([1 / 9, 1, 9])
    assert not any("beta" in config.settings.get("afec", {}) for config, _ in ran)
    text = tuned.to_toml("found")
    assert tomllib.loads(text)["method"]["ewc+afec"]["afec"] == {"forgetting": pytest.approx(9)}
    assert "afec.beta=0.9" in tuned.to_csv()  # as it was searched


def test_a_beta_in_the_file_gives_way(fake, tmp_path):
    text = TEXT.replace("[method.afec]\nforgetting = 1", "[method.afec]\nbeta = 0.25").replace(
        '[method."mas+afec".afec]\nforgetting = 0.5', ""
    )
    ran = fake(peak())
    tune(how(benchmark=bench(text=text)), tmp_path, 1)
    assert {config.settings["afec"]["forgetting"] for config, _ in ran if "afec" in config.settings} == {0.1, 1, 10}


def test_a_variant_is_tuned_as_a_variant(fake, tmp_path):
    ran = fake(peak())
    tuned = tune(how("ewc+afec@long", scale="three"), tmp_path, 1)
    assert {(config.variant, config.training["max_epochs"]) for config, _ in ran} == {("long", 4)}
    assert tuned.method == "ewc+afec@long"
    written = tomllib.loads(tuned.to_toml(""))["method"]
    assert set(written) == {"ewc", "ewc+afec"}  # so that the row without AFEC is run as it was tuned, too
    assert written["ewc"]["strength"] == written["ewc+afec"]["ewc"]["strength"] == tuned.best["ewc.strength"]


def test_a_failed_trial_never_wins(fake, tmp_path):
    def score(settings, seed):
        if settings["ewc"]["strength"] == 100 and seed == 101:
            raise ArithmeticError("diverged")
        return (1.0 if settings["ewc"]["strength"] == 100 else settings["ewc"]["strength"] / 100), 0.5

    fake(score)
    tuned = tune(how(), tmp_path, 1)
    assert tuned.best["ewc.strength"] == 10
    (failed,) = [trial for trial in tuned.trials if not trial.scores]
    assert failed.values == {"ewc.strength": 100.0}
    assert failed.score == -float("inf")
    assert "100,0,nan" in tuned.to_csv()


def test_if_every_trial_fails_it_says_so(fake, tmp_path):
    fake(lambda settings, seed: 1 / 0)
    with pytest.raises(RunError, match="every trial of ewc failed; the directories under .* have the tracebacks"):
        tune(how(), tmp_path, 1)


def test_damaged_numbers_stop_a_tuning_and_are_no_failed_trial(fake, tmp_path):
    fake(peak())
    tune(how(), tmp_path, 1)
    file = find_runs(tmp_path)[0].path / "accuracy.csv"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(RunError, match="accuracy.csv is not whole; move the directory away and run again"):
        tune(how(), tmp_path, 1)


def test_a_second_call_runs_nothing_and_a_stopped_one_goes_on(fake, tmp_path):
    ran = fake(peak())
    first = tune(how(), tmp_path, 1)
    count = len(ran)
    assert tune(how(), tmp_path, 1) == first
    assert len(ran) == count
    (gone,) = [d for d in find_runs(tmp_path) if d.seed == 101 and d.config.settings["ewc"]["strength"] == 100]
    (gone.path / "DONE").unlink()
    assert tune(how(), tmp_path, 1) == first
    assert len(ran) == count + 1


def test_fewer_trials_are_a_fixed_part_of_the_grid(fake, tmp_path):
    ran = fake(peak())
    found = [tune(how(trials=2), tmp_path / str(n), 1) for n in range(2)]
    assert found[0] == found[1]
    assert [trial.stage for trial in found[0].trials] == ["ewc"] * 2 + ["ewc+afec"] * 2
    strengths = [trial.values["ewc.strength"] for trial in found[0].trials[:2]]
    assert strengths == sorted(set(strengths))
    assert len(ran) == 2 * 2 * 2 * 2


def test_tpe_is_deterministic_within_the_grid_and_the_same_for_any_number_of_workers(fake, tmp_path):
    ran = fake(peak(strength=30, forgetting=2))
    found = [tune(how(search="tpe", trials=13, seeds=(7,)), tmp_path / str(w), w) for w in (1, 5)]
    assert found[0] == found[1]
    assert len(found[0].trials) == 2 * 13
    assert len(ran) == 2 * 2 * 13
    strengths = [trial.values["ewc.strength"] for trial in found[0].trials[:13]]
    assert len(set(strengths)) == 13
    assert 1 <= min(strengths) < max(strengths) <= 100
    best = max(found[0].trials[13:], key=lambda trial: trial.score)
    assert found[0].best == best.values
    assert tune(how(search="tpe", trials=13, seeds=(7,)), tmp_path / "1", 1) == found[0]
    assert len(ran) == 2 * 2 * 13


def test_tpe_survives_failed_trials(fake, tmp_path):
    def score(settings, seed):
        if settings["ewc"]["strength"] > 20:
            raise ArithmeticError
        return settings["ewc"]["strength"] / 100, 0.5

    fake(score)
    tuned = tune(how("ewc", search="tpe", trials=8, seeds=(7,)), tmp_path, 1)
    assert tuned.best["ewc.strength"] == max(t.values["ewc.strength"] for t in tuned.trials if t.scores) <= 20
    assert any(not trial.scores for trial in tuned.trials)


def test_tpe_without_optuna_says_what_to_install(fake, tmp_path, monkeypatch):
    ran = fake(peak())
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(SpecError, match=r"needs Optuna: pip install 'afec\[tune\]', or use the search `grid`"):
        tune(how(search="tpe"), tmp_path, 1)
    assert ran == []
    assert tune(how(), tmp_path, 1).best == {"ewc.strength": 10.0, "afec.forgetting": 1.0}  # a grid needs none


# -- what is written ----------------------------------------------------------------------------------------------


def test_the_file_of_a_sum_and_of_a_single_term():
    tuned = Tuned("ewc+afec", {"ewc.strength": 10.0, "afec.forgetting": 1e-05}, ())
    assert tuned.to_toml("a\nb").startswith("# a\n# b\n")
    assert tomllib.loads(tuned.to_toml("")) == {
        "method": {"ewc+afec": {"ewc": {"strength": 10}, "afec": {"forgetting": 1e-5}}}
    }
    assert tomllib.loads(Tuned("ewc", {"ewc.strength": 10.0}, ()).to_toml("")) == {"method": {"ewc": {"strength": 10}}}


def test_the_csv_has_a_line_for_each_trial_and_seed():
    values = {"ewc.strength": 10.0, "afec.forgetting": 1 / 3}
    trials = (Trial("ewc", {"ewc.strength": 10.0}, (0.5, 0.25)), Trial("ewc+afec", values, ()))
    lines = list(csv.DictReader(Tuned("ewc+afec", values, trials).to_csv().splitlines()))
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
    with pytest.raises(SpecError, match=re.escape(message)):
        load_tuned(tmp_path / "t.toml")
    command = ["run", "digits", "--scale", "smoke", "--tuned", str(tmp_path / "t.toml"), "--runs", str(tmp_path / "r")]
    assert main(command) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


def test_binary_and_missing_files_of_a_tuning_are_refused(tmp_path):
    (tmp_path / "t.toml").write_bytes(b"\xff\x00")
    for name in ("t.toml", "gone.toml"):
        with pytest.raises(SpecError, match=f"{name}: cannot be read as the settings of a tuning"):
            load_tuned(tmp_path / name)


def test_table_and_picture_of_any_outcome(tmp_path):
    one = Trial("ewc", {"ewc.strength": 0.0}, (0.5,))
    two = Trial("ewc", {"ewc.strength": 10.0}, ())
    last = Trial("ewc+afec", {"ewc.strength": 0.0, "afec.beta": 0.5}, (0.5, 0.7))
    tuned = Tuned("ewc+afec", last.values, (one, two, last))
    cells = [list(column.cells) for column in trials_table(tuned).columns]
    assert cells[1] == ["ewc.strength=0", "ewc.strength=10", "ewc.strength=0, afec.beta=0.5"]
    assert cells[2] == ["[bold]50.0[/bold]", "failed", "[bold]60.0 ± 14.1[/bold]"]
    draw_search(tmp_path / "new" / "p.svg", tuned, "title")
    picture = (tmp_path / "new" / "p.svg").read_text()
    assert "<svg" in picture
    assert "β of afec" in picture
    assert picture.count("validation AAC") == 2


# -- as a user calls it -------------------------------------------------------------------------------------------

SMALL = ["--scale", "smoke", "--set", "stream.sizes=[2,2]", "training.max_epochs=1"]


def test_tuning_and_running_from_the_command_line(in_process, tmp_path, capsys):
    name = quick_file(tmp_path, TEXT + GRIDS)
    command = ["tune", name, "--scale", "tiny", "--method", "ewc+afec", "--trials", "2", "--seeds", "1"]
    command += ["--runs", str(tmp_path)]
    assert main(command) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert "tuning of ewc+afec: averaged validation accuracy in %" in shown.out
    assert len(re.findall(r"│ ewc +│ ewc.strength=", shown.out)) == 2
    assert len(re.findall(r"│ ewc\+afec +│ ewc.strength=\d+, afec.forgetting=", shown.out)) == 2
    assert re.search(r"4/4  quick, ewc\+afec, afec.forgetting=[\d.]+, seed 100: done", shown.out)
    file = tmp_path / "quick" / "tune" / "ewc+afec-tiny.toml"
    for path in (file, file.with_suffix(".csv"), file.with_suffix(".png")):
        assert path.exists()
    assert file.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert len(file.with_suffix(".csv").read_text().splitlines()) == 5
    assert "on validation images of the seeds [100]" in file.read_text()
    found = tomllib.loads(file.read_text())["method"]["ewc+afec"]
    assert f"use it: afec run {name} --method ewc+afec --scale tiny --tuned {file}" in shown.out
    assert find_runs(tmp_path) == []  # trials are not reported
    assert len(find_runs(tmp_path / "tuning")) == 4

    assert main(command) == 0
    assert "done" not in capsys.readouterr().out

    # Of the very configuration of the trial, so on a tuning seed there is nothing left to run.
    trials = str(tmp_path / "tuning")
    again = ["run", name, "--scale", "tiny", "--method", "ewc+afec", "--seeds", "1", "--runs", trials]
    assert main([*again, "--first-seed", "100", "--tuned", str(file)]) == 0
    shown = capsys.readouterr().out
    assert f"ewc+afec (λ={found['ewc']['strength']:g}, λ_e={found['afec']['forgetting']:g})" in shown
    assert "seed 100: done" not in shown


def test_out_says_where_and_tpe_and_beta_can_be_asked_for(fake, tmp_path, capsys):
    fake(peak(strength=100, forgetting=0.1))
    command = ["tune", "digits", "--scale", "smoke", "-m", "ewc+afec", "--search", "tpe", "--trials", "3", "--beta"]
    command += [
        "--seeds",
        "2",
        "--first-seed",
        "7",
        "--runs",
        str(tmp_path / "r"),
        "--out",
        str(tmp_path / "o" / "x.toml"),
    ]
    assert main(command) == 0
    assert sorted(file.name for file in (tmp_path / "o").iterdir()) == ["x.csv", "x.png", "x.toml"]
    assert "afec.beta=" in capsys.readouterr().out
    assert {run.seed for run in find_runs(tmp_path / "r" / "tuning")} == {7, 8}
    load_tuned(tmp_path / "o" / "x.toml")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digits", "-m", "finetune"], "finetune has nothing to tune"),
        (["digits", "-m", "joint"], "joint has nothing to tune"),
        (["digits", "-m", "ewcc"], "did you mean 'ewc'"),
        (["digits", "-m", "ewc", "--scale", "smok"], "did you mean 'smoke'"),
        (["digits", "-m", "ewc", "--search", "random"], "--search random: unknown search 'random'"),
        (["digits", "-m", "ewc", "--set", "training.lr=0.1,0.2"], "takes one value for each --set"),
        (["digits", "-m", "ewc", "--set", "method.ewc.fisher=batched"], "cannot be converted"),
        (["digits", "-m", "ewc", "--set", "method.ewc.strength=7"], "ewc.strength is what this tuning searches"),
        (
            ["digits", "-m", "ewc+afec", "--set", "method.afec.forgetting=7"],
            "afec.forgetting is what this tuning searches",
        ),
        (["digits", "-m", "ewc+afec", "--set", "method.afec.beta=0.5"], "method.afec.beta: afec.forgetting is what"),
        (["digits", "-m", "ewc+afec", "--beta", "--set", "method.afec.forgetting=7"], "afec.beta is what this tuning"),
        (["nowhere", "-m", "ewc"], "unknown benchmark 'nowhere'"),
        (["digits"], "--method"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_impossible_tunings_are_refused(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["tune", *arguments]) == 2
    shown = capsys.readouterr().err
    assert message.lower() in shown.lower()
    assert "Traceback" not in shown
    assert list(tmp_path.iterdir()) == []


def test_a_setting_that_is_not_searched_may_be_set(fake, tmp_path):
    ran = fake(peak())
    tune(how(sets={"method": {"ewc": {"fisher": "sample"}}}), tmp_path, 1)
    assert {config.settings["ewc"]["fisher"] for config, _ in ran} == {"sample"}


def test_the_command_to_use_it_can_be_pasted(fake, tmp_path, monkeypatch, capsys):
    fake(peak())
    folder = tmp_path / "my files"
    folder.mkdir()
    name = quick_file(folder, TEXT + GRIDS)
    command = ["tune", name, "--scale", "tiny", "-m", "ewc", "--seeds", "1", "--runs", str(folder / "my runs")]
    monkeypatch.setattr(sys, "argv", ["afec", *command])
    assert main(command) == 0
    (line,) = re.findall(r"^use it: (.*)$", capsys.readouterr().out, re.MULTILINE)
    words = shlex.split(line)
    assert words[:3] == ["afec", "run", name]
    (found,) = plan([words[2]], [words[4]], [0], words[6], [], load_tuned(Path(words[8])))
    assert found.config.settings["ewc"]["strength"] == 10
    (comment,) = re.findall(r"found by `(.*)` on", Path(words[8]).read_text())
    assert shlex.split(comment)[1:] == command


@pytest.mark.parametrize("methods", [("ewc", "mas"), ("ewc+afec", "mas+afec")])
@pytest.mark.parametrize("options", [{}, {"trials": 2}, {"search": "tpe", "trials": 5}, {"beta": True}])
def test_every_method_has_the_same_budget(methods, options, fake, tmp_path):
    ran, budgets = fake(lambda settings, seed: (0.5, 0.5)), []
    for method in methods:
        tune(how(method, **options), tmp_path / method, 1)
        budgets.append(len(ran))
        ran.clear()
        assert trials_of(how(method, **options)) * 2 == budgets[-1]
    assert budgets[0] == budgets[1]


def test_a_tuning_in_which_everything_fails_is_a_sentence(in_process, tmp_path, capsys):
    command = ["tune", "digits", *SMALL, "training.lr=1e30", "-m", "ewc", "--trials", "1", "--seeds", "1"]
    assert main([*command, "--runs", str(tmp_path)]) == 2
    assert "afec: every trial of ewc failed" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.png"))


def test_ctrl_c_in_a_tuning_is_a_sentence(monkeypatch, tmp_path, capsys):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("afec.cli.work.tune_method", interrupted)
    assert main(["tune", "digits", "-m", "ewc", "--runs", str(tmp_path)]) == 130
    assert capsys.readouterr().err.strip() == "stopped; the same command goes on where it was"
