"""Triton's interpreter, mended: with _cross_compile.py the only place of private Triton API.

`interpreting()` replaces the interpreter's builder and a few hooks around it for as long as it
is entered, then puts everything back, so that one process can interpret and compile the same
kernels. `self_test()` names every private assumption that a new Triton release breaks. What
the mends compute is in _emulation.py; these files say where Triton must be told so.
"""

from triton_kernels._interpreter.origins import Origin
from triton_kernels._interpreter.patching import active, interpreting, made_interpreted
from triton_kernels._interpreter.places import place_of
from triton_kernels._interpreter.probing import self_test
from triton_kernels._interpreter.reaching import Reach, Shadows

__all__ = [
    "Origin",
    "Reach",
    "Shadows",
    "active",
    "interpreting",
    "made_interpreted",
    "place_of",
    "self_test",
]
