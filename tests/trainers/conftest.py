"""The trainers are held against the same reference as the loops."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "loops"))
