"""The registered ops torch.ops.triton_kernels.*: schema, fake, torch.compile, no lost gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from every_function import PAIRS
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import triton_kernels
from compare.ops import SPECS

OPS = torch.ops.triton_kernels


def matrix(device: torch.device, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(device, dtype)


# op → arguments in schema order, for every layout worth telling apart
SAMPLES: dict[str, Callable[[torch.device], dict[str, tuple]]] = {
    "add": lambda d: {
        "contiguous": (matrix(d, 4, 6), matrix(d, 4, 6), 0.1),
        "transposed": (matrix(d, 4, 6).t(), matrix(d, 4, 6).t(), 2),
        "transposed and not": (matrix(d, 4, 6).t(), matrix(d, 6, 4), 2),
        "broadcast": (matrix(d, 6), matrix(d, 4, 1), 1),
        "expanded": (matrix(d, 6).expand(4, 6), matrix(d, 4, 6), 1),
        "strided": (matrix(d, 8, 12)[::2, ::2], matrix(d, 4, 6), 1),
        "permuted": (matrix(d, 2, 3, 4).permute(2, 0, 1), matrix(d, 4, 2, 3), 1),
        "promoted": (matrix(d, 4, 6, dtype=torch.float16), matrix(d, 4, 6), 1),
        "integers": (torch.arange(6, device=d), torch.arange(6, device=d), -3),
        "0-d": (matrix(d, 4, 6), matrix(d, 1)[0], 1),
        "empty": (matrix(d, 0, 6), matrix(d, 1, 6), 1),
    },
    "add_scalar": lambda d: {
        "contiguous": (matrix(d, 4, 6), 0.1, 0.3),
        "transposed": (matrix(d, 4, 6).t(), 2, 1),
        "expanded": (matrix(d, 6).expand(4, 6), 2, 1),
        "integers": (torch.arange(6, device=d), 2, 3),
        "promoted": (torch.arange(6, device=d), 0.5, 3),
        "bfloat16": (matrix(d, 4, 6, dtype=torch.bfloat16), 0.1, 1),
    },
    "add_to_scalar": lambda d: {
        "contiguous": (matrix(d, 4, 6), 0.1, 0.3),
        "transposed": (matrix(d, 4, 6).t(), 2, 1),
        "expanded": (matrix(d, 6).expand(4, 6), 2, 1),
        "integers": (torch.arange(6, device=d), 2, -3),
        "promoted": (torch.arange(6, device=d), 0.5, 3),
        "bfloat16": (matrix(d, 4, 6, dtype=torch.bfloat16), 0.1, 3),
    },
    "square": lambda d: {
        "contiguous": (matrix(d, 4, 6),),
        "transposed": (matrix(d, 4, 6).t(),),
        "expanded": (matrix(d, 6).expand(4, 6),),
        "strided": (matrix(d, 8, 12)[::2, ::2],),
        "integers": (torch.arange(6, device=d),),
        "empty": (matrix(d, 0, 6),),
    },
    "relu_scale": lambda d: {
        "contiguous": (matrix(d, 4, 6), 0.1),
        "transposed": (matrix(d, 4, 6).t(), -2),
        "expanded": (matrix(d, 6).expand(4, 6), 0.1),
    },
    "relu_scale_add": lambda d: {
        "contiguous": (matrix(d, 4, 6), matrix(d, 4, 6), 0.1),
        "transposed": (matrix(d, 4, 6).t(), matrix(d, 4, 6).t(), 2),
        "broadcast": (matrix(d, 6), matrix(d, 4, 1), 0.1),
        "promoted": (matrix(d, 4, 6, dtype=torch.float16), matrix(d, 4, 6), 1),
    },
    "relu_scale_backward": lambda d: {
        "contiguous": (matrix(d, 4, 6), matrix(d, 4, 6), 0.1),
        "expanded": (matrix(d, 1).expand(4, 6), matrix(d, 4, 6).t().contiguous().t(), 2),
        "broadcast": (matrix(d, 4, 6), matrix(d, 4, 1), 0.1),
        "promoted": (matrix(d, 4, 6, dtype=torch.float16), matrix(d, 4, 6), 1),
    },
    "relu_scale_tensor": lambda d: {
        "contiguous": (matrix(d, 4, 6), matrix(d, 4, 6)),
        "channels": (matrix(d, 4, 6).t(), matrix(d, 4)),
        "larger": (matrix(d, 6), matrix(d, 4, 1)),
        "promoted": (matrix(d, 6, dtype=torch.float16), matrix(d, 4, 6)),
    },
    "relu_scale_add_tensor": lambda d: {
        "contiguous": (matrix(d, 4, 6), matrix(d, 4, 6), matrix(d, 4, 6)),
        "broadcast": (matrix(d, 6), matrix(d, 4, 1), matrix(d)),
        "promoted": (matrix(d, 4, 6), matrix(d, 4, 6), matrix(d, 4, 1, dtype=torch.float64)),
    },
    "relu_scale_backward_tensor": lambda d: {
        "contiguous": (matrix(d, 4, 6), matrix(d, 4, 6), matrix(d, 4, 6)),
        "channels": (matrix(d, 1).expand(4, 6), matrix(d, 6, 4).t(), matrix(d, 6)),
        "promoted": (matrix(d, 4, 6, dtype=torch.float16), matrix(d, 4, 6), matrix(d)),
    },
    "square_backward": lambda d: {
        "contiguous": (matrix(d, 4, 6), matrix(d, 4, 6)),
        "strided": (matrix(d, 8, 12)[::2, ::2], matrix(d, 4, 6)),
        "broadcast": (matrix(d, 4, 6), matrix(d, 6)),
    },
    "act_mul": lambda d: {
        "contiguous": (matrix(d, 4, 6), matrix(d, 4, 6), "silu"),
        "halves": (*matrix(d, 4, 12).chunk(2, -1), "gelu"),
        "transposed": (matrix(d, 4, 6).t(), matrix(d, 4, 6).t(), "tanh"),
        "broadcast": (matrix(d, 6), matrix(d, 4, 1), "relu"),
        "promoted": (matrix(d, 4, 6, dtype=torch.float16), matrix(d, 4, 6), "none"),
        "empty": (matrix(d, 0, 6), matrix(d, 0, 6), "sigmoid"),
    },
    "act_mul_backward": lambda d: {
        "contiguous": (matrix(d, 4, 6), matrix(d, 4, 6), matrix(d, 4, 6), "silu"),
        "halves": (matrix(d, 4, 6), *matrix(d, 4, 12).chunk(2, -1), "gelu"),
        "transposed": (matrix(d, 6, 4), matrix(d, 4, 6).t(), matrix(d, 6, 4), "tanh"),
        "expanded": (matrix(d, 1).expand(4, 6), matrix(d, 4, 6), matrix(d, 4, 6), "relu"),
        "broadcast": (matrix(d, 4, 6), matrix(d, 6), matrix(d, 4, 1), "gelu_tanh"),
        "promoted": (
            matrix(d, 4, 6),
            matrix(d, 4, 6, dtype=torch.float16),
            matrix(d, 4, 6),
            "leaky_relu",
        ),
        "empty": (matrix(d, 0, 6), matrix(d, 0, 6), matrix(d, 6), "sigmoid"),
    },
    "sum_to": lambda d: {
        "contiguous": (matrix(d, 4, 6), (6,), 0.1, None),
        "transposed": (matrix(d, 6, 4).t(), (4, 1), 1, torch.float16),
        "nothing": (matrix(d, 6, 4).t(), (4, 6), 2, torch.float64),
        "expanded": (matrix(d, 6).expand(4, 6), (), 1, None),
        "empty": (matrix(d, 0, 6), (1, 6), 1, None),
    },
    "linear_gelu": lambda d: {
        "contiguous": (matrix(d, 4, 6), matrix(d, 5, 6), matrix(d, 5), "none"),
        "no bias": (matrix(d, 4, 6), matrix(d, 5, 6), None, "tanh"),
        "vector": (matrix(d, 6), matrix(d, 5, 6), None, "none"),
        "batched": (matrix(d, 2, 3, 6), matrix(d, 5, 6), None, "none"),
        "transposed": (matrix(d, 6, 4).t(), matrix(d, 6, 5).t(), None, "none"),
        "not merging": (matrix(d, 3, 2, 6).transpose(0, 1), matrix(d, 5, 6), None, "none"),
        "expanded": (matrix(d, 6).expand(2, 3, 6), matrix(d, 5, 6), None, "none"),
        "empty": (matrix(d, 0, 6), matrix(d, 5, 6), None, "none"),
    },
    "linear_act": lambda d: {
        "contiguous": (matrix(d, 4, 6), matrix(d, 5, 6), matrix(d, 5), "silu", "ieee"),
        "vector": (matrix(d, 6), matrix(d, 5, 6), None, "relu", "tf32"),
        "batched": (matrix(d, 2, 3, 6), matrix(d, 5, 6), None, "none", "tf32x3"),
    },
    "gemm_bias_act": lambda d: {
        "contiguous": gemm(matrix(d, 4, 6), matrix(d, 6, 5), bias=matrix(d, 5), act="silu"),
        "transposed": gemm(matrix(d, 6, 4).t(), matrix(d, 5, 6).t(), alpha=0.1),
        "c row": gemm(matrix(d, 4, 6), matrix(d, 6, 5), c=matrix(d, 5), beta=0.3),
        "c expanded": gemm(matrix(d, 4, 6), matrix(d, 6, 5), c=matrix(d, 5).expand(4, 5)),
        "expanded": gemm(matrix(d, 6).expand(4, 6), matrix(d, 6, 5)),
        "out_dtype": gemm(matrix(d, 4, 6), matrix(d, 6, 5), out_dtype=torch.bfloat16),
        "tf32": gemm(matrix(d, 4, 6), matrix(d, 6, 5), precision="tf32"),
        "K = 0": gemm(matrix(d, 4, 0), matrix(d, 0, 5), bias=matrix(d, 5)),
        "empty": gemm(matrix(d, 0, 6), matrix(d, 6, 5)),
    },
    "act_backward": lambda d: {
        "contiguous": (matrix(d, 4, 6), matrix(d, 4, 6), "gelu", True, None),
        "no bias": (matrix(d, 4, 6), matrix(d, 4, 6), "relu", False, None),
        "transposed": (matrix(d, 6, 4).t(), matrix(d, 6, 4).t(), "tanh", True, torch.float64),
        "expanded": (matrix(d, 1).expand(4, 6), matrix(d, 4, 6), "silu", True, None),
        "promoted": (matrix(d, 4, 6, dtype=torch.float16), matrix(d, 4, 6), "none", True, None),
        "empty": (matrix(d, 0, 6), matrix(d, 0, 6), "sigmoid", True, None),
    },
}


def derived(op: str) -> Callable[[torch.device], dict[str, tuple]]:
    """Samples of an elementwise op that has none of its own above."""

    def samples(d: torch.device) -> dict[str, tuple]:
        given = SPECS[op].sample().values()

        def call(make: Callable[..., Tensor]) -> tuple:
            return tuple(make(v) if isinstance(v, tuple) else v for v in given)

        return {
            "contiguous": call(lambda shape: matrix(d, *shape)),
            "transposed": call(lambda shape: matrix(d, *reversed(shape)).t()),
            "expanded": call(lambda shape: matrix(d, shape[1]).expand(shape)),
            "empty": call(lambda shape: matrix(d, 0, shape[1])),
        }

    return samples


SAMPLES |= {op: derived(op) for op in SPECS if op not in SAMPLES}
ADD = ("add", "add_scalar", "add_to_scalar")  # registered for one function
OF_TENSORS = tuple(f"{op}_tensor" for op in SPECS)  # forms for a tensor in a number's place
SAMPLES = {op: samples for op, samples in SAMPLES.items() if op in (*SPECS, *ADD, *OF_TENSORS)}
# The forms that a training step takes: the same arguments, the pre-activation beside the result.
WITH_PRE = ("linear_act", "linear_gelu", "gemm_bias_act")
SAMPLES |= {f"{op}_with_pre": SAMPLES[op] for op in WITH_PRE if op in SAMPLES}


def gemm(a: Tensor, b: Tensor, **options: Any) -> tuple:
    """gemm_bias_act's arguments in schema order."""
    defaults = {
        "bias": None,
        "act": "none",
        "alpha": 1.0,
        "beta": None,
        "c": None,
        "out_dtype": None,
        "precision": "ieee",
    }
    return a, b, *{**defaults, **options}.values()


def public(op: str) -> Callable[..., Any]:
    """The public function, taking its registered op's arguments."""
    if op.endswith("_with_pre"):
        return getattr(OPS, op)
    if op == "act_backward":
        return lambda grad, saved, act, bias, dtype: triton_kernels.act_backward(
            grad, saved, act, bias=bias, dtype=dtype
        )
    if op == "gemm_bias_act":
        names = ("act", "alpha", "beta", "c", "out_dtype", "precision")
        return lambda a, b, bias, *rest: triton_kernels.gemm_bias_act(
            a, b, bias, **dict(zip(names, rest))
        )
    if op in ("add", "add_scalar"):
        return lambda x, y, alpha: triton_kernels.add(x, y, alpha=alpha)
    if op == "add_to_scalar":
        return lambda y, x, alpha: triton_kernels.add(x, y, alpha=alpha)
    if op == "sum_to":
        return lambda x, shape, factor, dtype: triton_kernels.sum_to(
            x, shape, factor=factor, dtype=dtype
        )
    if op == "linear_act":
        return lambda x, weight, bias, act, precision: triton_kernels.linear_act(
            x, weight, bias, act=act, precision=precision
        )
    if op == "linear_gelu":
        return lambda x, weight, bias, approximate: triton_kernels.linear_gelu(
            x, weight, bias, approximate=approximate
        )
    return getattr(triton_kernels, op.removesuffix("_tensor"))


def each(result: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else tuple(result)


def same_bits(a: Tensor, b: Tensor) -> bool:
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and torch.equal(*(t.reshape(-1).contiguous().view(torch.uint8) for t in (a, b)))
    )


def test_every_op_is_registered() -> None:
    """And every registered op has samples here."""
    prefix = "triton_kernels::"
    names = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith(prefix)}
    single = (op for op in SAMPLES if op not in PAIRS and not op.endswith("_with_pre"))
    written = {f"{op}_out" for op in single}
    assert {name.removeprefix(prefix).split(".")[0] for name in names} == set(SAMPLES) | written


@pytest.mark.parametrize("op", SAMPLES)
def test_schema_and_fake_hold(op: str, device: torch.device) -> None:
    for what, args in SAMPLES[op](device).items():
        result = torch.library.opcheck(
            getattr(OPS, op).default, args, test_utils=("test_schema", "test_faketensor")
        )
        assert set(result.values()) == {"SUCCESS"}, (what, result)


@pytest.mark.parametrize("op", SAMPLES)
def test_fake_is_like_the_real_result(op: str, device: torch.device) -> None:
    for what, args in SAMPLES[op](device).items():
        real = getattr(OPS, op)(*args)
        with FakeTensorMode() as fakes:
            fake = getattr(OPS, op)(
                *(fakes.from_tensor(a) if isinstance(a, Tensor) else a for a in args)
            )
        for imagined, made, again in zip(each(fake), each(real), each(public(op)(*args))):
            for name in ("shape", "dtype", "device"):
                assert getattr(imagined, name) == getattr(made, name), (what, name)
            assert imagined.stride() == made.stride(), what
            assert same_bits(made, again), what


@pytest.mark.parametrize("op", SAMPLES)
def test_compiled_result_is_the_eager_one(op: str, device: torch.device) -> None:
    function = public(op)
    for what, args in SAMPLES[op](device).items():
        torch._dynamo.reset()
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        for eager, result in zip(each(function(*args)), each(compiled(*args))):
            assert same_bits(result, eager), what
            assert result.stride() == eager.stride(), what


def test_compiled_inside_a_larger_function(device: torch.device) -> None:
    def block(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        h = triton_kernels.gemm_bias_act(x, weight.t(), bias, act="gelu")
        h = triton_kernels.add(h, x, alpha=0.5)
        return triton_kernels.sum_to(triton_kernels.add(h, 1.0).t(), (6, 1)) + 1

    torch._dynamo.reset()
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (4, 7):
        args = matrix(device, rows, 6), matrix(device, 6, 6), matrix(device, 6)
        assert same_bits(compiled(*args), block(*args))
