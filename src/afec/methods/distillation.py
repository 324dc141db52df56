"""Distillation: how far a net's outputs are from those of another net for the same inputs, in two ways.

    softmax    T²·KL(softmax(target/T) ‖ softmax(output/T))          one class of all; T² keeps the gradient's size
    sigmoid    Σ_c BCE(σ(output_c), σ(target_c))                     each class by itself

Both are means over the batch.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

__all__ = ["sigmoid_cross_entropy", "softened_divergence"]


def softened_divergence(outputs: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """T²·KL(softmax(targets/T) ‖ softmax(outputs/T)), a mean over the batch."""
    ours, theirs = (F.log_softmax(logits / temperature, dim=1) for logits in (outputs, targets))
    return temperature**2 * F.kl_div(ours, theirs, reduction="batchmean", log_target=True)


def sigmoid_cross_entropy(outputs: Tensor, probabilities: Tensor) -> Tensor:
    """The cross-entropy of each output's sigmoid with a probability, summed over the outputs, a mean over the batch."""
    return F.binary_cross_entropy_with_logits(outputs, probabilities, reduction="sum") / len(outputs)
