"""What is learned from: reading the user's model, loss and guarded weights."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict, runtime_checkable

from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.loss import _Loss
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer

from afec.fisher import Likelihood, Problem
from afec.fisher.positions import IGNORED
from afec.guard.distributed import reshard

__all__ = [
    "BlockArguments",
    "BlockOptions",
    "HasGuardedParameters",
    "LossFn",
    "Mask",
    "Params",
    "Predict",
    "ReadingOptions",
    "guarded_weights",
    "read_problem",
    "unwrapped",
]

LossFn = Callable[[Any, Any], Tensor]
Predict = Callable[[nn.Module, Any], Tensor]
Mask = Callable[[Any], Tensor | None]
Params = nn.Module | Iterable[nn.Parameter] | None


@dataclass(frozen=True)
class BlockArguments:
    """What a block around one task is given. `Guard.learning` says what each of them means."""

    model: nn.Module
    optimizer: Optimizer | Sequence[Optimizer] | None
    data: Any
    loss_fn: LossFn
    predict: Predict | None = None
    likelihood: Likelihood | None = None
    split: Callable[[Any], Iterable[Any]] | None = None
    class_axis: int | None = None
    mask: Mask | None = None
    batch_size: int = 64
    progress: bool | None = None
    train: Callable[[], object] | None = None
    evaluate: Callable[[], float] | None = None
    epochs: int | None = None


class ReadingOptions(TypedDict, total=False):
    """What may be given by name to say how data, loss and model go together."""

    predict: Predict | None
    likelihood: Likelihood | None
    split: Callable[[Any], Iterable[Any]] | None
    class_axis: int | None
    mask: Mask | None
    batch_size: int
    progress: bool | None


class BlockOptions(ReadingOptions, total=False):
    """What may be given to a block by name beside model, optimiser, data and loss."""

    train: Callable[[], object] | None
    evaluate: Callable[[], float] | None
    epochs: int | None


@runtime_checkable
class HasGuardedParameters(Protocol):
    """A module that says itself what is to be guarded, as a multi-head net does with its backbone."""

    def guarded_parameters(self) -> Iterable[nn.Parameter]:
        """The parameters to guard where the guard has no `params=`."""
        ...


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside DDP, DataParallel and `torch.compile`, whose parameter names are the real ones."""
    while True:
        if isinstance(model, (DistributedDataParallel, DataParallel)):
            model = model.module
        elif isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = model._orig_mod  # type: ignore[assignment]
        else:
            break
    reshard(model)
    _refuse_sharded(model)
    return model


def guarded_weights(model: nn.Module, params: Params) -> dict[str, nn.Parameter]:
    """The guarded weights by name: what `params` says, else what the model says, else all; those that require grad."""
    named = dict(model.named_parameters())
    if params is None:
        chosen = model.guarded_parameters() if isinstance(model, HasGuardedParameters) else named.values()
    else:
        chosen = params.parameters() if isinstance(params, nn.Module) else params
    wanted = {id(parameter) for parameter in chosen}
    weights = {name: p for name, p in named.items() if id(p) in wanted and p.requires_grad}
    missing = len(wanted - {id(p) for p in named.values()})
    if missing:
        raise ValueError(
            f"params= names {missing} parameter(s) that are not in the model {type(model).__name__}; "
            "give a submodule of it, or parameters of it"
        )
    if not weights:
        raise ValueError(
            f"there is no weight to guard: {len(wanted)} chosen of {len(named)} in {type(model).__name__}, "
            "none of which requires grad"
        )
    return weights


def read_problem(model: nn.Module, arguments: BlockArguments) -> Problem:
    """One `loss(model, batch)` for both kinds of `loss_fn`, and what the Fisher kinds need to know."""
    loss_fn, likelihood = arguments.loss_fn, arguments.likelihood
    class_axis, mask = arguments.class_axis, arguments.mask
    if not callable(loss_fn):
        raise TypeError(
            f"loss_fn must be a criterion (output, target) or a function (model, batch); got {type(loss_fn).__name__}"
        )
    reduction = getattr(loss_fn, "reduction", "mean")
    if isinstance(loss_fn, _Loss) and reduction != "mean":
        raise ValueError(
            f"loss_fn has reduction={reduction!r}; the guard needs the mean over the batch: reduction='mean'"
        )
    if likelihood not in (None, "categorical", "gaussian"):
        raise ValueError(f"likelihood must be 'categorical', 'gaussian' or None; got {likelihood!r}")
    cross_entropy, square = _is(loss_fn, nn.CrossEntropyLoss, F.cross_entropy), _is(loss_fn, nn.MSELoss, F.mse_loss)
    if likelihood is None and isinstance(loss_fn, nn.CrossEntropyLoss | nn.MSELoss):
        likelihood = "categorical" if isinstance(loss_fn, nn.CrossEntropyLoss) else "gaussian"
    if mask is not None and (cross_entropy or square):
        raise ValueError(
            "mask= says which positions the loss counts, but this loss_fn, a criterion of torch, knows nothing of it (of "
            "CrossEntropyLoss the ignored targets are known). Give a function (model, batch) that leaves them out, or no mask="
        )
    if cross_entropy and likelihood != "gaussian":
        if class_axis not in (None, 1):
            raise ValueError(
                f"CrossEntropyLoss has the classes along dimension 1 of the output; got class_axis={class_axis}. "
                "Transpose the output in predict=, or give loss_fn as a function (model, batch)"
            )
        class_axis, mask = 1, _NotIgnored(getattr(loss_fn, "ignore_index", IGNORED))
    predict = arguments.predict or _first_of_batch
    mean_squares = square and likelihood == "gaussian"
    loss = _LossOfBatch(loss_fn, predict)
    return Problem(model, loss, predict, likelihood, arguments.split, class_axis, mask, mean_squares)


def _is(loss_fn: LossFn, criterion: type[nn.Module], function: Callable[..., Tensor]) -> bool:
    """Is it this criterion of torch, also as a function? A subclass with a forward of its own may do anything."""
    return loss_fn is function or getattr(type(loss_fn), "forward", None) is criterion.forward


@dataclass(frozen=True)
class _NotIgnored:
    """Which positions of (input, target) batches cross-entropy counts; None where it counts all."""

    ignore_index: int

    def __call__(self, batch: Any) -> Tensor | None:
        targets = batch[1] if isinstance(batch, (tuple, list)) and len(batch) > 1 else None
        if not isinstance(targets, Tensor) or targets.is_floating_point():  # floating: probabilities of the classes
            return None
        return targets != self.ignore_index


def _first_of_batch(model: nn.Module, batch: Any) -> Tensor:
    if not isinstance(batch, (tuple, list)):
        raise TypeError(
            f"the default predict is model(batch[0]), for batches (input, target); this batch is a {type(batch).__name__}. "
            "Give predict=lambda model, batch: …"
        )
    try:
        output: Tensor = model(batch[0])
    except TypeError as error:
        _explain_missing_inputs(model, batch[0], error)
        raise
    return output


def _explain_missing_inputs(model: nn.Module, inputs: Any, error: TypeError) -> None:
    """Raise an error that says what to give, where `forward` does not take the batch's first part alone."""
    try:
        signature = inspect.signature(unwrapped(model).forward)
    except ValueError:  # a forward that is not written in Python
        return
    try:
        signature.bind(inputs)
    except TypeError as why:
        raise TypeError(
            f"{type(model).__name__}.forward{signature} cannot be called as model(batch[0]): {why}. Give "
            "loss_fn=lambda model, batch: …, which computes the loss of a whole batch, and where the Fisher kind or MAS needs "
            "the output also predict=lambda model, batch: …"
        ) from error


class _LossOfBatch:
    """`loss(model, batch)` from a criterion or from a function of model and batch, told apart by the first call."""

    def __init__(self, loss_fn: LossFn, predict: Predict) -> None:
        self.loss_fn, self.predict = loss_fn, predict
        plain = getattr(loss_fn, "__module__", None) == "torch.nn.functional"
        self.is_criterion: bool | None = True if isinstance(loss_fn, _Loss) or plain else None

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        if self.is_criterion is None:
            return self._decide(model, batch)
        return self._criterion(model, batch) if self.is_criterion else self._checked(self.loss_fn(model, batch))

    def _criterion(self, model: nn.Module, batch: Any) -> Tensor:
        if not isinstance(batch, (tuple, list)) or len(batch) < 2:
            raise TypeError(
                f"loss_fn is a criterion (output, target), which needs batches (input, target); this batch is a "
                f"{type(batch).__name__}. Give loss_fn=lambda model, batch: …"
            )
        output = self.predict(model, batch)
        try:
            loss = self.loss_fn(output, batch[1])
        except (TypeError, AttributeError) as error:
            if isinstance(output, Tensor):
                raise
            raise TypeError(
                f"the model's output is a {type(output).__name__}, which the criterion {self._name} does not take ({error}). "
                "Give loss_fn=lambda model, batch: …, which computes the loss of a whole batch"
            ) from error
        return self._checked(loss)

    @property
    def _name(self) -> str:
        return getattr(self.loss_fn, "__name__", type(self.loss_fn).__name__)

    def _decide(self, model: nn.Module, batch: Any) -> Tensor:
        try:
            loss = self._checked(self.loss_fn(model, batch))
        except Exception as as_function:
            try:
                loss = self._criterion(model, batch)
            except Exception as as_criterion:
                raise TypeError(
                    "loss_fn works neither as loss_fn(model, batch) "
                    f"({type(as_function).__name__}: {as_function}) nor as a criterion loss_fn(output, target) "
                    f"({type(as_criterion).__name__}: {as_criterion})"
                ) from as_function
            self.is_criterion = True
            return loss
        self.is_criterion = False
        return loss

    @staticmethod
    def _checked(loss: Any) -> Tensor:
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            got = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise TypeError(f"loss_fn must return one number, the mean over the batch, as a tensor; got {got}")
        return loss.reshape(())


def _refuse_sharded(model: nn.Module) -> None:
    """FSDP2 (`fully_shard`) over one mesh dimension goes; the first FSDP and weights that are split otherwise do not."""
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        raise TypeError(
            "the model is sharded (FSDP), by FullyShardedDataParallel: its weights are parts of a flat one, without names of "
            "their own, so they cannot be guarded. Use FSDP2 (torch.distributed.fsdp.fully_shard) or DDP"
        )
    split = [(name, weight) for name, weight in model.named_parameters() if hasattr(weight, "device_mesh")]
    whole = not any(hasattr(module, "unshard") and hasattr(module, "reshard") for module in model.modules())
    for name, weight in split:
        mesh: Any = weight.device_mesh
        if whole or mesh.ndim > 1:
            how = "without fully_shard (tensor parallel)" if whole else f"over {mesh.ndim} mesh dimensions"
            raise TypeError(
                f"weight {name!r} is a DTensor that is split {how}; a guard knows models that fully_shard (FSDP2) has split "
                "over one mesh dimension. Use that, or DDP"
            )
