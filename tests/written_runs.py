"""Finished runs with given accuracies, written as if they had been run: reports are tested without any training."""

from __future__ import annotations

import json
import math

from afec.experiments import Context, Score
from afec.lab import RunDirectory, load_benchmark, resolve
from afec.lab.spec import merged
from afec.whole_files import write_text

PLACE = {"afec": "0.1.0", "python": "3.11", "torch": "2.13.0", "numpy": "2", "commit": "", "host": "here", "threads": 1}


def written(root, method, seed, matrix, /, epochs=(4, 4), theta_e=(0, 0), benchmark="digits-regression", **sets):
    """A finished run with these accuracies, as if it had been run."""
    weights = {"ewc": {"strength": 30}, "afec": {"forgetting": 0.1}}  # whatever the benchmark is tuned to
    config = resolve(load_benchmark(benchmark), method, "smoke", merged({"method": weights}, sets))
    directory = RunDirectory.of(root, config, seed)
    write_text(directory.path / "config.toml", config.to_toml())
    write_text(directory.path / "env.json", json.dumps(PLACE))  # `begin` asks git, which takes longer than all the rest
    rows = [(i, j) for i in range(len(matrix)) for j in range(len(matrix[0])) if not math.isnan(matrix[i][j])]
    directory.write_scores([Score(i, j + 1, f"task {j + 1}", 0.5, matrix[i][j], 100) for i, j in rows])
    directory.append_events(
        [
            {"event": "task", "task": n + 1, "epochs": one, "epochs_theta_e": other, "samples": 100 * (one + other)}
            for n, (one, other) in enumerate(zip(epochs, theta_e, strict=True))
        ]
    )
    directory.finish({"wall_seconds": 1.0})
    return config, directory


def with_weights(config, directory):
    """What the run would have left for predictions, with a net that has seen every task and learned nothing of it."""
    made = config.build(Context(directory.seed))
    for task in made.stream.tasks:
        made.learner.net.begin_task(task.classes)
        made.learner.tasks_learned.append(task.name)
        made.learner._losses.append(task.loss)
    made.learner.save(directory.path / "learner.safetensors", prediction_only=True)


def after_two(old, new):
    """0.1 by chance; the first task at 0.8 when it was learned."""
    return [[0.1, 0.1], [0.8, 0.1], [old, new]]


def learned(tasks, base, gain=0.0, forget=0.02):
    """The accuracies of so many tasks: each new one at `base` + `gain`, losing `forget` with every task that follows."""
    rows = [[0.2] * tasks]
    for after in range(1, tasks + 1):
        old = [max(0.0, min(1.0, base + gain - forget * (after - task))) for task in range(1, after + 1)]
        rows.append([*old, *([0.2] * (tasks - after))])
    return rows
