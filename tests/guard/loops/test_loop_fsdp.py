"""Two processes with FSDP2 (gloo): each holds a part of every weight and of all that is known of it; together they are one."""

import fsdp_workers
import pytest
import torch

from small_processes import several
from two_tasks import net

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fsdp")
    several(fsdp_workers.work, folder, fsdp_workers.WORLD)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(fsdp_workers.WORLD)]


def one_process(how="plain", **options):
    torch.manual_seed(0)
    return fsdp_workers.two_tasks(net(), 1, how, **options)


@pytest.mark.parametrize("how", ["plain", "pull", "main"])
def test_both_processes_together_are_one_process(how, ranks):
    options = {"expand_from": "main"} if how == "main" else {}
    expected = one_process("plain" if how == "main" else how, **options)
    for what in ("theta_e", "f_e", "mean 1", "fisher 1", "mean 2", "fisher 2", "kept", "end"):
        assert expected[what] or (how, what) == ("main", "kept"), what
        for name, value in expected[what].items():
            whole = torch.cat([rank[how][what][name] for rank in ranks])
            torch.testing.assert_close(whole, value, rtol=1e-8, atol=1e-12, msg=f"{what} {name}")
    for rank in ranks:
        torch.testing.assert_close(rank[how]["penalty"], expected["penalty"], rtol=1e-8, atol=1e-12)
        torch.testing.assert_close(rank[how]["penalties"], expected["penalties"], rtol=1e-8, atol=1e-12)


def test_each_process_knows_its_own_part_only(ranks):
    rows = [rank["plain"]["fisher 2"]["0.weight"].shape[0] for rank in ranks]
    assert rows == [3, 3]
    rows = [rank["plain"]["fisher 2"]["2.weight"].shape[0] for rank in ranks]  # three rows over two processes
    assert rows == [2, 1]


def test_a_task_that_was_saved_in_its_middle_goes_on_bit_for_bit(ranks):
    for rank in ranks:
        for what, values in rank["resumed"].items():
            assert all(torch.equal(value, rank["plain"][what][name]) for name, value in values.items()), what


def test_a_weight_that_moves_without_its_pull_raises(ranks):
    for rank in ranks:
        assert rank["moved"].startswith("WeightMovedError: guarded weight '0.weight' was changed")


def test_the_guard_changes_the_result(ranks):
    """Otherwise the comparison would show nothing."""
    guarded = torch.cat([rank["plain"]["end"]["0.weight"] for rank in ranks])
    other = torch.cat([rank["main"]["end"]["0.weight"] for rank in ranks])
    assert (guarded - other).abs().max() > 1e-3
    assert float(ranks[0]["plain"]["penalty"]) > 1e-3


def test_precisions_rest_in_16_bits_on_shards_too(ranks):
    for rank in ranks:
        assert {value.dtype for value in rank["bfloat16"]["fisher 2"].values()} == {torch.bfloat16}


@pytest.mark.parametrize("kind", ["exact", "sample", "empirical", "reversed"])
def test_fisher_kinds_of_single_samples_are_refused_by_name(kind, ranks):
    for rank in ranks:
        assert rank["refusals"][kind].startswith(f"ValueError: the {kind!r} Fisher needs gradients of single samples")
        assert 'Use fisher="batched"' in rank["refusals"][kind]


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("auto", 'ValueError: a sharded model (FSDP2) has no gradients of single samples.*give fisher="batched"'),
        ("MAS", "TypeError: mas does not work on the parts of a sharded model (FSDP2)"),
        ("SI", "TypeError: si does not work on the parts of a sharded model (FSDP2)"),
        ("RWALK", "TypeError: rwalk does not work on the parts of a sharded model (FSDP2)"),
        ("strength", 'TypeError: ewc with strength="auto" does not work on the parts'),
        ("check", "TypeError: guard.check() does not work on a sharded model (FSDP2)"),
        ("two dimensions", "TypeError: weight '0.weight' is a DTensor that is split over 2 mesh dimensions"),
    ],
)
def test_what_does_not_work_on_shards_is_refused_by_name(what, said, ranks):
    for rank in ranks:
        beginning, *rest = said.split(".*")
        assert rank["refusals"][what].startswith(beginning)
        assert all(part in rank["refusals"][what] for part in rest)
