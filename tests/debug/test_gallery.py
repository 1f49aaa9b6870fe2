"""The gallery: no tool complains of a healthy kernel, and each fault is caught by the one that
ought to.

Every run tries one dtype; ``--gallery`` tries the others.
"""

from __future__ import annotations

import pytest
import torch
import triton
from gallery import GALLERY, exhibits
from gallery.exhibits import Exhibit, Fault, Launch
from gallery.naming import NOWHERE, UNNAMED, lines_named, where_named

from compare import Findings

pytestmark = [
    pytest.mark.usefixtures("impatient"),
    pytest.mark.filterwarnings("ignore:tl.make_block_ptr is deprecated"),
]
ERRORS = {
    "out of bounds": "IndexError: out-of-bounds",
    "assertion": "AssertionError",
    "waits forever": "WaitsForever",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "exhibit" not in metafunc.fixturenames:
        return
    others = metafunc.config.getoption("--gallery")
    cases: dict[str, tuple[object, ...]] = {}
    for exhibit in GALLERY.values():
        for dtype in exhibit.dtypes[1:] if others else exhibit.dtypes[:1]:
            name = f"{exhibit.name}, {str(dtype).removeprefix('torch.')}"
            if "fault" not in metafunc.fixturenames:
                cases[name] = exhibit, dtype
                continue
            for fault in exhibit.faults.values():
                cases[f"{name}: {fault.name}"] = exhibit, dtype, fault
    names = ["exhibit", "dtype", "fault"][: 3 if "fault" in metafunc.fixturenames else 2]
    metafunc.parametrize(names, cases.values(), ids=cases)


@pytest.fixture(autouse=True)
def allocator() -> None:
    """What a program needs whose compiled kernels make descriptors."""
    triton.set_allocator(lambda size, *_: torch.empty(size, dtype=torch.int8, device="cuda"))


def test_the_healthy_kernel_is_not_accused(exhibit: Exhibit, dtype: torch.dtype) -> None:
    launch: Launch = exhibit.healthy(dtype)
    found = launch.debug()
    assert found, found
    assert not found.hazards
    for name in launch.right:
        report = launch.cross_check(name)
        assert report, report


def test_the_fault_is_caught(exhibit: Exhibit, dtype: torch.dtype, fault: Fault) -> None:
    found = exhibit.broken(fault, dtype).debug()
    assert not found
    assert is_caught(found, fault), found
    for words in fault.says:
        assert words in str(found), found
    if fault.in_kernel and f"{exhibit.name}: {fault.name}" not in UNNAMED:
        assert where_named(found, fault, exhibit.file.name) != NOWHERE, found


def is_caught(found: Findings, fault: Fault) -> bool:
    """Whether it is by the tool that ought to."""
    if fault.caught in ERRORS:
        return found.failure is not None and ERRORS[fault.caught] in found.failure.error
    if fault.caught == "wrong values":
        return bool(found.wrong)
    return any(hazard.kind.startswith(fault.caught) for hazard in found.hazards)


def test_every_fault_has_its_exhibit() -> None:
    files = {exhibit.file for exhibit in GALLERY.values()}
    names = [name for file in files for name in exhibits.planted(file)]
    tried = [fault.name for exhibit in GALLERY.values() for fault in exhibit.faults.values()]
    assert sorted(names) == sorted(tried)
    assert all(exhibit.faults for exhibit in GALLERY.values())


def test_what_reports_do_not_name_are_faults() -> None:
    every = {f"{e.name}: {fault.name}" for e in GALLERY.values() for fault in e.faults.values()}
    assert every >= UNNAMED


def test_the_gallery_is_large_enough() -> None:
    floats = [exhibit for exhibit in GALLERY.values() if exhibit.dtypes == exhibits.FLOATS]
    assert len(floats) >= 40


def test_a_fault_changes_its_line_and_no_other() -> None:
    exhibit = GALLERY["row max"]
    fault = exhibit.faults["no neutral element"]
    launch = exhibit.broken(fault, torch.float32)
    copy = launch.kernel.fn.__code__.co_filename
    with open(copy) as broken, exhibit.file.open() as healthy:
        pairs = list(zip(broken, healthy, strict=True))
    changed = [number for number, (new, old) in enumerate(pairs, 1) if new != old]
    assert changed == [fault.line]
    assert fault.in_kernel
    assert fault.line in lines_named(str(launch.debug()), exhibit.file.name)
