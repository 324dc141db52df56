"""All benchmarks, one after the other: `make bench`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPTS = [
    ["pull.py"],
    ["fisher.py"],
    ["fisher.py", "--alexnet"],
    ["language_model.py"],
    ["memory.py"],
    ["learner.py"],
    ["learner.py", "--pair"],
    ["strategies.py"],
    ["replay.py"],
    ["cifar.py"],
    ["large.py"],
    ["large.py", "--cost"],
    ["large.py", "--memory"],
    ["games.py"],
    ["report.py"],
    ["pay.py"],
    ["column.py"],
]

if __name__ == "__main__":
    here = Path(__file__).parent
    for script, *options in SCRIPTS:
        subprocess.run([sys.executable, str(here / script), *options], check=True)
