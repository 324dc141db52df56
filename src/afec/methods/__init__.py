"""The methods, one short file each."""

from afec.methods.afec import AFEC
from afec.methods.ewc import EWC

__all__ = ["AFEC", "EWC"]
