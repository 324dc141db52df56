"""What a Fisher pass is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from torch import Tensor, nn

__all__ = ["KINDS", "FisherSum", "Kind", "Likelihood", "Power", "Problem", "Route"]

Kind = Literal["exact", "sample", "empirical", "batched", "reversed"]
"""Which Fisher information. All five are diagonal, and all are means: over samples, `batched` over batches.

The loss ℓ_i of a sample is that of a batch of one. Where the output has T positions that count (tokens, pixels), ℓ_i is their
mean, and log p(c|x_i) below is the mean (1/T) Σ_t log p(c_t|x_i) over labels c that are drawn at each position.

- `exact`: the model's own labels, in closed form: (1/N) Σ_i Σ_c p(c|x_i) (∂ log p(c|x_i)/∂θ)².
- `sample`: the same expectation, with one draw y ~ p(y|x_i) per sample.
- `empirical`: the true labels instead, the paper's equation (App. B.1): (1/N) Σ_i (∂ ℓ_i/∂θ)².
- `batched`: the squared gradient of the mean loss of B samples, as in the released code, where B = 20.
  About `empirical` / B.
- `reversed`: as `empirical`, with the logits z negated in the loss: (1/N) Σ_i (∂ ℓ(−z_i, y_i)/∂θ)² (EWC-DR). A sample that is
  fitted well has a large gradient there, not a vanishing one. Of a classification only.
"""

KINDS: tuple[Kind, ...] = get_args(Kind)

Likelihood = Literal["categorical", "gaussian"]
"""What the model's output parametrises: logits along the class axis, or means of unit variance."""

Power = Literal[1, 2]
"""What gradients are raised to before they are added up: squares are a Fisher, absolute values the sensitivity of MAS."""

Route = Literal["fast", "func", "loop", "batch"]
"""How a weight was served: by module hooks, by `torch.func`, sample by sample, or batch by batch."""


@dataclass(frozen=True)
class Problem:
    """A model with its loss, and with its likelihood where one is known."""

    model: nn.Module
    """The unwrapped module (no DDP, no `torch.compile` around it)."""

    loss: Callable[[nn.Module, Any], Tensor]
    """`loss(model, batch)`: a scalar, the mean over the samples of the batch."""

    predict: Callable[[nn.Module, Any], Tensor] | None = None
    """`predict(model, batch)`: the output, samples along dimension 0. Needed by `exact` and `sample`."""

    likelihood: Likelihood | None = None
    """Needed by `exact` and `sample`."""

    split: Callable[[Any], Iterable[Any]] | None = None
    """`split(batch)`: its samples, as batches of one. For batches that slicing cannot take apart."""

    class_axis: int | None = None
    """The axis of the output that holds the classes, or the outputs of a regression; all axes between it and the batch are
    positions. None: 1 for outputs (batch, classes), else told by mask or targets, or refused (see `positions`)."""

    mask: Callable[[Any], Tensor | None] | None = None
    """`mask(batch)`: True at each position of the output that counts, in the output's shape without its class axis. A result
    of None: all of them."""

    mean_squares: bool = False
    """The loss is the mean of the squared errors of all outputs, as MSELoss has it; without this, half their sum."""


@dataclass(frozen=True, eq=False)
class FisherSum:
    """A Fisher before its division, so that a caller can first add `squares` and `count` over processes."""

    squares: dict[str, Tensor]
    """Sums of squared gradients (of absolute ones for `power` 1), in float32 at least, by the names of the weights."""

    count: float
    """What to divide by: the number of samples; for `batched` the number of batches, N / batch_size."""

    routes: Mapping[str, Route] = field(default_factory=dict)
    """How each weight was served, at the end of the pass: for tests, and for whoever finds it slow."""

    def mean(self) -> dict[str, Tensor]:
        """The Fisher information itself."""
        return {name: square / self.count for name, square in self.squares.items()}

    def take_mean(self) -> dict[str, Tensor]:
        """The same, made of the sums, which are used up: no second copy of them."""
        return {name: square.div_(self.count) for name, square in self.squares.items()}
