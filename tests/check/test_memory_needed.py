"""What a case says that it needs, against what it takes."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from compare import cases, numerics
from compare.cases import CPU, DISTANT, Case
from compare.checking import verdicts
from compare.checking.implementations import (
    Implementation,
    applies,
    implementations,
    is_quick,
    unavailable,
)
from compare.ops import SPECS
from compare.specs import Product, Spec
from compare.specs.activations import ACTIVATIONS

# Of tensors with one element, of tables of bins, of indices.
OVERHEAD = 1 << 15
CUDA = torch.device("cuda")


def peak_of(function: Callable[[], Any]) -> int:
    """The most bytes that torch had allocated on the CPU at a time, by its own account."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        function()
    level = peak = 0
    for event in profiled.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            level += event.nbytes()
            peak = max(peak, level)
    return peak


def peak_on_gpu(function: Callable[[], Any]) -> int:
    """The same on the GPU: what is asked for. The allocator hands out up to 1 MB more a tensor."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    function()
    return torch.cuda.memory_stats()["requested_bytes.all.peak"] - before


def larger(spec: Spec, case: Case) -> Case:
    """The case with so many elements that nothing but elements counts."""
    if case.values == "every":  # which draws all values at least
        return case
    if isinstance(spec, Product):
        return replace(case, shape=(96, 136, 120 if case.shape[2] else 0))
    sizes = {0: (), 1: (1 << 15,), 2: (128, 256)}.get(len(case.shape), (4, 2, 16, 8, 2, 4, 4))
    return replace(case, shape=sizes)


def sample(op: str) -> Iterator[Case]:
    """One case of each size and kind of dtype in each layout, and of all kinds of values with each
    set of options but numbers."""
    spec, seen = SPECS[op], set[tuple[str, str]]()
    for dtype in spec.dtypes:
        for case in spec.cases(dtype, "quick"):
            numbers = {name for name, value in case.options.items() if isinstance(value, float)}
            alike = {k: v for k, v in case.options.items() if k not in numbers and k != "alpha"}
            size = f"{case.torch_dtype.itemsize} {case.torch_dtype.is_floating_point}"
            keys = {(size, case.layout), (case.values, str(sorted(alike.items())))}
            wanted = not case.lying & set(DISTANT) and "multiprocessors" not in case.options
            if keys - seen and wanted and "training" not in case.options:
                seen |= keys
                yield larger(spec, case)


def right(spec: Spec, case: Case) -> Implementation:
    """An implementation that has the results, and needs no memory."""
    arguments = spec.inputs(case)
    result = spec.oracle(*arguments[0], **arguments[1])
    if spec.bounded:
        result = result.to(spec.out_dtype(case))

    def function(*args: Any, out: Tensor | None = None, **kwargs: Any) -> Tensor:
        if out is None:
            out = torch.empty_like(result)
        return out.copy_(result)

    return Implementation("triton-interpreted", None, function)


def checked(spec: Spec, case: Case, able: list[Implementation]) -> Callable[[], None]:
    def check() -> None:
        result = verdicts.check_case(spec, case, able)
        assert not result.left_out
        assert len(result.outcomes) == len(able)
        for outcome in result.outcomes:
            wrong = outcome.mismatch
            assert wrong is None or "less accurate" in wrong.problem, wrong

    return check


def wrongly_stated(
    op: str, wanted: Iterator[Case], able: list[Implementation] | None = None
) -> list[str]:
    spec, wrong, count = SPECS[op], [], 0
    gc.collect()  # garbage of other tests, freed meanwhile, would count as memory given back
    for case in wanted:
        stated = spec.memory(case)
        peak = peak_of(checked(spec, case, able or [right(spec, case)]))
        count += 1
        if not peak <= stated + OVERHEAD or not stated <= 2 * peak + OVERHEAD:
            wrong.append(f"{case}: {peak:,} bytes, but {stated:,} are stated ({stated / peak:.2f})")
    assert count
    return wrong


@pytest.mark.parametrize("op", SPECS)
def test_a_case_takes_what_it_states_and_at_least_half_of_it(op: str) -> None:
    """Of everything but the kernels, on tensors of some 10⁴ elements."""
    wrong = wrongly_stated(op, sample(op))
    assert not wrong, "\n".join(wrong)


HUGE = {
    "sum_to": [
        Case("sum_to", "float16", (1025, 2049), layout, options={"to": to})
        for layout in ("contiguous", "transposed")
        for to in ("row", "column")
    ],
    "act_backward": [
        *(
            Case("act_backward", "float16", (1025, 2049), options={"act": act})
            for act in ACTIVATIONS
        ),
        Case("act_backward", "float16", (3, 524287), options={"act": "gelu"}),
        Case("act_backward", "float16", (1, 1 << 20), options={"act": "gelu"}),
        Case("act_backward", "float16", (1025, 2049), values="integers", options={"act": "relu"}),
    ],
    **{
        op: [
            Case(op, "float16", (8191, 17, 33), layout, options=SPECS[op].default_options)
            for layout in ("contiguous", "transposed")
        ]
        for op in ("gemm_bias_act", "linear_act", "linear_gelu")
    },
}


def scale_down(monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    monkeypatch.setattr(numerics, "CHUNK", part)
    monkeypatch.setattr(cases, "LONGEST", 1 << 10)
    monkeypatch.setattr(cases, "WATCHED", 1 << 10)


@pytest.mark.parametrize("op", SPECS)
def test_what_is_huge_takes_what_it_states(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU past 2³¹ elements, a small part of which is drawn or judged at a time, and none
    watched: here of 10⁶ elements, so that OVERHEAD is less than a byte an element of a part."""
    scale_down(monkeypatch, 1 << 16)
    spec = SPECS[op]
    usual = [
        Case(op, "float16", shape, layout, options=spec.default_options)
        for shape, layout in (
            ((1 << 21,), "contiguous"),
            ((1025, 2049), "transposed"),
            ((1025, 2049), "strided"),
        )
    ]
    wrong = wrongly_stated(op, iter(HUGE.get(op, usual)))
    assert not wrong, "\n".join(wrong)


def test_a_copy_of_a_huge_input_is_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that no descriptor takes, since they are not on multiples of 16 bytes."""
    scale_down(monkeypatch, 1 << 10)
    spec, case = SPECS["gemm_bias_act"], Case("gemm_bias_act", "float16", (1025, 40, 41))
    able = [Implementation("triton-interpreted", None, spec.triton)]
    wrong = wrongly_stated(spec.name, iter([case]), able)
    assert not wrong, "\n".join(wrong)


def test_one_result_is_there_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numerics, "CHUNK", 1 << 10)
    spec, case = SPECS["square"], Case("square", "uint8", (1 << 17,))
    several = [right(spec, case)] * 5
    one, five = (peak_of(checked(spec, case, able)) for able in (several[:1], several))
    assert five <= one + OVERHEAD


@pytest.mark.parametrize("op", SPECS)
def test_kernels_take_no_more_than_is_stated(op: str) -> None:
    """Their own copies of inputs, partial sums and second results are in it: the largest case that
    is quick, and those of both results."""
    spec = SPECS[op]
    modes = [m for m in ("triton-interpreted", "cuda-host") if m not in unavailable()]
    candidates = [w for w in implementations(spec, modes) if w.variant is None]
    every = [
        case
        for case in spec.cases("float16", "quick")
        if not case.lying & set(DISTANT) and "multiprocessors" not in case.options
    ]
    quick = [case for case in every if all(is_quick(w, spec, case) for w in candidates)]
    chosen = [max(quick, key=spec.memory)]
    chosen += [case for case in every if "training" in case.options or case.layout == "functional"]
    for case in chosen[:6]:
        able = [w for w in candidates if applies(w, spec, case)]
        peak = peak_of(checked(spec, case, able))
        assert peak <= spec.memory(case) + OVERHEAD, case


@pytest.mark.parametrize("op", SPECS)
def test_what_is_small_and_past_2_31_fits_in_24_gb(
    op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    spec, past = SPECS[op], 0
    for dtype in spec.dtypes:
        for case in spec.cases(dtype, "full"):
            if case.torch_dtype.itemsize > 2 or case.lying & set(DISTANT):
                continue
            stated = spec.memory(case, CUDA)
            assert stated <= 24e9, f"{case}: {stated / 1e9:.1f} GB"
            past += stated > 2**32
    assert past or op in ("linear_act", "linear_gelu")


def test_distant_rows_take_gigabytes_on_a_gpu_alone() -> None:
    case = Case("square", "float16", (3,), "distant")
    assert SPECS["square"].memory(case, CPU) < 1 << 16
    assert SPECS["square"].memory(case, CUDA) > 2 * 2**31 * 2


@pytest.mark.gpu_only
@pytest.mark.parametrize("op", SPECS)
def test_a_large_case_takes_what_it_states_on_a_gpu(op: str) -> None:
    """All that fits."""
    spec, wrong = SPECS[op], []
    modes = [m for m in ("triton-compiled", "cuda-gpu") if m not in unavailable()]
    candidates = [w for w in implementations(spec, modes) if w.variant is None]
    for dtype in spec.dtypes:
        for case in spec.cases(dtype, "full"):
            able = verdicts.able(spec, case, candidates, limit=True)
            stated = spec.memory(case, CUDA)
            if not able or not 1 << 27 < stated < torch.cuda.mem_get_info()[0]:
                continue
            peak = peak_on_gpu(checked(spec, case, able))
            # Of 10 GB act_backward took 39 kB more on an H100; nobody has looked for them yet.
            grace = OVERHEAD + stated // 100_000
            if not peak <= stated + grace or not stated <= 2 * peak:
                wrong.append(f"{case}: {peak:,} bytes, {stated:,} stated ({stated / peak:.2f})")
    assert not wrong, "\n".join(wrong)
