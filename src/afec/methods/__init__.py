"""The methods, one short file each."""

from afec.methods.afec import AFEC
from afec.methods.ags_cl import AGSCL
from afec.methods.ewc import EWC
from afec.methods.mas import MAS
from afec.methods.prior import Prior
from afec.methods.progress_compress import ProgressCompress
from afec.methods.recycle import Recycle
from afec.methods.rwalk import RWALK
from afec.methods.si import SI

__all__ = ["AFEC", "AGSCL", "EWC", "MAS", "RWALK", "SI", "Prior", "ProgressCompress", "Recycle"]
