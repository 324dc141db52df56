"""A block in which a model can be run and leaves no trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

from afec.randomness import forked

__all__ = ["untouched"]


@contextmanager
def untouched(
    model: nn.Module, weights: Iterable[nn.Parameter], *, train: bool, seed: int
) -> Iterator[torch.Generator]:
    """Run the block with gradients on, in eval (or train) mode, under a seeded RNG, and put everything back
    after it.

    Put back: buffers, the mode of every submodule, `requires_grad` of `weights`, RNG states, whatever
    happens inside. Modes are set as attributes and not by `model.eval()`, which a module may override to do
    more (LoRA merges weights). Yields our generator.
    """
    weights = list(weights)
    modes = [(module, module.training) for module in model.modules()]
    buffers = [
        (module, name, buffer, None if buffer is None else (buffer.detach().clone(), buffer._version))
        for module in model.modules()
        for name, buffer in module._buffers.items()
    ]
    needs_grad = [weight.requires_grad for weight in weights]
    device = weights[0].device if weights else None
    with ExitStack() as stack:
        generator = stack.enter_context(forked(seed, device))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        if not train and any(isinstance(module, nn.RNNBase) for module, _ in modes):
            # cuDNN has no backward pass for recurrent modules in eval mode.
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        try:
            for module, _ in modes:
                module.training = train
            for weight in weights:
                weight.requires_grad_(True)
            yield generator
        finally:
            for module, mode in modes:
                module.training = mode
            for weight, needed in zip(weights, needs_grad, strict=True):
                weight.requires_grad_(needed)
            for module, name, buffer, saved in buffers:
                module._buffers[name] = buffer
                # Only what changed is written: a write would spoil a graph of the user's that saved the
                # buffer.
                if buffer is not None and saved is not None and buffer._version != saved[1]:
                    with torch.no_grad():
                        buffer.copy_(saved[0])
