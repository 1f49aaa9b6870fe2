"""Every op on arguments that hypothesis draws, in every mode, against the spec's oracle and bound.

``pytest tests/kernels/test_properties.py --hypothesis-profile thorough`` draws many more. A failure
prints the smallest call found that still fails; ``check(mode, Call(...))`` runs it again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

pytest.importorskip("hypothesis")

from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import (
    Call,
    TensorSpec,
    any_sums,
    elementwise_calls,
    gemm_calls,
    gradients,
    special_value,
    sums,
)
from torch import Tensor

from compare import numerics
from compare.checking import running
from compare.checking.implementations import applies, implementations
from compare.ops import SPECS

pytestmark = pytest.mark.filterwarnings("error")  # an op is silent, whatever the numbers
EXACT = [spec.name for spec in SPECS.values() if not spec.bounded]
BOUNDED = [spec.name for spec in SPECS.values() if spec.bounded]
DRAWN = {"sum_to": sums, "act_backward": gradients}  # the others are matrix products


def explore(mode: str, calls: st.SearchStrategy[Call], check: Callable[[str, Call], None]) -> None:
    """Check drawn calls; fewer where almost every call is a kernel to compile."""
    examples = settings().max_examples // (5 if mode == "triton-compiled" else 1)

    @settings(max_examples=examples)
    @given(calls)
    def holds(call: Call) -> None:
        check(mode, call)

    holds()


def memories(args: tuple, options: dict) -> list[Tensor]:
    """All the bytes of the tensors' storages, their neighbours included."""
    tensors = [t for t in (*args, *options.values()) if isinstance(t, Tensor)]
    empty = [torch.empty(0, dtype=torch.uint8, device=t.device) for t in tensors]
    return [e.set_(t.untyped_storage()).clone() for e, t in zip(empty, tensors)]


def check(mode: str, call: Call) -> None:
    """Every implementation of the mode gives what is right, and writes nowhere else."""
    spec = SPECS[call.op]
    ran = 0
    for way in implementations(spec, [mode]):
        args, options = call.arguments(way.device)
        reference = spec.oracle(*args, **options)
        case = call.case(reference.shape)
        if not applies(way, spec, case):
            continue
        out = args[0] if call.out == "x" else call.out and call.out.tensor()
        layout = {"x": "inplace", None: "functional"}.get(call.out, case.layout)
        before = memories(args, options)
        outcome = running.run(
            spec, replace(case, layout=layout), way, (args, options), reference, out
        )
        if outcome.mismatch is not None:
            found = outcome.mismatch.deviation or ""
            pytest.fail(f"{way.name}: {outcome.mismatch.problem}\n{found}".strip())
        for was, now in zip(before, memories(args, options)):
            assert torch.equal(was, now), f"{way.name} wrote to its inputs"
        ran += 1
    assert ran or case.options.get("precision", "ieee") != "ieee"


def check_exact(mode: str, call: Call) -> None:
    """And the result has the shape and dtype of torch's own: the oracle's must be those."""
    args, options = call.arguments(torch.device("meta"))
    options.pop("alpha", None)  # decides neither, and torch's own code for it overflows
    eager = SPECS[call.op].eager(*args, **options)
    args, options = call.arguments()
    reference = SPECS[call.op].oracle(*args, **options)
    assert (reference.dtype, reference.shape) == (eager.dtype, eager.shape)
    check(mode, call)


@pytest.mark.parametrize("op", EXACT)
def test_exact_ops(op: str, mode: str) -> None:
    explore(mode, elementwise_calls(op), check_exact)


@pytest.mark.parametrize("op", BOUNDED)
def test_bounded_ops(op: str, mode: str) -> None:
    explore(mode, DRAWN.get(op, gemm_calls)(op), check)


MINUS_ZERO = TensorSpec("float32", (1,), special=("-0",))
FAILED_ONCE = [
    # 0 + scale, written to broadcast a scale of −0, made it 0.
    Call("relu_scale_add", (TensorSpec("float32", (1,)), MINUS_ZERO), {"scale": -0.0}),
    Call("add", (MINUS_ZERO, TensorSpec("float32", (1,))), {"alpha": -0.0}),
    # The interpreter warned of an overflow.
    Call("relu_scale", (TensorSpec("float32", (1,)),), {"scale": 1e300}),
]


@pytest.mark.parametrize("call", FAILED_ONCE, ids=lambda call: f"{call.op} {call.options}")
def test_calls_that_failed_once(call: Call, mode: str) -> None:
    check_exact(mode, call)


def check_refusals(mode: str, call: Call) -> None:
    """Add takes what torch.add takes, and refuses the rest before anything runs."""
    way = implementations(SPECS["add"], [mode])[0]
    args, options = call.arguments(way.device)
    try:
        eager = torch.add(*args, **options)
    except RuntimeError:
        with pytest.raises((TypeError, RuntimeError), match=r"^add\(\): "):
            way(*args, **options)
    else:
        result = way(*args, **options)
        assert (result.dtype, result.shape) == (eager.dtype, eager.shape)


def test_add_refuses_what_torch_refuses(mode: str) -> None:
    explore(mode, any_sums(), check_refusals)


# ---- the strategies themselves ----


@settings(max_examples=20)
@given(
    st.sampled_from(sorted(SPECS)).flatmap(
        lambda op: elementwise_calls(op) if op in EXACT else DRAWN.get(op, gemm_calls)(op)
    )
)
def test_a_repr_rebuilds_the_call(call: Call) -> None:
    import strategies

    again = eval(repr(call), vars(strategies))
    assert repr(again) == repr(call)
    for a, b in zip(call.arguments()[0], again.arguments()[0]):
        if isinstance(a, Tensor):
            assert a.stride() == b.stride()
            assert bool(numerics.same_bits(a, b).all())


def test_a_spec_is_the_tensor_it_says() -> None:
    t = TensorSpec("float32", (2, 3), strides=(1, 4), offset=2, special=("-0", "nan")).tensor()
    assert (t.stride(), t.storage_offset()) == ((1, 4), 2)
    assert t.data_ptr() % 16 == 8
    zeros = t[t == 0]
    assert zeros.numel() == 2
    assert bool(zeros.signbit().all())
    assert int(t.isnan().sum()) == 1
    (around,) = (m.view(torch.float32) for m in memories((t,), {}))
    assert int(around.isnan().sum()) == around.numel() - 5
    expanded = TensorSpec("int8", (4, 3), strides=(0, 1)).tensor()
    assert torch.equal(expanded[0], expanded[3])


def test_special_values_are_what_they_are_called() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        one, half = (
            torch.tensor(special_value(name, dtype), dtype=dtype) for name in ("1+eps", "eps/2")
        )
        assert one > 1
        assert (1 + half).item() == 1
        assert (one + half - 1).item() == 4 * half.item()
        smallest = torch.tensor(special_value("-subnormal", dtype), dtype=dtype)
        assert smallest < 0
        assert (smallest / 2).item() == 0
    assert special_value("-max", torch.int8) == -127
