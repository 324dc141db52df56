"""Every contract can be broken: a method that breaks it is caught by its name."""

from __future__ import annotations

import pytest
from broken_methods import BROKEN, L2

from afec.testing import CONTRACTS, check_method


def test_the_method_of_the_page_keeps_them():
    report = check_method(L2)
    assert report.ok
    assert not report.failed
    assert all(result.outcome == "passed" for result in report)


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_a_broken_method_is_caught(broken):
    report = check_method(broken, only=BROKEN[broken], raise_on_failure=False)
    assert set(report.failed) == BROKEN[broken], str(report)


@pytest.mark.slow
@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_a_broken_method_breaks_no_other_contract(broken):
    report = check_method(broken, raise_on_failure=False)
    assert set(report.failed) == BROKEN[broken], str(report)


def test_every_contract_alone_has_a_method_that_breaks_it():
    assert {next(iter(broken)) for broken in BROKEN.values() if len(broken) == 1} == set(CONTRACTS)
