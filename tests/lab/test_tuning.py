"""The search: what is looked at, what wins, what a stop leaves."""

from __future__ import annotations

import sys
import tomllib
from dataclasses import replace

import pytest

from afec.experiments import Score
from afec.experiments.supervised import build
from afec.lab import (
    RunError,
    SpecError,
    find_runs,
    resolve,
)
from afec.lab.tuning import tune
from small_lab import TEXT
from small_tuning import bench, how, peak


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


def test_of_equal_trials_the_largest_strength_and_the_first_forgetting_win(fake, tmp_path):
    fake(lambda settings, seed: (0.5, 0.5))
    assert tune(how(), tmp_path, 1).best == {"ewc.strength": 100.0, "afec.forgetting": 0.1}


def test_a_winner_within_noise_gives_way_to_the_larger_strength_and_this_is_said(fake, tmp_path):
    """Of 40 images or so, 4 points are nothing: this once took λ = 10 without a word."""
    table = {1: 0.4, 10: 0.74, 100: 0.7}
    fake(lambda settings, seed: (table[settings["ewc"]["strength"]], 0.5))
    tuned = tune(how("ewc"), tmp_path, 1)
    choice = tuned.choices["ewc"]
    assert tuned.best == choice.trial.values == {"ewc.strength": 100.0}
    assert choice.best.values == {"ewc.strength": 10.0}
    first, second = tuned.remarks
    assert "ewc.strength=10 has the highest mean, 74.0 %. It cannot be told apart from ewc.strength=100" in first
    assert first.endswith("Taken: the largest λ of these, ewc.strength=100")
    assert "too few validation images to be sure" in second
    text = tuned.to_toml("found")
    assert tomllib.loads(text) == {"method": {"ewc": {"strength": 100.0}}}
    assert f"# {first}\n# {second}\n" in text
    assert f"# ewc: ewc.strength=1: 40.0 ± 0.0 (standard error {100 * tuned.trials[0].image_error:.1f})\n" in text


def test_the_validation_images_of_all_seeds_and_tasks_count(fake, tmp_path):
    fake(lambda settings, seed: (0.5, 0.5))
    plan = how("ewc")
    stream, _ = build(resolve(plan.benchmark, "ewc", "tiny"), 100)
    first, second = (task.validation.size for task in stream.tasks)
    for seeds in ((100,), (100, 101, 102)):
        (trial, *_) = tune(replace(plan, seeds=seeds), tmp_path, 1).trials
        assert trial.images == pytest.approx(len(seeds) * 4 / (1 / first + 1 / second))


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
    file = find_runs(tmp_path)[0].path / "scores.csv"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(RunError, match="scores.csv is not whole; move the directory away and run again"):
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


def test_in_the_scenario_class_trials_are_ranked_by_the_average_incremental_accuracy(fake, tmp_path):
    """By hand: phases of 30 and 10 images; 0.8 after the first; then (30·0.4 + 10·0.8)/40 = 0.5; the mean is 0.65."""
    fake(lambda settings, seed: (0.5, 0.5))
    plan = how("ewc", sets={"stream": {"scenario": "class"}})
    with pytest.warns(UserWarning, match="in the scenario 'class'"):
        tune(plan, tmp_path, 1)
    run = find_runs(tmp_path)[0]
    scores = [(1, 1, 0.8, 30), (2, 1, 0.4, 30), (2, 2, 0.8, 10)]
    run.write_scores([Score(after, task, "digits", value, 0.1, size) for after, task, value, size in scores])
    assert run.config.pooled
    assert run.average("validation") == pytest.approx(0.65)
    assert replace(run.config, stream={**run.config.stream, "scenario": "task"}).pooled is False
