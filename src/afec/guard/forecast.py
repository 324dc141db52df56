"""How many bytes a guard will take, and for what, known before the first step."""

from __future__ import annotations

from dataclasses import dataclass

from afec.guard import task as guarded
from afec.guard.memory import bytes_of, precision_bytes
from afec.guard.task import GuardedTask

__all__ = ["MemoryForecast", "forecast"]

SUMS = 3  # of a Fisher pass while its routes are tried: the sums, what they are compared with, and one gradient


@dataclass(frozen=True)
class MemoryForecast:
    """Bytes beyond those of training without a guard, from the second task on."""

    weights: int
    """One copy of all guarded weights, to compare with."""

    parts: dict[str, int]
    """What is there for as long as the task is learned, by method and by what it is."""

    entry: int
    """At most so many when the task begins, less the activations of some samples and the optimiser of θ_e."""

    exit: int
    """At most so many when the task ends, less the activations of some samples."""

    @property
    def total(self) -> int:
        """What is there for as long as the task is learned."""
        return sum(self.parts.values())

    def __str__(self) -> str:
        copies = self.total / max(1, self.weights)
        listed = ", ".join(f"{what} {_size(number)}" for what, number in self.parts.items())
        return (
            f"memory beyond training alone: {_size(self.total)} while a task is learned ({copies:.1f} copies of the guarded "
            f"weights: {listed}), at most {_size(self.entry)} when it begins and {_size(self.exit)} when it ends"
        )


def forecast(task: GuardedTask) -> MemoryForecast:
    """For a task that is not begun."""
    parts: dict[str, int] = {}
    names: dict[str, int] = {}
    fleeting = sums = gradients = 0
    for term in task.terms:
        with task.only(term):
            found = term.memory(task)
            parts |= {f"{term.name} {what}": number for what, number in found.kept.items()}
            parts |= {f"{term.name} {what}": number for what, number in found.of_task.items()}
            fleeting += sum(found.of_task.values())
            gradients = max(gradients, bytes_of(task.weights.values()) if found.expands else 0)
            sums = max(sums, SUMS * precision_bytes(task.weights.values()) if found.measures else 0)
            if found.pulls:
                names |= {name: names.get(name, 0) + 1 for name in task.weights}
    if 0 < sum(task.weights[name].numel() for name in names) <= guarded.KEPT_UP_TO:
        parts["D"] = bytes_of(task.weights[name] for name in names)
        if any(number > 1 for number in names.values()):
            parts["c"] = bytes_of(task.weights[name] for name, number in names.items() if number > 1)
    total = sum(parts.values())
    merged = parts.get("D", 0) + parts.get("c", 0)
    entry = max(total, total - fleeting - merged + gradients + sums)
    return MemoryForecast(bytes_of(task.weights.values()), parts, entry, total + sums)


def _size(number: int) -> str:
    for unit, name in ((2**30, "GB"), (2**20, "MB"), (2**10, "kB")):
        if number >= unit:
            return f"{number / unit:.3g} {name}"
    return f"{number} bytes"
