"""One backbone, one linear head per task, explicitly apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor, nn

__all__ = ["MultiHead"]


class MultiHead(nn.Module):
    """A backbone shared by all tasks with an output layer of its own for each.

    A guard guards the backbone only (`guarded_parameters`): a head belongs to one task, and no other can spoil it.

    Args:
        backbone: maps inputs to features of shape (batch, features).
        sizes: the number of outputs of each task.
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
        if not sizes or min(sizes) < 1:
            raise ValueError(f"MultiHead needs one output size of at least 1 per task; got sizes={list(sizes)}")
        self.backbone = backbone
        self.heads = nn.ModuleList(nn.Linear(width, size) for size in sizes)
        if zero:
            for parameter in self.heads.parameters():
                nn.init.zeros_(parameter)

    def forward(self, x: Tensor, task: int) -> Tensor:
        """The outputs of task number `task` (the first is 0) for the inputs `x`."""
        if not 0 <= task < len(self.heads):
            raise IndexError(
                f"task must be 0 to {len(self.heads) - 1}: this net has {len(self.heads)} heads; got {task}"
            )
        outputs: Tensor = self.heads[task](self.backbone(x))
        return outputs

    def guarded_parameters(self) -> Iterator[nn.Parameter]:
        """The weights that tasks share, and that a guard therefore pulls."""
        return self.backbone.parameters()
