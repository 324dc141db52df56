"""The study of digits-regression compares like with like: equal trials, other seeds for tuning, validation images alone."""

import importlib.util
import sys
from pathlib import Path

import pytest

from afec.experiments import Score
from afec.lab import RunDirectory

SCRIPT = Path(__file__).parent.parent / "results" / "digits-regression" / "study.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("study_of_digits_regression", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def finished(study, row, seed, validation, test=0.5):
    """A run directory as a finished run leaves it."""
    job = row.job(seed)
    run = RunDirectory.of(study.runs, job.config, seed)
    run.begin(job.config)
    run.write_scores([Score(2, task, f"task {task}", validation, test, 100) for task in (1, 2)])
    run.finish(0.0)


def test_every_row_has_six_trials_and_the_seeds_are_apart(script, tmp_path):
    study = script.Study(tmp_path, 1)
    groups = [*script.first_rows(), *script.second_rows(study), *script.kind_rows()]
    assert [len(set(group)) for group in groups] == [6] * len(groups)
    assert not set(script.TUNING) & set(script.SEEDS)


def test_the_best_trial_is_the_best_on_validation_images_of_all_tuning_seeds(script, tmp_path):
    study = script.Study(tmp_path, 1)
    trials = script.plain("ewc", (1, 2, 3))
    for seed in script.TUNING:
        finished(study, trials[0], seed, validation=0.6, test=0.9)
        finished(study, trials[1], seed, validation=0.7, test=0.1)
    finished(study, trials[2], script.TUNING[0], validation=1.0)  # the other seeds failed
    assert study.score(trials[0]) == pytest.approx(0.6)
    assert study.best(trials) is trials[1]


def test_lambda_kept_is_the_one_tuned_without_afec(script, tmp_path):
    study = script.Study(tmp_path, 1)
    chosen = script.plain("mas", script.STRENGTHS["mas"])[2]
    for seed in script.TUNING:
        finished(study, chosen, seed, validation=0.9)
    kept = next(group for group in script.second_rows(study) if group[0].name == "mas+afec (λ kept)")
    assert {dict(row.settings)["mas.strength"] for row in kept} == {dict(chosen.settings)["mas.strength"]}
    assert {dict(row.settings)["afec.forgetting"] for row in kept} == set(script.FORGETTING)


def test_a_failed_run_is_written_as_such(script, tmp_path):
    study = script.Study(tmp_path, 1)
    (row,) = script.plain("si", (3,))
    finished(study, row, 100, validation=0.25)
    good, bad = study.measured("tune", [row], (100, 101))
    assert good[:9] == ["tune", "si", "si", "si.strength=3", 100, 0.25, 0.25, 0.25, 0.5]
    assert bad[5:] == ["failed"] * 8


def test_the_trade_off_is_drawn_of_trials_that_all_seeds_have_finished(script, tmp_path, monkeypatch):
    study, drawn = script.Study(tmp_path / "runs", 1), []
    for r in ("ewc", "mas"):
        trials = [*script.plain(r, script.STRENGTHS[r][:3]), *script.on_curve(r, 1)]
        for trial in trials:
            for seed in script.TUNING if trial != trials[0] else (100,):
                finished(study, trial, seed, validation=0.6)
    real = script.draw_figure
    monkeypatch.setattr(
        script, "draw_figure", lambda path, figure, title: drawn.append(figure) or real(path, figure, title)
    )
    script.draw(study, tmp_path / "trade-off.png")
    assert [chart.title for chart in drawn[0].charts] == ["ewc", "mas"]
    assert [(trace.label, len(trace.x)) for trace in drawn[0].charts[0].traces] == [("ewc", 2), ("ewc+afec (λ_e=1)", 5)]
    assert drawn[0].charts[0].traces[0].y == pytest.approx((60, 60))  # of validation images
    assert (tmp_path / "trade-off.png").stat().st_size > 5000
