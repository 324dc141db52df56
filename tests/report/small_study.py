"""Studies on disk for the page, and a name that somebody has chosen who means no good."""

from __future__ import annotations

import json
import re

from written_runs import learned, written

EVIL = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>\"'`{{7*7}}\x00\x1b[31m\u202e"
METHODS = {"finetune": (0.5, 0.2), "ewc": (0.55, 0.05), "ewc@equal-compute": (0.57, 0.05), "ewc+afec": (0.6, 0.05)}


def write_study(root, tasks=5, seeds=3, benchmark="digits", **sets):
    """Every method over its seeds; the last ones a little better."""
    for method, (base, forget) in METHODS.items():
        for seed in range(seeds):
            matrix = learned(tasks, base, 0.01 * seed, forget)
            theta_e = (0, *[4] * (tasks - 1)) if "afec" in method else (0,) * tasks
            epochs = (4, *[8] * (tasks - 1)) if "@" in method else (4,) * tasks
            written(root, method, seed, matrix, epochs, theta_e, benchmark, **sets)


def rename(run, **changes):
    """Other names in the configuration of a run."""
    file = run.path / "config.toml"
    text = file.read_text(encoding="utf-8")
    for key, value in changes.items():
        text = re.sub(rf"(?m)^{key} = .*$", lambda _, k=key, v=value: f"{k} = {json.dumps(v)}", text, count=1)
    file.write_text(text, encoding="utf-8")
