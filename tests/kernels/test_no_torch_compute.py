"""No public function computes through torch: it allocates, it looks at views, it launches."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import triton_kernels
from compare.checking.implementations import MODES, implementations
from compare.ops import SPECS
from cuda_reference import _registered
from triton_kernels import _operator
from triton_kernels.gemm.gluon import availability
from triton_kernels.interpreter import emulation

ALLOCATIONS = {"empty", "empty_like", "empty_strided", "new_empty"}
VIEWS = {"alias", "as_strided", "detach", "expand", "t", "transpose", "view", "_unsafe_view"}
DTYPES = {"promote_types"}  # from dtypes to a dtype
COPIES = {"clone", "copy_", "_to_copy", "contiguous"}


# The interpreter's stand-ins for a GPU's instructions may call torch: erf does, numpy has none.
INSTRUCTIONS = emulation.__file__


class Recorder(TorchDispatchMode):
    """The aten ops dispatched inside, in order; `emulated` are those of the interpreter."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[str] = []
        self.emulated: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        callers = {frame.f_code.co_filename for frame, _ in traceback.walk_stack(None)}
        found = self.emulated if INSTRUCTIONS in callers else self.ops
        found.append(func._schema.name.removeprefix("aten::"))
        return func(*args, **(kwargs or {}))

    @property
    def surprises(self) -> list[str]:
        return [op for op in self.ops if op not in ALLOCATIONS | VIEWS | DTYPES]


Calls = Iterator[tuple[str, str, tuple, dict[str, Any]]]


def elementwise_calls(device: torch.device) -> Calls:
    """(op, what, arguments, options) of every kind of operand."""
    x, y = torch.randn(6, 10, device=device), torch.randn(6, 10, device=device)
    ints = torch.arange(60, device=device).view(6, 10)
    operands = {
        "contiguous": (x, y),
        "strided": (x[:, ::2], y[:, 1::2]),
        "transposed": (x.t(), y.t()),
        "mixed": (x[:, :6], y[:, :6].t()),
        "broadcast": (x, y[0]),
        "both broadcast": (x[:, :1], y[:1]),
        "promoted": (x.half(), y),
        "integer and float": (ints, y),
        "0-d": (x, y[0, 0]),
        "empty": (x[:0], y[:0]),
        "six dimensions": (x[0, :8].view(2, 2, 2, 1, 1, 1), y[:2, :2].reshape(1, 1, 1, 2, 2, 1)),
    }
    for what, (a, b) in operands.items():
        if what != "integer and float":
            yield "relu_scale_add", what, (a, b, 0.5), {}
            yield "relu_scale", what, (a, 0.5), {}
            yield "relu_scale_backward", what, (a, b, 0.5), {}
            yield "relu_scale", f"{what}, scale", (a, b), {}
            yield "relu_scale_add", f"{what}, scale", (a, b, a), {}
            yield "relu_scale_backward", f"{what}, scale", (a, b, a[..., :1]), {}
            yield "square_backward", what, (a, b), {}
            yield "act_mul", what, (a, b, "gelu"), {}
            yield "sum_to", what, (a, a.shape[-1:]), {"factor": 0.5}
        yield "add", what, (a, b), {"alpha": 2}
        yield "square", what, (a,), {}
    yield "add", "scalar", (x, 3), {"alpha": 0.5}
    yield "add", "promoting scalar", (ints, 0.5), {}
    for what, out in (("out", torch.empty_like(x)), ("strided out", torch.empty(10, 6).to(x).t())):
        yield "add", what, (x, y), {"out": out}
        yield "square", what, (x,), {"out": out}
        yield "relu_scale", what, (x, 0.5), {"out": out}
        yield "relu_scale_add", what, (x, y, 0.5), {"out": out}
        yield "relu_scale_backward", what, (x, y, 0.5), {"out": out}
        yield "square_backward", what, (x, y), {"out": out}
        yield "sum_to", what, (torch.randn(3, 6, 10).to(x), (6, 10)), {"out": out}
    yield "add", "in place", (x, y), {"out": x}
    tall = torch.randn(40000, 2, device=device)
    yield "sum_to", "two passes", (tall, (2,)), {}


def gemm_calls(device: torch.device) -> Calls:
    a, b = torch.randn(6, 10, device=device), torch.randn(10, 4, device=device)
    bias, c = torch.randn(4, device=device), torch.randn(6, 4, device=device)
    for act in ("none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "leaky_relu"):
        yield "gemm_bias_act", act, (a, b, bias), {"act": act}
    for what, args, options in (
        ("transposed", (a, b.t().contiguous().t()), {}),
        ("strided", (a[::2, ::2], b[::2]), {}),
        ("c", (a, b), {"c": c, "beta": 0.5, "alpha": 2}),
        ("c row", (a, b), {"c": c[0]}),
        ("unread c", (a, b), {"c": c, "beta": 0}),
        ("K = 0", (a[:, :0], b[:0], bias), {}),
        ("empty", (a[:0], b), {}),
        ("out", (a, b), {"out": torch.empty_like(c)}),
        ("out_dtype", (a.half(), b.half()), {"out_dtype": torch.float32}),
        ("float64", (a.double(), b.double()), {}),
    ):
        yield "gemm_bias_act", what, args, options
    weight = torch.randn(4, 10, device=device)
    x = torch.randn(2, 3, 10, device=device)
    for what, args in (
        ("matrix", (a, weight, bias)),
        ("vector", (a[0], weight)),
        ("three dimensions", (x, weight, bias)),
        ("strided", (x[..., ::2], weight[:, ::2])),
        ("transposed weight", (x, weight.t().contiguous().t())),
        ("broadcast", (a[0].expand(2, 3, 10), weight)),
        ("empty", (x[:0], weight, bias)),
        ("I = 0", (x[..., :0], weight[:, :0], bias)),
    ):
        yield "linear_gelu", what, args, {"approximate": "tanh"}
        yield "linear_act", what, args, {"act": "silu"}


@pytest.fixture
def recorded(mode: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Recorder]:
    """The recorder of one call of an op in the mode, after a first one that may build and a second
    that may be held against its own replay. It looks into the launcher, although an onlooker such
    as itself is shown the registered op instead."""
    monkeypatch.setattr(_operator.Operator, "_observed", lambda *args: False)
    monkeypatch.setattr(_registered, "_watched", lambda: False)

    def run(op: str, args: tuple, options: dict[str, Any], variant: str | None = None) -> Recorder:
        candidates = implementations(SPECS[op], [mode])
        implementation = next(w for w in candidates if w.variant == variant)
        for _ in range(2):
            implementation(*args, **options)
        with Recorder() as recorder:
            out = implementation(*args, **options)
        assert isinstance(out, Tensor)
        return recorder

    return run


@pytest.mark.parametrize("family", [elementwise_calls, gemm_calls])
def test_only_allocations_and_views(
    family: Callable[[torch.device], Calls], mode: str, recorded: Callable[..., Recorder]
) -> None:
    wrong, ops, emulated = [], set(), set()
    for op, what, args, options in family(torch.device(MODES[mode][1])):
        recorder = recorded(op, args, options)
        surprises = recorder.surprises
        ops.add(op)
        emulated.update(recorder.emulated)
        if surprises:
            wrong.append(f"{op}, {what}: {', '.join(surprises)}")
    assert not wrong, "\n".join(wrong)
    assert len(ops) == {elementwise_calls: 8, gemm_calls: 3}[family]
    assert emulated <= {"erf", "lift_fresh", "detach"}


def test_variants_too(mode: str, recorded: Callable[..., Recorder]) -> None:
    device = MODES[mode][1]
    types = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
    ran = 0
    for op, args in (
        ("add", (torch.ones(4, 9), torch.ones(4, 9))),
        ("square", (torch.ones(4, 9),)),
        ("linear_gelu", (torch.ones(40, 72), torch.ones(48, 72))),
        ("gemm_bias_act", (torch.ones(40, 72), torch.ones(72, 48))),
    ):
        for implementation in implementations(SPECS[op], [mode]):
            if implementation.variant in (None, "tile") or (  # tile takes no dense tensors
                implementation.variant == "gluon" and availability.here()
            ):
                continue
            dtype = types.get(implementation.variant.split("x")[0], torch.float32)
            dtype = torch.float16 if implementation.variant in ("wmma", "gluon") else dtype
            here = tuple(t.to(device, dtype) for t in args)
            assert recorded(op, here, {}, implementation.variant).surprises == [], (
                implementation.name
            )
            ran += 1
    assert ran >= 10


def test_linear_gelu_copies_leading_dimensions_that_do_not_merge_once(
    mode: str, recorded: Callable[..., Recorder]
) -> None:
    device = MODES[mode][1]
    x = torch.randn(3, 2, 10, device=device).transpose(0, 1)
    weight = torch.randn(4, 10, device=device)
    surprises = recorded("linear_gelu", (x, weight), {}).surprises
    assert len(surprises) == 1, surprises
    assert surprises[0] in COPIES


def test_the_recorder_sees_compute() -> None:
    x = torch.ones(3)
    calls: dict[str, Callable[[], Any]] = {
        "add": lambda: torch.add(x, x),
        "mul": lambda: x * x,
        "addmm": lambda: torch.addmm(x, torch.ones(3, 3), torch.ones(3, 3)),
        "gelu": lambda: torch.nn.functional.gelu(x),
        "copy_": lambda: x.copy_(torch.zeros(3)),
        "clone": lambda: x.expand(2, 3).contiguous(),
        "_to_copy": lambda: x.double(),
    }
    for name, call in calls.items():
        with Recorder() as recorder:
            call()
        assert name in recorder.surprises
    with Recorder() as recorder:
        torch.empty_like(x).view(3, 1).expand(3, 2).t()
    assert recorder.ops
    assert recorder.surprises == []


def test_a_dispatch_mode_is_shown_the_registered_op() -> None:
    x = torch.ones(3)
    with triton_kernels.interpret(), Recorder() as recorder:
        triton_kernels.relu_scale_add(x, x, 2)
        triton_kernels.square(x, out=x)
    assert recorder.ops == ["triton_kernels::relu_scale_add", "triton_kernels::square_out"]
