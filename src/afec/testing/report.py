"""What the checks found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

__all__ = ["ContractError", "Report", "Result", "ViolationError"]


class ViolationError(Exception):
    """Inside a check: what was seen and what was expected."""

    def __init__(self, seen: str, expected: str) -> None:
        super().__init__(seen, expected)
        self.seen, self.expected = seen, expected


class ContractError(AssertionError):
    """A method breaks a contract: which one, what was seen, and what was expected."""

    def __init__(self, method: str, contract: str, seen: str, expected: str) -> None:
        super().__init__(method, contract, seen, expected)
        self.method, self.contract, self.seen, self.expected = method, contract, seen, expected

    def __str__(self) -> str:
        return (
            f"{self.method} breaks the contract `{self.contract}`.\n  seen:     {self.seen}\n  expected: {self.expected}\n"
            f"  If it cannot be otherwise, declare it with a reason: exempt={{{self.contract!r}: 'why'}}. "
            "docs/contracts.md says what the contract means"
        )


@dataclass(frozen=True)
class Result:
    """What came out for one contract."""

    contract: str
    outcome: Literal["passed", "failed", "exempt"]
    seconds: float
    reason: str = ""
    """The reason of an exemption."""
    error: ContractError | None = None
    """How the contract is broken; None if it holds, also where the method is exempt."""

    @property
    def holds(self) -> bool:
        """Whether the method keeps the contract, exempt or not."""
        return self.error is None

    @property
    def remark(self) -> str:
        """The last column of the table."""
        if self.outcome == "exempt":
            return self.reason + (" (but it holds: the exemption is not needed here)" if self.holds else "")
        return f"seen: {self.error.seen}; expected: {self.error.expected}" if self.error is not None else ""


@dataclass(frozen=True)
class Report:
    """All results of one method; prints as a table."""

    method: str
    results: tuple[Result, ...]

    @property
    def ok(self) -> bool:
        """No contract is broken that the method is not exempt from."""
        return not self.failed

    @property
    def failed(self) -> list[str]:
        """The contracts that are broken."""
        return [result.contract for result in self if result.outcome == "failed"]

    @property
    def needless(self) -> list[str]:
        """The contracts that the method is exempt from and keeps all the same."""
        return [result.contract for result in self if result.outcome == "exempt" and result.holds]

    def __iter__(self) -> Iterator[Result]:
        return iter(self.results)

    def __getitem__(self, contract: str) -> Result:
        for result in self:
            if result.contract == contract:
                return result
        raise KeyError(f"{contract!r} was not checked; checked were {', '.join(r.contract for r in self)}")

    def __str__(self) -> str:
        width = max((len(result.contract) for result in self), default=0)
        rows = [
            f"  {r.contract:<{width}}  {r.outcome:<7}  {r.seconds:5.2f} s  {r.remark}".rstrip() for r in self.results
        ]
        total = sum(result.seconds for result in self)
        verdict = "keeps its contracts" if self.ok else f"breaks {', '.join(self.failed)}"
        return "\n".join([f"{self.method} {verdict} ({total:.1f} s)", *rows])
