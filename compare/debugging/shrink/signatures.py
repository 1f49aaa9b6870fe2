"""The identity of a failure, which must not change while a case shrinks."""

from __future__ import annotations

import re
from typing import NamedTuple

from compare.debugging.findings.findings import Findings, WrongValues
from triton_kernels.interpreter import Place


class Signature(NamedTuple):
    """A failure without its numbers.

    Attributes:
        kind: "wrong values", "error" or "hazard".
        what: the output and how it is wrong; the error's type, or what is out of bounds; the kind
            of hazard and its tensor.
        place: the line that stored the worst element, raised the error, or is first in the hazard.
    """

    kind: str
    what: tuple[str, ...]
    place: Place | None

    def same(self, other: Signature) -> bool:
        """Whether it is the same fault. A simpler case may run another kernel of the op; within one
        kernel the line must be the same."""
        if (self.kind, self.what) != (other.kind, other.what):
            return False
        a, b = self.place, other.place
        if a is None or b is None:
            return a is b
        return a[:2] == b[:2] or a.function != b.function


def signatures(findings: Findings) -> list[Signature]:
    """The signatures of the findings, the most important first; none if nothing is wrong in the
    interpreter."""
    if findings.failure is not None:
        return [Signature("error", _error(findings.failure.error), findings.failure.place)]
    if findings.wrong:
        return [_wrong(wrong) for wrong in findings.wrong]
    collected = []
    for hazard in findings.hazards:
        first = hazard.witnesses[0] if hazard.witnesses else None
        what = (hazard.kind, first.tensor if first else "")
        collected.append(Signature("hazard", what, first.place if first else None))
    return collected


def _error(text: str) -> tuple[str, ...]:
    kind = text.split(":")[0]
    access = re.search(r"out-of-bounds [\w ]+ through \w+", text)
    if access:
        return kind, access[0]
    return kind, re.sub(r"[-+]?\d+(\.\d+)?", "#", text.splitlines()[0])


def _wrong(wrong: WrongValues) -> Signature:
    history, deviation = wrong.history, wrong.deviation
    if history.last is None:
        masked = history.masked
        return Signature(
            "wrong values", (wrong.output, "never stored"), masked.place if masked else None
        )
    nan = deviation.got.startswith("nan"), deviation.expected.startswith("nan")
    how = {(True, False): "NaN", (False, True): "not NaN"}.get(nan, "number")
    return Signature("wrong values", (wrong.output, how), history.last.place)
