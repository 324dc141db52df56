"""All benchmarks, one after the other: `make bench`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":
    here = Path(__file__).parent
    fisher, learner = (["fisher.py"], ["fisher.py", "--alexnet"]), (["learner.py"], ["learner.py", "--pair"])
    for script in (["pull.py"], *fisher, *learner, ["strategies.py"]):
        subprocess.run([sys.executable, str(here / script[0]), *script[1:]], check=True)
