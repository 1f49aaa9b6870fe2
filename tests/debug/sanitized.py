"""What the tests of debug's sanitizers share."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from compare.debugging.findings.findings import LINES, Findings
from compare.debugging.findings.hazards import Hazard


def only(found: Findings, kind: str) -> Hazard:
    """The one hazard."""
    assert not found
    assert [h.kind for h in found.hazards] == [kind], str(found)
    assert len(str(found).splitlines()) <= LINES
    return found.hazards[0]


def lines(hazard: Hazard) -> list[int]:
    return [w.place.line for w in hazard.witnesses if w.place]


X = torch.linspace(-3, 3, 24)


@triton.jit
def dropout(x_ptr, out_ptr, n, seed, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    h = (i ^ seed) * -2048144789
    h = (h ^ (h >> 13)) * -1028477387
    keep = ((h ^ (h >> 16)) & 1) == 1
    tl.store(out_ptr + i, tl.where(keep, x * 2.0, 0.0), mask=i < n)
