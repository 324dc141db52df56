"""One run in several processes: the numbers of one process, whatever is measured, and one writer."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch.distributed import TCPStore

import several_processes
from afec.lab import RunDirectory, find_runs, run
from afec.parallel import Group, Share, group_here, grouped
from small_lab import quick_config, quick_file
from small_processes import several
from stopped_runs import in_task, run_until


def torchrun(count, *words):
    """The command in `count` processes of this machine, when it has ended."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count), *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment)


def flat(tree, place=""):
    """The tensors and numbers of a tree by their places."""
    if isinstance(tree, torch.Tensor | float):
        return {place: torch.as_tensor(tree, dtype=torch.float64)}
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list | tuple) else ()
    return {name: leaf for key, value in pairs for name, leaf in flat(value, f"{place}/{key}").items()}


@pytest.mark.parametrize(("rows", "size"), [(10, 2), (10, 3), (7, 3), (6, 3)])
def test_the_shares_of_a_batch_are_all_of_it_once(rows, size):
    shares = [Group(rank, size).share(rows) for rank in range(size)]
    every = torch.arange(rows)
    assert torch.cat([share.of(every) for share in shares]).equal(every)
    assert sum(share.part for share in shares) == pytest.approx(1)
    assert min(share.stop - share.start for share in shares) >= 2


def test_a_batch_that_is_too_small_is_not_shared():
    assert Group(0, 3).share(5) is None
    assert Group(1, 2).share(4) == Share(2, 4, 4)


def test_pieces_are_dealt_out_to_one_process_each():
    assert [[Group(rank, 3).mine(number) for rank in range(3)].count(True) for number in range(7)] == [1] * 7


def test_a_group_holds_inside_its_block_only():
    group = Group(0, 2)
    with grouped(group):
        assert group_here() is group
    assert group_here() is None


def test_a_dropout_of_a_share_is_that_part_of_the_whole_batch():
    inputs = torch.randn(8, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    torch.manual_seed(1)
    whole = torch.nn.functional.dropout(inputs, 0.5)
    for rank in range(2):
        group = Group(rank, 2)
        share = group.share(8)
        torch.manual_seed(1)
        with group.sharing(share):
            assert torch.nn.functional.dropout(share.of(inputs), 0.5).equal(share.of(whole))


def test_squares_are_added_up_and_sums_are_not_squared():
    """Gradients 1 and −1: the mean of the squares is 1, the square of the mean 0. In one process; below in several."""
    assert float(several_processes.opposite()) == 1.0


@pytest.fixture(scope="module")
def alone():
    return several_processes.everything()


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3])
def test_several_processes_come_to_the_numbers_of_one(alone, count, tmp_path):
    """Weights, Fisher of every kind, Ω, paths, θ_e, validation losses; dropout, augmentation, batch-norm."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # torchrun has one as well
    (tmp_path / "group").write_text(f"{store.port} {count}")
    several(several_processes.work, tmp_path, count)
    found = torch.load(tmp_path / "found.pt", weights_only=False)
    assert found.keys() == alone.keys()
    assert float(found["opposite"]) == 1.0
    for name, expected in alone.items():
        one, other = flat(expected), flat(found[name])
        assert one.keys() == other.keys(), name
        for place, value in one.items():
            if value.numel():
                error = float((other[place] - value).abs().max() / (value.abs().max() + 1e-6))
                assert error < 2e-4, (name, place, error)


@pytest.mark.slow
def test_torchrun_runs_and_resumes_runs_and_the_first_process_alone_writes(tmp_path):
    config, root = quick_config("ewc+afec", "three"), tmp_path / "runs"
    run_until(in_task(1), config, root)  # in one process; the group goes on from there
    methods = ["ewc+afec", "si", "progress-compress"]
    words = ["run", quick_file(tmp_path), "--scale", "three", "--seeds", "1", "--runs", root, "--method", *methods]
    made = torchrun(2, "-m", "afec", *words)
    assert "3 runs on 2 processes together, each with its share of every batch" in made.stdout
    assert made.stdout.count("seed 0: done") == 2
    assert made.returncode != 0  # what cannot be shared out says so
    assert "not shared out over processes" in made.stderr
    for name in ("ewc+afec", "si"):
        run(quick_config(name, "three"), 0, tmp_path / "whole")
    (refused,) = [found for found in find_runs(root) if not found.done]
    assert "not shared out over processes" in refused.failure
    together, whole = [found for found in find_runs(root) if found.done], find_runs(tmp_path / "whole")
    for one, other in zip(together, whole, strict=True):
        assert one.matrix() == pytest.approx(other.matrix(), abs=0.02)  # an image or two may fall on the other side
        assert {f.name for f in one.path.iterdir()} == {f.name for f in other.path.iterdir()}
        assert one.samples == other.samples
        assert any("in 2 processes" in event.get("text", "") for event in one.events())
    assert RunDirectory.of(root, config, 0).done
