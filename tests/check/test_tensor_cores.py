"""Tensor cores: the experiments find the constants, every path adds as the model says, and wmma on
the host target takes what CUDA's takes and refuses what it refuses."""

from __future__ import annotations

import ctypes
import math
from fractions import Fraction
from pathlib import Path

import pytest
import torch

import cuda_reference
from compare import tensor_cores
from compare.numerics import same_bits
from compare.specs import product_bounds
from compare.tensor_cores import Findings, Model
from cuda_reference import _build

PATHS = tensor_cores.paths()
pytestmark = pytest.mark.skipif(not PATHS, reason="no GPU and no host compiler")
each_path = pytest.mark.parametrize("path", PATHS, ids=lambda p: f"{p.name} {p.kind}")


def skip_unless_hopper(path: tensor_cores.Path) -> None:
    if path.device == "cuda" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the constants were measured on compute capability 9.0")


@each_path
def test_experiments_find_the_models_constants(path: tensor_cores.Path) -> None:
    skip_unless_hopper(path)
    operand = "exact" if path.kind != "tf32" else "rounded" if "CUDA" in path.name else "truncated"
    expected = Findings(path.model.group, path.model.extra_bits, True, True, True, operand)
    assert tensor_cores.measure(path) == expected


@each_path
def test_random_products_are_bitwise_those_of_the_model(path: tensor_cores.Path) -> None:
    skip_unless_hopper(path)
    wrong, total = tensor_cores.disagreements(path, seed=1)
    assert total > 70_000
    assert wrong == 0


@pytest.mark.parametrize(
    "path",
    [path for path in PATHS if path.kind != "float16"],  # whose products end at 2³²
    ids=lambda p: f"{p.name} {p.kind}",
)
def test_the_largest_numbers(path: tensor_cores.Path) -> None:
    """From 2¹²⁸ on a sum is infinite, below it float32's largest number at most."""
    skip_unless_hopper(path)
    a = torch.zeros(3, 16, dtype=path.dtype)
    a[0, :2] = 2.0**127
    a[1, :3] = torch.tensor([2.0**127, 2.0**127, -(2.0**103)]).to(path.dtype)
    a[2, :3] = torch.tensor([2.0**127, 2.0**127, -(2.0**127)]).to(path.dtype)
    ones = torch.ones(16, 64, dtype=path.dtype, device=path.device)
    sums = path.product(a.to(path.device), ones)[:, 0].tolist()
    assert sums == [math.inf, torch.finfo(torch.float32).max, 2.0**127]


@pytest.mark.parametrize("model", [Model(16, 2), Model(4, 2), Model(8, 1), Model(4, 0)])
@pytest.mark.parametrize("K", [1, 3, 16, 50])
def test_the_error_bound_of_a_model(model: Model, K: int) -> None:
    """Emulated sums against exact rational ones; the worst is not far below the bound either."""
    g = torch.Generator().manual_seed(K)
    a = (1 + torch.rand(64, K, generator=g)).to(torch.bfloat16)
    b = torch.exp2(torch.randint(-26, 1, (K, 8), generator=g).float()).to(torch.bfloat16)
    result = tensor_cores.emulate(a, b, model)
    worst = 0.0
    for i in range(64):
        for j in range(8):
            terms = [Fraction(x) * Fraction(y) for x, y in zip(a[i].tolist(), b[:, j].tolist())]
            error = abs(Fraction(result[i, j].item()) - sum(terms)) / sum(map(abs, terms))
            worst = max(worst, float(error))
    assert worst <= model.accumulation_error(K)
    assert K == 1 or worst > model.accumulation_error(K) / 50


def test_a_sum_that_is_too_long_has_no_bound() -> None:
    with pytest.raises(ValueError, match="no bound"):
        Model(16, 2).accumulation_error(2**25)


def test_the_bound_tells_the_model_from_fewer_bits() -> None:
    """What the measurement buys: an accumulator of 19 bits no longer passes."""
    g = torch.Generator().manual_seed(0)
    a, b = ((1 + torch.rand(shape, generator=g)).half() for shape in ((1, 512), (512, 1)))
    reference = a.double() @ b.double()
    bound = product_bounds.bound("cuda-host/wmma", ((a, b), {}), reference, torch.float32)
    right = tensor_cores.emulate(a, b, Model(16, 2)).double()
    narrow = tensor_cores.emulate(a, b, Model(16, -5)).double()
    assert (right - reference).abs() <= bound < (narrow - reference).abs()


@pytest.mark.gpu_only
@pytest.mark.skipif(_build.unavailable("host") is not None, reason="no host compiler")
@pytest.mark.parametrize("precision", ["ieee", "tf32", "tf32x3"])
def test_wmma_on_the_cpu_has_the_gpus_bits(precision: str) -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the host target adds as compute capability 9.0 does")
    for dtype in (torch.float16, torch.bfloat16) if precision == "ieee" else (torch.float32,):
        a, b, bias = (
            torch.randn(n, dtype=torch.float64).to(dtype) for n in [(65, 200), (200, 90), 90]
        )
        options = {"variant": "wmma", "precision": precision, "act": "relu", "alpha": 0.3}
        here = cuda_reference.gemm_bias_act(a, b, bias, **options)
        there = cuda_reference.gemm_bias_act(a.cuda(), b.cuda(), bias.cuda(), **options)
        assert same_bits(here, there.cpu()).all()


@pytest.mark.skipif(_build.unavailable("host") is not None, reason="no host compiler")
def test_tf32_runs_on_tensor_cores_by_default() -> None:
    a, b = torch.randn(40, 50), torch.randn(50, 60)
    for precision in ("tf32", "tf32x3"):
        default = cuda_reference.gemm_bias_act(a, b, precision=precision)
        named = cuda_reference.gemm_bias_act(a, b, precision=precision, variant="wmma")
        assert same_bits(default, named).all()


@pytest.mark.skipif(_build.unavailable("host") is not None, reason="no host compiler")
def test_tf32x3_of_special_values() -> None:
    """The parts of an infinity are itself and nothing: no NaN where there is none."""
    a = torch.tensor([[math.inf, 1.0], [-math.inf, 1.0], [math.nan, 1.0], [1e-40, 0.0]])
    out = cuda_reference.gemm_bias_act(a, torch.ones(2, 3), precision="tf32x3")
    assert out[0].tolist() == [math.inf] * 3
    assert out[1].tolist() == [-math.inf] * 3
    assert out[2].isnan().all()
    assert (out[3] > 0).all()


# ---- wmma on the host target ----

SHAPES = [(16, 16, 16), (32, 8, 16), (8, 32, 16)]
KERNELS = r"""
#include "crosscheck.cuh"
using namespace nvcuda;

template <int M, int N, int K, class A, class B>
__global__ void multiply(const __half* a, const __half* b, float* c, wmma::layout_t layout) {
  const int a_ld = std::is_same<A, wmma::row_major>::value ? K : M;
  const int b_ld = std::is_same<B, wmma::row_major>::value ? N : K;
  wmma::fragment<wmma::matrix_a, M, N, K, __half, A> x;
  wmma::fragment<wmma::matrix_b, M, N, K, __half, B> y;
  wmma::fragment<wmma::accumulator, M, N, K, float> sum;
  wmma::load_matrix_sync(x, a, a_ld);
  wmma::load_matrix_sync(y, b, b_ld);
  wmma::load_matrix_sync(sum, c, layout == wmma::mem_row_major ? N : M, layout);
  for (int i = 0; i < sum.num_elements; ++i) sum.x[i] *= 2.0f;
  wmma::mma_sync(sum, x, y, sum);
  wmma::store_matrix_sync(c, sum, layout == wmma::mem_row_major ? N : M, layout);
}
template <int M, int N, class A, class B>
void run(const __half* a, const __half* b, float* c, int by_columns) {
  const auto layout = by_columns ? wmma::mem_col_major : wmma::mem_row_major;
  LAUNCH((multiply<M, N, 16, A, B>), 1, 32, 0, nullptr, a, b, c, layout);
}
template <int M, int N>
void choose(const __half* a, const __half* b, float* c, int a_t, int b_t, int c_t) {
  if (a_t && b_t) run<M, N, wmma::col_major, wmma::col_major>(a, b, c, c_t);
  else if (a_t) run<M, N, wmma::col_major, wmma::row_major>(a, b, c, c_t);
  else if (b_t) run<M, N, wmma::row_major, wmma::col_major>(a, b, c, c_t);
  else run<M, N, wmma::row_major, wmma::row_major>(a, b, c, c_t);
}
extern "C" int run_multiply(const __half* a, const __half* b, float* c, int M, int a_t, int b_t,
                            int c_t) {
  if (M == 16) choose<16, 16>(a, b, c, a_t, b_t, c_t);
  else if (M == 32) choose<32, 8>(a, b, c, a_t, b_t, c_t);
  else choose<8, 32>(a, b, c, a_t, b_t, c_t);
  return cudaGetLastError();
}

__global__ void abuse(const __half* a, int ld, int lanes) {
  wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> x;
  if (int(threadIdx.x) < lanes) wmma::load_matrix_sync(x, a, ld);
}
extern "C" int run_abuse(const __half* a, int ld, int lanes, int threads) {
  LAUNCH(abuse, 1, threads, 0, nullptr, a, ld, lanes);
  return cudaGetLastError();
}
"""


def aligned(n: int, dtype: torch.dtype) -> torch.Tensor:
    """A vector at a multiple of 32 bytes."""
    buffer = torch.zeros(n + 32, dtype=dtype)
    skip = -buffer.data_ptr() % 32 // buffer.element_size()
    return buffer[skip : skip + n]


def pointer(t: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(t.data_ptr())


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if reason := _build.unavailable("host"):
        pytest.skip(reason)
    csrc: Path = tmp_path_factory.mktemp("csrc")
    (csrc / "wmma.cu").write_text(KERNELS)
    return _build.library("wmma", "host", csrc=csrc)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("layouts", range(8))
def test_fragments_of_every_shape_and_layout(
    library: ctypes.CDLL, shape: tuple[int, int, int], layouts: int
) -> None:
    M, N, K = shape
    a_t, b_t, c_t = layouts & 1, layouts >> 1 & 1, layouts >> 2 & 1
    a, b, c = (torch.randint(-9, 9, s).float() for s in ((M, K), (K, N), (M, N)))
    a_flat, b_flat = aligned(M * K, torch.float16), aligned(K * N, torch.float16)
    c_flat = aligned(M * N, torch.float32)
    for flat, matrix, turned in ((a_flat, a, a_t), (b_flat, b, b_t), (c_flat, c, c_t)):
        flat.copy_((matrix.t() if turned else matrix).reshape(-1))
    arguments = (pointer(a_flat), pointer(b_flat), pointer(c_flat))
    assert library.run_multiply(*arguments, M, a_t, b_t, c_t) == 0
    result = c_flat.view(N, M).t() if c_t else c_flat.view(M, N)
    assert torch.equal(result, 2 * c + a @ b)


@pytest.mark.parametrize(
    ("skew", "ld", "lanes", "threads", "words"),
    [
        (1, 16, 32, 32, "not a multiple of 32 bytes"),
        (0, 20, 32, 32, "leading dimension of 20, not a multiple of 8"),
        (0, 16, 31, 32, "0x7fffffff came"),
        (0, 16, 32, 20, "0x000fffff came"),
    ],
)
def test_what_wmma_leaves_undefined_is_an_error_here(
    library: ctypes.CDLL, skew: int, ld: int, lanes: int, threads: int, words: str
) -> None:
    tile = aligned(16 * 32, torch.float16)
    status = library.run_abuse(pointer(tile[skew:]), ld, lanes, threads)
    assert status != 0
    text = library.crosscheck_error_string(status).decode()
    assert words in text
    assert "load_matrix_sync() at line" in text
