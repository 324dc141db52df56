"""One backbone, one linear head per task, explicitly apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from afec.nets.norm import task_norms

__all__ = ["MultiHead"]


class MultiHead(nn.Module):
    """A backbone shared by all tasks with an output layer of its own for each.

    A guard guards the backbone only (`guarded_parameters`): a head belongs to one task, and no other can spoil it. Layers of
    the backbone with statistics per task (`TaskBatchNorm2d`) get a set with every head, and a call for a task selects its set.

    Args:
        backbone: maps inputs to features of shape (batch, features).
        sizes: the number of outputs of each task; `add_head` adds more.
        features: the backbone's output width; by default what its attribute `out_features` says.
        zero: heads start at zero instead of PyTorch's random weights. A head then never listens to a unit that was dead
            while it was learned, and a later task that wakes the unit does not disturb it.
    """

    def __init__(
        self, backbone: nn.Module, sizes: Sequence[int], features: int | None = None, *, zero: bool = False
    ) -> None:
        super().__init__()
        width = getattr(backbone, "out_features", None) if features is None else features
        if not isinstance(width, int):
            raise TypeError(
                f"MultiHead needs the width of the backbone's output, but {type(backbone).__name__} has no "
                "integer attribute 'out_features': set one, or pass features="
            )
        if any(size < 1 for size in sizes):
            raise ValueError(f"MultiHead needs one output size of at least 1 per task; got sizes={list(sizes)}")
        self.backbone = backbone
        self.features, self.zero = width, zero
        self.heads = nn.ModuleList(self._new_head(size) for size in sizes)
        self._make_statistics()

    def _new_head(self, size: int) -> nn.Linear:
        """A head where the backbone is and in its precision; one that has no weights gets PyTorch's defaults."""
        known = next((p for p in self.backbone.parameters() if p.is_floating_point()), torch.empty(0))
        head = nn.Linear(self.features, size, device=known.device, dtype=known.dtype)
        if self.zero:
            for parameter in head.parameters():
                nn.init.zeros_(parameter)
        return head

    def add_head(self, size: int) -> int:
        """Add the head of one more task, with `size` outputs; returns its task number.

        It starts as the first ones did: at zero, or at random weights from PyTorch's generator. An optimiser that exists
        already does not know the new weights: make a new one, or `add_param_group`.
        """
        if size < 1:
            raise ValueError(f"a head needs at least 1 output; got size={size}")
        self.heads.append(self._new_head(size))
        self._make_statistics()
        return len(self.heads) - 1

    def forward(self, x: Tensor, task: int) -> Tensor:
        """The outputs of task number `task` (the first is 0) for the inputs `x`."""
        if not 0 <= task < len(self.heads):
            raise IndexError(
                f"task must be 0 to {len(self.heads) - 1}: this net has {len(self.heads)} heads; got {task}"
            )
        outputs: Tensor = self.heads[task](self.represent(x, task))
        return outputs

    def represent(self, x: Tensor, task: int) -> Tensor:
        """The features of the inputs `x`, as the head of task number `task` is given them."""
        for _, norm in task_norms(self.backbone):
            norm.select(task)
        features: Tensor = self.backbone(x)
        return features

    def _make_statistics(self) -> None:
        for _, norm in task_norms(self.backbone):
            norm.make_tasks(len(self.heads))

    def task_prefixes(self) -> tuple[str, ...]:
        """How the names in `state_dict()` begin of what belongs to one task only: heads, and statistics per task."""
        return ("heads.", *(f"backbone.{name}.tasks.".replace("..", ".") for name, _ in task_norms(self.backbone)))

    def guarded_parameters(self) -> Iterator[nn.Parameter]:
        """The weights that tasks share, and that a guard therefore pulls."""
        return self.backbone.parameters()
