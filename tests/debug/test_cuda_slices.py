"""What the lines of a CUDA kernel depend on, read from its text."""

from __future__ import annotations

from pathlib import Path

import pytest

from compare.debugging.cuda.slices import Source, behind

SOURCE = """\
#define VECTOR(x) (reinterpret_cast<float4*>(&(x))[0])
namespace {
template <int W>
__device__ float lane_sum(float v) {
  for (int step = W / 2; step > 0; step /= 2) {
    v += __shfl_xor_sync(0xffffffff, v, step);
  }
  return v;
}
}
__global__ void other_kernel(float* y) {
  int i = 3;
  y[i] = 0;
}
__global__ void scaled_kernel(const float* x, float* y, int n, int unused) {
  __shared__ float part[4];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  int never = unused;
  never += 1;
  float4 four;
  VECTOR(four.x) = VECTOR(
      x[4 * i]);
  float sum = lane_sum<32>(four.x);
  if (threadIdx.x == 0)
    part[0] = sum;
  else if (never)
    ++never;
  if (i >= n) {
    return;
  }
  y[i] = part[0];
}
"""


LAUNCHED = """\
#define RADIUS 2
#define UNUSED 3
constexpr int TILE = 16;
constexpr int OTHER = 17;
__constant__ float weights[2] = {0.25f, 0.5f};
void helper(int* rows, int n);
__global__ void weighted(const float* x, float* y, int n) {
  int i = blockIdx.x * TILE + threadIdx.x;
  if (i < n) y[i] = weights[0] * x[i + RADIUS];
}
void launch(torch::Tensor x, torch::Tensor y) {
  TORCH_CHECK(x.is_contiguous(), "x");
  int n = 0;
  helper(&n, x.numel());
  const int unused = 4;
  dim3 block(TILE), grid((n + TILE - 1) / TILE);
  weighted<<<grid, block>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
}
"""


def shown(code: str, most: int = 20, source: str = SOURCE) -> list[str]:
    number = next(n for n, text in enumerate(source.splitlines(), 1) if code in text)
    return [text for _, text in Source(source).behind([number], most)]


def test_definitions_conditions_and_the_helpers_that_are_called() -> None:
    """And nothing else: not another function's variables, none that only others use."""
    assert shown("y[i] = part[0]") == [
        "#define VECTOR(x) (reinterpret_cast<float4*>(&(x))[0])",
        "for (int step = W / 2; step > 0; step /= 2) {",
        "v += __shfl_xor_sync(0xffffffff, v, step);",
        "return v;",
        "int i = blockIdx.x * blockDim.x + threadIdx.x;",
        "VECTOR(four.x) = VECTOR( x[4 * i]);",
        "float sum = lane_sum<32>(four.x);",
        "if (threadIdx.x == 0)",
        "part[0] = sum;",
        "if (i >= n) {",
    ]
    assert shown("y[i] = 0") == ["int i = 3;"]


def test_macros_constants_and_what_launches_the_kernel() -> None:
    """None that it does not use, and no checks."""
    assert shown("y[i] =", source=LAUNCHED) == [
        "#define RADIUS 2",
        "constexpr int TILE = 16;",
        "__constant__ float weights[2] = {0.25f, 0.5f};",
        "int i = blockIdx.x * TILE + threadIdx.x;",
        "int n = 0;",
        "helper(&n, x.numel());",
        "dim3 block(TILE), grid((n + TILE - 1) / TILE);",
        "weighted<<<grid, block>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);",
    ]


def test_the_nearest_come_first() -> None:
    nearest = ["int i = blockIdx.x * blockDim.x + threadIdx.x;", "if (i >= n) {"]
    assert shown("y[i] = part[0]", 2) == nearest


@pytest.mark.parametrize("text", ["", "__global__ void f() { if (x", "}}}", "for"])
def test_text_that_cannot_be_read_shows_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "broken.cu").write_text(text)
    assert behind(str(tmp_path / "broken.cu"), [1], 5) == []
    assert behind("", [1], 5) == []


LOOPED = """
template <typename T>
__device__ void split(const T* boxes, int at, T& low, T& high) {}
template <>
__device__ void split<float>(const float* boxes, int at, float& low, float& high) {
  const float2 two = reinterpret_cast<const float2*>(boxes + at)[0];
  low = two.x;
  high = two.y;
}
__global__ void widths(const float* boxes, float* y, int n, bool all) {
  if (all) {
    KERNEL_LOOP(i, n) {
      const int at = i;
      float low, high;
      split<float>(boxes, at, low, high);
      y[i] = high - low;
    }
  } else {
    KERNEL_LOOP(i, n / 2) {
      const int at = 2 * i;
      float low, high;
      split<float>(boxes, at, low, high);
      y[i] = low - high;
    }
  }
}
"""


def test_loops_that_macros_make_blocks_of_one_name_and_specialisations() -> None:
    """What another block calls at is another variable; what else stores to y does not matter."""
    assert shown("y[i] = low - high;", source=LOOPED) == [
        "const float2 two = reinterpret_cast<const float2*>(boxes + at)[0];",
        "low = two.x;",
        "high = two.y;",
        "if (all) {",
        "KERNEL_LOOP(i, n / 2) {",
        "const int at = 2 * i;",
        "split<float>(boxes, at, low, high);",
    ]


def test_the_calls_that_led_to_a_line_are_followed_and_no_others() -> None:
    source, lines = Source(LOOPED), LOOPED.splitlines()
    inside = next(n for n, text in enumerate(lines, 1) if "const float2 two" in text)
    call = max(n for n, text in enumerate(lines, 1) if "split<float>(boxes, at" in text)
    led = [text for _, text in source.behind([inside], 20, [call])]
    assert "const int at = 2 * i;" in led
    assert "const int at = i;" not in led
    assert "const int at = i;" in [text for _, text in source.behind([inside], 20)]


BRANCHES = """\
#ifdef USE_ROCM
#define LANES 64
#else
#define LANES 32
#endif
__global__ void sums(const float* x, float* y, int n) {
  float sum = x[threadIdx.x];
#if defined(USE_ROCM) && 1
  sum += 1;
#endif
#if defined(__HIP_PLATFORM_AMD__)
  sum += 2;
#elif FAST
  sum += 3;
#else
  sum += 4;
#endif
#if 0
  sum += 5;
#endif
#if !defined(USE_ROCM)
  sum += 6;
#else
  sum += 7;
#endif
  y[threadIdx.x / LANES] = sum;
}
"""


def test_branches_for_other_compilers_are_left_out() -> None:
    """Where a condition is not known, all branches stay."""
    assert shown("y[threadIdx.x / LANES] = sum;", source=BRANCHES) == [
        "#define LANES 32",
        "float sum = x[threadIdx.x];",
        "sum += 1;",
        "sum += 3;",
        "sum += 4;",
        "sum += 6;",
    ]
