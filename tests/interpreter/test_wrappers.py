"""What functions that launch kernels do around the launch, without a GPU."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

import triton_kernels


def found(name: str) -> Any:
    """As packages do that go through the places where Triton's versions keep a function."""
    spec = importlib.util.find_spec("triton.language.extra.libdevice")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


rsqrt = found("rsqrt")


@triton.jit
def roots_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, rsqrt(tl.load(x_ptr + at)))


def test_a_function_of_a_module_that_was_loaded_anew() -> None:
    x, out, before = torch.full((8,), 4.0), torch.empty(8), rsqrt
    with triton_kernels.interpret():
        roots_kernel[(1,)](x, out, BLOCK=8)
    assert out.tolist() == [0.5] * 8
    assert rsqrt is before


@triton.autotune(
    configs=[triton.Config({"BLOCK": block}, num_warps=2) for block in (32, 64)], key=["n"]
)
@triton.jit
def halves_kernel(x_ptr, sums_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    tl.store(sums_ptr + tl.program_id(0), tl.sum(x) / 2)


def test_the_best_configuration_of_an_autotuned_kernel() -> None:
    """Authors ask for it where the number of programs decides about the memory."""
    x, sums = torch.ones(100), torch.zeros(100)
    with triton_kernels.interpret():
        halves_kernel[lambda meta: (triton.cdiv(100, meta["BLOCK"]),)](x, sums, 100)
    count = triton.cdiv(100, halves_kernel.best_config.kwargs["BLOCK"])
    assert count == 4
    assert sums[:count].sum() == 50


@pytest.mark.parametrize("of", [lambda x: x.device.index, lambda x: x.device, lambda x: "cpu"])
def test_the_device_of_a_tensor_on_the_cpu(of) -> None:
    x, sums = torch.ones(100), torch.zeros(4)
    with triton_kernels.interpret(), torch.cuda.device(of(x)):
        halves_kernel[(4,)](x, sums, 100)
    assert sums.sum() == 50
    with pytest.raises((RuntimeError, AssertionError, TypeError, ValueError)):  # as torch has it
        torch.cuda.device("cpu").__enter__()


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU answers for itself")
def test_whether_there_is_triton() -> None:
    """Modules define kernels under this condition, and may keep the function."""
    with triton_kernels.interpret():
        from torch.utils._triton import has_triton

        assert has_triton()
    assert not has_triton()
    assert not torch.utils._triton.has_triton()


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU answers for itself")
def test_what_grids_are_chosen_by() -> None:
    with triton_kernels.interpret():
        device = torch.cuda.current_device()
        assert torch.cuda.get_device_properties(device).multi_processor_count == 4
        assert torch.cuda.get_device_capability() == (8, 0)
        torch.cuda.set_device(torch.ones(1).device)
        torch.cuda.current_stream().synchronize()
        assert torch.cuda.current_stream().cuda_stream == 0
    with pytest.raises((RuntimeError, AssertionError)):
        torch.cuda.get_device_properties(0)


ASKING = """
import torch
import triton

DEVICE = triton.runtime.driver.active.get_active_torch_device()
PROPERTIES = triton.runtime.driver.active.utils.get_device_properties(DEVICE.index)
WARPS = torch.cuda.get_device_properties(torch.cuda.current_device()).warp_size // 8
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU's driver answers for itself")
def test_a_module_that_asks_tritons_driver_when_it_is_imported(tmp_path, monkeypatch) -> None:
    (tmp_path / "asks_the_driver.py").write_text(ASKING, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RuntimeError, match="0 active drivers"):
        importlib.import_module("asks_the_driver")
    with triton_kernels.interpret():
        module = importlib.import_module("asks_the_driver")
        assert triton.runtime.driver.active.get_current_target().backend == "cuda"
        assert triton.runtime.driver.active.get_benchmarker() is triton.testing.do_bench
        with pytest.raises(RuntimeError, match="nothing to time"):
            triton.runtime.driver.active.get_empty_cache_for_benchmark()
    assert torch.ones(1, device=module.DEVICE).device.type == "cpu"
    assert module.PROPERTIES["multiprocessor_count"] == module.WARPS == 4
    with pytest.raises(RuntimeError, match="0 active drivers"):
        _ = triton.runtime.driver.active.utils


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU's time is measured")
@pytest.mark.parametrize(
    ("options", "time"),
    [
        ({"rep": 40}, 1.0),
        ({"quantiles": (0.5, 0.2, 0.8)}, [1.0] * 3),
        ({"quantiles": [0.5], "warmup": 1}, 1.0),
        ({"return_mode": "all"}, [1.0]),
    ],
)
def test_an_autotuner_from_elsewhere_runs_every_candidate_once(options, time) -> None:
    runs = []
    with triton_kernels.interpret():
        assert triton.testing.do_bench(lambda: runs.append(1), **options) == time
    assert len(runs) == 1


@triton.jit
def target_kernel(out_ptr):
    if tl.target_info.is_cuda():
        tl.store(out_ptr, 80 + tl.target_info.cuda_capability_geq(9, 0))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU's driver answers for itself")
def test_a_kernel_that_asks_what_it_runs_on() -> None:
    out = torch.zeros(1, dtype=torch.int32)
    with triton_kernels.interpret():
        target_kernel[(1,)](out)
    assert out.tolist() == [80]


@triton.jit
def count_kernel(at_ptr, out_ptr, old_ptr, n, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    at = tl.load(at_ptr + lane, mask=lane < n, other=0)
    old = tl.atomic_add(out_ptr + at, (lane + 1).to(tl.bfloat16), mask=lane < n)
    tl.store(old_ptr + lane, old, mask=lane < n)


def counted(at: Tensor, out: Tensor, n: int) -> Tensor:
    old = torch.full((n,), torch.nan, dtype=torch.bfloat16)
    with triton_kernels.interpret():
        count_kernel[(1,)](at, out, old, n, BLOCK=8)
    return old


def test_atomics_of_bfloat16() -> None:
    """Every addition is rounded, lanes of one address one after another."""
    out = torch.tensor([0.0, 256.0, 0.0], dtype=torch.bfloat16)
    old = counted(torch.tensor([0, 1, 1, 0, 1]), out, 5)
    assert out.tolist() == [5.0, 264.0, 0.0]  # 256 + 2 = 258; 258 + 3 rounds to 260; 265 to 264
    assert old.tolist() == [0.0, 256.0, 258.0, 1.0, 260.0]


def test_an_atomic_of_bfloat16_out_of_bounds() -> None:
    out = torch.zeros(2, dtype=torch.bfloat16)
    with pytest.raises(IndexError, match="atomic through out_ptr"):
        counted(torch.tensor([0, 2]), out, 2)


@triton.jit
def blocks_kernel(x_ptr, out_ptr, n, stride, BLOCK: tl.constexpr, START: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    for i in range(START, tl.cdiv(n, BLOCK)):
        at = i.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        same = (BLOCK * i + 0).to(tl.int64) + tl.arange(0, BLOCK)
        tl.static_assert(i.dtype == tl.int32)
        tl.device_assert(at == same)
        total += tl.load(x_ptr + at * stride, mask=at < n, other=0.0)
    for i in tl.range(2):
        tl.store(out_ptr + i.to(tl.int64), tl.sum(total))


def test_the_variable_of_a_loop_has_what_a_tensor_has() -> None:
    x, out = torch.arange(40.0), torch.zeros(2)
    with triton_kernels.interpret():
        blocks_kernel[(1,)](x, out, 40, 1, BLOCK=16, START=0)
    assert out.tolist() == [780.0, 780.0]
