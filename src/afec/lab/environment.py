"""Where a run was run: versions, commit, processor, host."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from afec.experiments import training_source

__all__ = ["environment"]


def environment() -> dict[str, Any]:
    """Versions, commit and host."""
    import numpy as np
    import torch

    from afec.randomness import processor

    return {
        "afec": metadata.version("afec"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "commit": _commit(),
        "source": training_source(),
        "host": platform.node(),
        "machine": platform.machine(),
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "visible_gpus": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "pid": os.getpid(),
    }


def _commit() -> str:
    """The commit of our own checkout, with a mark if it was changed since; empty for an installed package."""
    git, here = shutil.which("git"), Path(__file__)

    def ask(*words: str) -> str | None:
        asked = subprocess.run([str(git), *words], cwd=here.parent, capture_output=True, text=True, check=False)
        return asked.stdout.strip() if asked.returncode == 0 else None

    # A package installed inside somebody's repository is not part of it.
    if git is None or ask("ls-files", "--error-unmatch", here.name) is None:
        return ""
    changed = ask("status", "--porcelain", "--untracked-files=no")
    return f"{ask('rev-parse', 'HEAD')}{'+changed' if changed else ''}"
