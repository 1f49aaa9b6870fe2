"""Measuring on the GPU at hand what the choice of tiles and the scores of graphs rest on.

constants.py and scores.py say what is timed and what follows from it; neither knows how time is
told, which is stopwatch.py's. holding.py says what holds, measured or not.
"""

from triton_kernels.tuning.holding import Capabilities, Speed, capabilities
from triton_kernels.tuning.measuring import tune

__all__ = ["Capabilities", "Speed", "capabilities", "tune"]
