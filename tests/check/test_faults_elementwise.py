"""Planted faults in the elementwise ops, sum_to and act_backward, seen only where operands lie
differently, far apart or misaligned, or have different dtypes."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_faults import (  # noqa: F401 - one reason to skip
    ELEMENTWISE,
    ENGINE,
    Fault,
    assert_caught,
    pytestmark,
)

TRITON, CUDA = "Triton: the kernel's logic", "CUDA: the reference kernel"
SUM_TO = "triton_kernels/ops/sum_to.py"
ACT_BACKWARD = "triton_kernels/ops/act_backward.py"
CSRC = "cuda_reference/csrc/"

FAULTS = {
    "32-bit offsets everywhere, Triton": Fault(
        ENGINE,
        "tl.int64 if reach >= 2**31 else tl.int32",
        "tl.int32",
        "relu_scale float32 3 contiguous normal scale=0.1 out=distant seed=0",
        TRITON,
    ),
    "the offset 2³¹ itself": Fault(
        ENGINE,
        "reach >= 2**31",
        "reach > 2**31",
        "square int8 3 contiguous normal out=distant seed=0",
        TRITON,
    ),
    "the result's offsets in 32 bits": Fault(
        ENGINE,
        "zip(last, steps)]) for steps in strides])\n",
        "zip(last, steps)]) for steps in strides[:-2]])\n",
        "add int8 3 contiguous normal out=distant seed=0",
        TRITON,
    ),
    "32-bit offsets everywhere, CUDA": Fault(
        CSRC + "elementwise.cuh",
        "    long long at = 0;",
        "    int at = 0;",
        "square int8 3 distant normal seed=0",
        CUDA,
    ),
    "y transposed, taken for dense": Fault(
        ENGINE,
        "(y is None or (y.shape == shape and y.is_contiguous()))",
        "(y is None or y.shape == shape)",
        "relu_scale_add float32 3 contiguous normal scale=0.1 y=distant seed=0",
        TRITON,
    ),
    "x broadcast, taken for dense": Fault(
        ENGINE,
        "x.shape == shape\n        and x.is_contiguous()",
        "x.is_contiguous()",
        "relu_scale_add float32 0-d contiguous normal scale=0.1 y=batch seed=0",
        TRITON,
    ),
    "scale transposed, taken for dense": Fault(
        ENGINE,
        "(s is None or (s.shape == shape and s.is_contiguous()))",
        "(s is None or s.shape == shape)",
        "relu_scale_add float32 67x133 contiguous normal scale=transposed seed=0",
        TRITON,
    ),
    "scale walked as y is": Fault(
        ENGINE,
        "for operand in (1, 2, 3)]",
        "for operand in (1, 2, 2)]",
        "relu_scale_add float32 2x70x3x5 contiguous normal scale=channel seed=0",
        TRITON,
    ),
    "scale's strides are y's in tiles": Fault(
        ELEMENTWISE,
        "s_ptr, i0, j0, k0, outer, sizes, s_strides, UNITS, 6,",
        "s_ptr, i0, j0, k0, outer, sizes, y_strides, UNITS, 4,",
        "relu_scale_backward float32 33x129 transposed normal scale=contiguous seed=0",
        TRITON,
    ),
    "scale not promoted": Fault(
        ELEMENTWISE,
        "        s = promoted(s, RESULT, C)\n",
        "        s = tl.cast(s, C)\n",
        "relu_scale_add float16 33x129 inplace normal scale=0-d scale_dtype=float64 seed=0",
        TRITON,
    ),
    "scale where x is, CUDA": Fault(
        CSRC + "relu_scale.cu",
        "promoted<C>(scale, scale.offset(i), out.dtype);\n  store<C>(out, out.offset(i), fused",
        "promoted<C>(scale, x.offset(i), out.dtype);\n  store<C>(out, out.offset(i), fused",
        "relu_scale_add float32 33x129 transposed normal scale=contiguous seed=0",
        CUDA,
    ),
    "in place and strided, a lane too many": Fault(
        ELEMENTWISE,
        "i < multiple(sizes[0], UNITS[0])",
        "i <= multiple(sizes[0], UNITS[0])",
        "square int8 33x129 inplace normal out=padded seed=0",
        TRITON,
    ),
    "told of a divisor that the size does not have": Fault(
        "triton_kernels/_elementwise.py",
        "math.gcd(16, sizes[dense], *others)",
        "math.gcd(16, *others)",
        "add float16 33x129 padded normal seed=0",
        TRITON,
    ),
    "promoted without rounding to float32 first": Fault(
        ELEMENTWISE,
        "tl.cast(tl.cast(wide, RESULT), C)",
        "tl.cast(tl.cast(v, RESULT), C)",
        "add int32 139 contiguous ties y_dtype=bfloat16 seed=0",
        TRITON,
    ),
    "not promoted": Fault(
        CSRC + "elementwise.cuh",
        "  if (result == BF16) return __bfloat162float(__float2bfloat16_rn(v));\n",
        "",
        "add bfloat16 139 contiguous normal y=0-d y_dtype=float64 seed=0",
        CUDA,
    ),
    "a product of two numbers in 32 bits": Fault(
        "triton_kernels/_scalars.py",
        "        value = tl.cast(s, C)\n",
        "        value = s\n",
        "add int64 139 contiguous normal y=scalar alpha=-7 y_dtype=int32 seed=0",
        TRITON,
    ),
    "the rungs' formula rounded twice": Fault(
        CSRC + "add.cu",
        "out[0] = fused(value<C>(alpha), in[1], in[0]);",
        "out[0] = value<C>(alpha) * in[1] + in[0];",
        "add float32 139 contiguous cancelling alpha=0.1 seed=0",
        CUDA + " (only f32, f32x4, pack128, pack64, scalar, stream)",
    ),
    "a misaligned result in vectors": Fault(
        CSRC + "rungs.cuh",
        "    for (const void* each : out) bits |= reinterpret_cast<size_t>(each);\n",
        "",
        "add float32 139 contiguous normal out=misaligned seed=0",
        CUDA + " (only f32x4, pack128, pack64)",
    ),
    "the second pass writes densely": Fault(
        SUM_TO,
        "[(n, at, os) for (n, _, os), at in zip(kept, _dense(kept))]",
        "[(n, at, at) for (n, _, os), at in zip(kept, _dense(kept))]",
        "sum_to float64 1x3x9000x2 contiguous normal to=row out=strided seed=0",
        TRITON,
    ),
    "float64 summed in float32, Triton": Fault(
        SUM_TO,
        "torch.float64 if torch.float64 in (x.dtype, dtype) else",
        "torch.float64 if dtype is torch.float64 else",
        "sum_to float64 33x35 contiguous normal to=row out_dtype=float32 seed=0",
        TRITON,
    ),
    "float64 summed in float32, CUDA": Fault(
        CSRC + "sum_to.cu",
        "const int wide = ft.dtype == F64 ? F64 : ot.dtype;",
        "const int wide = ot.dtype;",
        "sum_to float64 33x35 contiguous normal to=row out_dtype=float32 seed=0",
        CUDA,
    ),
    "saved read where grad lies": Fault(
        ACT_BACKWARD,
        "saved_ptr + m[:, None] * stride_sm + n[None, :] * stride_sn",
        "saved_ptr + m[:, None] * stride_gm + n[None, :] * stride_gn",
        "act_backward float32 3x3 contiguous normal act=gelu saved=distant seed=0",
        TRITON,
    ),
    "columns in 32 bits": Fault(
        ACT_BACKWARD,
        "n = tl.program_id(0).to(tl.int64) * BLOCK_N",
        "n = tl.program_id(0) * BLOCK_N",
        "act_backward float32 3x3 contiguous normal act=gelu saved=distant_transposed seed=0",
        TRITON,
    ),
    "a grad of float64 forgotten": Fault(
        ACT_BACKWARD,
        "torch.float64 in (grad.dtype, saved.dtype, dtype)",
        "torch.float64 in (saved.dtype, dtype)",
        "act_backward float32 17x19 contiguous normal act=gelu grad_dtype=float64 "
        "out_dtype=float32 seed=0",
        TRITON,
    ),
    "sums written densely": Fault(
        CSRC + "act_backward.cu",
        "n * sums.stride[0]",
        "n",
        "act_backward float32 3x3 distant_transposed normal act=gelu seed=0",
        CUDA,
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_caught(name: str, root: Path, tmp_path: Path) -> None:
    assert_caught(FAULTS[name], root, tmp_path)
