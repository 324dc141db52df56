"""Metrics of the accuracy matrix: by hand, and by what must hold for any matrix."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from afec import metrics
from afec.metrics import (
    aac,
    aac_curve,
    average_incremental_accuracy,
    bwt,
    class_summary,
    empty_matrix,
    forgetting,
    fwt_vs_scratch,
    fwt_zero_shot,
    mean_new_task_accuracy,
    new_accuracy,
    new_task_accuracy,
    old_accuracy,
    old_class_accuracy,
    pooled_curve,
    summary,
)

# Three tasks. Task 1 gets better before it is forgotten, task 2 is forgotten at once.
A = np.array(
    [
        [0.5, 0.4, 0.3],  # at random initialisation
        [0.8, 0.5, 0.2],  # after task 1
        [0.9, 0.7, 0.6],  # after task 2
        [0.6, 0.5, 1.0],  # after task 3
    ]
)
SCRATCH = [0.9, 0.6, 0.8]


def test_every_metric_by_hand():
    assert aac(A) == pytest.approx((0.6 + 0.5 + 1.0) / 3)
    assert aac(A, tasks=1) == pytest.approx(0.8)
    assert aac(A, tasks=2) == pytest.approx((0.9 + 0.7) / 2)
    assert aac_curve(A) == pytest.approx([0.8, 0.8, 0.7])
    assert bwt(A) == pytest.approx(((0.6 - 0.8) + (0.5 - 0.7)) / 2)
    assert forgetting(A) == pytest.approx(((0.9 - 0.6) + (0.7 - 0.5)) / 2)
    assert new_task_accuracy(A) == pytest.approx([0.8, 0.7, 1.0])
    assert mean_new_task_accuracy(A) == pytest.approx(2.5 / 3)
    assert old_accuracy(A) == pytest.approx(0.55)
    assert new_accuracy(A) == pytest.approx(1.0)
    assert fwt_zero_shot(A) == pytest.approx(((0.5 - 0.4) + (0.6 - 0.3)) / 2)
    assert fwt_vs_scratch(A, SCRATCH) == pytest.approx(((0.7 - 0.6) + (1.0 - 0.8)) / 2)


def test_two_tasks_by_hand():
    two = [[0.5, 0.5], [1.0, 0.25], [0.75, 0.5]]
    assert aac(two) == 0.625
    assert bwt(two) == -0.25
    assert forgetting(two) == 0.25
    assert fwt_zero_shot(two) == -0.25
    assert fwt_vs_scratch(two, [0, 0.75]) == -0.25


def test_the_summary_has_every_number_under_its_name():
    result = summary(A, SCRATCH)
    for name, value in result.items():
        function = getattr(metrics, name)
        assert value == (function(A, SCRATCH) if name == "fwt_vs_scratch" else function(A))
        assert type(value) is float
    of_classes = {"average_incremental_accuracy", "class_summary", "confusion", "old_class_accuracy", "pooled_curve"}
    scalars = set(metrics.__all__) - {"aac_curve", "new_task_accuracy", "empty_matrix", "summary"} - of_classes
    scalars -= {"ANY", "FRACTION", "Limits", "accumulated_reward", "forgetting_of_each", "maximum_of_each"}
    assert set(result) == scalars
    assert math.isnan(summary(A)["fwt_vs_scratch"])


def test_one_task_has_no_old_ones():
    one = [[0.5], [0.9]]
    assert aac(one) == mean_new_task_accuracy(one) == new_accuracy(one) == 0.9
    assert aac_curve(one).tolist() == new_task_accuracy(one).tolist() == [0.9]
    for value in (bwt(one), forgetting(one), old_accuracy(one), fwt_zero_shot(one), fwt_vs_scratch(one, [0.5])):
        assert math.isnan(value)


# Which entries (row, column) each metric uses, for three tasks.
USES = {
    "aac": {(3, 0), (3, 1), (3, 2)},
    "bwt": {(3, 0), (3, 1), (1, 0), (2, 1)},
    "forgetting": {(3, 0), (3, 1), (1, 0), (2, 0), (2, 1)},
    "mean_new_task_accuracy": {(1, 0), (2, 1), (3, 2)},
    "old_accuracy": {(3, 0), (3, 1)},
    "new_accuracy": {(3, 2)},
    "fwt_zero_shot": {(1, 1), (2, 2), (0, 1), (0, 2)},
    "fwt_vs_scratch": {(2, 1), (3, 2)},
}


@pytest.mark.parametrize("entry", [(i, j) for i in range(4) for j in range(3)], ids=str)
def test_what_was_not_measured_makes_nan_where_it_is_used_and_only_there(entry):
    holed = A.copy()
    holed[entry] = np.nan
    whole, result = summary(A, SCRATCH), summary(holed, SCRATCH)
    for name, value in result.items():
        if entry in USES[name]:
            assert math.isnan(value), name
        else:
            assert value == whole[name], name


def test_a_task_that_was_not_learned_alone():
    assert math.isnan(fwt_vs_scratch(A, [0.9, math.nan, 0.8]))
    assert not math.isnan(fwt_vs_scratch(A, [math.nan, 0.6, 0.8]))


def test_a_run_that_is_under_way():
    matrix = empty_matrix(3)
    assert matrix.shape == (4, 3)
    assert np.isnan(matrix).all()
    matrix[:3] = A[:3]
    assert aac_curve(matrix)[:2] == pytest.approx([0.8, 0.8])
    assert math.isnan(aac(matrix))
    assert summary(matrix[:3, :2], SCRATCH[:2]) == summary(A[:3, :2], SCRATCH[:2])


@st.composite
def matrices(draw, least=1):
    tasks = draw(st.integers(least, 6))
    return draw(arrays(np.float64, (tasks + 1, tasks), elements=st.floats(0, 1)))


@given(value=st.floats(0, 1), tasks=st.integers(2, 6))
def test_a_constant_matrix_transfers_nothing(value, tasks):
    constant = np.full((tasks + 1, tasks), value)
    result = summary(constant, constant[0])
    for name in ("bwt", "forgetting", "fwt_zero_shot", "fwt_vs_scratch"):
        assert result[name] == 0
    for name in ("aac", "old_accuracy", "new_accuracy", "mean_new_task_accuracy"):
        assert result[name] == pytest.approx(value)


@given(matrix=matrices(least=2))
def test_the_metrics_fit_each_other(matrix):
    tasks = matrix.shape[1]
    assert aac(matrix) == pytest.approx(((tasks - 1) * old_accuracy(matrix) + new_accuracy(matrix)) / tasks)
    assert aac(matrix) == pytest.approx(mean_new_task_accuracy(matrix) + (tasks - 1) / tasks * bwt(matrix))
    assert forgetting(matrix) >= -bwt(matrix) - 1e-12
    assert aac_curve(matrix) == pytest.approx([aac(matrix[: t + 1, :t]) for t in range(1, tasks + 1)])
    assert aac_curve(matrix)[-1] == aac(matrix)
    assert all(-1 <= value <= 1 for value in summary(matrix, matrix[0]).values())


@given(matrix=matrices(least=2))
def test_forgetting_is_minus_bwt_where_a_task_is_best_when_it_is_new(matrix):
    tasks = matrix.shape[1]
    for j in range(tasks):
        matrix[j + 1 :, j] = -np.sort(-matrix[j + 1 :, j])  # falling after learning
    assert forgetting(matrix) == pytest.approx(-bwt(matrix), abs=1e-12)
    assert bwt(matrix) <= 0


@given(matrix=matrices(least=2), data=st.data())
def test_the_order_of_old_tasks_does_not_matter_where_it_is_not_used(matrix, data):
    """Columns of the last row, permuted among the old tasks, leave the averages of that row alone."""
    order = [*data.draw(st.permutations(range(matrix.shape[1] - 1))), matrix.shape[1] - 1]
    permuted = matrix.copy()
    permuted[-1] = matrix[-1, order]
    for metric in (
        aac,
        old_accuracy,
        new_accuracy,
        bwt,
    ):  # BWT is a sum of differences, so it does not see the order either
        assert metric(permuted) == pytest.approx(metric(matrix), abs=1e-12)


@given(matrix=matrices(), shift=st.floats(0, 0.5))
def test_transfers_are_differences(matrix, shift):
    """A constant added to every accuracy moves the averages by it and no difference."""
    low = matrix / 2
    before, after = summary(low, low[0]), summary(low + shift, low[0] + shift)
    for name, value in before.items():
        moved = shift if "accuracy" in name or name == "aac" else 0
        assert after[name] == pytest.approx(value + moved, abs=1e-12, nan_ok=True)


def test_inputs_are_not_changed_and_may_be_lists_or_tensors():
    before = A.copy()
    diagonal = new_task_accuracy(A)
    diagonal[:] = 0
    assert (before == A).all()
    assert summary(A.tolist(), SCRATCH) == summary(A, np.array(SCRATCH)) == summary(torch.from_numpy(A), SCRATCH)


@pytest.mark.parametrize("shape", [(3, 3), (3, 4), (5, 3), (1, 0), (4,), (4, 3, 1), ()])
def test_wrong_shapes_are_refused(shape):
    with pytest.raises(ValueError, match=r"has shape .*; for T tasks it needs \(T \+ 1, T\)"):
        aac(np.zeros(shape))


@pytest.mark.parametrize("bad", [80.0, -0.1, math.inf])
def test_numbers_that_are_no_fractions_are_refused(bad):
    with pytest.raises(ValueError, match=f"the accuracy matrix has {bad}; accuracies are fractions from 0 to 1"):
        bwt([[0.5], [bad]])
    with pytest.raises(ValueError, match=f"scratch has {bad}; accuracies are fractions"):
        fwt_vs_scratch(A, [0.1, bad, 0.1])


def test_other_mistakes_say_what_is_wanted():
    with pytest.raises(ValueError, match="rows of equal length"):
        aac([[0.5], [0.5, 0.6]])
    with pytest.raises(ValueError, match=r"scratch has shape \(2,\); it needs one number for each of the 3 tasks"):
        fwt_vs_scratch(A, [0.5, 0.5])
    for tasks in (0, 4, -1):
        with pytest.raises(ValueError, match=f"aac needs tasks from 1 to 3, .* got {tasks}"):
            aac(A, tasks=tasks)
    with pytest.raises(ValueError, match="at least 1 task; got tasks=0"):
        empty_matrix(0)


def test_the_scenario_class_by_hand():
    """50 base classes with 100 test images, then two phases of 20 and 80 images."""
    nan = math.nan
    matrix = [[nan] * 3, [0.9, nan, nan], [0.6, 0.8, nan], [0.3, 0.5, 1.0]]
    sizes = [100, 20, 80]
    phases = [0.9, (60 + 16) / 120, (30 + 10 + 80) / 200]
    assert pooled_curve(matrix, sizes) == pytest.approx(phases)
    assert average_incremental_accuracy(matrix, sizes) == pytest.approx(sum(phases) / 3)
    assert old_class_accuracy(matrix, sizes) == pytest.approx(40 / 120)
    assert class_summary(matrix, sizes) == pytest.approx(
        {
            "average_incremental_accuracy": sum(phases) / 3,
            "final_accuracy": 0.6,
            "old_class_accuracy": 1 / 3,
            "new_class_accuracy": 1.0,
            "forgetting": ((0.9 - 0.3) + (0.8 - 0.5)) / 2,
        }
    )
    assert pooled_curve(A, [5, 5, 5]) == pytest.approx(aac_curve(A))  # of equal sizes it is the mean over the tasks
    assert math.isnan(old_class_accuracy([[nan], [0.5]], [3]))
    under_way = [*matrix[:3], [nan] * 3]
    assert math.isnan(average_incremental_accuracy(under_way, sizes))


@pytest.mark.parametrize("sizes", [[1, 2], [1, 2, 0], [[1, 2, 3]], [1, 2, math.nan]])
def test_sizes_that_cannot_be(sizes):
    with pytest.raises(ValueError, match="it needs the number of test images, at least 1, of each of the 3 tasks"):
        average_incremental_accuracy(A, sizes)


# -- scores that may be any number ----------------------------------------------------------------------------------

RETURNS = np.array([[-9.0, -8.0], [30.0, -7.0], [-20.0, 1500.0]])


def test_the_confusion_matrix_by_phase_by_hand():
    found = metrics.confusion([[3, 1], [2, 6]])
    assert found.tolist() == [[0.75, 0.25], [0.25, 0.75]]
    for wrong in ([[1, 2]], [[1, 1], [0, 0]], [[2, -1], [1, 1]], [[float("nan")]]):
        with pytest.raises(ValueError, match="needs a square matrix of counts"):
            metrics.confusion(wrong)


def test_returns_by_hand():
    found = summary(RETURNS, [25.0, 1400.0], limits=metrics.ANY)
    assert found == {
        "aac": (-20 + 1500) / 2,
        "bwt": -50.0,
        "forgetting": 50.0,
        "mean_new_task_accuracy": (30 + 1500) / 2,
        "old_accuracy": -20.0,
        "new_accuracy": 1500.0,
        "fwt_zero_shot": 1.0,
        "fwt_vs_scratch": 100.0,
    }
    assert aac_curve(RETURNS, limits=metrics.ANY).tolist() == [30.0, 740.0]


def test_returns_are_no_accuracies_and_infinity_is_no_return():
    with pytest.raises(ValueError, match="accuracies are fractions from 0 to 1"):
        summary(RETURNS)
    for value in (math.inf, -math.inf):
        with pytest.raises(ValueError, match="scores are finite numbers from -inf to inf"):
            aac([[0.0], [value]], limits=metrics.ANY)
    with pytest.raises(ValueError, match="has 3.0; scores are finite numbers from 0 to 2"):
        bwt([[0.0], [3.0]], limits=(0, 2))


def test_normalised_accumulated_reward_by_hand():
    nan = float("nan")
    returns = [[2.0, nan], [4.0, nan], [3.0, 10.0], [1.0, 30.0]]
    np.testing.assert_allclose(metrics.maximum_of_each(returns), [4.0, 30.0])
    found = metrics.accumulated_reward(returns, [4.0, 20.0])
    np.testing.assert_allclose(found, [0.5, 1.0, 0.75 + 0.5, 0.25 + 1.5])
    with pytest.raises(ValueError, match="cannot be normalised by a maximum of 0 or below"):
        metrics.accumulated_reward(returns, [4.0, -1.0])
    with pytest.raises(ValueError, match="evaluations in rows"):
        metrics.maximum_of_each([1.0, 2.0])


def test_forgetting_of_each_task_by_hand():
    matrix = [[-1.0, -1.0, -1.0], [5.0, 0.0, 0.0], [7.0, 3.0, 0.0], [2.0, 3.5, 9.0]]
    np.testing.assert_allclose(metrics.forgetting_of_each(matrix, limits=metrics.ANY), [5.0, 0.0, 0.0])
