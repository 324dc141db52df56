"""A block in which a model can be run and leaves no trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

from afec.randomness import forked

__all__ = ["buffers_kept", "untouched"]


@contextmanager
def untouched(
    model: nn.Module, weights: Iterable[nn.Parameter], *, train: bool, seed: int
) -> Iterator[torch.Generator]:
    """Gradients on, eval (or train) mode, a seeded RNG; after the block all is as before, whatever happens.

    Put back are buffers, the mode of every submodule, `requires_grad` of `weights`, and RNG states. Modes are
    set as attributes and not by `model.eval()`, which a module may override to do more (LoRA merges weights).
    Yields our generator.
    """
    weights = list(weights)
    modes = [(module, module.training) for module in model.modules()]
    needs_grad = [weight.requires_grad for weight in weights]
    with ExitStack() as stack:
        generator = stack.enter_context(forked(seed, weights[0].device if weights else None))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        if not train and any(isinstance(module, nn.RNNBase) for module, _ in modes):
            # cuDNN has no backward pass for recurrent modules in eval mode.
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        stack.enter_context(buffers_kept(model))
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


@contextmanager
def buffers_kept(model: nn.Module) -> Iterator[None]:
    """Put all buffers back after the block, also those that were replaced: batch-norm's statistics and the like."""
    buffers = [
        (module, name, buffer, None if buffer is None else buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
    ]
    try:
        yield
    finally:
        for module, name, buffer, saved in buffers:
            module._buffers[name] = buffer
            # Written only if changed: a write spoils any graph of the user's that has saved the buffer. The
            # version would not tell: batch-norm updates its statistics behind its back.
            if buffer is not None and saved is not None and not torch.equal(buffer, saved):
                with torch.no_grad():
                    buffer.copy_(saved)
