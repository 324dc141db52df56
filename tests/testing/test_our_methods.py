"""Every method of ours keeps the contracts, and the page lists them."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import afec
from afec import AFEC, EWC, Average, Merge, Prior, Recycle
from afec.testing import CONTRACTS, STRATEGY_CONTRACTS, check_method

PAGE = Path(__file__).parents[2] / "docs" / "contracts.md"

OLD = {name.lower(): getattr(afec, name) for name in ("EWC", "MAS", "SI", "RWALK")}
FORGETTING = {
    "afec": partial(AFEC, epochs=2),
    "afec-main": partial(AFEC, epochs=2, expand_from="main"),
    "afec-merged": partial(AFEC, epochs=2, start="merged"),
    "afec-carry": partial(AFEC, epochs=2, expand_from="carry"),
    "afec-interleaved": partial(AFEC, schedule="interleaved"),
    "afec-interleaved-main": partial(AFEC, schedule="interleaved", expand_from="main"),
    "afec-interleaved-carry": partial(AFEC, schedule="interleaved", expand_from="carry"),
    "afec-paper": partial(AFEC, epochs=2, preset="paper"),
    "afec-official": partial(AFEC, preset="official"),
}
# The only exemptions that our own methods declare: {method as it is called below: {contract: reason}}.
UNCLAMPED = {"nonnegative": "the released code does not clamp the importance of a weight at 0"}
EXEMPT = {
    "si-official": UNCLAMPED,
    "rwalk-official": UNCLAMPED,
    "prior": {"pulls": "it moves weights after the step, and not by a gradient"},
    "recycle": {
        "zero": "it has no strength: it is switched off by leaving it out",
        "untouched": "it renews weights at the end of a task",
    },
    "average": {"untouched": "it puts the average in the place of the weights at the end of a task"},
    "merge": {
        "untouched": "it merges old and new weights at the end of a task",
        "pulls": "it merges weights at the end of a task, and pulls nothing",
    },
    "afec-merged": {"untouched": "it moves θ to its start when a task begins"},
}


def summed(old, forgetting):
    return lambda strength: old(strength=strength) + forgetting(strength)


def recycled(old, **options):
    """With a threshold at which units are renewed after every task of the contracts."""
    return lambda strength: old(strength=strength) + Recycle(threshold=0.5, **options)


def averaged(strength, params=None):
    """Switched on by a strength: a decay is at most 1."""
    return Average(0.9 if strength else 0.0, params=params)


def our_methods():
    """By name: the methods alone, the variants of AFEC alone and beside EWC, and AFEC beside each of the others."""
    found = dict(OLD)
    for name, method in OLD.items():
        found[f"{name}-official"] = partial(method, preset="official")
    found["ewc-paper"] = partial(EWC, preset="paper")
    for variant, forgetting in FORGETTING.items():
        found[variant] = lambda strength, forgetting=forgetting: forgetting(strength)
        found[f"ewc+{variant}"] = summed(EWC, forgetting)
    for name, method in OLD.items():
        found[f"{name}+afec"] = summed(method, FORGETTING["afec"])
        found[f"{name}-official+afec-official"] = summed(found[f"{name}-official"], FORGETTING["afec-official"])
        found[f"{name}+recycle"] = recycled(method)
    found["ewc+recycle+all"] = recycled(EWC, layers="all")
    found["ewc+afec+recycle"] = recycled(found["ewc+afec"])
    # Strengths that suit a learning rate of 1, at which a contract steps.
    found["prior"] = lambda strength: Prior(strength / 20)
    found["ewc+prior"] = lambda strength: EWC(strength) + Prior(strength / 20, center="init")
    found["prior-coupled"] = lambda strength: Prior(strength, decoupled=False)
    found["average"] = averaged
    found["ewc+average"] = lambda strength: EWC(strength) + averaged(strength)
    found["merge"] = Merge
    found["ewc+merge"] = lambda strength: EWC(strength) + Merge(strength)
    found["average+merge"] = lambda strength: averaged(strength) + Merge(strength)
    return found


OURS = our_methods()
QUICK = {"ewc", "si", "afec", "ewc+afec", "ewc+recycle", "average", "merge"}
# What a sum keeps although one of its methods alone does not: there the other one changes the second task.
KEPT_IN_SUM = {"ewc+merge": ["pulls"], "average+merge": ["pulls"]}


def exempt_of(name):
    return {contract: reason for part in name.split("+") for contract, reason in EXEMPT.get(part, {}).items()}


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in OURS])
def test_our_methods_keep_the_contracts(name):
    report = check_method(OURS[name])
    assert report.ok
    assert [result.contract for result in report] == list(CONTRACTS)
    assert {result.contract: result.reason for result in report if result.outcome == "exempt"} == exempt_of(name)
    assert report.needless == KEPT_IN_SUM.get(name, [])


@pytest.mark.slow  # a process of its own
def test_the_first_expansion_of_a_process_draws_nothing():
    """An import may draw: rich does from `random`. In the middle of a run that would make it another than a resumed one."""
    lines = [
        "from afec import AFEC",
        "from afec.testing import check_method",
        "check_method(lambda strength: AFEC(strength, epochs=2), only='deterministic')",
    ]
    found = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


def section(title):
    """The cells of each row of the table under a heading of the page, without the head."""
    text = PAGE.read_text().split(f"## {title}\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip().strip("`") for cell in row] for row in rows[2:]]


def test_the_page_lists_every_contract_and_exemption():
    assert [row[0] for row in section("The contracts")] == list(CONTRACTS)
    declared = [[name, contract, reason] for name, each in EXEMPT.items() for contract, reason in each.items()]
    assert section("Which methods are exempt") == declared
    assert [row[0] for row in section("Strategies")] == list(STRATEGY_CONTRACTS)
