"""What the cases of the matrix products are made of, beyond arguments of the ops."""

from __future__ import annotations

import pytest
import torch

import triton_kernels
from compare import cases
from compare.cases import Case
from compare.ops import SPECS
from compare.specs import product_inputs, products


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_half_aligned_is_8_bytes_past_16(dtype: torch.dtype) -> None:
    moved = cases.arrange(torch.ones(3, 5, dtype=dtype), "half-aligned")
    assert moved.data_ptr() % 16 == 8
    assert moved.is_contiguous()
    assert torch.equal(moved, torch.ones(3, 5, dtype=dtype))


def test_numbers_that_cutting_off_moves_further_than_rounding() -> None:
    for matrix in product_inputs.below_tf32(20, 30, 10, torch.float32, torch.Generator()):
        cut = (matrix.view(torch.int32) & ~0x1FFF).view(torch.float32)
        rounded = ((matrix.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
        assert bool((matrix - cut > 15 * (rounded - matrix).abs()).all())
        assert bool((cut != rounded).all())


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    ("op", "options", "plain"),
    [
        ("gemm_bias_act", {"act": "silu", "bias": True, "alpha": 0.5}, {"act": "none"}),
        ("linear_gelu", {"approximate": "tanh"}, None),
    ],
)
def test_both_results_of_a_training_step(
    op: str, options: dict[str, object], plain: dict[str, str] | None, dtype: str
) -> None:
    spec, found = SPECS[op], {}
    for which in ("out", "pre"):
        chosen = {**options, "training": which}
        case = Case(op, dtype, products.TMA, "functional", "lattice", 0, chosen)
        args, kwargs = spec.inputs(case)
        with triton_kernels.interpret():
            found[which] = spec.called(case, spec.triton)(*args, **kwargs)
        assert not args[0].requires_grad
        assert spec.exact(case) == (which == "pre")
        exact = spec.oracle(*args, **kwargs)
        torch.testing.assert_close(found[which].double(), exact, rtol=2e-3, atol=1e-5)
    assert torch.equal(found["pre"].double(), exact)  # the last one's
    assert not torch.equal(found["pre"], found["out"])


def test_a_case_is_cut_for_the_multiprocessors_it_names() -> None:
    case = Case("gemm_bias_act", "float16", (64, 64, 64), options={"multiprocessors": 3})
    _, kwargs = SPECS["gemm_bias_act"].inputs(case)
    assert "multiprocessors" not in kwargs
    kernel = triton_kernels.gemm.kernels.gemm_tma_kernel
    with triton_kernels.interpret():
        seen = product_inputs.called(case, lambda: triton_kernels._launch.gpu(kernel, cases.CPU))()
        assert seen.multiprocessors == 3
        after = triton_kernels._launch.gpu(kernel, cases.CPU)
        assert after.multiprocessors == triton_kernels._gpu.H200.multiprocessors
    assert not SPECS[case.op].takes("cuda", None, case)
