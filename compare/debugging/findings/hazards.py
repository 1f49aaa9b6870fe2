"""What may go wrong although the result may be right: what the sanitizers report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from compare.debugging.findings.traces import source_line
from triton_kernels.interpreter import Observer, Place, Program


@dataclass
class Witness:
    """One of the accesses or operations that a hazard needs: who, what, where.

    Attributes:
        what: as "loaded", "stored", "was masked off, without other=".
        tensor: the parameter's name; empty for what touches no tensor.
        element: in words, as "x_ptr[3, 5]"; empty where there is none.
        lane: of the tile; empty for a scalar.
    """

    what: str
    program: Program
    place: Place | None
    tensor: str = ""
    element: str = ""
    lane: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """What the JSON file has of it."""
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
    """One report of a sanitizer; of the same lines it is made once, with a count.

    Attributes:
        kind: as "undefined value", "uninitialised memory", "int32 overflow", "race".
        text: the first line that is printed: what happened, in words.
        witnesses: the accesses or operations, the one to look at first.
        count: elements or lanes that it happened to.
    """

    kind: str
    text: str
    witnesses: tuple[Witness, ...]
    count: int = 1

    def to_dict(self) -> dict[str, Any]:
        """What the JSON file has of it."""
        return {
            "kind": self.kind,
            "text": self.text,
            "count": self.count,
            "witnesses": [witness.to_dict() for witness in self.witnesses],
        }


class Sanitizer(Observer):
    """An observer of the whole run that has something to report at its end.

    Attributes:
        every_order: whether it watches the runs in other orders of programs, too.
    """

    every_order = False

    def waits(self) -> list[tuple[Witness, ...]]:
        """Volatile loads of one program, and the stores of another that they wait for."""
        return []

    def hazards(self) -> list[Hazard]:
        """The hazards of a run, the most telling first."""
        raise NotImplementedError
