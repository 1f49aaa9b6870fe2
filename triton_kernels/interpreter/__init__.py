"""Triton's interpreter, mended and watched; and kernels compiled without being run.

``triton_kernels.interpret()`` is all that a user of the ops needs. This package is for tools:

- :func:`interpreting` runs kernels in the mended interpreter and tells an :class:`Observer` of
  every :class:`Launch`, :class:`Access` and :class:`Dot`, with the :class:`Program` and the
  :class:`Place` in its source. :class:`Several` makes one of several observers; :func:`watched`
  watches runs that others start. An :class:`Argument` knows a tensor's addresses and coordinates;
  :class:`Pages` holds numbers for the elements of a memory. :func:`reaching` names tensors to which
  arguments lead by addresses. :func:`launches` counts.
- Where an observer has :class:`Shadows`, undefined, overflowed and non-finite values are followed
  to where they reach memory (:class:`Reach`, :class:`Origin`).
- Where one has a :class:`Dataflow`, operations are noted, so that a :class:`Value` can be followed
  back to those that it was made of, lane by lane, and through what the program stored (each
  access a :class:`Touch`); :func:`made_by` tells a variable's.
- :func:`place_of`, :func:`lane_of`, :func:`in_lane` and :func:`role` say where an error arose.
- :mod:`post_mortem` puts the interpreter back where a program ended.
- :mod:`cross_compile` compiles launches for a GPU that is not there; :mod:`recompile` compiles
  those of a GPU with other settings.
- :func:`self_test` names every private assumption about Triton that a new release breaks.

Private Triton API is used here and in ``triton_kernels._launch`` alone. The package is loaded when
a kernel is interpreted for the first time, not with :mod:`triton_kernels`.
"""

from triton_kernels._modes import interpreting as active
from triton_kernels._modes import made_interpreted
from triton_kernels.interpreter.dataflow import Dataflow, Touch, Value, made_by
from triton_kernels.interpreter.fault_sinks import Reach, Shadows
from triton_kernels.interpreter.handles import in_lane
from triton_kernels.interpreter.launching import launches, reaching
from triton_kernels.interpreter.memory import Argument, Pages
from triton_kernels.interpreter.observers import (
    Access,
    Dot,
    Launch,
    Observer,
    Place,
    Program,
    Several,
)
from triton_kernels.interpreter.origins import Origin
from triton_kernels.interpreter.patching import interpreting, watched
from triton_kernels.interpreter.selftest import self_test
from triton_kernels.interpreter.source_lines import lane_of, not_kernels, place_of, role

__all__ = [
    "Access",
    "Argument",
    "Dataflow",
    "Dot",
    "Launch",
    "Observer",
    "Origin",
    "Pages",
    "Place",
    "Program",
    "Reach",
    "Several",
    "Shadows",
    "Touch",
    "Value",
    "active",
    "in_lane",
    "interpreting",
    "lane_of",
    "launches",
    "made_by",
    "made_interpreted",
    "not_kernels",
    "place_of",
    "reaching",
    "role",
    "self_test",
    "watched",
]
