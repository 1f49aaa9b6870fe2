"""Bad input: one error in torch's manner, before anything is launched, with nothing written.

Both sides run the same table, in every mode that this machine offers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from calls import Call, good, refused, tensors
from every_function import PAIRS
from torch import Tensor

import cuda_reference
from compare.checking.implementations import MODES, implementations
from compare.ops import SPECS
from compare.specs import Elementwise, Product

ELEMENTWISE = [
    spec.name
    for spec in SPECS.values()
    if isinstance(spec, Elementwise) and spec.name not in PAIRS  # whose out is a pair
]
GEMM = [spec.name for spec in SPECS.values() if isinstance(spec, Product)]
HALF, DOUBLE, INT = torch.float16, torch.float64, torch.int32


@pytest.fixture
def device(mode: str) -> torch.device:
    return torch.device(MODES[mode][1])


def memory(arguments: dict[str, Any]) -> dict[str, bytes]:
    """Every byte of the storages of all strided tensors among the arguments."""
    return {
        name: bytes(t.detach().untyped_storage().cpu())
        for name, t in arguments.items()
        if isinstance(t, Tensor) and t.layout is torch.strided and t.device.type != "meta"
    }


Change = Callable[[dict[str, Any], torch.device], dict[str, Any]]


@dataclass(frozen=True)
class Bad:
    """Good arguments with some replaced, and the error that these must give."""

    op: str
    what: str
    change: Change
    error: type[Exception]
    words: tuple[str, ...]
    sides: tuple[str, ...] = ("triton", "cuda")


def replaced(**values: Any) -> Change:
    """The arguments with these values; a function makes its value of the one it replaces."""
    return lambda arguments, device: {
        name: value(arguments.get(name)) if callable(value) else value
        for name, value in values.items()
    }


def shaped(**shapes: tuple[int, ...]) -> Change:
    return lambda arguments, device: {
        name: torch.ones(shape, device=device) for name, shape in shapes.items()
    }


def nested(t: Tensor, layout: torch.layout) -> Tensor:
    return torch.nested.nested_tensor([t, t[:1]], layout=layout)


def wrong_types() -> Iterator[Bad]:
    for op in SPECS:
        for name in tensors(op):
            argument = f"'{name}'"
            for value, got in (([1.0], "list"), ("x", "str"), (object(), "object")):
                yield Bad(
                    op, f"{name} {got}", replaced(**{name: value}), TypeError, (argument, got)
                )
            array = np.ones((4, 5), np.float32)
            words = (argument, "numpy.ndarray", "torch.from_dlpack")
            yield Bad(op, f"{name} numpy", replaced(**{name: array}), TypeError, words)
            if name not in ("bias", "out"):
                words = (argument, "NoneType")
                yield Bad(op, f"{name} None", replaced(**{name: None}), TypeError, words)
            for dtype in (torch.bool, torch.complex64, torch.float8_e4m3fn):
                change = replaced(**{name: lambda t, dtype=dtype: t.to(dtype)})
                yield Bad(op, f"{name} {dtype}", change, TypeError, (argument, str(dtype)))
            if "int64" not in SPECS[op].dtypes or name == "out":
                change = replaced(**{name: lambda t: t.to(torch.int64)})
                yield Bad(op, f"{name} int64", change, TypeError, (argument, "torch.int64"))
            if name == "out" or (op in GEMM and name not in ("a", "x")):
                change = replaced(**{name: lambda t: t.to(HALF)})
                yield Bad(op, f"{name} float16", change, TypeError, (argument, "torch.float16"))
            for layout in (torch.strided, torch.jagged):
                change = replaced(**{name: lambda t, layout=layout: nested(t, layout)})
                words = (argument, "NestedTensor")
                yield Bad(op, f"{name} nested {layout}", change, TypeError, words, ("triton",))
            change = replaced(**{name: lambda t: t.to_sparse()})
            yield Bad(op, f"{name} sparse", change, TypeError, (argument, "torch.sparse_coo"))
    yield Bad(
        "gemm_bias_act",
        "c float64",
        replaced(c=lambda _: torch.ones(4, 5, dtype=DOUBLE)),
        TypeError,
        ("'c'", "torch.float64"),
    )


def wrong_values() -> Iterator[Bad]:
    numbers = [(op, name) for op in ELEMENTWISE for name in SPECS[op].numbers]
    numbers += [
        ("add", "alpha"),
        ("sum_to", "factor"),
        ("gemm_bias_act", "alpha"),
        ("gemm_bias_act", "beta"),
    ]
    for op, name in numbers:
        for value, got in (
            (True, "bool"),
            ("2", "str"),
            (2j, "complex"),
            (torch.ones(()), "Tensor"),
        ):
            if name == "scale" and got == "Tensor":
                continue  # which it may be, as the error says: wrong_scales
            change = replaced(**{name: value})
            or_tensor = name == "scale" and "scale_dtype" in SPECS[op].options
            kinds = "a number or a torch.Tensor" if or_tensor else "a number, "
            yield Bad(op, f"{name} {got}", change, TypeError, (f"'{name}'", kinds, got))
        if name != "beta":
            change = replaced(**{name: None})
            yield Bad(op, f"{name} None", change, TypeError, (f"'{name}'", "NoneType"))
        change = replaced(**{name: 10**400})
        yield Bad(op, f"{name} huge", change, ValueError, (f"'{name}'", "float64"))
    yield Bad("add", "y complex", replaced(y=2j), TypeError, ("'y'", "complex"))
    yield Bad("add", "y huge", replaced(y=10**400), ValueError, ("'y'", "float64"))
    integers = {name: lambda t: t.to(INT) for name in ("x", "y", "out")}
    change = replaced(**integers, alpha=0.5)
    yield Bad("add", "alpha float for int", change, TypeError, ("'alpha'", "torch.int32", "0.5"))

    choices = [
        ("gemm_bias_act", "act", "swish", "'gelu_tanh'"),
        ("gemm_bias_act", "act", None, "'none'"),
        ("act_backward", "act", "swish", "'gelu_tanh'"),
        ("act_mul", "act", "swish", "'gelu_tanh'"),
        ("act_mul", "act", None, "'none'"),
        ("act_mul_backward", "act", "swish", "'gelu_tanh'"),
        ("gemm_bias_act", "precision", "fp32", "'tf32x3'"),
        ("linear_act", "act", "swish", "'gelu_tanh'"),
        ("linear_act", "act", None, "'none'"),
        ("linear_act", "precision", "fp32", "'tf32x3'"),
        ("linear_gelu", "approximate", "erf", "'tanh'"),
        ("linear_gelu", "approximate", True, "'tanh'"),
    ]
    for op, name, value, listed in choices:
        words = (f"'{name}'", repr(value), listed)
        yield Bad(op, f"{name} {value}", replaced(**{name: value}), ValueError, words)
    for value in (torch.int32, torch.bool, "float32"):
        change = replaced(dtype=value)
        for op in ("sum_to", "act_backward"):
            yield Bad(op, f"dtype {value}", change, TypeError, ("'dtype'", str(value)))
    for value in ("no", 1, None, np.bool_(True), np.array(1), [True], torch.tensor(True)):
        words = ("'bias'", type(value).__name__)
        yield Bad("act_backward", f"bias {value!r}", replaced(bias=value), TypeError, words)
    several = np.array(["gelu", "relu"])  # which has no one truth value
    for op in ("gemm_bias_act", "linear_act", "act_backward", "act_mul", "act_mul_backward"):
        change = replaced(act=several)
        yield Bad(op, "act array", change, ValueError, ("'act'", "array"))
    for op, name in (
        ("gemm_bias_act", "precision"),
        ("linear_act", "precision"),
        ("linear_gelu", "approximate"),
    ):
        change = replaced(**{name: several})
        yield Bad(op, f"{name} array", change, ValueError, (f"'{name}'", "array"))
    for op, name in (
        ("sum_to", "dtype"),
        ("act_backward", "dtype"),
        ("gemm_bias_act", "out_dtype"),
    ):
        change = replaced(**{name: several})
        yield Bad(op, f"{name} array", change, TypeError, (f"'{name}'", "gelu"))
    for op in SPECS:
        change = replaced(variant="f64x3")
        yield Bad(op, "variant", change, ValueError, ("'variant'", "'f64x3'"), ("cuda",))
    for precision in ("tf32", "tf32x3"):
        for op in ("gemm_bias_act", "linear_act"):
            for dtype in (HALF, torch.bfloat16, DOUBLE):
                narrow = {n: lambda t, d=dtype: t.to(d) for n in tensors(op)}
                change = replaced(**narrow, precision=precision)
                words = (f"precision {precision!r}",)
                yield Bad(op, f"{precision} {dtype}", change, ValueError, words)
    for variant in ("naive", "tiled"):
        change = replaced(precision="tf32", variant=variant)
        words = ("'tf32'", f"'{variant}'")
        for op in ("gemm_bias_act", "linear_act"):
            yield Bad(op, f"tf32 {variant}", change, ValueError, words, ("cuda",))
    for op in GEMM:
        words = ("'wmma'", "torch.float32", "'ieee'")
        yield Bad(op, "ieee wmma", replaced(variant="wmma"), ValueError, words, ("cuda",))
    change = replaced(beta=0.5)
    yield Bad("gemm_bias_act", "beta without c", change, ValueError, ("'beta'", "0.5", "'c'"))
    for value in (torch.int32, torch.bool, "float32"):
        change = replaced(out_dtype=value)
        words = ("'out_dtype'", str(value))
        yield Bad("gemm_bias_act", f"out_dtype {value}", change, TypeError, words)


def wrong_shapes() -> Iterator[Bad]:
    bad: list[tuple[str, str, dict[str, tuple[int, ...]]]] = []
    for op in ELEMENTWISE:
        names = [name for name in tensors(op) if name != "out"]
        if len(names) > 1:
            for other in ((4, 6), (2, 5)):
                shapes = dict(zip(names, ((4, 5), other)))
                bad.append((op, f"broadcast {other}", shapes))
    bad += [
        *(
            (op, what, shapes)
            for op in ("linear_act", "linear_gelu")
            for what, shapes in (
                ("inner", {"x": (4, 6), "weight": (5, 7)}),
                ("0-d", {"x": (), "weight": (5, 6)}),
                ("weight 1-d", {"x": (4, 6), "weight": (6,)}),
            )
        ),
        ("gemm_bias_act", "inner", {"a": (4, 6), "b": (7, 5)}),
        ("gemm_bias_act", "3-d", {"a": (4, 6), "b": (1, 6, 5)}),
        ("gemm_bias_act", "1-d", {"a": (4, 6), "b": (6,)}),
        ("act_backward", "unlike", {"grad": (4, 5), "saved": (4, 6)}),
        ("act_backward", "broadcast", {"grad": (4, 5), "saved": (1, 5)}),
        ("act_backward", "1-d", {"grad": (4,), "saved": (4,)}),
        ("act_mul_backward", "grad", {"grad": (4, 6), "gate": (4, 5)}),
        ("act_mul_backward", "up", {"gate": (4, 5), "up": (2, 5)}),
    ]
    for op, what, shapes in bad:
        words = tuple(f"'{name}'" for name in shapes)
        words += tuple(", ".join(map(str, shape)) for shape in shapes.values())
        yield Bad(op, f"shape {what}", shaped(**shapes), RuntimeError, words)
    for op in GEMM:
        for shape in ((4,), (1,), (1, 5), (5, 1), ()):
            words = ("'bias'", "5", ", ".join(map(str, shape)))
            yield Bad(op, f"bias {list(shape)}", shaped(bias=shape), RuntimeError, words)
    for shape in ((5, 4), (4,), (2, 5), (1, 4, 5), (0, 5)):
        words = ("'c'", "4, 5", ", ".join(map(str, shape)))
        yield Bad("gemm_bias_act", f"c {list(shape)}", shaped(c=shape), RuntimeError, words)
    for shape in ([4], [5, 4], [1, 3, 4, 5], [2, 4, 5], [0, 5]):
        words = ("'x'", "3, 4, 5", ", ".join(map(str, shape)))
        yield Bad("sum_to", f"shape {shape}", replaced(shape=shape), RuntimeError, words)
    words = ("'shape'", "int")
    yield Bad("sum_to", "shape a number", replaced(shape=5), TypeError, words)
    for size in (True, np.bool_(True), torch.tensor(True), 4.0, torch.tensor(4.0), "4", None):
        words = ("'shape'", "integers", "element 0", type(size).__name__)
        change = replaced(shape=(size, 5))
        yield Bad("sum_to", f"shape of {size!r}", change, TypeError, words)
    for op in (*ELEMENTWISE, "sum_to", *GEMM):
        for shape in ((5, 4), (20,), (1, 4, 5), (4, 1), (0,), ()):
            words = ("'out'", "4, 5", ", ".join(map(str, shape)), "never resized")
            yield Bad(op, f"out {list(shape)}", shaped(out=shape), RuntimeError, words)


def wrong_memory() -> Iterator[Bad]:
    def view(shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0) -> Callable:
        return lambda base: base.as_strided(shape, strides, offset)

    def together(size: int, **views: Callable[[Tensor], Tensor]) -> Change:
        """The named arguments as views of one buffer."""

        def change(arguments: dict[str, Any], device: torch.device) -> dict[str, Any]:
            base = torch.ones(size, device=device)
            return {name: make(base) for name, make in views.items()}

        return change

    whole = view((4, 5), (5, 1))
    for op in (*ELEMENTWISE, "sum_to", *GEMM):
        for what, strides in (("row", (0, 1)), ("column", (1, 0)), ("window", (1, 1))):
            words = ("'out'", "overlaps itself", "4, 5", ", ".join(map(str, strides)))
            change = together(40, out=view((4, 5), strides))
            yield Bad(op, f"out {what} twice", change, RuntimeError, words)
    for op in ELEMENTWISE:
        first = tensors(op)[0]
        words = ("'out'", f"'{first}'", "overlaps")
        for what, other in (
            ("shifted", view((4, 5), (5, 1), 1)),
            ("last element", view((4, 5), (5, 1), 19)),
            ("transposed", view((4, 5), (1, 4))),
            ("reinterpreted", lambda base: base.view(INT).as_strided((4, 5), (5, 1), 0)),
        ):
            if what == "reinterpreted" and op != "add":
                continue  # the others take no integers, or the result's dtype would change
            change = together(40, **{first: other}, out=whole)
            yield Bad(op, f"out {what}", change, RuntimeError, words)
    for op in ("add", "relu_scale_add"):
        change = together(40, y=view((5,), (1,)), out=whole)
        yield Bad(op, "out broadcast y", change, RuntimeError, ("'out'", "'y'", "overlaps"))
        change = together(40, y=view((4, 5), (5, 1), 3), out=whole)
        yield Bad(op, "out shifted y", change, RuntimeError, ("'out'", "'y'", "overlaps"))
    change = together(80, x=view((3, 4, 5), (20, 5, 1)), out=whole)
    yield Bad("sum_to", "out is part of x", change, RuntimeError, ("'out'", "'x'", "overlaps"))
    for name, shape in (("a", (4, 6)), ("b", (6, 5)), ("bias", (5,)), ("c", (4, 5))):
        strides = (shape[1], 1) if len(shape) == 2 else (1,)
        words = ("'out'", f"'{name}'", "overlaps")
        change = together(40, out=whole, **{name: view(shape, strides)})
        yield Bad("gemm_bias_act", f"out is {name}", change, RuntimeError, words)
        last = 4 * 5 - 1
        change = together(80, out=whole, **{name: view(shape, strides, last)})
        yield Bad("gemm_bias_act", f"out touches {name}", change, RuntimeError, words)
    change = together(40, out=whole, c=whole)

    def with_beta_zero(arguments: dict[str, Any], device: torch.device) -> dict[str, Any]:
        return {**change(arguments, device), "beta": 0.0}

    words = ("'out'", "'c'", "overlaps")
    yield Bad("gemm_bias_act", "out is unread c", with_beta_zero, RuntimeError, words)


def wrong_state() -> Iterator[Bad]:
    def one(name: str, make: Callable[[Tensor], Tensor]) -> Change:
        """One argument made into something else; c, which has no good value, from ones."""
        return lambda arguments, device: {
            name: make(arguments.get(name, torch.ones(4, 5, device=device)))
        }

    for op in SPECS:
        names = [*tensors(op), *(["c"] if op == "gemm_bias_act" else [])]
        for name in names:
            change = one(name, lambda t: t.clone().requires_grad_())
            words = (f"'{name}'", "requires grad", "no_grad")
            yield Bad(op, f"{name} requires grad", change, RuntimeError, words)
            change = one(name, lambda t: torch.complex(t, t).conj().imag)
            words = (f"'{name}'", "resolve_neg")
            yield Bad(op, f"{name} lazily negated", change, RuntimeError, words)
            if name == "x" and "out" in names and len(names) == 2:
                continue  # with x alone on meta, that is the device
            change = one(name, lambda t: t.to("meta"))
            yield Bad(op, f"{name} on meta", change, RuntimeError, (f"'{name}'", "meta"))


def wrong_scales() -> Iterator[Bad]:
    """Of tensors."""

    def scaled(*shape: int, **more: Any) -> Change:
        return lambda arguments, device: {
            "scale": torch.ones(shape, device=device, dtype=more.get("dtype")),
            **{name: value for name, value in more.items() if name != "dtype"},
        }

    def shared(arguments: dict[str, Any], device: torch.device) -> dict[str, Any]:
        base = torch.ones(40, device=device)
        return {"out": base[:20].view(4, 5), "scale": base[16:21]}

    for op in ELEMENTWISE:
        if "scale_dtype" not in SPECS[op].options:  # it is a number alone
            continue
        words: tuple[str, ...] = ("'scale'", "torch.int32")
        yield Bad(op, "int32", scaled(5, dtype=INT), TypeError, words)
        yield Bad(op, "[4]", scaled(4), RuntimeError, ("'scale'", "4", "do not broadcast"))
        words = ("'out'", "3, 4, 5", "never resized")
        yield Bad(op, "larger than out", scaled(3, 4, 5), RuntimeError, words)
        yield Bad(op, "part of out", shared, RuntimeError, ("'out'", "'scale'", "overlaps"))

        def learned(arguments: dict[str, Any], device: torch.device) -> dict[str, Any]:
            return {"scale": torch.ones(5, device=device, requires_grad=True)}

        yield Bad(op, "learned", learned, RuntimeError, ("'scale'", "requires grad", "no_grad"))
        far = replaced(scale=torch.ones(5, device="meta"))
        yield Bad(op, "on meta", far, RuntimeError, ("'scale'", "meta"))
        words = ("'pack128'", "'scale'", "number")
        rung = scaled(5, variant="pack128", out=None)
        yield Bad(op, "rung", rung, ValueError, words, ("cuda",))


KINDS = {
    "scales": wrong_scales,
    "types": wrong_types,
    "values": wrong_values,
    "shapes": wrong_shapes,
    "memory": wrong_memory,
    "state": wrong_state,
}
TABLE = {
    (kind, op): [bad for bad in make() if bad.op == op]
    for kind, make in KINDS.items()
    for op in SPECS
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(("kind", "op"), [key for key, cases in TABLE.items() if cases])
def test_bad_calls(kind: str, op: str, mode: str, call: Call, device: torch.device) -> None:
    wrong = []
    for bad in TABLE[kind, op]:
        if MODES[mode][0] not in bad.sides:
            continue
        arguments = good(op, device)
        arguments.update(bad.change(arguments, device))
        before = memory(arguments)
        try:
            refused(lambda a=arguments: call(op, a), op, bad.error, bad.words)
            assert memory(arguments) == before, "something was written"
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - any wrong error
            wrong.append(f"{bad.what}: {type(error).__name__}: {error}")
    assert not wrong, "\n".join([f"{len(wrong)} of {len(TABLE[kind, op])}", *wrong])


@pytest.mark.parametrize("op", list(SPECS))
def test_the_unchanged_call_is_good(op: str, call: Call, device: torch.device) -> None:
    """So that a case of the table fails for the change it makes and nothing else."""
    arguments = good(op, device)
    out = call(op, arguments)
    # Of two results compare makes one.
    assert out.shape == {"act_backward": (5, 5), "act_mul_backward": (2, 4, 5)}.get(op, (4, 5))
    assert not out.isnan().any()
    if "out" in arguments:
        assert out is arguments["out"]


@pytest.mark.parametrize("size", [4, np.int64(4), np.uint8(4), torch.tensor(4), torch.tensor([4])])
def test_a_size_is_any_integer_that_torch_takes(
    size: Any, call: Call, device: torch.device
) -> None:
    arguments = {**good("sum_to", device), "shape": (size, 5)}
    assert call("sum_to", arguments).tolist() == [[3.0] * 5] * 4
    del arguments["out"]
    out = call("sum_to", arguments)
    assert out.shape == (4, 5)
    assert {type(n) for n in out.shape} == {int}


@pytest.mark.parametrize("op", list(SPECS))
def test_inputs_that_require_grad_are_fine_without_grad_mode(
    op: str, call: Call, device: torch.device
) -> None:
    arguments = {
        name: t.requires_grad_() if isinstance(t, Tensor) else t
        for name, t in good(op, device).items()
    }
    with torch.no_grad():
        assert not call(op, arguments).isnan().any()


@pytest.mark.gpu_only
def test_zero_d_cpu_tensor_joins_gpu_tensors() -> None:
    """As in torch; in either order, and the result lives on the GPU."""
    x = torch.arange(6.0, device="cuda")
    scalar = torch.tensor(2.0, dtype=DOUBLE)
    ran = 0
    for mode in ("triton-compiled", "cuda-gpu"):
        for op, extra in (("add", {}), ("relu_scale_add", {"scale": 2.0})):
            with contextlib.suppress(cuda_reference.BuildError):
                implementation = implementations(SPECS[op], [mode])[0]
                for args in ((x, scalar), (scalar, x)):
                    on_gpu = tuple(t.to("cuda") for t in args)
                    out = implementation(*args, **extra)
                    assert out.device.type == "cuda"
                    assert out.dtype == torch.float32
                    assert torch.equal(out, implementation(*on_gpu, **extra))
                    ran += 1
                one_d = scalar.reshape(1).float()
                refused(
                    lambda implementation=implementation, one_d=one_d, extra=extra: implementation(
                        x, one_d, **extra
                    ),
                    op,
                    RuntimeError,
                    ("'x'", "'y'", "cuda", "cpu"),
                )
    assert ran
