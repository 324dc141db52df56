"""Every method gives the numbers that it gave before the house was rebuilt: scores, epochs and sample counts.

`numbers.json` was made by the code before the rebuilding, from these commands (`collect.py` reads run directories). A change
that is meant to move a number writes the file anew, in a commit of its own that says why.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from collect import machine, numbers

from afec.cli import main
from afec.data import data_root

KNOWN = json.loads((Path(__file__).parent / "numbers.json").read_text())
METHODS = ["finetune", "ewc", "mas", "si", "rwalk", "ags-cl", "progress-compress"]
METHODS += ["ewc+afec", "mas+afec", "si+afec", "rwalk+afec", "joint", "scratch"]
BUILT_IN = {
    "digits": ["--seeds", "2", "--method", *METHODS, "ags-cl+afec", "progress-compress+afec", "ewc@equal-compute"],
    "digits-regression": ["--seeds", "2", "--method", *METHODS, "ewc@equal-compute"],
    "digits-regression transfer": ["--set", "stream.setting=transfer", "--method", "finetune", "ewc", "ewc+afec"],
}
DOWNLOADED = {
    "cifar100-sc": ["--seeds", "1", "--method", *METHODS, "ewc+afec@official"],
    "cub200-pretrained": ["--seeds", "1", "--method", *METHODS],
}
FOLDERS = {"cifar100-sc": "cifar-100-python", "cub200-pretrained": "CUB_200_2011"}


def compared(root, known):
    """Raise unless the runs under `root` are the known ones, to the digit where they were made on such a machine."""
    found = numbers(root)
    assert found.keys() == known.keys()
    same = machine(root) == KNOWN["machine"]
    for key, one in known.items():
        for what in ("scores", "samples", "epochs", "transfer") if same else ("samples",):
            assert found[key][what] == one[what], f"{what} of {key}"
        assert len(found[key]["scores"]) == len(one["scores"]), key
    if not same:
        pytest.skip(f"sample counts are equal; digits are those of {KNOWN['machine']}, and this is {machine(root)}")


def of(benchmark):
    """The known numbers of one benchmark."""
    setting = benchmark.endswith(" transfer")
    name = benchmark.removesuffix(" transfer")
    keys = [key for key in KNOWN["runs"] if key.split()[0] == name and (" transfer " in key) == setting]
    return {key: KNOWN["runs"][key] for key in keys}


def run(benchmark, arguments, root):
    name = benchmark.removesuffix(" transfer")
    seeds = [] if "--seeds" in arguments else ["--seeds", "1"]
    assert main(["run", name, "--scale", "smoke", "--runs", str(root), *seeds, *arguments]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("benchmark", BUILT_IN)
def test_built_in_benchmarks(in_process, tmp_path, benchmark):
    run(benchmark, BUILT_IN[benchmark], tmp_path)
    compared(tmp_path, of(benchmark))


@pytest.mark.slow
@pytest.mark.parametrize("benchmark", DOWNLOADED)
def test_downloaded_benchmarks(in_process, tmp_path, benchmark):
    if not (data_root() / FOLDERS[benchmark]).exists():
        pytest.skip(f"{FOLDERS[benchmark]} is not in {os.fspath(data_root())}")
    run(benchmark, DOWNLOADED[benchmark], tmp_path)
    compared(tmp_path, of(benchmark))


def test_a_changed_number_is_seen(in_process, tmp_path):
    run("digits", ["--method", "finetune"], tmp_path)
    known = {key: value for key, value in of("digits").items() if key == "digits finetune seed0"}
    changed = {key: {**value, "samples": [1, *value["samples"][1:]]} for key, value in known.items()}
    with pytest.raises(AssertionError, match="samples of digits finetune"):
        compared(tmp_path, changed)
