"""The loss with the logits negated, in the place of the loss: what the `reversed` kind takes the gradient of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from afec.fisher.problem import Problem

__all__ = ["ReversedLoss"]


class ReversedLoss:
    """ℓ(−z, y) in place of ℓ(z, y): the model's output z, the logits, is negated before the loss sees it."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.checked = False

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        """The reversed loss of a batch."""
        if not self.checked:
            self._check(model, batch)
            self.checked = True
        with _negated(model):
            return self.problem.loss(model, batch)

    def _check(self, model: nn.Module, batch: Any) -> None:
        """Raise where negating the model's output does not negate the logits."""
        with _negated(model) as outputs, torch.no_grad():
            self.problem.loss(model, batch)
        strange = next((type(one).__name__ for one in outputs if not isinstance(one, Tensor)), None)
        if strange is not None or not outputs:
            found = f"it returns a {strange}" if strange else "the loss does not call it as model(…)"
            raise ValueError(
                f"the 'reversed' Fisher negates the output of the model, so that must be the logits, as a tensor; {found}. "
                "Wrap the model in a module whose forward returns the logits, or use another kind"
            )
        if self.problem.predict is None:
            return
        with torch.no_grad():
            plain = self.problem.predict(model, batch)
            with _negated(model):
                turned = self.problem.predict(model, batch)
        told = plain.isfinite()  # a logit that is masked with −∞ is masked here, too
        if not torch.allclose(turned[told], -plain[told]):
            raise ValueError(
                "the 'reversed' Fisher negates the output of the model, and that does not negate what predict= gives: "
                "the model must return logits, before any softmax or shift. Return these, or use another kind"
            )


@contextmanager
def _negated(model: nn.Module) -> Iterator[list[Any]]:
    """Inside, the model returns its output negated. Yields what it returned before that."""
    outputs: list[Any] = []

    def negate(module: nn.Module, arguments: Any, output: Any) -> Any:
        outputs.append(output)
        return -output if isinstance(output, Tensor) else output

    handle = model.register_forward_hook(negate)
    try:
        yield outputs
    finally:
        handle.remove()
