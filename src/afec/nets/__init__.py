"""Backbones and heads."""

from afec.nets.chain import Chain, Layer, NoChainError, renew
from afec.nets.heads import MultiHead
from afec.nets.norm import TaskBatchNorm2d
from afec.nets.registry import NETS, NetRecord, check_backbone, make_backbone
from afec.nets.small import DigitsBackbone

__all__ = [
    "NETS",
    "Chain",
    "DigitsBackbone",
    "Layer",
    "MultiHead",
    "NetRecord",
    "NoChainError",
    "TaskBatchNorm2d",
    "check_backbone",
    "make_backbone",
    "renew",
]
