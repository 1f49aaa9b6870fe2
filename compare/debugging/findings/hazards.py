"""Hazards: faults that the sanitizers report although the result may be right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from compare.debugging.findings.traces import source_line
from triton_kernels.interpreter import Observer, Place, Program


@dataclass
class Witness:
    """One access or operation of a hazard.

    Attributes:
        what: for example "loaded", "stored", "was masked off, without other=".
        tensor: the parameter's name; empty if it touches no tensor.
        element: in words, for example "x_ptr[3, 5]"; empty if there is none.
        lane: of the tile; empty for a scalar.
    """

    what: str
    program: Program
    place: Place | None
    tensor: str = ""
    element: str = ""
    lane: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The entry of the JSON file."""
        place = self.place._asdict() if self.place else {"file": None, "line": None}
        return {
            "what": self.what,
            "program": self.program,
            **place,
            "code": source_line(self.place),
            "tensor": self.tensor,
            "element": self.element,
            "lane": self.lane,
        }


@dataclass
class Hazard:
    """One report of a sanitizer. Reports about the same lines are merged and counted.

    Attributes:
        kind: for example "undefined value", "uninitialised memory", "int32 overflow", "race".
        text: the first printed line.
        witnesses: the accesses or operations, the most important first.
        count: the number of elements or lanes concerned.
    """

    kind: str
    text: str
    witnesses: tuple[Witness, ...]
    count: int = 1

    def to_dict(self) -> dict[str, Any]:
        """The entry of the JSON file."""
        return {
            "kind": self.kind,
            "text": self.text,
            "count": self.count,
            "witnesses": [witness.to_dict() for witness in self.witnesses],
        }


class Sanitizer(Observer):
    """An observer of the whole run that reports hazards at its end.

    Attributes:
        every_order: whether it also watches the runs in other program orders.
    """

    every_order = False

    def waits(self) -> list[tuple[Witness, ...]]:
        """Volatile loads of one program, with the stores of another for which they wait."""
        return []

    def hazards(self) -> list[Hazard]:
        """The hazards of a run, the most important first."""
        raise NotImplementedError
