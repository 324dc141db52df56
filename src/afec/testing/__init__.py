"""One contract suite over every method, for yours as well: `check_method(YourTerm)`. docs/contracts.md has the contracts."""

from afec.testing.check import CONTRACTS, check_method
from afec.testing.report import ContractError, Report, Result
from afec.testing.strategies import STRATEGY_CONTRACTS

__all__ = ["CONTRACTS", "STRATEGY_CONTRACTS", "ContractError", "Report", "Result", "check_method"]
