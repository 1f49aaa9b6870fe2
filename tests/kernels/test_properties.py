"""Every op on arguments that hypothesis draws, in every mode, against the spec's oracle and bound,
and against torch where that is more.

``pytest tests/kernels/test_properties.py --hypothesis-profile thorough`` draws many more, and so
does ``make fuzz``. A failure prints the smallest call found that still fails;
``check(mode, Call(...))`` runs it again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf

import pytest
import torch

pytest.importorskip("hypothesis")

from hypothesis import given, settings
from hypothesis import strategies as st
from long_runs import LongRun
from strategies import (
    Call,
    TensorSpec,
    any_sums,
    elementwise_calls,
    gated_units,
    gemm_calls,
    gradients,
    special_value,
    sums,
)
from torch import Tensor

from compare import numerics
from compare.cases import INTEGERS
from compare.checking import eager_rule, running
from compare.checking.implementations import (
    MODES,
    Implementation,
    applies,
    implementations,
    unavailable,
)
from compare.checking.oracles import Oracle
from compare.ops import SPECS
from compare.specs import Spec
from triton_kernels.gemm.choice import SMALL

pytestmark = pytest.mark.filterwarnings("error")  # an op is silent, whatever the numbers
EXACT = [spec.name for spec in SPECS.values() if not spec.bounded]
BOUNDED = [spec.name for spec in SPECS.values() if spec.bounded]
DRAWN = {
    "sum_to": sums,
    "act_backward": gradients,
    "act_mul": gated_units,
    "act_mul_backward": gated_units,
}  # the others are matrix products
FUZZED = 10_000  # calls of a long run: of all ops, in all modes of this machine


def explore(
    mode: str,
    calls: st.SearchStrategy[Call],
    check: Callable[[str, Call], int],
    long_run: LongRun,
) -> None:
    """Check drawn calls; fewer where almost every call is a kernel to compile."""
    tests = len(SPECS) * (len(MODES) - len(unavailable()))
    examples = long_run.amount(settings().max_examples, -(-FUZZED // tests))
    examples //= 5 if mode == "triton-compiled" else 1

    @settings(max_examples=examples)
    @given(calls)
    def holds(call: Call) -> None:
        runs = check(mode, call)
        counted = {"calls": 1, "runs of kernels": runs}
        long_run.add("what hypothesis draws is right, by the oracle and by torch", **counted)

    holds()


def memories(args: tuple, options: dict) -> list[Tensor]:
    """All the bytes of the tensors' storages, their neighbours included."""
    tensors = [t for t in (*args, *options.values()) if isinstance(t, Tensor)]
    empty = [torch.empty(0, dtype=torch.uint8, device=t.device) for t in tensors]
    return [e.set_(t.untyped_storage()).clone() for e, t in zip(empty, tensors)]


def takes_torchs_steps(call: Call) -> bool:
    """Whether torch computes an exact op as we do, to the bit. Elsewhere it rounds once more or
    once less: between two steps of a narrow dtype, before a sum of two dtypes, in alpha·y."""
    given = (*call.args, *call.options.values())
    dtypes = {t.dtype for t in given if isinstance(t, TensorSpec)}
    numbers = any(not isinstance(arg, TensorSpec) for arg in call.args)
    if len(dtypes) > 1 or numbers or call.op == "relu_scale_add":
        return False
    if call.op == "add":
        return dtypes <= set(INTEGERS) or call.options.get("alpha", 1) == 1
    return call.op == "square" or not dtypes & {"float16", "bfloat16"}


def against_torch(
    call: Call, spec: Spec, implementation: Implementation, reference: Tensor, result: Tensor
) -> str:
    """What is wrong with a right result beside torch's; nothing where torch defines none."""
    args, options = call.arguments(implementation.device)
    if not spec.bounded:
        try:
            eager = spec.eager(*args, **options) if takes_torchs_steps(call) else result
        except RuntimeError:  # a number that torch does not take for the dtype
            return ""
        same = torch.equal(eager.nan_to_num(), result.nan_to_num())
        return "" if same and torch.equal(eager.isnan(), result.isnan()) else f"torch: {eager}"
    if call.op == "act_backward":  # how far its few column sums are off is luck
        return ""
    plain = not any(
        isinstance(t, TensorSpec) and t.special for t in (*call.args, *call.options.values())
    )
    case = replace(call.case(reference.shape), values="normal" if plain else "special")
    if not eager_rule.answers_to_eager(
        spec, case, implementation.side, implementation.variant, reference.numel()
    ):
        return ""
    oracle = Oracle(spec, (args, options), reference)
    return str(eager_rule.less_accurate(spec, result, oracle) or "")


def check(mode: str, call: Call) -> int:
    """Every implementation of the mode gives what is right, and writes nowhere else; how many."""
    spec = SPECS[call.op]
    ran = 0
    for implementation in implementations(spec, [mode]):
        args, options = call.arguments(implementation.device)
        reference = spec.oracle(*args, **options)
        case = call.case(reference.shape)
        if not applies(implementation, spec, case):
            continue
        if (
            implementation.variant == "gluon" and args[0].shape[-1] <= SMALL
        ):  # K, which no result shows
            continue
        out = args[0] if call.out == "x" else call.out and call.out.tensor()
        layout = {"x": "inplace", None: "functional"}.get(call.out, case.layout)
        before = memories(args, options)
        outcome = running.run(
            spec, replace(case, layout=layout), implementation, (args, options), reference, out
        )
        # Of addresses, of a product's K, and of strides that no layout has, a case says nothing.
        refusal = {"stream": "takes tensors that lie alike", "gluon": "is not made for"}
        refusal |= dict.fromkeys(SPECS["sum_to"].rungs(), "takes at most 2 dimensions")
        told = refusal.get(implementation.variant or "")
        if outcome.mismatch and told and told in outcome.mismatch.problem:
            continue
        if outcome.mismatch is not None:
            found = outcome.mismatch.deviation or ""
            pytest.fail(f"{implementation.name}: {outcome.mismatch.problem}\n{found}".strip())
        assert outcome.result is not None
        if wrong := against_torch(call, spec, implementation, reference, outcome.result):
            pytest.fail(f"{implementation.name}: {wrong}")
        for was, now in zip(before, memories(args, options)):
            assert torch.equal(was, now), f"{implementation.name} wrote to its inputs"
        ran += 1
    assert ran or case.options.get("precision", "ieee") != "ieee"
    return ran


def check_exact(mode: str, call: Call) -> int:
    """And the result has the shape and dtype of torch's own: the oracle's must be those."""
    args, options = call.arguments(torch.device("meta"))
    options.pop("alpha", None)  # decides neither, and torch's own code for it overflows
    eager = SPECS[call.op].eager(*args, **options)
    args, options = call.arguments()
    reference = SPECS[call.op].oracle(*args, **options)
    assert (reference.dtype, reference.shape) == (eager.dtype, eager.shape)
    return check(mode, call)


@pytest.mark.parametrize("op", EXACT)
def test_exact_ops(op: str, mode: str, long_run: LongRun) -> None:
    explore(mode, elementwise_calls(op), check_exact, long_run)


@pytest.mark.parametrize("op", BOUNDED)
def test_bounded_ops(op: str, mode: str, long_run: LongRun) -> None:
    explore(mode, DRAWN.get(op, gemm_calls)(op), check, long_run)


def present(call: Call) -> bool:
    """Whether its op is there: ops come and go by their files."""
    return call.op in SPECS


MINUS_ZERO = TensorSpec("float32", (1,), special=("-0",))
FAILED_ONCE = [
    # 0 + scale, written to broadcast a scale of −0, made it 0.
    Call("relu_scale_add", (TensorSpec("float32", (1,)), MINUS_ZERO), {"scale": -0.0}),
    Call("add", (MINUS_ZERO, TensorSpec("float32", (1,))), {"alpha": -0.0}),
    # The interpreter warned of an overflow.
    Call("relu_scale", (TensorSpec("float32", (1,)),), {"scale": 1e300}),
]


@pytest.mark.parametrize(
    "call", filter(present, FAILED_ONCE), ids=lambda call: f"{call.op} {call.options}"
)
def test_calls_that_failed_once(call: Call, mode: str) -> None:
    check_exact(mode, call)


def check_refusals(mode: str, call: Call) -> int:
    """Add takes what torch.add takes, and refuses the rest before anything runs."""
    implementation = implementations(SPECS["add"], [mode])[0]
    args, options = call.arguments(implementation.device)
    try:
        eager = torch.add(*args, **options)
    except RuntimeError:
        with pytest.raises((TypeError, RuntimeError), match=r"^add\(\): "):
            implementation(*args, **options)
    else:
        result = implementation(*args, **options)
        assert (result.dtype, result.shape) == (eager.dtype, eager.shape)
    return 1


def test_add_refuses_what_torch_refuses(mode: str) -> None:
    explore(mode, any_sums(), check_refusals, LongRun())


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


def test_what_overlaps_itself_is_told_apart() -> None:
    assert TensorSpec("int8", (3, 2), strides=(1, 1)).overlaps
    assert TensorSpec("int8", (3, 2), strides=(0, 1)).overlaps
    assert not TensorSpec("int8", (3, 2), strides=(2, 1)).overlaps
    assert not TensorSpec("int8", (3, 1, 0), strides=(0, 0, 0)).overlaps
    assert not TensorSpec("int8", (3, 1), strides=(1, 0)).overlaps


COMPARED = [  # with torch's result, or not
    (Call("add", (TensorSpec("float16", (9,)),) * 2), True),
    (Call("add", (TensorSpec("int8", (9,)),) * 2, {"alpha": -3}), True),
    (Call("add", (TensorSpec("int8", (9,)),) * 2, {"alpha": 2**63 - 1}), False),
    (Call("add", (TensorSpec("float32", (9,)),) * 2, {"alpha": 0.1}), False),
    (Call("add", (TensorSpec("float32", (9,)), TensorSpec("float16", (9,)))), False),
    (Call("relu_scale", (TensorSpec("float32", (9,), special=("nan",)),), {"scale": inf}), True),
    (Call("relu_scale", (TensorSpec("float16", (9,)),), {"scale": 0.1}), False),
    (Call("linear_act", (*[TensorSpec("float32", (9, 9))] * 2, None), {"act": "none"}), True),
]


@pytest.mark.parametrize(
    ("call", "compared"), [(call, yes) for call, yes in COMPARED if present(call)], ids=str
)
def test_results_are_held_against_torchs(call: Call, compared: bool, mode: str) -> None:
    spec, implementation = SPECS[call.op], implementations(SPECS[call.op], [mode])[0]
    args, options = call.arguments(implementation.device)
    right = spec.oracle(*args, **options)
    assert against_torch(call, spec, implementation, right, right.to(args[0].dtype)) == ""
    wrong = right.nan_to_num(0, 0, 0) + 1
    compared = compared and (not spec.bounded or implementation.side == "triton")
    assert (
        bool(against_torch(call, spec, implementation, right, wrong.to(args[0].dtype))) == compared
    )
