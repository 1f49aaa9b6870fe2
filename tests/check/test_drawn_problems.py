"""Problems drawn at random: quotas, shares, and that the tensors lie as their strata say."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from compare.cases import META, Case, tensors_of
from compare.checking import running
from compare.checking.implementations import implementations
from compare.ops import SPECS
from compare.specs import drawn_products
from compare.specs.drawn import drawn, images, log_uniform, matrix, odd_matrix, quotas

PRODUCTS = ("gemm_bias_act", "linear_act", "linear_gelu")


def options_of(case: Case, name: str) -> Any:
    return case.options.get(name)


@pytest.mark.parametrize("op", SPECS)
def test_the_same_seed_draws_the_same_and_every_problem_is_another(op: str) -> None:
    first = drawn(SPECS[op], 60, 7, ["float16", "float32"])
    assert first == drawn(SPECS[op], 60, 7, ["float16", "float32"])
    assert first != drawn(SPECS[op], 60, 8, ["float16", "float32"])
    assert len({str(each.case) for each in first}) == 60
    assert {each.case.dtype for each in first} == {"float16", "float32"}


@pytest.mark.parametrize("op", SPECS)
def test_every_stratum_has_its_quota_and_nothing_is_refused(op: str) -> None:
    spec = SPECS[op]
    found = drawn(spec, 120, 1, ["bfloat16"])
    assert Counter(each.stratum for each in found) == quotas(spec.strata, 120)
    assert sum(spec.strata.values()) == pytest.approx(1)
    for stratum, case in found:
        assert not spec.refuses(case), (stratum, case)
        tensors = tensors_of(spec.inputs(case, META))
        assert all(t.numel() * t.element_size() <= 1 << 30 for t in tensors), case
        assert all(t.numel() for t in tensors), case


def test_quotas_are_whole_and_make_all() -> None:
    assert quotas({"a": 0.6, "b": 0.25, "c": 0.15}, 10) == {"a": 6, "b": 3, "c": 1}
    assert quotas({"a": 0.5, "b": 0.5}, 1) == {"a": 1, "b": 0}
    for count in range(1, 60):
        given = quotas(drawn_products.STRATA, count)
        assert sum(given.values()) == count
        share = {name: count * part for name, part in drawn_products.STRATA.items()}
        assert all(abs(given[name] - share[name]) < 1 for name in given)


def test_products_have_their_shares() -> None:
    found = drawn(SPECS["gemm_bias_act"], 2000, 3, ["float16"])
    assert Counter(stratum.split(", ")[0] for stratum, _ in found) == dict.fromkeys(
        ("few rows", "latency", "memory-bound", "compute-bound"), 500
    )
    aligned = Counter(stratum.split(", ")[1] for stratum, _ in found)
    assert aligned == {"of 64": 1200, "of 8": 500, "odd": 300}
    all_cases = [case for _, case in found]

    def share(name: str, value: Any) -> float:
        return sum(options_of(case, name) == value for case in all_cases) / 2000

    assert share("operands", "dgrad") == pytest.approx(0.1, abs=0.03)
    assert share("operands", "wgrad") == pytest.approx(0.1, abs=0.03)
    assert share("c", "full") == pytest.approx(0.1, abs=0.03)
    assert share("training", "out") == pytest.approx(0.1, abs=0.03)
    for act in ("gelu_tanh", "relu", "none", "silu", "gelu"):
        assert share("act", act) == pytest.approx(0.2, abs=0.04)


@pytest.mark.parametrize(("op", "dtype"), [*itertools.product(PRODUCTS, ("float16", "float32"))])
def test_products_are_in_the_stratum_that_they_bear(op: str, dtype: str) -> None:
    rate, size = (7e14, 2) if dtype == "float16" else (7e14 / 3, 4)
    for stratum, case in drawn(SPECS[op], 240, 2, [dtype]):
        M, N, K = case.shape
        assert 1 <= M <= 16384
        assert all(64 <= n <= 16384 for n in (N, K))
        assert 2 * M * N * K <= 2**40
        regime, aligned = stratum.split(", ")
        moved = (M * K + K * N + M * N) * size
        roofline = 1e6 * max(2 * M * N * K / rate, moved / 4.3e12)
        expected = (
            "few rows"
            if M <= 32
            else "latency"
            if roofline < 3
            else "compute-bound"
            if 2 * M * N * K >= 2**34
            else "memory-bound"
        )
        assert regime == expected
        common = math.gcd(N, K)
        assert aligned == ("of 64" if common % 64 == 0 else "of 8" if common % 8 == 0 else "odd")


def test_rows_are_log_uniform() -> None:
    random = Random(0)
    found = [log_uniform(random, 1, 16384) for _ in range(4000)]
    octaves = Counter(n.bit_length() for n in found if n < 16384)
    assert min(found) == 1
    assert max(found) > 12000
    assert all(octaves[bits] == pytest.approx(4000 / 14, rel=0.25) for bits in range(2, 14))


def test_shapes_have_about_as_many_elements_as_asked_for() -> None:
    random = Random(1)
    for numel in (256, 1000, 12345, 10**6, 2**29):
        for _ in range(50):
            for draw in (matrix, odd_matrix, images):
                count = math.prod(draw(random, numel))
                assert 0 < count <= numel
            assert matrix(random, numel)[1] % 16 == 0
            assert math.prod(odd_matrix(random, numel)) % 2 == 1


# ---- how tensors lie ----


def dense(t: Tensor) -> bool:
    return t.is_contiguous() and t.storage_offset() == 0


def lies(stratum: str, tensors: list[Tensor]) -> bool:
    """Whether the operands are what the stratum's name says."""
    x, y = tensors[0], tensors[-1]
    if stratum == "dense":
        return all(dense(t) and t.shape[-1] % 16 == 0 for t in tensors)
    if stratum == "odd count":
        return all(dense(t) and t.numel() % 2 == 1 for t in tensors)
    if stratum == "offset view":
        return all(t.is_contiguous() and t.storage_offset() == 1 for t in tensors)
    if stratum == "every second element":
        return all(t.stride(-1) == 2 and t.stride(0) == 2 * t.shape[1] for t in tensors)
    if stratum == "padded rows":
        return all(t.stride(1) == 1 and t.stride(0) > t.shape[1] for t in tensors)
    if stratum == "transposed":
        return x.t().is_contiguous() and not dense(x)
    if stratum == "permuted 4-D":
        return x.is_contiguous(memory_format=torch.channels_last) and not dense(x)
    if stratum == "transposed pair":
        pair = sorted(tensors, key=dense)
        return x.shape == y.shape and pair[0].t().is_contiguous() and [*map(dense, pair)] == [0, 1]
    if stratum == "permuted pair 4-D":
        pair = sorted(tensors, key=dense)
        last = pair[0].is_contiguous(memory_format=torch.channels_last)
        return x.shape == y.shape and last and [*map(dense, pair)] == [0, 1]
    M, N = x.shape[0], y.shape[-1]
    shapes = {
        "row": [(M, x.shape[-1]), (x.shape[-1],)],
        "column": [(M, x.shape[-1]), (M, 1)],
        "outer": [(M, 1), (N,)],
        "channel": [tuple(x.shape), (x.shape[1 % x.dim()], 1, 1)],
    }
    return [tuple(t.shape) for t in tensors] == shapes[stratum]


@pytest.mark.parametrize(
    "op", [op for op, spec in SPECS.items() if hasattr(spec, "operands") and spec.order == 0]
)
def test_elementwise_tensors_lie_as_the_stratum_says(op: str) -> None:
    spec = SPECS[op]
    for stratum, case in drawn(spec, 220, 4, ["float16", "float32", "bfloat16"]):
        tensors = tensors_of(spec.inputs(case, META))
        assert lies(stratum, tensors), (stratum, str(case))
        shape = torch.broadcast_shapes(*(t.shape for t in tensors))
        assert shape == case.shape
        each = [*(t.numel() for t in tensors), math.prod(shape)]
        assert spec.cost(case)[1] == sum(each) * case.torch_dtype.itemsize


def test_elementwise_sizes_go_from_a_kilobyte_to_a_gigabyte() -> None:
    sizes = [
        case.numel * case.torch_dtype.itemsize
        for _, case in drawn(SPECS["add"], 600, 0, ["float16", "float32"])
    ]
    assert min(sizes) < 4096
    assert max(sizes) > 1 << 29
    below = sum(size < 1 << 20 for size in sizes) / 600
    assert below == pytest.approx(0.5, abs=0.08)


@pytest.mark.parametrize("op", PRODUCTS)
def test_operands_lie_as_in_a_layer_and_its_gradients(op: str) -> None:
    spec = SPECS[op]
    for operands, (a_rows, b_rows) in {
        "forward": (True, False),
        "dgrad": (True, True),
        "wgrad": (False, True),
    }.items():
        case = Case(op, "float16", (7, 24, 40), "functional", options={"operands": operands})
        (a, b, _), _ = spec.inputs(case)
        b = b if op == "gemm_bias_act" else b.t()
        assert b.shape == (40, 24)
        assert [t.is_contiguous() for t in (a, b)] == [a_rows, b_rows]
        assert [t.t().is_contiguous() for t in (a, b)] == [not a_rows, not b_rows]


@pytest.mark.parametrize(
    "case",
    [
        *(
            Case("add", "float16", (3, 5, 7, 2), options={"y": y})
            for y in ("outer", "channel", "channels_last", "chunk")
        ),
        Case("square", "float32", (3, 8, 4, 4), "channels_last"),
        Case("act_backward", "float32", (5, 9), "chunk", options={"act": "relu"}),
        *(
            Case(op, "float16", (5, 24, 40), "functional", options={"operands": operands})
            for op in ("gemm_bias_act", "linear_gelu")
            for operands in ("forward", "dgrad", "wgrad")
        ),
    ],
    ids=str,
)
def test_what_is_only_drawn_is_right_too(case: Case) -> None:
    """The layouts that check has no cases of, interpreted."""
    spec = SPECS[case.op]
    (implementation,) = (
        each for each in implementations(spec, ["triton-interpreted"]) if each.variant is None
    )
    arguments = spec.inputs(case)
    reference = spec.oracle(*arguments[0], **arguments[1])
    outcome = running.run(spec, case, implementation, arguments, reference)
    assert outcome.mismatch is None, outcome.mismatch


def test_cublaslt_and_torch_compile_are_asked_where_they_differ() -> None:
    spec = SPECS["gemm_bias_act"]

    def case(shape: tuple[int, ...] = (64, 64, 64), **options: Any) -> Case:
        options = {"act": "relu", "bias": True, **options}
        return Case("gemm_bias_act", "float16", shape, "functional", options=options)

    assert spec.fuses(case())
    assert spec.fuses(case(act="gelu_tanh", operands="wgrad"))
    for other in ({"act": "silu"}, {"act": "gelu"}, {"c": "full"}, {"bias": False}):
        assert not spec.fuses(case(**other)), other
    assert not spec.fuses(case(act="gelu_tanh", training="out"))
    plain = case(act="none")
    assert spec.compiled_alike(plain)
    assert not spec.compiled_alike(case())
    assert not spec.compiled_alike(case(act="none", c="full"))  # two addends are two kernels
    assert spec.compiled_alike(case(act="none", c="full", bias=False))
    assert not spec.compiled_alike(case((64, 64, 60), act="none"))  # which it pads
    assert not SPECS["add"].compiled_alike(Case("add", "float16", (4, 4)))
