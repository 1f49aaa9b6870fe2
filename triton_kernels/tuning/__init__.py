"""Measurements of this GPU, for the choice of tiles and the scores of graphs.

constants.py and scores.py choose what is timed and evaluate the times; stopwatch.py takes them.
holding.py gives the figures in use, measured or not.
"""

from triton_kernels.tuning.holding import Capabilities, Speed, capabilities
from triton_kernels.tuning.measuring import tune

__all__ = ["Capabilities", "Speed", "capabilities", "tune"]
