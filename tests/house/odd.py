"""A package of kernels whose interfaces are not the usual one, for the tests of targets."""

from __future__ import annotations

from pathlib import Path

from foreign import PACKAGES

KERNELS = """
import torch
import triton
import triton.language as tl


@triton.jit
def scale_kernel(x_ptr, out_ptr, factor, N, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < N) * factor, mask=i < N)


@triton.autotune(
    configs=[triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128}, num_warps=8)], key=["N"]
)
@triton.jit
def tuned_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < N) * 2, mask=i < N)


@triton.jit
def positive_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, (tl.load(x_ptr + i, mask=i < N) > 0).to(tl.int32), mask=i < N)


def scale(x, *, factor=2.0):
    x, out = x.contiguous(), torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        scale_kernel[(triton.cdiv(x.numel(), 64),)](x, out, factor, x.numel(), BLOCK=64)
    return out


def tuned(x):
    x, out = x.contiguous(), torch.empty(x.shape, dtype=x.dtype, device=x.device)
    grid = lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)
    if x.numel():
        tuned_kernel[grid](x, out, x.numel())
    return out


def positive(x):
    x, out = x.contiguous(), torch.empty(x.shape, dtype=torch.int32, device=x.device)
    if x.numel():
        positive_kernel[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), BLOCK=64)
    return out


def doubled_in_place(x):
    if x.numel():
        scale_kernel[(triton.cdiv(x.numel(), 64),)](x, x, 2.0, x.numel(), BLOCK=64)
"""

TWIN = """
#include <torch/extension.h>

__global__ void twice_kernel(const float* x, float* out, int N) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < N) out[i] = x[i] * 2;
}

torch::Tensor twice(torch::Tensor x) {
  x = x.contiguous();
  auto out = torch::empty_like(x);
  int N = x.numel();
  if (N) twice_kernel<<<(N + 63) / 64, 64>>>(x.data_ptr<float>(), out.data_ptr<float>(), N);
  return out;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("twice", &twice); }
"""

SPECS = """
from pathlib import Path

import compare
import cuda_reference
from odd import kernels

twin = cuda_reference.load("odd_twin", [Path(__file__).with_name("twice.cu")])


def spec(name, triton=kernels.scale, **own):
    given = {"oracle": lambda x: x.double() * 2, "max_ulps": 0} | own
    return compare.Function(name, triton=triton, shapes=[(), (0,), (1, 1), (3, 5)], **given)


def cloned(x):
    x = x.contiguous().clone()
    kernels.doubled_in_place(x)
    return x


BOTH = spec("both", cuda=twin.twice)
KEYWORD = spec(
    "keyword", numbers={"factor": (2.0, -0.5)}, oracle=lambda x, factor: x.double() * factor
)
SEVERAL = spec(
    "several",
    lambda x: kernels.positive(kernels.scale(x)),
    oracle=lambda x: (x > 0).int(),
    out_dtype="int32",
)
TUNED = spec("tuned", kernels.tuned)
IN_PLACE = spec("in_place", cloned)
WHOLE = spec("whole", dtypes=["int64"], values=["integers"], oracle=lambda x: x * 2)

NOTHING = spec("nothing", kernels.doubled_in_place)
INT32 = spec("int32", kernels.positive, oracle=lambda x: (x > 0).float())
NO_KERNEL = spec("no_kernel", lambda x: x * 2)
NO_TRITON = spec("no_triton", None, cuda=twin.twice)
"""

RIGHT = [f"odd.specs:{name}" for name in ("BOTH", "KEYWORD", "SEVERAL", "TUNED", "IN_PLACE")]
RIGHT.append("odd.specs:WHOLE")


def make(folder: Path, root: Path) -> None:
    """The package, and this project's beside it."""
    package = folder / "odd"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "kernels.py").write_text(KERNELS)
    (package / "twice.cu").write_text(TWIN)
    (package / "specs.py").write_text(SPECS)
    for name in PACKAGES:
        (folder / name).symlink_to(root / name)
