"""Observers of an interpreted run: launches, programs, memory accesses, dots.

An observer is a subclass of :class:`Observer`, passed to ``interpreter.interpreting``. It must not
change the arrays that it gets, because they belong to the kernel.
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
    """A launch before its first program.

    Attributes:
        arguments: the tensors, in the order of the parameters.
        function: the jit function, without heuristics and the like around it.
        values: the values of all parameters, including constexprs.
        options: ``num_warps`` and the like, which the interpreter does not use.
    """

    kernel: str
    grid: tuple[int, ...]
    arguments: tuple[Argument, ...]
    function: Any = None
    values: Mapping[str, Any] = MappingProxyType({})
    options: Mapping[str, Any] = MappingProxyType({})


class Access(NamedTuple):
    """A load, store or atomic operation of one program; it is in bounds.

    Attributes:
        verb: atomics have one verb; ``operation`` is their kind, for example "add" or "cas".
        argument: the argument of the pointers; None if unknown, for example after tl.where of two
            arguments' pointers.
        pointers: byte addresses, uint64, one per lane.
        mask: the active lanes, in the shape of ``pointers``.
        values: as loaded or stored; raw bits for bfloat16 (uint16) and float8 (uint8).
        dtype: of the values, Triton's name: "fp32", "bf16", "int1".
        place: the kernel's line; None if unknown.
        semantics: of an atomic: "relaxed", "acquire", "release" or "acquire_release"; of a
            volatile load "volatile"; else empty.
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
        """The values as numbers for numpy, in the shape of the pointers."""
        shape = self.pointers.shape
        return np.broadcast_to(emulation.decoded(self.values, self.dtype), shape)


class Dot(NamedTuple):
    """A tl.dot: result = a @ b + c, as numbers for numpy.

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
    """Observes an interpreted run; this class does nothing.

    A run may have several launches, one after another.

    Attributes:
        shadows: the ``interpreter.Shadows`` to keep, or None.
        flow: the ``interpreter.Dataflow`` in which to record operations, or None; not together
            with shadows.
        dot_precision: the input precision for every tl.dot of float32, whatever the kernel
            requests; empty to keep the kernel's.
    """

    shadows: Any = None
    flow: Any = None
    dot_precision: str = ""

    def launch(self, launch: Launch) -> None:
        """Called before a kernel runs."""

    def order(self, launch: Launch, programs: Sequence[Program]) -> Iterable[Program]:
        """The order in which its programs run. They are given with the last index outermost."""
        return programs

    def wants(self, program: Program) -> bool:
        """Whether the program runs; called in the order of the programs."""
        return True

    def access(self, access: Access) -> None:
        """Called for an access: a load has its values, a store has not changed the memory yet."""

    def dot(self, dot: Dot) -> None:
        """Called when a tl.dot has its result."""


class Several(Observer):
    """Several observers as one. All are called, and a program runs if all want it.

    The first one decides the order of programs. At most one may want shadow values or the dataflow.
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
