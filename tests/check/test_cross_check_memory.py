"""cross_check: tensors reach both sides as they lie in memory, and nothing is written beside."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Callable

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from compare import cases, copies, cross_check
from compare.checking import judging, running
from compare.debugging.stepping import failures
from compare.user_kernels import cross_checking


def double(x: Tensor, *_: Tensor) -> Tensor:
    return x * 2


def check(cuda: Callable[..., Tensor], *inputs: Tensor, oracle=double) -> cross_checking.Report:
    return cross_check(triton=oracle, cuda=cuda, oracle=oracle, inputs=[inputs])


def poke(t: Tensor, bytes_after: int) -> None:
    """Write one byte that is none of the tensor's, as a kernel of C++ would."""
    ctypes.memset(t.data_ptr() + bytes_after, 7, 1)


VIEWS = {
    "contiguous": lambda: torch.ones(8),
    "rows": lambda: torch.ones(4, 32)[:, :8],
    "columns": lambda: torch.ones(32, 6)[:, ::2],
    "offset": lambda: torch.ones(100)[13:21],
    "expanded": lambda: torch.ones(1, 8).expand(4, 8),
    "window": lambda: torch.ones(20).unfold(0, 5, 2),
    "0-d": lambda: torch.ones(()),
    "int8": lambda: torch.ones(33, dtype=torch.int8)[3::3],
    "far apart": lambda: torch.empty(1 << 32).as_strided((3, 8), (1 << 30, 1)).fill_(1),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("where", ["before", "after", "nowhere"])
def test_writes_beside_an_input(view: str, where: str) -> None:
    x = VIEWS[view]()

    def cuda(t: Tensor) -> Tensor:
        assert t.stride() == x.stride()
        assert t.data_ptr() % 64 == x.data_ptr() % 64
        last = sum((n - 1) * s for n, s in zip(t.shape, t.stride())) + 1
        if where != "nowhere":
            poke(t, -3 if where == "before" else last * t.element_size() + 2)
        return t * 2

    report = check(cuda, x)
    assert bool(report) == (where == "nowhere"), report
    if not report:
        says = "wrote between or around the elements of its input tensors: 0 " + str(list(x.shape))
        assert says in str(report)
        assert report.verdict == "FAIL: the cuda side is wrong"


@pytest.mark.parametrize(
    ("view", "byte"), [("rows", 9 * 4), ("columns", 4), ("int8", 1), ("far apart", 8 * 4 + 1)]
)
def test_writes_between_the_elements(view: str, byte: int) -> None:
    def cuda(t: Tensor, u: Tensor) -> Tensor:
        poke(u, byte)
        return t * 2

    report = check(cuda, torch.ones(3), VIEWS[view]())
    assert "input tensors: 1 [" in str(report)


def test_inputs_may_be_written_and_returned() -> None:
    def in_place(t: Tensor) -> Tensor:
        return t.mul_(2)

    report = cross_check(triton=in_place, cuda=in_place, oracle=double, inputs=[(VIEWS["rows"](),)])
    assert report, report
    assert report.agree


def test_aliases_stay_aliases() -> None:
    memory = torch.arange(12.0)

    def shifted(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        assert y.data_ptr() - x.data_ptr() == 8
        y.zero_()
        return x + z

    report = check(shifted, memory[:6], memory[2:8], memory[:6], oracle=shifted)
    assert report, report
    assert memory.tolist() == [*range(12)]


# ---- what is debugged ----


@triton.jit
def rows_kernel(x_ptr, out_ptr, stride_m, BLOCK: tl.constexpr):
    m, n = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + m * stride_m + n)
    tl.store(out_ptr + m * BLOCK + n, x * 2, mask=n < BLOCK - 1)  # fault: one is never stored


def rows(x: Tensor) -> Tensor:
    out = torch.empty(x.shape)
    rows_kernel[(x.shape[0],)](x, out, x.stride(0), BLOCK=8)
    return out


def test_the_tensors_that_failed_are_debugged() -> None:
    x = VIEWS["rows"]().requires_grad_()
    with torch.no_grad(), failures.noting() as noted:
        report = cross_check(triton=rows, cuda=double, oracle=double, inputs=[(x,)])
    assert not report
    assert noted
    reference = double(x.detach())
    expected = cross_checking.Expected(reference, (torch.float32,), 1)
    call = cross_checking.Call(rows, (x,), {"": expected})
    state = call.prepare(cases.CPU)
    (given,) = state["arguments"]
    assert given.stride() == (32, 1)
    assert given.requires_grad
    between = given.detach().as_strided((4, 32), (32, 1))[:3, 8:].contiguous()
    assert bool((between.view(torch.uint8) == copies.POISON).all())
    with cross_checking.triton_kernels.interpret(), torch.no_grad():
        call.launch(state)
    (result,) = call.judge(state, None)
    assert bool(result.tensor[:, -1].isnan().all())  # poison, as in the run that failed
    assert isinstance(result.comparison, judging.Comparison)


@pytest.mark.parametrize(
    "made",
    [
        lambda x: torch.empty(x.shape, device="cuda"),
        lambda x: torch.zeros_like(x, device=torch.device("cuda", 1)),
        lambda x: x.new_empty(x.shape, device="cuda:0"),
        lambda x: torch.ones(x.shape, device=0),
        lambda x: torch.ones(x.shape).cuda(),
        lambda x: torch.ones(x.shape).to("cuda"),
        lambda x: torch.ones(x.shape).to(0, torch.float32),
        lambda x: torch.ones(x.shape).to(device="cuda", dtype=torch.float32),
        lambda x: torch.tensor([0.0] * len(x), device="cuda"),
    ],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="they are made on the GPU")
def test_results_that_are_asked_for_on_a_gpu(made: Callable[[Tensor], Tensor]) -> None:
    """Where there is none, they are made on the CPU, by cross_check as by a target's check."""
    x = torch.arange(5.0)
    with running.GuardedAllocations([]):
        out = made(x)
        assert torch.empty(2, device="meta").device.type == "meta"
        assert x.to(torch.float64).dtype == torch.float64
        assert x.to(x.double()).dtype == torch.float64
    assert out.device.type == "cpu"
    with pytest.raises((AssertionError, RuntimeError)):  # outside, as torch has it
        made(x)


def test_the_guards_keep_no_memory_when_they_are_left() -> None:
    """Without a collection of garbage."""
    gc.collect()
    gc.disable()
    try:
        guards: list[cases.Guarded] = []
        with running.GuardedAllocations(guards):
            torch.empty(4)
        memory = weakref.ref(guards[0].out)
        del guards
        assert memory() is None
    finally:
        gc.enable()
