"""Triton's interpreter, mended: with _cross_compile.py the only place of private Triton API.

`interpreting()` replaces the interpreter's builder and a few hooks around it for as long as it
is entered, then puts everything back, so that one process can interpret and compile the same
kernels. `self_test()` names every private assumption that a new Triton release breaks. What
the mends compute is in _emulation.py; these files say where Triton must be told so.
"""

from triton_kernels._interpreter.handles import in_lane
from triton_kernels._interpreter.origins import Origin
from triton_kernels._interpreter.patching import active, interpreting, made_interpreted, watched
from triton_kernels._interpreter.places import lane_of, place_of, role
from triton_kernels._interpreter.probing import self_test
from triton_kernels._interpreter.reaching import Reach, Shadows

__all__ = [
    "Origin",
    "Reach",
    "Shadows",
    "active",
    "in_lane",
    "interpreting",
    "lane_of",
    "made_interpreted",
    "place_of",
    "role",
    "self_test",
    "watched",
]
