"""Diagonal Fisher information of any module: squared gradients, per sample or per batch.

Five kinds (`Kind`), one function (`estimate`). It works in chunks, touches nothing of the model, and takes for
each weight the fastest of three routes that gives what one backward pass per sample gives (see `plan`).
"""

from afec.fisher.estimate import EXACT_UP_TO, choose_kind, estimate
from afec.fisher.output_norm import OutputNorm
from afec.fisher.problem import KINDS, FisherSum, Kind, Likelihood, Power, Problem, Route

__all__ = [
    "EXACT_UP_TO",
    "KINDS",
    "FisherSum",
    "Kind",
    "Likelihood",
    "OutputNorm",
    "Power",
    "Problem",
    "Route",
    "choose_kind",
    "estimate",
]
