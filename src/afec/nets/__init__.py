"""Backbones and readouts."""

from afec.nets.chain import Chain, Layer, NoChainError, renew
from afec.nets.hidden import HiddenLayer, HiddenLayers
from afec.nets.maps import HasMaps
from afec.nets.norm import TaskBatchNorm2d
from afec.nets.readout import ClassifierKind, MultiHead, Readout, SingleHead
from afec.nets.registry import NETS, check_backbone, make_backbone
from afec.nets.small import DigitsBackbone

__all__ = [
    "NETS",
    "Chain",
    "ClassifierKind",
    "DigitsBackbone",
    "HasMaps",
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
