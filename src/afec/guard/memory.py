"""What a guard knows: plain dictionaries of tensors and numbers, so that saving them is saving the guard.

Each term has a state, which lasts over the tasks, and a task state, what it knows of the present task.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

__all__ = ["Memory", "State", "TermBytes", "bytes_of", "precision_bytes"]

State = dict[str, Any]
FORMAT = 2
KEYS = {"format", "method", "tasks_done", "seed", "states", "task_states"}


@dataclass
class Memory:
    """What a guard knows after some tasks, and of a task that was loaded in its middle."""

    tasks_done: int = 0
    seed: int | None = None
    states: dict[str, State] = field(default_factory=dict)
    task_states: dict[str, State] | None = None  # of a task that was loaded in its middle
    warned: set[str] = field(default_factory=set)  # each warning once; not saved

    def learned(self, states: dict[str, State]) -> None:
        """A task has ended, with these states."""
        self.states, self.task_states, self.tasks_done = states, None, self.tasks_done + 1

    def saved(self, method: str, task_states: Mapping[str, State] | None) -> dict[str, Any]:
        """The `state_dict()` of a guard, in the middle of a task with its task states."""
        return {
            "format": FORMAT,
            "method": method,
            "tasks_done": self.tasks_done,
            "seed": self.seed,
            "states": dict(self.states),
            "task_states": None if task_states is None else dict(task_states),
        }

    def load(self, method: str, state: Mapping[str, Any]) -> None:
        """Take over what `saved` gave for the same method."""
        if isinstance(state, Mapping) and state.get("format") == 1 and "flights" in state:  # their name in format 1
            state = {**state, "format": FORMAT, "task_states": state["flights"]}
            del state["flights"]
        if not isinstance(state, Mapping) or set(state) != KEYS or state["format"] != FORMAT:
            found = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
            raise ValueError(
                f"this is no state_dict of a guard (format {FORMAT}): expected {sorted(KEYS)}, got {found}"
            )
        if state["method"] != method:
            raise ValueError(
                f"the state is of {state['method']!r}, this guard is {method!r}; build the guard that was saved"
            )
        self.tasks_done, self.seed = int(state["tasks_done"]), state["seed"]
        self.states, self.task_states = dict(state["states"]), state["task_states"]


@dataclass(frozen=True)
class TermBytes:
    """How many bytes a term takes in a task, from the second one on, by what they are."""

    kept: dict[str, int] = field(default_factory=dict)
    """What it keeps over the tasks."""

    of_task: dict[str, int] = field(default_factory=dict)
    """What it knows of the present task, beyond that."""

    pulls: bool = False
    """Whether it pulls the weights."""

    measures: bool = False
    """Whether it measures a Fisher or an importance by a pass over the data."""

    expands: bool = False
    """Whether it trains the borrowed weights when a task begins."""


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Of copies of tensors, as they are."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def precision_bytes(weights: Iterable[Tensor], store: str | None = None) -> int:
    """Of their precisions: 32 bits at least, or the 16 that `store` says."""
    if store == "bfloat16":
        return sum(2 * weight.numel() for weight in weights)
    return sum(weight.numel() * torch.promote_types(weight.dtype, torch.float32).itemsize for weight in weights)
