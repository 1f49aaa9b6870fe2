"""Planted faults in gated units: wrong gates, derivatives, roundings, masks and strides."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_faults import Fault, assert_caught, pytestmark  # noqa: F401 - one reason to skip

TRITON, CUDA = "Triton: the kernel's logic", "CUDA: the reference kernel"
OP = "triton_kernels/ops/act_mul.py"
KERNELS = "triton_kernels/ops/_act_mul_kernels.py"
SOURCE = "cuda_reference/csrc/act_mul.cu"

FAULTS = {
    "up is activated, Triton": Fault(
        OP,
        "return ACT(gate) * up",
        "return ACT(up) * gate",
        "act_mul float32 33x129 contiguous normal act=silu seed=0",
        TRITON,
    ),
    "the activation is rounded before the product": Fault(
        OP,
        "return ACT(gate) * up",
        "return ACT(gate).to(tl.float16).to(tl.float32) * up",
        "act_mul float16 33x129 transposed normal act=gelu seed=0",
        TRITON,
    ),
    "another activation": Fault(
        "triton_kernels/_elementwise_op.py",
        "ACTIVATIONS[act].forward_for(dtype, dtype)",
        'ACTIVATIONS[act.removesuffix("_tanh")].forward_for(dtype, dtype)',
        "act_mul float32 33x129 transposed normal act=gelu_tanh seed=0",
        TRITON,
    ),
    "the result's derivative of the gate": Fault(
        KERNELS,
        "slope = DERIVATIVE(gate)",
        "slope = DERIVATIVE(value)",
        "act_mul_backward float32 33x129 contiguous normal act=silu seed=0",
        TRITON,
    ),
    "the gate's derivative of the result": Fault(
        KERNELS,
        "slope = DERIVATIVE(value)",
        "slope = DERIVATIVE(gate)",
        "act_mul_backward bfloat16 33x129 transposed normal act=tanh seed=0",
        TRITON,
    ),
    "gradients of each other": Fault(
        KERNELS,
        "return dgate, grad * value",
        "return grad * value, dgate",
        "act_mul_backward float64 1 contiguous normal act=silu seed=0",
        TRITON,
    ),
    "a lane too many": Fault(
        KERNELS,
        "lane, lane < n, 0",
        "lane, lane <= n, 0",
        "act_mul_backward float32 1041 contiguous normal act=none seed=0",
        TRITON,
    ),
    "up's gradient as gate's lies": Fault(
        KERNELS,
        "located(i, j, k, outer, sizes, dup_strides, UNITS, 10, NDIM)",
        "located(i, j, k, outer, sizes, dgate_strides, UNITS, 10, NDIM)",
        "act_mul_backward float32 17x19 functional normal act=silu y=transposed seed=0",
        TRITON,
    ),
    "an expanded gradient, taken for dense": Fault(
        OP,
        "t.shape == shape and t.is_contiguous() for t in tensors)",
        "t.shape == shape and t.is_contiguous() for t in tensors[1:])",
        "act_mul_backward float32 17x19 contiguous normal act=silu grad=expanded seed=0",
        TRITON,
    ),
    "up is activated, CUDA": Fault(
        SOURCE,
        "act.forward(x) * y",
        "act.forward(y) * x",
        "act_mul float64 33x129 transposed normal act=sigmoid seed=0",
        CUDA,
    ),
    "a derivative of the result, CUDA": Fault(
        SOURCE,
        "act.saved(x, value)",
        "value",
        "act_mul_backward float16 33x129 transposed normal act=gelu seed=0",
        CUDA,
    ),
    "not promoted, CUDA": Fault(
        SOURCE,
        "const C y = promoted<C>(up, up.offset(i), out.dtype);",
        "const C y = load<C>(up, up.offset(i));",
        "act_mul bfloat16 139 contiguous normal act=silu y=0-d y_dtype=float64 seed=0",
        CUDA,
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_caught(name: str, root: Path, tmp_path: Path) -> None:
    assert_caught(FAULTS[name], root, tmp_path)
