"""Backbones and heads."""

from afec.nets.heads import MultiHead
from afec.nets.small import DigitsBackbone

__all__ = ["DigitsBackbone", "MultiHead"]
