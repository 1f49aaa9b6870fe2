"""The gallery of broken kernels: each is caught by the tool that ought to, with the right line."""

from __future__ import annotations

import re

import pytest
from gallery import GALLERY, Exhibit

from compare import Findings


def lines_named(found: Findings) -> set[int]:
    """The lines of the gallery that the printed findings name."""
    return {int(n) for n in re.findall(r"(?:gallery\.py| ):(\d+) ", str(found))}


def lines_blamed(found: Findings, exhibit: Exhibit) -> set[int]:
    """The lines that the tool which ought to have caught the fault lays it to."""
    if exhibit.caught in ("out of bounds", "assertion"):
        assert found.failure is not None, found
        error = "IndexError: out-of-bounds" if exhibit.caught == "out of bounds" else "Assertion"
        assert error in found.failure.error
        return lines_named(found)
    if exhibit.caught == "wrong values":
        assert found.wrong, found
        return lines_named(found)
    hazards = [hazard for hazard in found.hazards if hazard.kind.startswith(exhibit.caught)]
    assert hazards, found
    return {w.place.line for hazard in hazards for w in hazard.witnesses if w.place}


@pytest.mark.parametrize("name", GALLERY)
def test_the_fault_is_caught_and_its_line_named(name: str) -> None:
    exhibit = GALLERY[name]
    found = exhibit.run(True)
    assert not found
    if exhibit.line is not None:
        assert exhibit.line in lines_blamed(found, exhibit), found
        assert exhibit.line in lines_named(found), found
    for words in exhibit.says:
        assert words in str(found), found


@pytest.mark.parametrize("name", GALLERY)
def test_the_healthy_kernel_is_not_accused(name: str) -> None:
    found = GALLERY[name].run(False)
    assert found, found
    assert not found.hazards


def test_the_gallery_is_large_enough() -> None:
    assert len(GALLERY) >= 20
