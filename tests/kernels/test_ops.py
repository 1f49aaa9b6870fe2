"""Every op, dtype and implementation on some cases of its spec, against the oracle."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import cuda_reference
import triton_kernels
from compare import cases
from compare.cases import Case
from compare.checking import verdicts
from compare.checking.implementations import implementations, is_quick
from compare.ops import SPECS

ROWS = [(spec.name, dtype) for spec in SPECS.values() for dtype in spec.dtypes]


@pytest.mark.parametrize(("op", "dtype"), ROWS)
def test_cases_are_right(op: str, dtype: str, mode: str) -> None:
    """Some of the quick check's cases, with another seed: all of them are `make compare`'s. Each
    dtype has another sixteenth, and its share of the first cases of each activation and of each
    way to lie: an op's dtypes together see them all."""
    spec = SPECS[op]
    candidates = implementations(spec, [mode])
    every = [*spec.cases(dtype, "quick")]
    one_each = {}
    for case in reversed(every):
        one_each[case.options.get("act"), case.options.get("approximate")] = case
        one_each[tuple(sorted(case.lying))] = case
    turn = spec.dtypes.index(dtype)
    share = [one_each[key] for key in sorted(one_each, key=str)][turn :: len(spec.dtypes)]
    chosen = [replace(case, seed=1) for case in [*every[turn % 16 :: 16], *share]]
    wrong = []
    ran = 0
    for result in verdicts.check(spec, chosen, candidates):
        ran += len(result.outcomes)
        wrong += [str(o.mismatch) for o in result.outcomes if o.mismatch]
    assert ran >= len(chosen) // 2
    assert not wrong, "\n\n".join(wrong[:3])


@pytest.mark.parametrize("op", [spec.name for spec in SPECS.values() if not spec.bounded])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_oracles_stay_near_the_real_formula(op: str, dtype: str) -> None:
    """One rounding in the compute type, one to the result: (1 + u)² − 1, plus a rounded scalar."""
    spec = SPECS[op]
    options = {"alpha": 0.1} if op == "add" else dict(spec.default_options)
    args, options = spec.inputs(Case(op, dtype, (4096,), options=options))
    reference = spec.oracle(*args, **options)
    wide = [a.double() for a in args]  # in which no step is rounded to a narrower type
    exact = spec.eager(*wide, **options)
    u_out, u_c = torch.finfo(args[0].dtype).eps / 2, 2.0**-24
    magnitude = spec.eager(*(a.abs() for a in wide), **options)
    bound = u_out * exact.abs() + (1 + u_out) * 2 * u_c * magnitude + 1e-40
    bound += torch.finfo(args[0].dtype).tiny * torch.finfo(args[0].dtype).eps / 2
    assert bool(((reference.double() - exact).abs() <= bound).all())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32"])
@pytest.mark.parametrize("value", [2, 0.5, 3.7])
def test_result_dtype_is_torchs(dtype: str, value: float, mode: str) -> None:
    spec = SPECS["add"]
    implementation = implementations(spec, [mode])[0]
    x = torch.arange(10).to(cases.DTYPES[dtype]).to(implementation.device)
    assert implementation(x, value).dtype == torch.add(x, value).dtype
    zero_d = torch.tensor(1.5, dtype=torch.float64, device=implementation.device)
    assert implementation(x, zero_d).dtype == torch.add(x, zero_d).dtype


def test_scalars_round_once(mode: str) -> None:
    """0.1 in float64 is not 0.1 in float32: a scalar must not pass through the narrower type."""
    implementation = implementations(SPECS["add"], [mode])[0]
    x = torch.ones(3, dtype=torch.float64, device=implementation.device)
    assert implementation(torch.zeros_like(x), x, alpha=0.1).tolist() == [0.1] * 3
    implementation = implementations(SPECS["gemm_bias_act"], [mode])[0]
    one = torch.ones(1, 1, dtype=torch.float64, device=implementation.device)
    assert implementation(one, one, alpha=0.1).item() == 0.1


def test_numpy_scalars_are_numbers(mode: str) -> None:
    implementation = implementations(SPECS["add"], [mode])[0]
    x = torch.ones(3, device=implementation.device)
    assert implementation(x, x, alpha=np.float32(0.5)).tolist() == [1.5] * 3
    assert implementation(x, x, alpha=np.int64(2)).tolist() == [3.0] * 3


def test_beta_zero_does_not_read_c(mode: str) -> None:
    implementation = implementations(SPECS["gemm_bias_act"], [mode])[0]
    a = torch.ones(4, 4, device=implementation.device)
    c = torch.full((4, 4), math.nan, device=implementation.device)
    assert implementation(a, a, c=c, beta=0.0).tolist() == [[4.0] * 4] * 4


def test_outputs_keep_the_layout_of_x(mode: str) -> None:
    """As torch does for dense inputs, and without gaps."""
    implementation = implementations(SPECS["add"], [mode])[0]
    x = torch.randn(4, 6, device=implementation.device).t()
    assert implementation(x, x).stride() == implementation(x, x[:1]).stride() == x.stride()
    assert implementation(x[:1], x).is_contiguous()
    assert implementation(x[::2], x[::2]).stride() == torch.empty_like(x[::2]).stride()


def test_cpu_tensors_need_the_interpreter() -> None:
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET=1") as caught:
        triton_kernels.add(torch.ones(3), 1)
    assert "triton_kernels.interpret()" in str(caught.value)


def test_both_sides_list_the_ops_and_nothing_else() -> None:
    assert set(triton_kernels.OPS) == set(cuda_reference.OPS) == set(SPECS)
    for package in (triton_kernels, cuda_reference):
        for name in set(package.__all__) - set(SPECS):
            with pytest.raises(ValueError, match="no op"):
                package.variants(name)


def test_the_interpreter_runs_its_variants_on_small_cases_only() -> None:
    default, variant, *_ = implementations(SPECS["add"], ["triton-interpreted"])
    for numel, both in ((5000, True), (5001, False)):
        case = Case("add", "float32", (numel,))
        assert is_quick(default, SPECS["add"], case)
        assert is_quick(variant, SPECS["add"], case) is both
