"""Calls that come again: they launch the same kernels on other tensors, and ask for little else.

A simulated GPU interprets what Triton's C launcher would start, from the addresses that it gets.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import triton
from simulated_starts import Machine, replayed, simulated
from torch import Tensor
from triton import knobs

import triton_kernels as tk
from compare import annotate
from triton_kernels import _known_calls, _launch, _plans, _replay
from triton_kernels.gemm import splitting

CALLS = 14  # of Python functions, that a repeated add may make


@pytest.fixture(params=["3.6", "3.7"])
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    with simulated(request.param) as found:
        yield found


def matrix(*shape: int) -> Tensor:
    return torch.randn(*shape or (24, 16))


def integers(*shape: int) -> Tensor:
    """Whose products are exact in float16, in any order."""
    return torch.randint(-3, 4, shape)


ROWS: dict[str, tuple[Callable[[], tuple[Any, ...]], Callable[..., Any], Callable[..., Any]]] = {
    "add": (
        lambda: (matrix(), matrix()),
        lambda x, y: tk.add(x, y, alpha=0.5),
        lambda x, y: x + 0.5 * y,
    ),
    "add of a row": (lambda: (matrix(), matrix(16)), tk.add, torch.add),
    "add of a transposed": (lambda: (matrix(16, 16), matrix(16, 16).t()), tk.add, torch.add),
    "add of a number": (lambda: (matrix(),), lambda x: tk.add(x, 3), lambda x: x + 3),
    "add to a number": (lambda: (matrix(),), lambda x: tk.add(2.5, x), lambda x: 2.5 + x),
    "add of float64": (
        lambda: (matrix().double(), matrix().double()),
        lambda x, y: tk.add(x, y, alpha=0.1),
        lambda x, y: x + 0.1 * y,
    ),
    "add of integers": (
        lambda: (matrix().mul(9).int(), matrix().mul(9).int()),
        lambda x, y: tk.add(x, y, alpha=-3),
        lambda x, y: x - 3 * y,
    ),
    "relu_scale": (
        lambda: (matrix(),),
        lambda x: tk.relu_scale(x, 0.5),
        lambda x: torch.relu(x) * 0.5,
    ),
    "relu_scale of rows": (
        lambda: (matrix(), matrix(1, 16)),
        tk.relu_scale,
        lambda x, s: torch.relu(x) * s,
    ),
    "gemm_bias_act of a column's transpose": (
        lambda: (integers(64, 1).half().t(), integers(64, 40).half()),
        tk.gemm_bias_act,
        lambda a, b: (a.float() @ b.float()).half(),
    ),
    "relu_scale_add of columns": (
        lambda: (matrix(16, 16), matrix(16, 16).t(), matrix(16, 1)),
        tk.relu_scale_add,
        lambda x, y, s: torch.relu(x) * s + y,
    ),
    "sum_to": (lambda: (matrix(),), lambda x: tk.sum_to(x, (16,)), lambda x: x.sum(0)),
    "sum_to in two passes": (
        lambda: (matrix(6000, 2),),
        lambda x: tk.sum_to(x, (2,)),
        lambda x: x.sum(0),
    ),
    "act_backward": (
        lambda: (matrix(), matrix()),
        lambda x, y: tk.act_backward(x, y, "relu"),
        lambda x, y: (x * (y > 0), (x * (y > 0)).sum(0)),
    ),
    "act_mul of halves": (
        lambda: matrix(16, 32).chunk(2, -1),
        lambda gate, up: tk.act_mul(gate, up, "relu"),
        lambda gate, up: torch.relu(gate) * up,
    ),
    "act_mul_backward": (
        lambda: (matrix(), matrix(), matrix()),
        lambda grad, gate, up: tk.act_mul_backward(grad, gate, up, "relu"),
        lambda grad, gate, up: (grad * up * (gate > 0), grad * torch.relu(gate)),
    ),
    "gemm_bias_act": (
        lambda: (matrix(), matrix(16, 8), matrix(8)),
        lambda a, b, c: tk.gemm_bias_act(a, b, c, act="relu"),
        lambda a, b, c: torch.relu(a @ b + c),
    ),
    "linear_act of a weight that is turned": (
        lambda: (matrix(70, 16), matrix(12, 16)),
        lambda x, w: tk.linear_act(x, w, act="relu", precision="ieee"),
        lambda x, w: torch.relu(x @ w.t()),
    ),
    "linear_gelu": (
        lambda: (matrix(2, 3, 16), matrix(8, 16)),
        tk.linear_gelu,
        lambda x, w: torch.nn.functional.gelu(x @ w.t()),
    ),
}


def test_parts_of_a_sum_are_replayed_on_their_stream(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their counters are the stream's: another one's calls, and captured ones, have others."""
    counters = {stream: torch.zeros(8, dtype=torch.int32) for stream in (55, 66)}
    stream = 55

    def zeros(count: int, device: torch.device) -> Tensor:
        if _launch.recorder.now is not None:
            _launch.recorder.now.of_stream.append(counters[stream])
        return counters[stream]

    monkeypatch.setattr(splitting, "_zeros", zeros)
    monkeypatch.setattr(_plans, "current_stream", lambda index: stream)
    x, w = matrix(40, 4096).half(), matrix(16, 4096).half()
    for each in (x, x, x.t(), x.t()):  # the first plan of each kind is tried
        tk.square(each)
    machine.computes = False
    again = []
    for stream in (55, 55, 55, 66, 66, 66, 55):  # noqa: B007 - read by the stream's getter
        again.append(replayed(machine, lambda: tk.linear_act(x, w, act="none"))[1])
    assert again == [False, False, True, False, True, True, True]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert not replayed(machine, lambda: tk.linear_act(x, w, act="none"))[1]


@pytest.mark.parametrize("row", ROWS)
def test_calls_that_come_again_are_replayed(row: str, machine: Machine) -> None:
    inputs, ours, right = ROWS[row]
    for number in range(5):
        args = inputs()
        result, again = replayed(machine, lambda args=args: ours(*args))
        torch.testing.assert_close(result, right(*args), atol=1e-3, rtol=1e-4)
        assert again == (number >= 2), "the first runs, the second is recorded"


OPS = torch.ops.triton_kernels
REGISTERED: dict[str, tuple[Callable[[], tuple[Any, ...]], Callable[..., Any], Any]] = {
    "square": (lambda: (matrix(),), OPS.square, torch.square),
    "linear_act": (
        lambda: (matrix(), matrix(12, 16)),
        lambda x, w: OPS.linear_act(x, w, None, "relu", "ieee"),
        lambda x, w: torch.relu(x @ w.t()),
    ),
    "gemm_bias_act_with_pre": (
        lambda: (matrix(), matrix(16, 8)),
        lambda a, b: OPS.gemm_bias_act_with_pre(a, b, None, "relu", 1.0, None, None, None, "ieee"),
        lambda a, b: (torch.relu(a @ b), a @ b),
    ),
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("row", REGISTERED)
def test_registered_ops_are_replayed(row: str, grad: bool, machine: Machine) -> None:
    """As graphs that torch.compile made call them, and with gradients."""
    inputs, ours, right = REGISTERED[row]
    for number in range(5):
        args = inputs()
        args[0].requires_grad_(grad)
        result, again = replayed(machine, lambda args=args: ours(*args))
        torch.testing.assert_close(result, right(*args), atol=1e-3, rtol=1e-4)
        assert again == (number >= 2)


def again(machine: Machine, *args: Any, **options: Any) -> bool:
    """Whether an add is replayed; its result is right in any case."""
    result, found = replayed(machine, lambda: tk.add(*args, **options))
    torch.testing.assert_close(result, torch.add(*args, **options))
    return found


def known(machine: Machine) -> tuple[Tensor, Tensor]:
    """Arguments whose like add replays, by a plan for their size."""
    x, y = matrix(), matrix()
    for _ in range(_replay.PATIENCE + 1):
        tk.add(x, y)
    assert again(machine, x, y)
    return x, y


def test_what_is_not_alike_runs_by_itself(machine: Machine) -> None:
    x, y = known(machine)
    assert not again(machine, x, y.double())
    assert not again(machine, x, matrix(25, 16)[1:].t().contiguous().t())
    assert not again(machine, torch.randn(24 * 16 + 1)[1:].view(24, 16), y), "not aligned"
    assert not again(machine, x, y[0])
    with torch.inference_mode():
        assert not again(machine, x, y)
    assert again(machine, x, y)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_plans, "current_device", lambda: 1)
        assert not again(machine, x, y), "on another device's turn"
    x, y = x.long(), y.long()
    found = [again(machine, x, y, alpha=n) for n in (2, 3, -4, 2**40)]
    assert found == [False, False, True, False], "the last one takes 64 bits"


def test_a_tensor_that_is_new_beside_the_others_runs_by_itself(machine: Machine) -> None:
    x, weight, bias = matrix(), matrix(8, 16), matrix(8)
    for _ in range(3):
        tk.linear_act(x, weight, act="relu")
    out = tk.linear_act(x, weight, bias, act="relu")
    torch.testing.assert_close(out, torch.relu(x @ weight.t() + bias), atol=1e-4, rtol=1e-4)


def test_one_tensor_twice_is_no_example_of_two(machine: Machine) -> None:
    x, y = matrix(), matrix()
    for _ in range(3):
        tk.add(x, x)
    assert not again(machine, x, y)


def test_an_op_that_calls_others_is_not_replayed_in_part(machine: Machine) -> None:
    """What is replayed inside of a call would be missing in the recording of that call."""
    for _ in range(3):
        tk.square(matrix())

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        return tk.square(x), tk.relu_scale(x, 2.0, out=torch.empty_like(x))  # replayed; launched

    pair = _replay.Replays(both, 1, (0,), {})
    for _ in range(5):
        x = matrix()
        found = pair.again((x,)) or pair((x,))
        torch.testing.assert_close(found, (x * x, 2 * x.relu()))


def test_errors_stay(machine: Machine) -> None:
    x, y = known(machine)
    with pytest.raises(RuntimeError, match="lazily negated"):
        tk.add(x, torch.randn(24, 16, dtype=torch.complex64).conj().imag)
    with pytest.raises(TypeError, match="complex64"):
        tk.add(x, y.to(torch.complex64))
    with pytest.raises(TypeError, match="alpha"):
        tk.add(x, y, alpha=True)
    with pytest.raises(TypeError, match="alpha"):
        tk.add(x, y, alpha="1")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="too large"):
        tk.add(x, y, alpha=10**400)
    with pytest.raises(TypeError, match="must be strided"):
        tk.add(x, y.to_sparse())
    with pytest.raises(TypeError, match="NestedTensor"):
        tk.add(torch.nested.nested_tensor([x, x]), y)
    i = x.int()
    for _ in range(3):
        tk.add(i, i + 1, alpha=2)
    with pytest.raises(TypeError, match="must be an integer"):
        tk.add(i, i + 1, alpha=2.0)
    wrapped = tk.add(i.to(torch.uint8), i.to(torch.uint8), alpha=1000)
    assert torch.equal(wrapped, i.to(torch.uint8) + 232 * i.to(torch.uint8))
    shape: Any = (True, 16)
    rows = matrix(1, 16)
    for _ in range(3):
        tk.sum_to(rows, (1, 16))
    with pytest.raises(TypeError, match="element 0"):
        tk.sum_to(rows, shape)


def test_zeros_of_both_signs(machine: Machine) -> None:
    a, b, c = torch.zeros(4, 4), torch.zeros(4, 4), torch.zeros(4, 4)
    for beta in (0.5, 0.5, 0.5, -0.0, 0.0):
        tk.gemm_bias_act(a, b, alpha=1.0, c=c, beta=beta)
    for alpha in (0.0, 0.0, 0.0, -0.0, 0.0):
        out = tk.gemm_bias_act(a + 1, b + 1, alpha=alpha)
        assert torch.equal(out, torch.zeros(4, 4))
        assert bool((out.signbit() == (math.copysign(1, alpha) < 0)).all()), alpha


class Mode(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        self.seen = getattr(self, "seen", 0) + 1
        return args[0] if "triton_kernels" in str(function) else function(*args, **kwargs or {})


def test_who_looks_on_sees_every_call(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = known(machine)

    with Mode() as mode:
        tk.add(x, y)
    assert mode.seen == 1
    cpu = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[cpu]) as profile, annotate():
        tk.add(x, y)
    assert any(event.name.startswith("triton_kernels.add(") for event in profile.events())
    assert torch.equal(torch.func.vmap(tk.add)(x, y), torch.func.vmap(torch.add)(x, y))
    assert again(machine, x, y)
    hooked: list[Any] = []
    monkeypatch.setattr(knobs.runtime, "launch_enter_hook", hooked.append)
    assert not again(machine, x, y)
    monkeypatch.undo()
    run = triton.JITFunction.run
    monkeypatch.setattr(triton.JITFunction, "run", lambda *args, **meta: run(*args, **meta))
    assert not again(machine, x, y)


def test_nothing_is_replayed_while_suspended_or_after_forgetting(machine: Machine) -> None:
    x, y = known(machine)
    with _known_calls.suspended():
        assert not again(machine, x, y)
    assert again(machine, x, y)
    _known_calls.forget()
    assert not again(machine, x, y)


def test_gradients(machine: Machine) -> None:
    weight, bias = torch.nn.Parameter(matrix(8, 16)), torch.nn.Parameter(matrix(8))
    for _ in range(4):
        x, y, grad = matrix(), matrix().requires_grad_(), matrix(24, 8)
        found: list[list[Any]] = []
        for linear, add in ((tk.linear_act, tk.add), (_linear_relu, torch.add)):
            options = {"act": "relu"} if linear is tk.linear_act else {}
            out = linear(add(x, y), weight, bias, **options)
            found.append([out, *torch.autograd.grad(out, (y, weight, bias), grad)])
        for ours, right in zip(*found):
            torch.testing.assert_close(ours, right, atol=1e-4, rtol=1e-4)


def _linear_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.relu(torch.nn.functional.linear(x, weight, bias))


def test_a_plan_that_is_wrong_is_given_up(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_replay, "_tested", set())
    monkeypatch.setattr(_replay, "_wrong", set())
    for kind in (_plans.Plan, _plans.FlatPlan):
        monkeypatch.setattr(kind, "__call__", lambda self, args: torch.zeros(24, 16))
    x, y = matrix(), matrix()
    tk.add(x, y)
    with pytest.warns(RuntimeWarning, match="another result"):
        tk.add(x, y)
    for _ in range(2):
        assert not again(machine, x, y)


@pytest.mark.parametrize("shape", [(), (1, 1)])
def test_a_first_plan_of_one_element_is_compared(
    shape: tuple[int, ...], machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its strides may be any."""
    monkeypatch.setattr(_replay, "_tested", set())
    monkeypatch.setattr(_replay, "_wrong", set())
    x, y = (torch.empty_strided(shape, (2,) * len(shape)).fill_(3.0) for _ in range(2))
    found = [again(machine, x, y) for _ in range(4)]  # a warning is an error
    assert found == [False, False, True, True]
    assert _replay._tested


def test_few_functions_are_called(machine: Machine) -> None:
    x, y = known(machine)
    machine.computes = False
    called: list[str] = []

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            called.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        tk.add(x, y)
    finally:
        sys.setprofile(None)
    simulated_ones = {"started", "_launch_3_6", "_launch_3_7", "<lambda>"}
    ours = [name for name in called if name not in simulated_ones]
    assert len(ours) <= CALLS, ours


def test_new_sizes_of_dense_tensors_compile_nothing(machine: Machine) -> None:
    sizes = [16 * n for n in range(1, 9)]
    for n in sizes:
        assert torch.allclose(tk.square(x := torch.randn(n, 3)), x * x)
    assert machine.compiled == 1


def test_what_is_never_replayed_keeps_no_other_dtype_from_it(machine: Machine) -> None:
    """Of float32 the weight is copied by torch, which a plan does not know."""
    x, weight = matrix(65, 16), matrix(16, 16)
    for _ in range(2 * _replay.ALIKE + 2):
        tk.linear_gelu(x, weight)
    x, weight = x.bfloat16(), weight.bfloat16()
    for _ in range(2):
        tk.linear_gelu(x, weight)
    assert replayed(machine, lambda: tk.linear_gelu(x, weight))[1]


def test_a_row_in_a_new_shape_takes_the_launch_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    init = _launch.Launch.__init__

    def noted(self: Any, *args: Any, **meta: Any) -> None:
        made.append(self)
        init(self, *args, **meta)

    with tk.interpret():
        tk.add(matrix(20, 48), matrix(48))
        monkeypatch.setattr(_launch.Launch, "__init__", noted)
        x, y = matrix(22, 48), matrix(48)
        assert torch.equal(tk.add(x, y), x + y)
    assert not made
