"""Triton's interpreter, corrected and observable; and compiling kernels without running them.

Users of the ops need ``triton_kernels.interpret()`` only. This package is for tools:

- :func:`interpreting` runs kernels in the corrected interpreter and calls an :class:`Observer` for
  every :class:`Launch`, :class:`Access` and :class:`Dot`, with the :class:`Program` and the
  :class:`Place` in its source. :class:`Several` combines observers; :func:`watched` observes runs
  that others start. An :class:`Argument` has a tensor's addresses and coordinates; :class:`Pages`
  holds numbers for the elements of a memory. :func:`reaching` names tensors to which addresses in
  the arguments lead. :func:`launches` is the number of launches so far.
- If an observer has :class:`Shadows`, undefined, overflowed and non-finite values are followed to
  where they reach memory (:class:`Reach`, :class:`Origin`).
- If it has a :class:`Dataflow`, operations are recorded, so that a :class:`Value` can be followed
  back to its sources, lane by lane, also through what the program stored (each access is a
  :class:`Touch`); :func:`made_by` returns the value of a variable.
- :func:`place_of`, :func:`lane_of`, :func:`in_lane` and :func:`role` tell where an error arose.
- :mod:`post_mortem` restores the interpreter's state of the moment when a program ended.
- :mod:`cross_compile` compiles launches for a GPU that need not be present; :mod:`recompile`
  compiles launches on a GPU with other settings.
- :func:`self_test` names every private assumption about Triton that does not hold.

Private Triton API is used only here and in ``triton_kernels._launch``. The package is loaded when a
kernel is interpreted for the first time, not with :mod:`triton_kernels`.
"""

from triton_kernels._modes import configuration, made_interpreted
from triton_kernels._modes import interpreting as active
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
    "configuration",
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
