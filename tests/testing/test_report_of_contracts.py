"""What `check_method` says: errors, exemptions, the report."""

from __future__ import annotations

import itertools
import random
import re

import numpy as np
import pytest
import torch
from broken_methods import L2, AdvancesTorch, KeepsAList, KeepsAllAnchors

from afec import AFEC
from afec.testing import ContractError, check_method

DICE = itertools.count(1)


class RollsDice(L2):
    """Breaks nearly everything; what is named first is the cause."""

    def end_task(self, task, state, task_state):
        noise = float(next(DICE))  # another one each time, whatever the seed
        return {"mean": {name: value + noise for name, value in task.values().items()}}


class Raises(L2):
    def begin_epoch(self, task, state, task_state):
        raise ZeroDivisionError("one over nothing")


class Declares(KeepsAList):
    exempt_contracts = {"bounded": "keeps a log", "pulls": "for no reason at all"}  # noqa: RUF012


def test_the_error_says_method_contract_seen_and_expected():
    with pytest.raises(ContractError) as caught:
        check_method(KeepsAllAnchors)
    error = caught.value
    assert error.contract == "bounded"
    assert error.method == "l2 (KeepsAllAnchors(strength=10))"
    message = str(error)
    assert all(part in message for part in (error.method, "`bounded`", error.seen, error.expected, "exempt={'bounded'"))
    # The net has 4·8 + 8 + 2·8 + 8·3 + 3 = 83 weights: the anchor and a list of one, then of two.
    assert "166 numbers in task 2 and 249 in task 3" in error.seen
    assert "['all'] has 1 entries in one and 2 in the other" in error.seen


def test_the_first_failure_is_the_cause():
    with pytest.raises(ContractError) as caught:
        check_method(RollsDice)
    assert caught.value.contract == "deterministic"
    assert "two runs from the same seed differ" in caught.value.seen


def test_an_exception_of_the_method_is_a_failure_with_its_cause():
    with pytest.raises(ContractError, match="ZeroDivisionError: one over nothing") as caught:
        check_method(Raises)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_exemption_is_listed_with_its_reason_and_said_to_be_needless_where_it_holds():
    given = {"bounded": "keeps a log", "grows": "not needed"}
    report = check_method(KeepsAList, exempt=given, only=["grows", "bounded", "zero"])
    assert [(result.contract, result.outcome, result.holds) for result in report] == [
        ("zero", "passed", True),
        ("bounded", "exempt", False),
        ("grows", "exempt", True),
    ]
    assert report.ok
    assert report.needless == ["grows"]
    assert report["bounded"].reason == "keeps a log"
    table = str(report).splitlines()
    assert "keeps its contracts" in table[0]
    assert re.fullmatch(r"  zero     passed   +[\d.]+ s", table[1])
    assert re.fullmatch(r"  bounded  exempt   +[\d.]+ s  keeps a log", table[2])
    assert re.fullmatch(r"  grows    exempt   +[\d.]+ s  not needed \(but it holds: .*\)", table[3])


def test_a_method_declares_its_exemptions_itself_also_in_a_sum():
    for make in (Declares, lambda strength: Declares(strength) + AFEC(strength, epochs=2)):
        report = check_method(make, only=["bounded", "pulls"])
        assert [result.outcome for result in report] == ["exempt", "exempt"]
        assert report.needless == ["pulls"]


def test_failures_are_in_the_report():
    report = check_method(KeepsAList, only="bounded", raise_on_failure=False)
    assert report.failed == ["bounded"]
    assert not report.ok
    assert "breaks bounded" in str(report)
    assert report["bounded"].error.seen in str(report)
    with pytest.raises(KeyError, match="'zero' was not checked; checked were bounded"):
        report["zero"]


def test_the_users_random_numbers_are_left_alone():
    states = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    check_method(AdvancesTorch, only=["deterministic", "state"], raise_on_failure=False)
    now = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    assert torch.equal(states[0], now[0])
    assert states[1:] == now[1:]


ONE = L2(1.0)


@pytest.mark.parametrize(
    ("make", "options", "error", "message"),
    [
        (ONE, {}, TypeError, "make must build a fresh guard"),
        (lambda strength: ONE, {}, TypeError, "a new guard at every call"),
        (lambda strength: strength, {}, TypeError, "must return a Guard.*got 10"),
        (L2, {"strength": 0}, ValueError, "strength must be > 0.*got 0"),
        (L2, {"only": ["bound"]}, ValueError, "only= names 'bound'.*contracts are deterministic, zero"),
        (L2, {"exempt": {"bound": "why"}}, ValueError, "exempt= names 'bound'"),
        (L2, {"exempt": {"bounded": " "}}, ValueError, "'bounded' needs a reason, in words; got ' '"),
    ],
)
def test_errors_say_what_to_do(make, options, error, message):
    with pytest.raises(error, match=message):
        check_method(make, **options)
