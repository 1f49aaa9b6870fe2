"""load: sources in the manner of torch.utils.cpp_extension, unchanged, on CPU tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cached import needs_host_target
from written_kernels import HEADER, MANY

from cuda_reference import BuildError, load, load_inline
from cuda_reference._extension import Extension

pytestmark = [
    needs_host_target,
    pytest.mark.usefixtures("own_library_cache", "forked_tools", "no_gpu"),
]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Extension:
    folder = tmp_path_factory.mktemp("sources")
    (folder / "include").mkdir()
    (folder / "include" / "common.cuh").write_text(HEADER)
    (folder / "many.cu").write_text(MANY)
    return load("many", [str(folder / "many.cu")], extra_include_paths=[str(folder / "include")])


def test_the_functions_are_those_that_the_source_exports(many: Extension) -> None:
    assert repr(many).startswith("<CUDA sources 'many': twice_f32, twice_f32x4, row_sums, ")
    with pytest.raises(AttributeError, match="has no function 'row_sum'"):
        _ = many.row_sum


@pytest.mark.parametrize("name", ["twice_f32", "twice_f32x4"])
def test_launches_in_macros(many: Extension, name: str) -> None:
    x, y = torch.randn(5, 40), torch.zeros(5, 40)
    version = x._version, y._version
    assert getattr(many, name)(x, y) is None
    assert torch.equal(y, 2 * x)
    assert (x._version, y._version) == (version[0], version[1] + 1)  # only what was written


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_static_shared_arrays_of_templates(many: Extension, dtype: torch.dtype) -> None:
    x = torch.randint(-9, 9, (3, 150)).to(dtype)
    assert torch.equal(many.row_sums(x), x.sum(1).float())


def test_dispatch_refuses_other_dtypes(many: Extension) -> None:
    with pytest.raises(RuntimeError, match=r"^row_sums\(\): \"row_sums\" not implemented for 'Int"):
        many.row_sums(torch.zeros(2, 2, dtype=torch.int32))


def test_dynamic_shared_array_and_a_pointer_to_a_kernel(many: Extension) -> None:
    x = torch.randn(40)
    assert torch.equal(many.reversed(x), x.flip(0))


def test_strides_two_results_and_defaults(many: Extension) -> None:
    x = torch.randn(11, 3)
    for even, odd in (many.split(x[:, 1]), many.split(block=16, x=x[:, 1])):
        assert torch.equal(even, x[::2, 1])
        assert torch.equal(odd, x[1::2, 1])


def test_pairs_of_half_and_bfloat16(many: Extension) -> None:
    h, b = torch.randn(2, 16).half(), torch.randn(2, 16).bfloat16()
    out_h, out_b = torch.zeros_like(h), torch.zeros_like(b)
    many.pairs(h, b, out_h, out_b)
    fused = (h.double() * h.double() + (2 * h).double()).half()
    assert torch.equal(out_h, (fused.float() + 1).half())
    assert torch.equal(out_b, b.relu() + b)


def test_cooperative_groups_votes_and_atomics(many: Extension) -> None:
    x = torch.arange(32, dtype=torch.int32)
    out = torch.zeros_like(x)
    many.groups(x, out)
    assert torch.equal(out, (496 + 16000 + 100000 * (x // 8)).int())


def test_copies_arrive_when_their_thread_waits(many: Extension) -> None:
    x, out = torch.randn(64), torch.zeros(32)
    many.copies(x, out, True)
    assert torch.equal(out, x[:32] + x[32:])
    many.copies(x, out, False)  # does not wait for the second
    assert out.isnan().all()


def test_arguments_come_back_as_themselves(many: Extension) -> None:
    x = torch.randn(3, 3)
    assert many.same(x) is x
    first = many.half_of(x)
    first.fill_(7.0)
    assert x[0, 0] == 7.0  # a view
    assert many.largest(x[0]) == x[0].max().item()


# ---- what goes wrong ----


def test_a_shuffle_from_a_lane_that_does_not_exist(many: Extension) -> None:
    with pytest.raises(RuntimeError) as error:
        many.missing_lane(torch.ones(24))
    assert "calls __shfl_xor_sync() at line 8 for the value of lane " in str(error.value)
    assert "which does not exist: the block ends before it" in str(error.value)


def test_a_shuffle_from_a_lane_that_has_returned(many: Extension) -> None:
    x = torch.ones(32)
    with pytest.raises(
        RuntimeError, match=r"for the value of lane 20, which has returned"
    ) as error:
        many.returned_lane(x)
    assert "thread (19, 0, 0) calls __shfl_down_sync() at line " in str(error.value)
    assert (x == 1).all()


def test_other_ptx_is_named(many: Extension) -> None:
    with pytest.raises(RuntimeError, match="comes to inline PTX at line 1"):
        many.ptx(torch.zeros(1, dtype=torch.int32))


def test_a_function_that_no_source_defines(many: Extension) -> None:
    with pytest.raises(RuntimeError, match=r"^elsewhere\(\) is declared, but none of the sources"):
        many.elsewhere(torch.zeros(1))


def test_what_the_source_itself_refuses(many: Extension) -> None:
    x = torch.zeros(4, 4)
    with pytest.raises(RuntimeError, match=r"^twice_f32\(\): x must be contiguous$"):
        many.twice_f32(x.t()[1:], x)
    with pytest.raises(RuntimeError, match=r"^twice_f32\(\): y must be \(torch::kFloat32\)$"):
        many.twice_f32(x, x.half())
    with pytest.raises(RuntimeError, match=r"split wants one dimension, got \[4, 4\]$"):
        many.split(x)
    with pytest.raises(RuntimeError, match="expected scalar type Float but found Half"):
        many.reversed(x.half())


def test_arguments_that_do_not_suit(many: Extension) -> None:
    x = torch.zeros(4)
    with pytest.raises(
        TypeError, match=r"^twice_f32\(\) takes 2 arguments \(Tensor, Tensor\), but"
    ):
        many.twice_f32(x)
    with pytest.raises(TypeError, match=r"^split\(\): argument 1 \(int\) must be an int$"):
        many.split(x, 1.5)
    with pytest.raises(TypeError, match="no argument 'size'"):
        many.split(x, size=3)
    with pytest.raises(TypeError, match=r"'argument 0' is torch\.complex64"):
        many.split(torch.zeros(3, dtype=torch.complex64))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("#include <thrust/sort.h>", "wrong.cu:2: thrust/sort.h: Thrust has no form for the CPU"),
        ("auto f(at::Tensor x) { return x.svd(); }", "torch::Tensor::svd has no form on the CPU"),
        ("auto f(torch::Tensor x) { return torch::fft(x); }", "torch::fft has no form on the CPU"),
        ("__shared__ int x[2];", "wrong.cu:2: __shared__ outside of a function; declare it in the"),
    ],
)  # fmt: skip
def test_what_has_no_form_on_the_cpu_is_named(tmp_path: Path, line: str, says: str) -> None:
    source = tmp_path / "wrong.cu"
    source.write_text(f"#include <torch/extension.h>\n{line}\n")
    with pytest.raises(BuildError) as error:
        load("wrong", [str(source)])
    assert says in str(error.value)
    assert "could not build wrong.cu for the host target" in str(error.value)


def test_names_and_sources_are_checked() -> None:
    with pytest.raises(ValueError, match=r"there is no source .*nothing\.cu"):
        load("nothing", ["nothing.cu"])
    with pytest.raises(ValueError, match="'a b' is no name for a module"):
        load("a b", ["nothing.cu"])
    with pytest.raises(ValueError, match="'sources' is empty"):
        load("nothing", [])
    with pytest.raises(ValueError, match="'sanitize' must be one of address, thread"):
        load("nothing", ["nothing.cu"], sanitize="memory")


# ---- other forms ----


CPP = "torch::Tensor scaled(torch::Tensor x, double by);"
CUDA = """
__global__ void scaled_kernel(const float* x, float* out, float by, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = by * x[i] * FACTOR;
}
torch::Tensor scaled(torch::Tensor x, double by) {
  auto out = torch::empty_like(x);
  scaled_kernel<<<(x.numel() + 31) / 32, 32>>>(x.data_ptr<float>(), out.data_ptr<float>(), by,
                                               x.numel());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}
"""


def test_load_inline_as_torch_has_it() -> None:
    """Two sources in one library: the .cpp binds what the .cu defines."""
    module = load_inline(
        "scaling", CPP, CUDA, functions=["scaled"], extra_cuda_cflags=["-O3", "-DFACTOR=2"]
    )
    x = torch.randn(70)
    assert torch.equal(module.scaled(x, 1.5), x * 3)


@pytest.mark.parametrize("nothing", ["", [" "], ()])
def test_load_inline_without_cpp_binds_in_the_cuda_source(nothing: str | list[str]) -> None:
    module = load_inline(
        "alone", nothing, CUDA, functions=["scaled"], extra_cuda_cflags=["-DFACTOR=2"]
    )
    x = torch.randn(70)
    assert torch.equal(module.scaled(x, 1.5), x * 3)


def test_load_inline_needs_strings() -> None:
    with pytest.raises(TypeError, match="'cpp_sources' and 'cuda_sources' must be strings"):
        load_inline("nothing", cuda_sources=[b"int x;"])  # type: ignore[list-item]
    for nothing in ([], "", [" \n"]):
        with pytest.raises(TypeError, match="'cpp_sources' and 'cuda_sources' are both empty"):
            load_inline("nothing", "", nothing, functions=["f"])


REGISTERED = """
__global__ void beside_kernel(const float* x, float* out, int n) {
  if (threadIdx.x <= n) out[threadIdx.x] = x[threadIdx.x % n];
}
torch::Tensor beside(torch::Tensor x) {
  auto out = torch::empty_like(x);
  beside_kernel<<<1, 64>>>(x.data_ptr<float>(), out.data_ptr<float>(), x.numel());
  return out;
}
torch::Tensor twice(torch::Tensor x) { return x.add(x); }

TORCH_LIBRARY(own_ops, m) {
  m.def("beside(Tensor x) -> Tensor");
  m.def("twice(Tensor x) -> Tensor");
}
TORCH_LIBRARY_IMPL(own_ops, CUDA, m) {
  m.impl("beside", &beside);
  m.impl("twice", &twice);
}
"""


def test_beside_a_tensor_that_the_function_made() -> None:
    module = load_inline("registered", cuda_sources=REGISTERED)
    with pytest.raises(RuntimeError) as error:
        module.beside(torch.ones(5, 3))
    text = str(error.value)
    assert text.startswith("beside() on x [5, 3]: wrote the result of empty_like()[5, 0], outside")
    assert "out-of-bounds write of 4 bytes: the result of empty_like()[5, 0], outside of" in text
    assert "write by kernel beside_kernel, block (0, 0, 0), thread (15, 0, 0)" in text
    assert "registered.cu:3: if (threadIdx.x <= n) out[threadIdx.x] = x[threadIdx.x % n];" in text


def test_every_call_watched() -> None:
    module = load_inline("registered", cuda_sources=REGISTERED, sanitize="watch")
    x = torch.randn(5, 3)
    assert torch.equal(module.twice(x), 2 * x)
    with pytest.raises(RuntimeError, match="out-of-bounds write of 4 bytes: the result of empty_l"):
        module.beside(x)


def test_a_fault_in_the_first_function_of_a_header(tmp_path: Path) -> None:
    """The header is the first file that the compiler names. Without a name for its namespace."""
    (tmp_path / "rows.h").write_text(
        "namespace {\ntemplate <typename T>\n"
        "__device__ __noinline__ void add_row(const T* x, T* y, int n) {\n"
        "  for (int i = threadIdx.x; i <= n; i += blockDim.x)\n    y[i] = x[i] + 1;\n}\n"
        "template <typename T>\n__global__ void rows_kernel(const T* x, T* y, int n) {\n"
        "  add_row(x + blockIdx.x * n, y + blockIdx.x * n, n);\n}\n}\n"
        "template <typename T>\nvoid launch(const T* x, T* y, int rows, int n) {\n"
        "  rows_kernel<<<rows, 32>>>(x, y, n);\n}\n"
    )
    (tmp_path / "rows.cu").write_text(
        '#include <torch/extension.h>\n#include "rows.h"\n'
        "torch::Tensor rows(torch::Tensor x) {\n  auto y = torch::empty_like(x);\n"
        "  launch(x.data_ptr<float>(), y.data_ptr<float>(), x.size(0), x.size(1));\n"
        "  return y;\n}\n"
    )
    (tmp_path / "rows.cpp").write_text(
        "#include <torch/extension.h>\ntorch::Tensor rows(torch::Tensor x);\n"
        'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("rows", &rows); }\n'
    )
    module = load("header_rows", [str(tmp_path / "rows.cpp"), str(tmp_path / "rows.cu")])
    with pytest.raises(RuntimeError) as raised:
        module.rows(torch.ones(2, 3))
    text = str(raised.value)
    assert "write by kernel add_row, block (1, 0, 0), thread (3, 0, 0)\n    rows.h:5: y[i]" in text
