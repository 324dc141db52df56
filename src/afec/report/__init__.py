"""Tables and pictures of what came out."""

from afec.report.circle import Panel, draw_circles
from afec.report.paired import Paired, mean_and_std, paired

__all__ = ["Paired", "Panel", "draw_circles", "mean_and_std", "paired"]
