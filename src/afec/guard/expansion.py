"""Synaptic expansion: θ_e is learned from the new task alone, in the borrowed module."""

from __future__ import annotations

import copy
import inspect
import math
import time
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from afec.fisher.shards import local
from afec.guard.borrow import unwrapped_optimizer
from afec.guard.checksum import checksum
from afec.guard.memory import bytes_of
from afec.guard.task import GuardedTask
from afec.progress import progress_bar
from afec.randomness import forked

__all__ = [
    "NO_OPTIMIZER",
    "OptimizerFactory",
    "learns_something",
    "optimizer_bytes",
    "optimizers_for_theta_e",
    "rebuilt",
    "train_theta_e",
    "training_step",
]

OptimizerFactory = Callable[[list[nn.Parameter]], Optimizer]
NO_OPTIMIZER = (
    "the expansion has no optimiser: learning() was given optimizer=None. Give it one, or say how θ_e is trained: "
    "AFEC(optimizer=lambda params: torch.optim.Adam(params, 1e-3)) or AFEC(expand=your_training_function)"
)


def optimizers_for_theta_e(
    task: GuardedTask, factory: OptimizerFactory | None, *, from_initial_lr: bool
) -> list[Optimizer]:
    """θ_e's optimisers: the factory's, else the user's own ones built anew, group by group."""
    if factory is not None:
        return [factory([p for p in task.model.parameters() if p.requires_grad])]
    optimizers = [rebuilt(unwrapped_optimizer(o), from_initial_lr=from_initial_lr) for o in task.current_optimizers()]
    if not optimizers:
        raise ValueError(NO_OPTIMIZER)
    return optimizers


def rebuilt(optimizer: Optimizer, *, from_initial_lr: bool = True) -> Optimizer:
    """An optimiser of the same class and settings over the same parameters, with an empty state.

    The learning rate is the one a scheduler started from, where it left one: after a cosine schedule `lr` is 0. The
    constructor is not called, because its required arguments are not known; what a scheduler or a user hung on the
    instance (a patched `step`, hooks) is left off, and an optimiser inside it is built anew as well.
    """
    twin = object.__new__(type(optimizer))
    twin.state = defaultdict(dict)
    twin.param_groups = []
    parameters = {id(p): p for group in optimizer.param_groups for p in group["params"]}
    for key, value in vars(optimizer).items():
        if key in ("state", "param_groups", "step"):
            continue
        if isinstance(value, Optimizer):
            inner = rebuilt(value, from_initial_lr=from_initial_lr)
            inner.state = twin.state if value.state is optimizer.state else inner.state
            inner.param_groups = (
                twin.param_groups if value.param_groups is optimizer.param_groups else inner.param_groups
            )
            twin.__dict__[key] = inner
        elif key.startswith("_optimizer_") and isinstance(value, OrderedDict):
            twin.__dict__[key] = OrderedDict()
        else:
            twin.__dict__[key] = copy.deepcopy(value, dict(parameters))
    for group in optimizer.param_groups:
        lr = group.get("initial_lr", group.get("lr")) if from_initial_lr else group.get("lr")
        settings = {**group, "params": list(group["params"])}
        if lr is not None:
            settings["lr"] = lr.clone() if isinstance(lr, Tensor) else lr
        twin.param_groups.append(settings)
    return twin


def optimizer_bytes(task: GuardedTask, factory: OptimizerFactory | None) -> int:
    """What θ_e's optimisers keep between their epochs, seen on new ones of the same class over one small weight.

    One whose constructor asks for more than its settings is not counted.
    """
    small = nn.Parameter(torch.zeros(8, 8))
    small.grad = torch.zeros_like(small)
    if factory is not None:
        found = [(factory([small]), [p for p in task.model.parameters() if p.requires_grad])]
    else:
        found = []
        for one in map(unwrapped_optimizer, task.current_optimizers()):
            asked = inspect.signature(type(one)).parameters
            settings = {key: value for key, value in one.defaults.items() if key in asked}
            with suppress(TypeError):
                found.append(
                    (type(one)([small], **settings), [p for group in one.param_groups for p in group["params"]])
                )
    total = 0
    for optimizer, weights in found:
        if any(one is not small for group in optimizer.param_groups for one in group["params"]):
            continue  # a factory that does not take what it is given
        optimizer.step(lambda: 0.0)
        kept = [value for value in optimizer.state[small].values() if isinstance(value, Tensor) and value.dim()]
        total += sum(value.numel() for value in kept) * bytes_of(weights) // small.numel()
    return total


def train_theta_e(task: GuardedTask, optimizers: Sequence[Optimizer], epochs: range, until: float = math.inf) -> None:
    """Plain training on the new task's loss, nothing else; `until` cuts it short (`guard.check`)."""
    if not task.model.training:
        task.model.train()
    several = len(epochs) > 1 and task.processes.rank == 0
    wanted = task.progress if several else False
    with progress_bar(f"expansion, task {task.number + 1}", len(epochs), wanted=wanted) as show:
        for epoch in epochs:
            total, batches = torch.zeros((), device=task.device), 0
            with forked(task.seed("expand", epoch), task.device):
                for batch in task.batches("expand", epoch, training=True):
                    total += training_step(task, optimizers, batch)
                    batches += 1
                    if time.monotonic() > until:
                        return
            if not bool(torch.isfinite(total)):
                raise FloatingPointError(
                    f"the loss of θ_e became {total.item()} in epoch {epoch + 1} of the expansion. Lower its learning rate: "
                    "AFEC(optimizer=lambda params: torch.optim.Adam(params, 1e-4))"
                )
            show(f"loss {float(total) / batches:.4g}")


def training_step(
    task: GuardedTask,
    optimizers: Sequence[Optimizer],
    batch: Any,
    after_backward: Callable[[], object] | None = None,
) -> Tensor:
    """One step of all optimisers on one batch; its loss."""

    def closure() -> Tensor:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = task.problem.loss(task.model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        if after_backward is not None:
            after_backward()
        return loss

    with torch.enable_grad():
        if any(isinstance(optimizer, LBFGS) for optimizer in optimizers):
            losses = [optimizer.step(closure) for optimizer in optimizers]  # type: ignore[arg-type]
            return torch.as_tensor(losses[0]).detach()
        loss = closure()
    for optimizer in optimizers:
        optimizer.step()
    return loss.detach()


@contextmanager
def learns_something(task: GuardedTask, start: Mapping[str, Tensor] | None = None) -> Iterator[None]:
    """Raise if the block does not lower the loss; where data are made on demand, if it does not move the weights.

    `start` is what the weights are at its beginning, where somebody has that anyway.

    Where a learner trains θ_e by a schedule of its own, a loss that has not fallen is no mistake in anybody's loop but how far
    that schedule gets on these data: it is said, and the run goes on.
    """
    before = task.mean_loss()
    sums = {name: checksum(weight) for name, weight in task.weights.items() if start is None or name not in start}
    yield
    after = task.mean_loss()
    still = all(
        checksum(weight) == sums[name] if name in sums else torch.equal(start[name].to(weight), weight)  # type: ignore[index]
        for name, weight in ((name, local(weight)) for name, weight in task.weights.items())
    )
    still = not bool(task.processes.either(torch.tensor([not still], device=task.device)))
    if not still and (before is None or after is None or after < before):
        return
    losses = "" if before is None else f": the loss of θ_e was {before:.6g} before and is {after:.6g} after it"
    message = f"the expansion learned nothing{losses if not still else ': it changed no guarded weight'}."
    if task.train is not None and not still:
        warnings.warn(
            f"{message} The task is too hard for so few epochs, or its learning rate is off",
            RuntimeWarning,
            stacklevel=2,
        )
        return
    raise RuntimeError(
        f"{message} Give θ_e more epochs or an optimiser of its own: AFEC(optimizer=lambda params: torch.optim.Adam(params, "
        "1e-3)). (A scheduler may have left the learning rate at 0.)"
    )
