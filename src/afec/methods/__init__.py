"""The methods, one short file each."""

from afec.methods.afec import AFEC
from afec.methods.ags_cl import AGSCL
from afec.methods.average import Average
from afec.methods.derpp import DERPP
from afec.methods.er import ER
from afec.methods.ewc import EWC
from afec.methods.icarl import ICaRL
from afec.methods.lucir import LUCIR
from afec.methods.lwf import LwF
from afec.methods.mas import MAS
from afec.methods.merge import Merge
from afec.methods.podnet import PODNet
from afec.methods.prior import Prior
from afec.methods.progress_compress import ProgressCompress
from afec.methods.recycle import Recycle
from afec.methods.rwalk import RWALK
from afec.methods.si import SI

__all__ = [
    "AFEC",
    "AGSCL",
    "DERPP",
    "ER",
    "EWC",
    "LUCIR",
    "MAS",
    "RWALK",
    "SI",
    "Average",
    "ICaRL",
    "LwF",
    "Merge",
    "PODNet",
    "Prior",
    "ProgressCompress",
    "Recycle",
]
