"""What an interpreted run can be watched through: launches, programs, memory accesses, dots.

A watcher is a subclass of :class:`Observer`, given to ``interpreter.interpreting``. It must not
change the arrays that it gets: they are the kernel's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np

from triton_kernels.interpreter import emulation
from triton_kernels.interpreter.emulation import Array
from triton_kernels.interpreter.memory import Argument

Program = tuple[int, int, int]


class Place(NamedTuple):
    """A line of a kernel or of a jit function that it calls."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


class Launch(NamedTuple):
    """A launch that begins: nothing has run yet.

    Attributes:
        arguments: the tensors, in the order of the parameters.
        function: the jit function itself, without heuristics and the like around it.
        values: what every parameter gets, constexprs included.
        options: ``num_warps`` and the like, which the interpreter does not use.
    """

    kernel: str
    grid: tuple[int, ...]
    arguments: tuple[Argument, ...]
    function: Any = None
    values: Mapping[str, Any] = MappingProxyType({})
    options: Mapping[str, Any] = MappingProxyType({})


class Access(NamedTuple):
    """A load, store or atomic operation of one program, found to be in bounds.

    Attributes:
        verb: atomics have one verb; ``operation`` names the kind, as "add" or "cas".
        argument: where the pointers came from; None where that is not known, as after tl.where of
            two arguments' pointers.
        pointers: byte addresses, uint64, one a lane.
        mask: which lanes take part, in the shape of ``pointers``.
        values: as loaded, or as stored; raw bits for bfloat16 (uint16) and float8 (uint8).
        dtype: of the values, as Triton calls it: "fp32", "bf16", "int1".
        place: the kernel's line; None where it is not known.
        semantics: of an atomic: "relaxed", "acquire", "release" or "acquire_release"; of a load
            "volatile" where it is; else empty.
    """

    verb: Literal["load", "store", "atomic"]
    operation: str
    argument: Argument | None
    pointers: Array
    mask: Array
    values: Array
    dtype: str
    program: Program
    place: Place | None
    semantics: str = ""

    @property
    def numbers(self) -> Array:
        """The values as numbers that numpy knows, in the shape of the pointers."""
        shape = self.pointers.shape
        return np.broadcast_to(emulation.decoded(self.values, self.dtype), shape)


class Dot(NamedTuple):
    """A tl.dot: result = a @ b + c, as numbers that numpy knows.

    ``precision`` is the input precision of float32 operands, and empty for others.
    """

    a: Array
    b: Array
    c: Array
    result: Array
    precision: str
    program: Program
    place: Place | None


class Observer:
    """Watches an interpreted run; does nothing by itself.

    A run may hold several launches, one after another.

    Attributes:
        shadows: the shadow values that it wants kept (``interpreter.Shadows``), if any.
        flow: where it wants operations noted (``interpreter.Dataflow``), if it does; not in a run
            with shadows.
        dot_precision: the input precision that every tl.dot of float32 has, whatever the kernel
            says; empty where they keep their own.
    """

    shadows: Any = None
    flow: Any = None
    dot_precision: str = ""

    def launch(self, launch: Launch) -> None:
        """A kernel is about to run."""

    def order(self, launch: Launch, programs: Sequence[Program]) -> Iterable[Program]:
        """The order in which its programs run; given as they are counted, the last index first."""
        return programs

    def wants(self, program: Program) -> bool:
        """Whether the program shall run at all; asked in the order in which programs run."""
        return True

    def access(self, access: Access) -> None:
        """Memory is accessed: a load has its values, a store has not changed the memory yet."""

    def dot(self, dot: Dot) -> None:
        """A tl.dot has its result."""


class Several(Observer):
    """Observers as one: each is told everything, and a program runs if all want it.

    The first one decides the order of programs; one at most wants shadow values, or the dataflow.
    """

    def __init__(self, *observers: Observer) -> None:
        self.observers = observers
        self.shadows = next((o.shadows for o in observers if o.shadows is not None), None)
        self.flow = next((o.flow for o in observers if o.flow is not None), None)
        self.dot_precision = next((o.dot_precision for o in observers if o.dot_precision), "")

    def launch(self, launch: Launch) -> None:
        for observer in self.observers:
            observer.launch(launch)

    def order(self, launch: Launch, programs: Sequence[Program]) -> Iterable[Program]:
        return self.observers[0].order(launch, programs)

    def wants(self, program: Program) -> bool:
        answers = [observer.wants(program) for observer in self.observers]
        return all(answers)

    def access(self, access: Access) -> None:
        for observer in self.observers:
            observer.access(access)

    def dot(self, dot: Dot) -> None:
        for observer in self.observers:
            observer.dot(dot)
