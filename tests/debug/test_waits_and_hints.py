"""What waits for other programs, and what only a compiler runs, is named as what it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import sliced_kernels as kernels
import torch
from marked_lines import finder

from compare import Findings, debug
from compare.checking.hints import hint
from triton_kernels import interpreter

waits = finder("# ", kernels.__file__)


def look_back(fault: str) -> Findings:
    x = torch.arange(32, dtype=torch.int32) + 1
    sums = x.view(4, 8).sum(1).cumsum(0)
    expected = torch.cat([torch.zeros(1), sums[:-1]]).int()
    memory = [torch.zeros(4, dtype=torch.int32) for _ in range(2)]
    return debug(
        kernels.look_back_kernel, (4,), (x, *memory, fault),
        oracle=lambda: {"out_ptr": expected}, BLOCK=8,
    )  # fmt: skip


def test_a_volatile_look_back_is_no_race(impatient: None) -> None:
    found = look_back("")
    assert found, found
    assert not found.hazards
    (note,) = [note for note in found.notes if note.startswith("look-back")]
    assert "program (1, 0, 0) waits, by volatile loads of state_ptr[0]" in note
    assert "as (0, 0, 0) does" in note
    (order,) = [note for note in found.notes if "reverse order" in note]
    assert "waits forever for one that runs later and changes state_ptr[2]" in order


def test_a_flag_that_nobody_sets(impatient: None) -> None:
    found = look_back("flag")
    assert found.failure is not None
    assert found.failure.program == (2, 0, 0)
    assert found.failure.place is not None
    assert found.failure.place.line == waits("waits")
    assert "volatile loads wait for a program that stores to state_ptr[1]" in found.failure.error


def test_assembly_is_named() -> None:
    found = debug(
        kernels.assembly_kernel,
        (1,),
        (torch.zeros(8), torch.zeros(8), "lop3.b32 $0, $1, $1, $1, 3;"),
        BLOCK=8,
    )
    assert found.failure is not None
    assert "the inline PTX 'lop3.b32 $0, $1, $1, $1, 3' runs" in found.failure.error
    assert "runs only compiled, not interpreted" in found.failure.error
    assert found.failure.place is not None
    assert Path(found.failure.place.file) == Path(kernels.__file__)


def test_an_operation_that_the_interpreter_lacks_is_named() -> None:
    with interpreter.interpreting():
        from triton.runtime import interpreter as upstream

        builder = upstream.interpreter_builder
        assert not hasattr(builder, "create_no_such_operation")
        with pytest.raises(NotImplementedError, match="operation no_such_operation runs only"):
            builder.create_no_such_operation()
        with pytest.raises(AttributeError):
            builder.nothing_of_that_name  # noqa: B018
        with pytest.raises(NotImplementedError, match="function __nv_foo of an external library"):
            builder.create_extern_elementwise("", "", "__nv_foo", [], None, True)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            "ptxas /tmp/a.ptx, line 45; error   : Feature 'tanh.bf16x2' requires .target sm_90 or"
            " higher\nRepro command: ptxas",
            "its PTX uses tanh.bf16x2, which only GPUs from sm_90 on have",
        ),
        (
            "ptxas /tmp/a.ptx, line 40; error   : Parsing error near 'foo': syntax error\nRepro",
            "ptxas refuses the PTX, most often that of an inline_asm_elementwise, which Triton "
            "passes on as it is: Parsing error near 'foo': syntax error",
        ),
        ("type fp8e4nv not supported in this architecture.", "does not convert to fp8e4nv"),
        ("out of resource: shared memory, Required: 1, Hardware limit: 2", "num_stages"),
    ],
)
def test_compilers_errors_are_explained(error: str, words: str) -> None:
    assert words in hint(RuntimeError(error))
    assert hint(RuntimeError("something else")) == ""
