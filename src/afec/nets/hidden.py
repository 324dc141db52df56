"""The hidden layers of anybody's model, as a forward pass shows them: who makes their units, and who reads them.

A unit is an output channel of a convolution or an output of a linear layer. It is seen where the next layer reads it, after
whatever stands between the two (norm, activation, pooling, dropout, flattening), as a module or as a function. `check` proves
that units can be replaced one by one: what nobody listens to must not change the loss, whatever its incoming weights are. A
residual connection, a norm over several units, attention or a cosine fails that, whichever way the model is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from afec.nets.chain import NoChainError
from afec.nets.norm import TaskBatchNorm2d
from afec.nets.readout import Readout

__all__ = ["HiddenLayer", "HiddenLayers"]

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_LAYERS = (nn.Linear, *_CONVOLUTIONS)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, TaskBatchNorm2d)
_WITHOUT = "use methods that do not look at units (EWC, MAS, SI, RWALK, AFEC, Prior)"


@dataclass(frozen=True)
class HiddenLayer:
    """The units that one layer makes, and the layers that read them."""

    name: str
    """Of the layer that makes them, in the model."""
    maker: nn.Module
    norms: tuple[nn.Module, ...]
    """The batch-norms between maker and reader: each has a row for each unit, as the maker has."""
    readers: dict[str, nn.Module]
    """The next layer; after the last hidden layer the output layers that were in use so far."""

    @property
    def units(self) -> int:
        """The number of units."""
        return _weight(self.maker).shape[0]

    @property
    def incoming(self) -> list[nn.Parameter]:
        """The weights that make the units: row j of each belongs to unit j."""
        return [weight for one in (self.maker, *self.norms) for weight in one.parameters(recurse=False)]

    def by_unit(self, x: Tensor, reader: nn.Module) -> Tensor:
        """What a reader is given, as (samples, units, …): behind the units come all values of a unit in a sample."""
        x = x if isinstance(reader, _CONVOLUTIONS) else x.movedim(-1, 1)
        return x.reshape(len(x), self.units, -1, *x.shape[2:])

    def columns(self, units: Tensor, reader: nn.Module) -> Tensor:
        """Values of the units as values of the reader's inputs: a flattened map has each of them many times."""
        return units.repeat_interleave(_weight(reader).shape[1] // self.units)

    @torch.no_grad()
    def silence(self, units: Tensor) -> None:
        """Nobody listens to these units any more (True for each of them)."""
        for reader in self.readers.values():
            _weight(reader)[:, self.columns(units, reader)] = 0.0

    @torch.no_grad()
    def forget_statistics(self, units: Tensor) -> None:
        """The running statistics of these units are fresh, those of all tasks included."""
        for norm in self.norms:
            for one in norm.modules():
                for name, fresh in (("running_mean", 0.0), ("running_var", 1.0)):
                    if (known := one._buffers.get(name)) is not None:
                        known[units] = fresh


Watch = Callable[[HiddenLayer, Tensor], None]


class HiddenLayers(Sequence[HiddenLayer]):
    """The hidden layers of a model in the order in which a forward pass uses them.

    Args:
        model: the network; a `Readout`, or any other module.
        run: one forward pass.

    Raises `NoChainError` where there is none, or where layers are used twice.
    """

    def __init__(self, model: nn.Module, run: Callable[[], object]) -> None:
        self.model = model
        names = {module: name for name, module in model.named_modules()}
        outputs = set(model.output_layers) if isinstance(model, Readout) else set()
        seen = _called(model, [m for m in names if isinstance(m, (*_LAYERS, *_NORMS)) or m in outputs], run)
        body: list[nn.Module] = [m for m in seen if m not in outputs and isinstance(m, _LAYERS)]
        self.outputs = [m for m in seen if m in outputs] or body[-1:]
        """The output layers of this forward pass."""
        makers = body if outputs else body[:-1]
        kind = type(model).__name__
        if not makers:
            raise NoChainError(f"{kind} has no hidden layer: no linear layer or convolution before its output layer")
        for module in body:
            _check_layer(names[module], module, seen.count(module))
        if not isinstance(model, Readout):
            outputs = _siblings(model, body[-1])
        if unused := [names[m] for m in names if isinstance(m, _LAYERS) and m not in seen and m not in outputs]:
            raise NoChainError(
                f"'{unused[0]}' of {kind} takes no part in a forward pass, so nobody can tell whose units it reads; "
                f"{_WITHOUT}"
            )
        self.layers = list[HiddenLayer]()
        for place, maker in enumerate(makers):
            last = place == len(makers) - 1
            readers = self.outputs if last else [makers[place + 1]]
            units = _weight(maker).shape[0]
            for reader in readers:
                if _weight(reader).shape[1] % units:
                    raise NoChainError(
                        f"'{names[reader]}' of {kind} takes {_weight(reader).shape[1]} inputs, which are no multiple of the "
                        f"{units} units of '{names[maker]}', which is used before it; {_WITHOUT}"
                    )
            between = seen[seen.index(maker) + 1 : seen.index(readers[0])]
            norms = tuple(m for m in between if isinstance(m, _NORMS) and _channels(m) == units)
            self.layers.append(HiddenLayer(names[maker], maker, norms, {names[m]: m for m in readers}))

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, place: int | slice) -> HiddenLayer:  # type: ignore[override]
        return self.layers[place]  # type: ignore[return-value]

    @contextmanager
    def watched(self, layers: Sequence[HiddenLayer], watch: Watch) -> Iterator[None]:
        """Inside, `watch` is shown the units of these layers in every forward pass, as `by_unit` has them."""
        handles = []
        for layer in layers:
            for reader in layer.readers.values():

                def see(module: nn.Module, inputs: tuple[Tensor, ...], layer: HiddenLayer = layer) -> None:
                    watch(layer, layer.by_unit(inputs[0].detach(), module))

                handles.append(reader.register_forward_pre_hook(see))
                break  # all readers of a layer are given the same
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @torch.no_grad()
    def check(self, layers: Sequence[HiddenLayer], loss: Callable[[], Tensor]) -> None:
        """Raise `NoChainError` where a unit that nobody listens to has a say in the loss. Changes weights: borrow the model.

        Half of the units of a layer are silenced, and two different sets of incoming weights must give one loss.
        """
        for layer in layers:
            some = torch.arange(layer.units, device=_weight(layer.maker).device) % 2 == 0
            layer.silence(some)
            losses = []
            for factor in (1.0, -2.0):
                for weight in layer.incoming:
                    weight[some] = factor * torch.randn_like(weight[some])
                losses.append(loss())
            if not torch.equal(*losses):
                raise NoChainError(
                    f"units of '{layer.name}' of {type(self.model).__name__} are not read by {_and(layer.readers)} alone: with "
                    "nothing leading there, they still change the loss (a residual connection, attention, a norm over several "
                    f"units, a cosine). Expected layers one after the other; {_WITHOUT}"
                )


def _called(model: nn.Module, modules: Sequence[nn.Module], run: Callable[[], object]) -> list[nn.Module]:
    """These modules in the order of their calls in one forward pass."""
    found: list[nn.Module] = []

    def note(module: nn.Module, inputs: object) -> None:
        found.append(module)

    handles = [module.register_forward_pre_hook(note) for module in modules]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return found


def _check_layer(name: str, module: nn.Module, calls: int) -> None:
    if calls > 1:
        raise NoChainError(
            f"layer '{name}' is used {calls} times in a forward pass, so its units have many readers; {_WITHOUT}"
        )
    if getattr(module, "groups", 1) != 1:
        raise NoChainError(f"'{name}' is a convolution in groups: not every unit goes on to every unit; {_WITHOUT}")
    if not isinstance(module._parameters.get("weight"), nn.Parameter):
        raise NoChainError(
            f"the weight of '{name}' is computed from others (weight norm, a parametrisation); {_WITHOUT}"
        )


def _siblings(model: nn.Module, output: nn.Module) -> set[nn.Module]:
    """The output layers of other tasks, where this one stands in a list or a dictionary of them."""
    for module in model.modules():
        if isinstance(module, (nn.ModuleList, nn.ModuleDict)) and output in module.children():
            return {one for one in module.children() if isinstance(one, nn.Linear)}
    return set()


def _weight(module: nn.Module) -> Tensor:
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight


def _channels(norm: nn.Module) -> int:
    return int(norm.channels if isinstance(norm, TaskBatchNorm2d) else norm.num_features)  # type: ignore[arg-type]


def _and(names: dict[str, nn.Module]) -> str:
    return " and ".join(f"'{name}'" for name in names)
