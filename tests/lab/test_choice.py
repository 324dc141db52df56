"""Which trial is taken: standard errors by hand, and what they leave open."""

from __future__ import annotations

import math

import pytest

from afec.lab.choice import Trial, choose, effective_images


def trial(strength, *scores, images=math.inf, **more):
    return Trial("ewc", {"ewc.strength": float(strength), **more}, scores, images)


def taken(*trials):
    return choose(trials).trial.values["ewc.strength"]


def test_the_numbers_of_a_trial_by_hand():
    found = trial(10, 0.5, 0.7, 0.6)
    assert (found.score, found.spread, found.error) == pytest.approx((0.6, 0.1, 0.1 / math.sqrt(3)))
    assert found.numbers == "60.0 ± 10.0 (standard error 5.8)"
    assert trial(10, 0.5, images=100).numbers == "50.0 (standard error 4.9)"  # √(½·½/103)
    assert trial(10).numbers == "failed"


def test_ten_right_answers_out_of_ten_are_not_certain():
    """With one right and one wrong answer added: p = 11/12 of 13."""
    assert trial(10, 1.0, images=10).image_error == pytest.approx(math.sqrt(11 / 12 * 1 / 12 / 13))
    assert trial(10, 1.0).image_error == 0


def test_how_many_images_a_mean_over_tasks_rests_on():
    assert effective_images([50, 50], 3) == pytest.approx(300)
    # Var = (p(1−p)/10 + p(1−p)/90) / 4 = p(1−p) / 36: the small task is the noisy one.
    assert effective_images([10, 90], 1) == pytest.approx(36)


def test_a_clear_winner_is_taken_and_said_to_be_one():
    choice = choose([trial(10, 0.8, 0.82), trial(100, 0.6, 0.61)])
    assert choice.trial is choice.best
    assert choice.alike == ()
    assert str(choice) == (
        "ewc: ewc.strength=10 has the highest mean, 81.0 %, ahead of every other trial by more than one standard error"
    )
    assert choice.warning == ""
    assert str(choose([trial(10, 0.5)])).endswith("50.0 %; there is no other trial")


def test_within_the_error_of_the_images_the_largest_strength_is_taken():
    """At 70 % of 40 images one standard error is 7 points."""
    found = [
        trial(1, 0.6, images=40),
        trial(10, 0.7, images=40),
        trial(100, 0.65, images=40),
        trial(1000, 0.1, images=40),
    ]
    assert taken(*found) == 100
    assert taken(*(trial(t.values["ewc.strength"], t.score, images=4000) for t in found)) == 10


def test_differences_are_taken_seed_by_seed():
    """Seeds differ by 20 points and the trials by 3 on each of them: the difference is certain."""
    assert taken(trial(10, 0.5, 0.7, 0.9), trial(100, 0.47, 0.67, 0.87)) == 10
    assert taken(trial(10, 0.5, 0.7, 0.9), trial(100, 0.47, 0.75, 0.83)) == 100  # −3, +5, −7: it is not


def test_an_unstable_trial_gains_nothing_by_its_own_spread():
    """One seed of three has collapsed: by its own spread it would be within noise, by that of the best trial it is not."""
    assert taken(trial(10, 0.80, 0.81, 0.79), trial(100, 0.82, 0.82, 0.3)) == 10


@pytest.mark.parametrize("scores", [(0.7,), (0.7, 0.7)])
def test_equal_trials_are_within_noise_and_the_largest_strength_is_taken(scores):
    assert taken(trial(1, *scores), trial(100, *scores), trial(10, *scores)) == 100


def test_failed_trials_are_never_taken():
    assert taken(trial(1, 0.5), trial(100)) == 1


def test_beside_equal_strengths_the_mean_decides():
    pairs = [(1, 0.1, 0.70), (1, 1, 0.71), (10, 0.1, 0.68), (10, 1, 0.69)]
    found = [trial(s, score, images=40, **{"afec.forgetting": f}) for s, f, score in pairs]
    assert choose(found).trial.values == {"ewc.strength": 10.0, "afec.forgetting": 1}


def test_of_two_strengths_the_product_counts():
    pairs = [(1, 100), (10, 100), (1000, 0.1)]
    found = [trial(one, 0.7, images=40, **{"mas.strength": float(two)}) for one, two in pairs]
    assert choose(found).trial.values == {"ewc.strength": 10.0, "mas.strength": 100.0}
    none = [trial(one, 0.7, **{"mas.strength": float(two)}) for one, two in [(0, 100), (1, 1)]]
    assert choose(none).trial.values["ewc.strength"] == 1  # λ = 0 holds nothing


def test_what_cannot_be_told_apart_is_said_with_its_error():
    choice = choose([trial(10, 0.7, images=40), trial(100, 0.65, images=40)])
    assert str(choice) == (
        "ewc: ewc.strength=10 has the highest mean, 70.0 %. It cannot be told apart from ewc.strength=100 (lower by 5.0, one "
        "standard error is 7.0 points). Taken: the largest λ of these, ewc.strength=100"
    )
    assert "about 40 over all seeds and tasks have a standard error of 7.0 points. Use more seeds" in choice.warning


def test_a_few_hundred_images_are_enough_not_to_be_warned_of():
    assert choose([trial(10, 0.7, images=600)]).warning == ""
    assert choose([trial(10, 0.7, images=400)]).warning != ""
