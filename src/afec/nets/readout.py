"""How a net answers: a backbone makes features, and a readout makes outputs of them.

`MultiHead` is for the scenario `task`: the task is known, and each has an output layer of its own. `SingleHead` is for the
scenario `class`: one classifier for all classes so far, which grows with the classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from afec.naming import unknown
from afec.nets.norm import task_norms

__all__ = ["ClassifierKind", "MultiHead", "Readout", "SingleHead"]

ClassifierKind = Literal["linear", "cosine", "proxies"]


class Readout(nn.Module, ABC):
    """A backbone with output layers that grow task by task. A task is a number, and the first is 0.

    Args:
        backbone: maps inputs to features of shape (batch, features).
        features: the backbone's output width; by default what its attribute `out_features` says.
        zero: output layers start at zero instead of random weights. An output then never listens to a unit that was dead
            while it was learned, and a later task that wakes the unit does not disturb it.
    """

    scenario: ClassVar[Literal["task", "class"]]

    def __init__(self, backbone: nn.Module, features: int | None = None, *, zero: bool = False) -> None:
        super().__init__()
        width = getattr(backbone, "out_features", None) if features is None else features
        if not isinstance(width, int):
            raise TypeError(
                f"{type(self).__name__} needs the width of the backbone's output, but {type(backbone).__name__} has no "
                "integer attribute 'out_features': set one, or pass features="
            )
        self.backbone, self.width, self.zero = backbone, width, zero
        self.task_classes = list[tuple[int, ...]]()
        """The classes of each task that has begun, by their numbers in the whole stream; one output for each."""

    @property
    def sizes(self) -> list[int]:
        """The number of outputs that each task has brought."""
        return [len(classes) for classes in self.task_classes]

    @abstractmethod
    def begin_task(self, classes: Sequence[int]) -> int:
        """Add the outputs of one more task, one for each of its classes (global numbers); returns the task's number.

        They start as the first ones did, from PyTorch's generator. An optimiser that exists already does not know the new
        weights: make a new one, or `add_param_group`.
        """

    @abstractmethod
    def forward(self, x: Tensor, task: int) -> Tensor:
        """The outputs for the inputs `x` of task number `task`."""

    @abstractmethod
    def features(self, x: Tensor, task: int) -> Tensor:
        """The features of the inputs `x`, as the output layer of task number `task` is given them."""

    @abstractmethod
    def guarded_parameters(self) -> Iterator[nn.Parameter]:
        """The weights that tasks share, and that a guard therefore pulls."""

    @abstractmethod
    def output_targets(self, task: int, targets: Tensor) -> Tensor:
        """Targets of task number `task` (classes are numbered from 0 inside it) as targets of the outputs."""

    @property
    @abstractmethod
    def output_layers(self) -> list[nn.Module]:
        """The output layer of each task, in the order of the tasks."""

    @abstractmethod
    def task_prefixes(self) -> tuple[str, ...]:
        """How the names in `state_dict()` begin of what comes with a task: output layers, and statistics per task."""

    def described(self) -> str:
        """What kind of readout it is; states of one kind do not fit another."""
        return type(self).__name__

    def _new_layer(self, layer: Callable[..., nn.Module], size: int) -> nn.Module:
        """An output layer where the backbone is and in its precision; one without weights gets PyTorch's defaults."""
        if size < 1:
            raise ValueError(f"a task needs at least 1 output; got {size}")
        known = next((p for p in self.backbone.parameters() if p.is_floating_point()), torch.empty(0))
        made: nn.Module = layer(self.width, size, device=known.device, dtype=known.dtype)
        if self.zero:
            for parameter in made.parameters():
                nn.init.zeros_(parameter)
        return made


class MultiHead(Readout):
    """A backbone shared by all tasks with an output layer of its own for each: the scenario `task`.

    A guard guards the backbone only: a head belongs to one task, and no other can spoil it. Layers of the backbone with
    statistics per task (`TaskBatchNorm2d`) get a set with every head, and a call for a task selects its set.

    Args:
        backbone, features, zero: as in `Readout`.
        sizes: the number of outputs of each task; `begin_task` adds more.
    """

    scenario = "task"

    def __init__(
        self, backbone: nn.Module, sizes: Sequence[int] = (), features: int | None = None, *, zero: bool = False
    ) -> None:
        super().__init__(backbone, features, zero=zero)
        self.heads = nn.ModuleList()
        for size in sizes:
            self.begin_task(range(size))

    def begin_task(self, classes: Sequence[int]) -> int:
        """Add a head with one output for each class; which classes they are does not matter here."""
        self.heads.append(self._new_layer(nn.Linear, len(classes)))
        for _, norm in task_norms(self.backbone):
            norm.make_tasks(len(self.heads))
        self.task_classes.append(tuple(classes))
        return len(self.heads) - 1

    def forward(self, x: Tensor, task: int) -> Tensor:
        """What the head of task number `task` makes of the inputs `x`."""
        if not 0 <= task < len(self.heads):
            raise IndexError(
                f"task must be 0 to {len(self.heads) - 1}: this net has {len(self.heads)} heads; got {task}"
            )
        outputs: Tensor = self.heads[task](self.features(x, task))
        return outputs

    def features(self, x: Tensor, task: int) -> Tensor:
        """The features of the inputs `x`, by the statistics of task number `task` where there are such."""
        for _, norm in task_norms(self.backbone):
            norm.select(task)
        features: Tensor = self.backbone(x)
        return features

    def guarded_parameters(self) -> Iterator[nn.Parameter]:
        """The weights that tasks share: those of the backbone."""
        return self.backbone.parameters()

    def output_targets(self, task: int, targets: Tensor) -> Tensor:
        """The targets as they are: a head's outputs are numbered as the classes of its task."""
        return targets

    @property
    def output_layers(self) -> list[nn.Module]:
        """The heads, one for each task."""
        return list(self.heads)

    def task_prefixes(self) -> tuple[str, ...]:
        """Those of the heads, and of statistics per task."""
        return ("heads.", *(f"backbone.{name}.tasks.".replace("..", ".") for name, _ in task_norms(self.backbone)))


class SingleHead(Readout):
    """A backbone and one classifier for all classes so far, in the order in which they came: the scenario `class`.

    Each task brings a block of rows, so no tensor ever changes its shape. Every block is shared by all later tasks, whose
    outputs compete with it, and a guard guards it as it guards the backbone.

    Args:
        backbone, features, zero: as in `Readout`; the backbone has no statistics per task, as the task is not known.
        kind: `linear`; `cosine`: the cosine between features and a row, times one scale that is learned; or `proxies`: several
            rows a class, whose cosines count by their softmax, times such a scale.
        proxies: how many rows a class has of the kind `proxies`.
    """

    scenario = "class"
    guards_rows = True
    """Whether a guard guards the classifier too; a strategy that trains its rows on old examples says no."""

    def __init__(
        self,
        backbone: nn.Module,
        kind: ClassifierKind = "linear",
        features: int | None = None,
        *,
        zero: bool = False,
        proxies: int = 10,
    ) -> None:
        super().__init__(backbone, features, zero=zero)
        if kind not in get_args(ClassifierKind):
            raise ValueError(f"SingleHead: {unknown('kind of classifier', str(kind), get_args(ClassifierKind))}")
        if kind != "linear" and zero:
            raise ValueError(f"SingleHead: rows of zeros have no direction, so kind={kind!r} cannot start at zero")
        if not isinstance(proxies, int) or proxies < 1:
            raise ValueError(f"SingleHead: proxies must be an integer of at least 1; got {proxies!r}")
        if any(task_norms(backbone)):
            raise ValueError(
                "SingleHead: the backbone has batch-norm statistics for each task, and in the scenario 'class' the task is "
                "not known; use batch_norm='shared'"
            )
        self.kind, self.proxies = kind, proxies
        self.blocks = nn.ModuleList()
        if kind != "linear":
            self.scale = nn.Parameter(torch.ones(()))

    @property
    def classes(self) -> list[int]:
        """All classes so far, in the order of the outputs."""
        return [number for classes in self.task_classes for number in classes]

    def begin_task(self, classes: Sequence[int]) -> int:
        """Add a row for each class; no class comes twice."""
        if twice := [one for one in classes if one in self.classes or list(classes).count(one) > 1]:
            raise ValueError(
                f"a task begins with the classes {list(classes)}, of which {twice[0]} is there already: in the scenario "
                "'class' no class comes twice. Give each task the numbers of its classes in the whole stream: "
                "Task(…, classes=(2, 3))"
            )
        self.blocks.append(self._new_layer(self._layer, len(classes)))
        self.task_classes.append(tuple(classes))
        return len(self.blocks) - 1

    def forward(self, x: Tensor, task: int = 0) -> Tensor:
        """An output for each class so far, whatever `task` is."""
        if not self.task_classes:
            raise IndexError("this net has no classes yet: begin_task(classes) adds some")
        return self.classify(self.features(x))

    def classify(self, features: Tensor, *, frozen: int = 0, scaled: bool = True) -> Tensor:
        """The outputs for features that are there already.

        Args:
            features: of the inputs.
            frozen: the rows of the first so many tasks get no gradient.
            scaled: False gives the similarities alone, without the learned scale of `cosine` and `proxies`.
        """
        parts = [_frozen(block, features) for block in self.blocks[:frozen]]
        outputs = torch.cat([*parts, *(block(features) for block in self.blocks[frozen:])], dim=1)
        return self.scale * outputs if scaled and self.kind != "linear" else outputs

    def features(self, x: Tensor, task: int = 0) -> Tensor:
        """The features of the inputs `x`, whatever `task` is."""
        features: Tensor = self.backbone(x)
        return features

    def guarded_parameters(self) -> Iterator[nn.Parameter]:
        """All weights: the rows of the newest classes are shared from the next task on. Or the backbone's alone."""
        return self.parameters() if self.guards_rows else self.backbone.parameters()

    def output_targets(self, task: int, targets: Tensor) -> Tensor:
        """The place of each class among all classes so far."""
        return targets + sum(self.sizes[:task])

    @property
    def output_layers(self) -> list[nn.Module]:
        """The blocks of rows of the classifier, one for each task."""
        return list(self.blocks)

    def task_prefixes(self) -> tuple[str, ...]:
        """The prefix of the names of the blocks' weights."""
        return ("blocks.",)

    def described(self) -> str:
        """`SingleHead`, with the kind of classifier."""
        return f"SingleHead ({self.kind})"

    def extra_repr(self) -> str:
        """Say in `repr` what the blocks do not show."""
        return f"kind={self.kind!r}"

    @property
    def _layer(self) -> Callable[..., nn.Module]:
        kinds: dict[str, Callable[..., nn.Module]]
        kinds = {"linear": nn.Linear, "cosine": _CosineRows, "proxies": partial(_Proxies, count=self.proxies)}
        return kinds[self.kind]


def _frozen(block: nn.Module, features: Tensor) -> Tensor:
    """What a block makes of features, with weights that get no gradient."""
    weights = {name: weight.detach() for name, weight in block.named_parameters()}
    outputs: Tensor = torch.func.functional_call(block, weights, (features,))
    return outputs


class _CosineRows(nn.Module):
    """The cosine between features and each row."""

    def __init__(self, features: int, size: int, **where: object) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, features, **where))  # type: ignore[call-overload]
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)  # as a linear layer begins

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.normalize(x, dim=1), F.normalize(self.weight, dim=1))


class _Proxies(nn.Module):
    """Several rows a class: their cosines with the features, each counted by its share of the softmax over them."""

    def __init__(self, features: int, size: int, count: int, **where: object) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, count, features, **where))  # type: ignore[call-overload]
        nn.init.kaiming_uniform_(self.weight.view(size * count, features), a=5**0.5)

    def forward(self, x: Tensor) -> Tensor:
        cosines = torch.einsum("bf,ckf->bck", F.normalize(x, dim=1), F.normalize(self.weight, dim=2))
        return (cosines.softmax(dim=2) * cosines).sum(dim=2)
