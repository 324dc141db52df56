"""Backbones and readouts."""

from afec.nets.chain import Chain, Layer, NoChainError, renew
from afec.nets.hidden import HiddenLayer, HiddenLayers
from afec.nets.norm import TaskBatchNorm2d
from afec.nets.readout import MultiHead, Readout, SingleHead
from afec.nets.registry import NETS, check_backbone, make_backbone
from afec.nets.small import DigitsBackbone

__all__ = [
    "NETS",
    "Chain",
    "DigitsBackbone",
    "HiddenLayer",
    "HiddenLayers",
    "Layer",
    "MultiHead",
    "NoChainError",
    "Readout",
    "SingleHead",
    "TaskBatchNorm2d",
    "check_backbone",
    "make_backbone",
    "renew",
]
