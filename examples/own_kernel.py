"""Your own kernel pair, checked: residual + silu(x) in Triton and in CUDA C++, against float64.

    python examples/own_kernel.py

Then the CUDA kernel once more with an off-by-one, and the report that names it. On a GPU both sides
are compiled for it, which needs nvcc; on the CPU Triton is interpreted and g++ builds the CUDA.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from compare import cross_check
from cuda_reference import load_inline


@triton.jit
def residual_silu_kernel(x_ptr, residual_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    residual = tl.load(residual_ptr + i, mask=i < n, other=0.0)
    tl.store(out_ptr + i, residual + x / (1 + tl.exp(-x)), mask=i < n)


def by_triton(x: Tensor, residual: Tensor) -> Tensor:
    out = torch.empty_like(x)
    residual_silu_kernel[(triton.cdiv(x.numel(), 256),)](x, residual, out, x.numel(), BLOCK=256)
    return out


SOURCE = """
__global__ void kernel(const float* x, const float* residual, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  out[i] = residual[i] + x[i] / (1 + expf(-x[i]));
}
void residual_silu(const float* x, const float* residual, float* out, int n, cudaStream_t stream) {
  LAUNCH(kernel, (n + 255) / 256, 256, 0, stream, x, residual, out, n);
}
"""
DECLARED = "const float* x, const float* residual, float* out, int n, cudaStream_t stream"


def by_cuda(source: str) -> Callable[[Tensor, Tensor], Tensor]:
    """The function that a CUDA source makes; it is compiled at the first call."""
    module = load_inline(source, {"residual_silu": DECLARED})

    def residual_silu(x: Tensor, residual: Tensor) -> Tensor:
        out = torch.full_like(x, torch.nan)  # whatever the kernel leaves out will show
        module.residual_silu(x, residual, out, x.numel())
        return out

    return residual_silu


def oracle(x: Tensor, residual: Tensor) -> Tensor:
    x = x.double()
    return residual.double() + x / (1 + torch.exp(-x))


def bound(right: Tensor, x: Tensor, residual: Tensor) -> Tensor:
    """The largest error of a right kernel. An exp by powers of 2 rounds its argument, hence |x|;
    exp, sum and quotient add up to 5 eps; the last sum rounds to half an eps of the result.

    ULPs of the result would not do: residual and silu(x) may cancel.
    """
    silu = (right - residual.double()).abs()
    return torch.finfo(x.dtype).eps * ((x.double().abs() + 5) * silu + right.abs() / 2)


def main() -> None:
    """Check the pair, then see that a wrong one is found."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = (1, 255, 257, 1000) if device == "cpu" else (1, 255, 257, 1000, 10_000_019)
    inputs = [tuple(3 * torch.randn(2, n, device=device)) for n in sizes]
    check = {"triton": by_triton, "oracle": oracle, "inputs": inputs, "bound": bound}

    report = cross_check(cuda=by_cuda(SOURCE), **check)
    print(report)
    assert report, "the pair is wrong"

    print("\nwith an off-by-one in the CUDA kernel:")
    report = cross_check(cuda=by_cuda(SOURCE.replace("i >= n", "i >= n - 1")), **check)
    print(report)
    assert report.verdict == "FAIL: the cuda side is wrong"
    # Of each input the last element, and no other.
    wrong = {finding.inputs: str(finding) for finding in report.findings if not finding.passed}
    assert all(f"element ({n - 1},): got nan" in wrong[i] for i, n in enumerate(sizes))
    assert all(f"1 of {n} elements wrong" in wrong[i] for i, n in enumerate(sizes))


if __name__ == "__main__":
    main()
