"""Launches that begin while the launch before them ends, and wait for what it writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import triton_kernels as tk
from triton_kernels import _launch
from triton_kernels.gemm.gluon import availability
from triton_kernels.interpreter import cross_compile

BF16, F32 = torch.bfloat16, torch.float32


def meta(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def in_tl(a: Tensor, b: Tensor) -> Tensor:
    with availability.only("tl"):
        return tk.gemm_bias_act(a, b, precision="ieee")


def launches(call: Callable[[], Any], capability: int) -> list[tuple[str, bool]]:
    """Each launch: its kernel, and whether it waits. One that waits is launched as dependent."""
    seen: list[tuple[str, bool]] = []

    def note(kernel: Any, grid: tuple[int, ...], *args: Any, **meta: Any) -> None:
        assert meta.get("launch_pdl", False) is meta.get("WAITS", False)
        seen.append((kernel.fn.__name__, meta.get("WAITS", False)))

    with pytest.MonkeyPatch.context() as patch, cross_compile.compiling(capability):
        patch.setattr(cross_compile, "launch", note)
        call()
    return seen


CALLS: dict[str, tuple[Callable[[], Any], list[tuple[str, bool]]]] = {
    "one pass": (lambda: tk.sum_to(meta(100, 64), (100, 1)), [("sum_kernel", False)]),
    "two passes": (
        lambda: tk.sum_to(meta(5000, 64), (64,)),
        [("sum_kernel", False), ("sum_kernel", True)],
    ),
    "partial sums of another kernel": (
        lambda: tk.act_backward(meta(5000, 72), meta(5000, 72), "silu"),
        [("act_backward_kernel", False), ("sum_kernel", True)],
    ),
    "a product": (
        lambda: tk.gemm_bias_act(meta(4096, 512), meta(512, 4096)),
        [("gemm_gluon_kernel", False)],
    ),
    "a product of copies": (
        lambda: tk.gemm_bias_act(meta(4096, 511), meta(511, 4096)),
        [("repack_kernel", False), ("gemm_gluon_kernel", True)],
    ),
    "of copies, in tf32": (
        lambda: tk.gemm_bias_act(
            meta(256, 64, dtype=F32), meta(64, 256, dtype=F32), precision="tf32"
        ),
        [("repack_kernel", False), ("gemm_tma_kernel", True)],
    ),
    "of copies, by multiply-adds": (
        lambda: tk.gemm_bias_act(
            meta(256, 63, dtype=F32), meta(256, 63, dtype=F32).t(), precision="ieee"
        ),
        [("repack_kernel", False), ("gemm_gluon_fma_kernel", True)],
    ),
    "of copies, through pointers": (
        lambda: in_tl(meta(256, 64, dtype=F32), meta(256, 64, dtype=F32).t()),
        [("repack_kernel", False), ("gemm_bias_act_kernel", True)],
    ),
    "f16x3": (
        lambda: tk.gemm_bias_act(
            meta(2048, 512, dtype=F32), meta(512, 2048, dtype=F32), precision="f16x3"
        ),
        [("split_kernel", False), ("gemm_gluon_f16x3_kernel", True), ("gemm_again_kernel", True)],
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_which_launches_wait(name: str) -> None:
    call, expected = CALLS[name]
    assert launches(call, 90) == expected
    assert not any(waits for _, waits in launches(call, 80))


def test_nothing_waits_in_the_interpreter(cpu: torch.device) -> None:
    from triton_kernels.ops.sum_to import sum_kernel

    assert not _launch.overlaps(sum_kernel, cpu)
