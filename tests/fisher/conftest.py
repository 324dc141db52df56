"""The Fisher by hand: plain autograd, one sample at a time, written without a line of the package's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

Squares = dict[str, Tensor]


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def _by_hand(model: nn.Module, singles: Sequence[Any], scalars: Callable[[nn.Module, Any], list[Tensor]]) -> Squares:
    """Σ over samples and scalars of squared gradients / number of samples; `scalars` are weighted by their √."""
    model.eval()
    named = dict(model.named_parameters())
    total = {name: torch.zeros_like(weight, dtype=torch.float64) for name, weight in named.items()}
    for single in singles:
        for j in range(len(scalars(model, single))):
            grads = torch.autograd.grad(scalars(model, single)[j], list(named.values()), allow_unused=True)
            for name, grad in zip(named, grads, strict=True):
                if grad is not None:
                    grad = grad.to_dense() if grad.is_sparse else grad
                    total[name] += grad.double() ** 2
    return {name: square / len(singles) for name, square in total.items()}


def _assert_close(result: Squares, expected: Squares, tolerance: float = 1e-9) -> None:
    """Equal to within `tolerance` of the largest entry; what is zero by hand must be zero."""
    assert result.keys() == expected.keys()
    for name, square in expected.items():
        assert result[name].shape == square.shape, name
        difference = (result[name].double() - square.double()).abs().max()
        assert difference <= tolerance * square.max(), f"{name}: off by {difference:.3g} of {square.max():.3g}"


@pytest.fixture(scope="session")
def by_hand() -> Callable[..., Squares]:
    return _by_hand


@pytest.fixture(scope="session")
def assert_close() -> Callable[..., None]:
    return _assert_close
