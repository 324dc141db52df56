"""What the matrix of scores says: pure functions. Scores are accuracies, fractions from 0 to 1, if `limits` says no other.

One representation everywhere. `A` has T + 1 rows and T columns for T tasks: row 0 is measured at random initialisation, row i
after learning task i (counted from 1, as in the paper), and column j − 1 is task j. So `A[i, j - 1]` is the paper's A_{i,j}:
the test accuracy on task j after learning the tasks 1 to i. NaN stands for what was not measured.

- A metric whose formula uses an entry that is NaN is NaN; entries it does not use do not matter.
- A metric that compares old tasks with new ones is NaN for T = 1, where there is no old one.
- A wrong shape, or a number outside of `limits`, is a ValueError. `limits=ANY` is for scores that may be any finite number,
  such as the return of an episode; the names of the functions stay.
- After t of the T tasks, every metric is that of `A[: t + 1, :t]`.

App. D of the paper has AAC, BWT and FWT (here `fwt_zero_shot`).

In the scenario `class` an accuracy is that of all classes so far, so tasks are pooled: each counts by its number of test
images, `sizes`, T numbers. Row 0 and what is above the diagonal cannot be measured there, and are not used.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "ANY",
    "FRACTION",
    "Limits",
    "aac",
    "aac_curve",
    "accumulated_reward",
    "average_incremental_accuracy",
    "bwt",
    "class_summary",
    "confusion",
    "empty_matrix",
    "forgetting",
    "forgetting_of_each",
    "fwt_vs_scratch",
    "fwt_zero_shot",
    "maximum_of_each",
    "mean_new_task_accuracy",
    "new_accuracy",
    "new_task_accuracy",
    "old_accuracy",
    "old_class_accuracy",
    "pooled_curve",
    "summary",
]

Floats = NDArray[np.float64]
Limits = tuple[float, float]
"""The lowest and the highest score that there can be."""
FRACTION: Limits = (0.0, 1.0)
ANY: Limits = (-float("inf"), float("inf"))


def empty_matrix(tasks: int) -> Floats:
    """The accuracy matrix of `tasks` tasks before anything is measured: all NaN."""
    if tasks < 1:
        raise ValueError(f"an accuracy matrix needs at least 1 task; got tasks={tasks}")
    return np.full((tasks + 1, tasks), np.nan)


def aac(A: ArrayLike, tasks: int | None = None, *, limits: Limits = FRACTION) -> float:  # noqa: N803 (the paper's name)
    """Averaged accuracy: (1/t)·Σ_{j≤t} A_{t,j}, over the tasks learned so far. t = 10 is the paper's A_10; default all."""
    matrix = _matrix(A, limits)
    last = matrix.shape[1]
    t = last if tasks is None else tasks
    if not 1 <= t <= last:
        raise ValueError(f"aac needs tasks from 1 to {last}, the number of tasks of this accuracy matrix; got {tasks}")
    return float(matrix[t, :t].mean())


def aac_curve(A: ArrayLike, *, limits: Limits = FRACTION) -> Floats:  # noqa: N803
    """The averaged accuracy after 1, 2, …, T tasks."""
    matrix = _matrix(A, limits)
    return np.array([matrix[t, :t].mean() for t in range(1, len(matrix))])


def bwt(A: ArrayLike, *, limits: Limits = FRACTION) -> float:  # noqa: N803
    """Backward transfer: 1/(T−1)·Σ_{j<T} (A_{T,j} − A_{j,j}). Negative where learning on has spoiled old tasks."""
    matrix = _matrix(A, limits)
    return _mean(matrix[-1, :-1] - _diagonal(matrix)[:-1])


def forgetting(A: ArrayLike, *, limits: Limits = FRACTION) -> float:  # noqa: N803
    """The mean over old tasks j < T of the best A_{i,j}, j ≤ i < T, less A_{T,j}.

    At least −BWT, since the best is no worse than A_{j,j}; negative where old tasks ended better than they ever were.
    """
    matrix = _matrix(A, limits)
    best = [matrix[j + 1 : -1, j].max() for j in range(matrix.shape[1] - 1)]
    return _mean(np.array(best) - matrix[-1, :-1])


def new_task_accuracy(A: ArrayLike, *, limits: Limits = FRACTION) -> Floats:  # noqa: N803
    """A_{i,i} for i = 1, …, T: the accuracy on each task just after learning it."""
    return _diagonal(_matrix(A, limits))


def mean_new_task_accuracy(A: ArrayLike, *, limits: Limits = FRACTION) -> float:  # noqa: N803
    """(1/T)·Σ A_{i,i}, the mean of `new_task_accuracy`."""
    return _mean(_diagonal(_matrix(A, limits)))


def old_accuracy(A: ArrayLike, *, limits: Limits = FRACTION) -> float:  # noqa: N803
    """1/(T−1)·Σ_{j<T} A_{T,j}: the accuracy on the old tasks after the last one."""
    return _mean(_matrix(A, limits)[-1, :-1])


def new_accuracy(A: ArrayLike, *, limits: Limits = FRACTION) -> float:  # noqa: N803
    """A_{T,T}: the accuracy on the last task after learning it."""
    return float(_matrix(A, limits)[-1, -1])


def fwt_zero_shot(A: ArrayLike, *, limits: Limits = FRACTION) -> float:  # noqa: N803
    """The paper's forward transfer: 1/(T−1)·Σ_{i≥2} (A_{i−1,i} − A_{0,i}), each task just before it is learned.

    With one head per task A_{i−1,i} is the accuracy of an untrained head, so this is near 0 whatever the method does.
    `fwt_vs_scratch` is the one that says something there.
    """
    matrix = _matrix(A, limits)
    before = matrix[:-1].diagonal()  # A_{i−1,i} for i = 1, …, T
    return _mean(before[1:] - matrix[0, 1:])


def fwt_vs_scratch(A: ArrayLike, scratch: ArrayLike, *, limits: Limits = FRACTION) -> float:  # noqa: N803
    """Forward transfer against learning alone: 1/(T−1)·Σ_{i≥2} (A_{i,i} − scratch_i).

    Args:
        A: the accuracy matrix.
        scratch: the accuracy of each task, T numbers, when it alone is learned from random initialisation. The first is
            not used.
    """
    matrix = _matrix(A, limits)
    alone = _scores(scratch, "scratch", limits)
    if alone.shape != (matrix.shape[1],):
        raise ValueError(
            f"scratch has shape {alone.shape}; it needs one number for each of the {matrix.shape[1]} tasks of the "
            "accuracy matrix, NaN where a task was not learned alone"
        )
    return _mean(_diagonal(matrix)[1:] - alone[1:])


def pooled_curve(A: ArrayLike, sizes: ArrayLike) -> Floats:  # noqa: N803
    """The accuracy over all classes so far after 1, 2, …, T tasks: Σ_{j≤t} n_j·A_{t,j} / Σ_{j≤t} n_j."""
    matrix, counts = _matrix(A), _sizes(A, sizes)
    return np.array([matrix[t, :t] @ counts[:t] / counts[:t].sum() for t in range(1, len(matrix))])


def average_incremental_accuracy(A: ArrayLike, sizes: ArrayLike) -> float:  # noqa: N803
    """The mean of the accuracy over all classes so far, over all phases, the base phase included."""
    return _mean(pooled_curve(A, sizes))


def old_class_accuracy(A: ArrayLike, sizes: ArrayLike) -> float:  # noqa: N803
    """The accuracy over the classes of all tasks but the last, after the last; that of the new classes is `new_accuracy`."""
    matrix, counts = _matrix(A), _sizes(A, sizes)
    return float(matrix[-1, :-1] @ counts[:-1] / counts[:-1].sum()) if len(counts) > 1 else float("nan")


def confusion(answers: ArrayLike) -> Floats:
    """The confusion matrix by phase: what part of each phase's test images (rows) was given a class of each phase (columns).

    An image on the diagonal is not always right: its class may be another one of the same phase.

    Args:
        answers: how many images they are, in a square matrix.
    """
    counts = np.asarray(answers, dtype=np.float64)
    square = counts.ndim == 2 and counts.shape[0] == counts.shape[1]
    if not square or not np.isfinite(counts).all() or not ((counts >= 0).all() and (counts.sum(axis=1) >= 1).all()):
        raise ValueError(
            f"answers is {counts.tolist()}; it needs a square matrix of counts, with the phases that images belong to in rows "
            "and those that were answered in columns, and an image at least in each row"
        )
    return np.asarray(counts / counts.sum(axis=1, keepdims=True))


def class_summary(A: ArrayLike, sizes: ArrayLike) -> dict[str, float]:  # noqa: N803
    """What the scenario `class` is told by; `final_accuracy` is over all classes after the last task."""
    return {
        "average_incremental_accuracy": average_incremental_accuracy(A, sizes),
        "final_accuracy": float(pooled_curve(A, sizes)[-1]),
        "old_class_accuracy": old_class_accuracy(A, sizes),
        "new_class_accuracy": new_accuracy(A),
        "forgetting": forgetting(A),
    }


def summary(A: ArrayLike, scratch: ArrayLike | None = None, *, limits: Limits = FRACTION) -> dict[str, float]:  # noqa: N803
    """Every metric that is one number, under the name of its function. `fwt_vs_scratch` is NaN without `scratch`."""
    functions = (
        aac,
        bwt,
        forgetting,
        mean_new_task_accuracy,
        old_accuracy,
        new_accuracy,
        fwt_zero_shot,
    )
    result = {function.__name__: function(A, limits=limits) for function in functions}
    result["fwt_vs_scratch"] = float("nan") if scratch is None else fwt_vs_scratch(A, scratch, limits=limits)
    return result


def forgetting_of_each(A: ArrayLike, *, limits: Limits = FRACTION) -> Floats:  # noqa: N803
    """Of each task the best A_{i,j}, j ≤ i ≤ T, less A_{T,j}: 0 where it ended at its best; the last one's is 0."""
    matrix = _matrix(A, limits)
    return np.array([matrix[j + 1 :, j].max() - matrix[-1, j] for j in range(matrix.shape[1])])


def maximum_of_each(returns: ArrayLike) -> Floats:
    """The highest return that each game reached: of evaluations in rows and games in columns, NaN where not evaluated.

    Of the evaluations while a game itself was learned, this is the paper's "maximum reward of learning each new task".
    """
    array = _evaluations(returns)
    return np.array([column[~np.isnan(column)].max() if (~np.isnan(column)).any() else np.nan for column in array.T])


def accumulated_reward(returns: ArrayLike, maxima: ArrayLike) -> Floats:
    """The paper's normalised accumulated reward after each evaluation: Σ_j R_j / max_j over the games seen so far.

    Args:
        returns: evaluations in rows and games in columns; NaN for games that were not seen yet.
        maxima: the highest return of each game under fine-tuning. The ratio means something only where it is positive: others
            are refused.
    """
    array, highest = _evaluations(returns), np.asarray(maxima, dtype=np.float64)
    if highest.shape != (array.shape[1],) or not (highest > 0).all():
        raise ValueError(
            f"maxima is {highest.tolist()}; it needs a positive number for each of the {array.shape[1]} games: "
            "returns cannot be normalised by a maximum of 0 or below"
        )
    return np.asarray(np.nansum(array / highest, axis=1))


def _evaluations(returns: ArrayLike) -> Floats:
    array = _scores(returns, "the returns", ANY)
    if array.ndim != 2:
        raise ValueError(f"the returns have shape {array.shape}; they need evaluations in rows and games in columns")
    return array


def _diagonal(matrix: Floats) -> Floats:
    """A_{i,i} for i = 1, …, T."""
    return matrix[1:].diagonal().copy()


def _sizes(matrix: ArrayLike, sizes: ArrayLike) -> Floats:
    counts, tasks = np.asarray(sizes, dtype=np.float64), np.asarray(matrix).shape[1]
    if counts.shape != (tasks,) or not (counts >= 1).all():
        raise ValueError(
            f"sizes is {counts.tolist()}; it needs the number of test images, at least 1, of each of the {tasks} tasks of the "
            "accuracy matrix"
        )
    return counts


def _mean(values: Floats) -> float:
    """The mean of the values; NaN where there are none."""
    return float(values.mean()) if len(values) else float("nan")


def _matrix(values: ArrayLike, limits: Limits = FRACTION) -> Floats:
    matrix = _scores(values, "the accuracy matrix" if limits == FRACTION else "the matrix of scores", limits)
    if matrix.ndim != 2 or matrix.shape[1] < 1 or matrix.shape[0] != matrix.shape[1] + 1:
        raise ValueError(
            f"the accuracy matrix has shape {matrix.shape}; for T tasks it needs (T + 1, T), with row 0 measured at random "
            "initialisation (NaN if it was not) and row i after learning task i"
        )
    return matrix


def _scores(values: ArrayLike, name: str, limits: Limits) -> Floats:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be numbers in rows of equal length, NaN where not measured: {error}") from error
    low, high = limits
    outside = array[~np.isnan(array) & ~(np.isfinite(array) & (array >= low) & (array <= high))]
    if outside.size:
        expected = (
            "accuracies are fractions from 0 to 1, or NaN where not measured (divide percentages by 100)"
            if limits == FRACTION
            else f"scores are finite numbers from {low:g} to {high:g}, or NaN where not measured"
        )
        raise ValueError(f"{name} has {outside.flat[0]}; {expected}")
    return array
