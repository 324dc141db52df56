"""Tables and figures of what came out."""

from afec.report.circles import Panel, draw_circles
from afec.report.statistics import PairedDifference, mean_and_std, paired_difference

__all__ = ["PairedDifference", "Panel", "draw_circles", "mean_and_std", "paired_difference"]
