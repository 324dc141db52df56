"""Recycle: active forgetting without a second network. Units that no task uses become new ones.

A ReLU unit that fires on no training image is dead: it has no gradient and Fisher 0, so the new task cannot move it and nothing
holds it. At the end of a task, before any method measures importance,

    u_j = 1 if |a_j(x)| > threshold for some x of a task so far, else 0          one number a unit is kept
    u_j = 0:   incoming weights of unit j ← fresh ones, as at the start          it fires again
               weights from j to the next layer and the old outputs ← 0          and nobody listens

At the threshold 0 the output for the task's data is the same bit for bit, and the next task finds units that are free.

`layers="last"` recycles the last hidden layer: old outputs never listen to its new units. `layers="all"` recycles every hidden
layer. There the weights that leave a new unit lead into units that old tasks use. They start at 0, but are trained, and their
Fisher says little: the incoming weights of the new unit have Fisher 0 and are free to grow, so the product of both, which the
old outputs see, is held by neither. So with `hold` a unit never listens to one that came into use after it: these weights stay
at 0.

    guard = afec.EWC(strength=100) + afec.Recycle()

It works in models whose layers follow one another, which the first batch of a task shows; others are refused. Related: ReDo
(Sokar et al. 2023), continual backprop (Dohare et al. 2024) and AGS-CL (Jung et al. 2020) renew units as well; none of them
measures importance afterwards.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal, final

import torch
from torch import Tensor

from afec.fisher.estimate import taken_apart
from afec.fisher.untouched import untouched
from afec.gaussian import Gaussian
from afec.guard import GuardedTask, Mover, State, load, option, snapshot
from afec.methods.regulariser import OptionTerm
from afec.nets import HiddenLayer, HiddenLayers, NoChainError, Readout, renew
from afec.randomness import forked

__all__ = ["Recycle"]

NEVER = -1
"""The task in which a unit came into use, where that has not happened."""
PASS = 64  # samples of a batch, where the data can be cut anew
TRIED = 16  # samples with which it is found out how the layers follow one another


@final
class Recycle(OptionTerm):
    """Give units that no data so far has made fire fresh incoming weights, and let nothing old listen to them."""

    name = "recycle"
    rank = 2

    layers: Literal["last", "all"] = option(
        default="last", kw_only=False, doc="`last`, the last hidden layer, or `all` hidden layers."
    )
    threshold: float = option(
        default=0.0,
        at_least=0,
        doc="A unit fires where the size of its activation is above this. Above 0 the function changes a little.",
    )
    hold: bool = option(
        default=True,
        doc="Keep the weights from a unit to all that was in use before it at 0 while later tasks are learned.",
    )

    @property
    def is_off(self) -> bool:
        """Never: leave it out of the sum instead."""
        return False

    @property
    def exempt_contracts(self) -> dict[str, str]:
        """What `afec.testing` does not ask of it, and why."""
        return {
            "zero": "it has no strength: it is switched off by leaving it out",
            "untouched": "it renews weights at the end of a task",
        }

    def lacks(self, task: GuardedTask) -> str | None:
        """A model whose units can be replaced, seen on the first batch."""
        if task.first_batch is None:  # made on demand: found out when the task ends
            return None
        try:
            self._checked(task, task.first_batch)
        except NoChainError as error:
            return f"Recycle: {error}"
        return None

    def quadratics(self, task: GuardedTask, state: State, task_state: State) -> list[tuple[float, Gaussian]]:
        """Recycle has no pull."""
        return []

    def mover(self, task: GuardedTask, state: State, task_state: State) -> Mover | None:
        """Put the weights from later units to earlier ones back to 0 after each step."""
        free = _free(state, task) if self.hold and state else {}
        if not free:
            return None

        def put_back(stepped: Mapping[str, Tensor], lr: float | None) -> None:
            for name in free.keys() & stepped.keys():
                stepped[name].mul_(free[name].to(stepped[name]))

        return put_back

    def change_weights(self, task: GuardedTask, state: State, task_state: State) -> State:
        """Find the units that nothing has made fire, and renew them."""
        first = dict(state.get("first_fired", {}))
        found, in_use = self._in_use(task, first)
        outputs = dict.fromkeys(_names(task.model, found.outputs), task.number) | state.get("outputs", {})
        modules = dict(task.model.named_modules())
        for place, layer in enumerate(self._chosen(task, found)):
            now = task.processes.either(in_use[layer.name])
            known = _grown(first.get(layer.name), now)
            first[layer.name] = torch.where((known == NEVER) & now, task.number, known)
            if layer is found[-1]:
                layer = replace(layer, readers={name: modules[name] for name in outputs if name in modules})
            unused = first[layer.name] == NEVER
            if bool(unused.any()):
                task.processes.once(task.model, partial(_renew, task, layer, unused, place))
                _forget_moments(task, layer, unused)
        return {**task_state, "first_fired": first, "outputs": outputs}

    def end_task(self, task: GuardedTask, state: State, task_state: State) -> State:
        """When each unit, and each output layer, came into use."""
        return {key: task_state[key] for key in ("first_fired", "outputs")}

    # -- looking at the model -------------------------------------------------------------------------------------

    def _chosen(self, task: GuardedTask, found: HiddenLayers) -> list[HiddenLayer]:
        """The layers to be recycled: all their incoming weights are ours."""
        ours = {id(weight) for weight in task.weights.values()}
        layers = found.layers[-1:] if self.layers == "last" else found.layers
        return [layer for layer in layers if all(id(weight) in ours for weight in layer.incoming)]

    def _checked(self, task: GuardedTask, batch: Any) -> HiddenLayers:
        batch = _few(task, batch)

        def loss() -> Tensor:
            with forked(task.seed("recycle", "check"), task.device):
                return task.problem.loss(task.model, batch)

        with untouched(task.model, (), train=False, seed=task.seed("recycle")), torch.no_grad():
            found = HiddenLayers(task.model, loss)
            with task.borrowing():
                for module in task.model.modules():
                    module.training = False
                found.check(self._chosen(task, found), loss)
        return found

    def _in_use(self, task: GuardedTask, first: Mapping[str, Tensor]) -> tuple[HiddenLayers, dict[str, Tensor]]:
        """The hidden layers, and which units an earlier task or the data of this process have made fire.

        One pass forward, which ends as soon as all units are in use.
        """
        found: HiddenLayers | None = None
        waiting: list[HiddenLayer] = []
        in_use: dict[str, Tensor] = {}

        def see(layer: HiddenLayer, active: Tensor) -> None:
            fires = active.abs().amax(dim=(0, *range(2, active.dim()))) > self.threshold
            if layer.name not in in_use:
                in_use[layer.name] = _grown(first.get(layer.name), fires) != NEVER
            in_use[layer.name] |= fires

        size = PASS if task.passes.rebatches else None
        with untouched(task.model, (), train=False, seed=task.seed("recycle")), torch.no_grad():
            for batch in task.counted(task.batches("recycle", batch_size=size)):
                if found is None:
                    if task.passes.on_demand:
                        found = self._checked(task, batch)
                    else:
                        found = HiddenLayers(task.model, partial(task.problem.loss, task.model, _few(task, batch)))
                    waiting = self._chosen(task, found)
                with found.watched(waiting, see):
                    task.problem.loss(task.model, batch)
                waiting = [layer for layer in waiting if not bool(in_use[layer.name].all())]
                if not waiting:
                    break
        assert found is not None, "a pass over no data raises"
        return found, in_use


def _few(task: GuardedTask, batch: Any) -> Any:
    """Some samples of a batch, where it can be taken apart."""
    try:
        return next(taken_apart(task.problem, batch)).take(0, TRIED).batch
    except ValueError:
        return batch


@torch.no_grad()
def _renew(task: GuardedTask, layer: HiddenLayer, unused: Tensor, place: int) -> None:
    """Fresh incoming weights for these units, drawn as at the start, and nothing that leaves them."""
    kept = snapshot(task.model, frozen=True)
    with forked(task.seed("recycle", place), task.device):
        renew(task.model.backbone if isinstance(task.model, Readout) else task.model)
        fresh = [weight.detach().clone() for weight in layer.incoming]
    load(task.model, kept)
    for weight, new in zip(layer.incoming, fresh, strict=True):
        weight[unused] = new[unused]
    layer.forget_statistics(unused)
    layer.silence(unused)


@torch.no_grad()
def _forget_moments(task: GuardedTask, layer: HiddenLayer, unused: Tensor) -> None:
    """What the user's optimisers know of the weights that were rewritten: averages of gradients that are no more."""
    for optimizer in task.current_optimizers():
        for weight in layer.incoming:
            for moment in _moments(optimizer, weight):
                moment[unused] = 0.0
        for reader in layer.readers.values():
            for moment in _moments(optimizer, reader.weight):
                moment[:, layer.columns(unused, reader)] = 0.0


def _moments(optimizer: torch.optim.Optimizer, weight: Any) -> list[Tensor]:
    known = optimizer.state.get(weight, {}).values()
    return [value for value in known if isinstance(value, Tensor) and value.shape == weight.shape]


def _free(state: State, task: GuardedTask) -> dict[str, Tensor]:
    """1 for each weight that may move, 0 from a unit to what was in use before it; only of weights with such a 0."""
    found: dict[str, Tensor] = {}
    layers = list(state["first_fired"].items())
    pairs = [(first, reader, listens) for (_, first), (reader, listens) in itertools.pairwise(layers)]
    if isinstance(task.model, Readout) and layers:  # elsewhere one output layer serves all tasks, and has to listen
        pairs += [(layers[-1][1], name, torch.tensor([number])) for name, number in state["outputs"].items()]
    for first, reader, listens in pairs:
        weight = task.weights.get(f"{reader}.weight")
        if weight is not None:
            source = _since(first, weight).repeat_interleave(weight.shape[1] // len(first))
            free = (source <= _since(listens, weight).reshape(-1, 1)).expand(len(weight), -1)
            if not bool(free.all()):
                found[f"{reader}.weight"] = free.reshape(free.shape + (1,) * (weight.dim() - 2)).to(weight)
    return found


def _since(first: Tensor, weight: Tensor) -> Tensor:
    """When units came into use: those that never did will do so last."""
    return torch.where(first == NEVER, torch.iinfo(first.dtype).max, first).to(weight.device)


def _grown(known: Tensor | None, now: Tensor) -> Tensor:
    """When units came into use, with those that the layer got since."""
    never = torch.full(now.shape, NEVER, dtype=torch.int64, device=now.device)
    if known is None:
        return never
    if len(known) > len(never):
        raise ValueError(f"a layer that had {len(known)} units has {len(never)} now; units can be added, not removed")
    never[: len(known)] = known.to(now.device)
    return never


def _names(model: torch.nn.Module, modules: list[torch.nn.Module]) -> list[str]:
    return [name for name, module in model.named_modules() if module in modules]
