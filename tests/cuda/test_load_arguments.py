"""load and load_inline take what torch.utils.cpp_extension's take, and give what those give."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cached import needs_host_target
from torch.utils import cpp_extension

from cuda_reference import load, load_inline
from cuda_reference._extension import Extension
from cuda_reference._loading import _load_strings

pytestmark = [
    needs_host_target,
    pytest.mark.usefixtures("own_library_cache", "forked_tools", "no_gpu"),
]

CPP = """
std::vector<torch::Tensor> both(torch::Tensor x);
std::tuple<torch::Tensor, double> scaled(torch::Tensor x, double by);
std::pair<torch::Tensor, torch::Tensor> halves(torch::Tensor x, std::array<bool, 2> keep);
"""
CUDA = """
__global__ void scaled_kernel(const float* x, float* out, float by, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = by * x[i];
}
std::tuple<torch::Tensor, double> scaled(torch::Tensor x, double by) {
  auto out = torch::empty_like(x);
  scaled_kernel<<<1, 64>>>(x.data_ptr<float>(), out.data_ptr<float>(), by, x.numel());
  return {out, by};
}
std::vector<torch::Tensor> both(torch::Tensor x) { return {x, x.clone()}; }
std::pair<torch::Tensor, torch::Tensor> halves(torch::Tensor x, std::array<bool, 2> keep) {
  auto parts = x.chunk(2);
  return {keep[0] ? parts[0] : torch::zeros_like(parts[0]), parts[1]};
}
"""
FUNCTIONS = {"both": "x and a copy", "scaled": 'x "times" by', "halves": ""}


@pytest.fixture(scope="module")
def module() -> Extension:
    """Every argument that torch's has, as people write them."""
    return load_inline(
        name="many_arguments",
        cpp_sources=[CPP],
        cuda_sources=CUDA,
        sycl_sources=None,
        functions=FUNCTIONS,
        extra_cflags=["", "-O3"],
        extra_cuda_cflags=["-O3", "--use_fast_math", "-lineinfo"],
        extra_sycl_cflags=None,
        extra_ldflags=[""],
        extra_include_paths=[],
        build_directory=None,
        verbose=True,
        with_cuda=True,
        with_sycl=None,
        is_python_module=True,
        with_pytorch_error_handling=False,
        keep_intermediates=False,
        use_pch=True,
        no_implicit_headers=False,
    )


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(load, cpp_extension.load), (_load_strings, cpp_extension.load_inline)],
)
def test_every_argument_in_torchs_order(
    ours: Callable[..., Any], theirs: Callable[..., Any]
) -> None:
    names = list(inspect.signature(theirs).parameters)
    assert [name for name in inspect.signature(ours).parameters if name in names] == names


def test_docstrings_names_and_containers(module: Extension) -> None:
    assert module.__name__ == "many_arguments"
    assert module.scaled.__doc__ == 'x "times" by'
    x = torch.randn(8)
    out, by = module.scaled(x, 2.0)
    assert torch.equal(out, 2 * x)
    both = module.both(x)
    assert type(both) is list  # what is added to a list of Python's, as extensions' wrappers do
    assert [torch.equal(each, x) for each in both] == [True, True]
    assert by == 2.0
    assert type(module.halves(x, [False, True])) is tuple
    assert torch.equal(torch.cat(module.halves(x, [False, True])), torch.cat([x[:4] * 0, x[4:]]))
    with pytest.raises(TypeError, match=r"argument 1 \(List\[bool\]\) must be a list of 2"):
        module.halves(x, [True])


def test_a_parameter_of_a_model(module: Extension) -> None:
    """As in torch, what a kernel computes of it has no gradient."""
    weight = torch.nn.Parameter(torch.randn(8))
    out, _ = module.scaled(weight, 3.0)
    assert torch.equal(out, 3 * weight.detach())
    assert not out.requires_grad


CONSTANTS = """
torch::Tensor twice(torch::Tensor x) { return x * 2; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "a factor";
  m.attr("__version__") = "0.1";
  m.attr("FACTOR") = 2;
  py::object author = py::cast(std::string("us"));
  m.attr("__author__") = author;
  m.def("twice", torch::wrap_pybind_function(twice), "twice x", py::arg("x"));
}
"""


def test_attributes_of_the_module() -> None:
    """A source in C++ alone, too; it is taken for no launcher of the other form."""
    for module in (load_inline("constants", CONSTANTS), load_inline("constants", [CONSTANTS])):
        assert (module.__doc__, module.__version__, module.FACTOR) == ("a factor", "0.1", 2)
        assert module.__author__ == "us"
        assert torch.equal(module.twice(x=torch.ones(3)), torch.full((3,), 2.0))


def test_the_fourth_argument_of_older_versions_is_functions() -> None:
    module = load_inline("many_arguments", CPP, CUDA, ["both"])  # type: ignore[arg-type]
    assert len(module.both(torch.ones(2))) == 2


def test_what_makes_no_sense_here_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "any.cu"
    source.write_text("")
    with pytest.raises(ValueError, match=r"^load\(\): is_standalone=True makes a program"):
        load("program", [str(source)], is_python_module=False, is_standalone=True)
    with pytest.raises(ValueError, match=r"^load\(\): SYCL sources run neither"):
        load("sycl", [str(source)], with_sycl=True)
    with pytest.raises(ValueError, match=r"^load_inline\(\): SYCL sources run neither"):
        load_inline("sycl", "", "", "void f() {}", ["f"])
    with pytest.raises(TypeError, match=r"'extra_cuda_cflags' must be a list of strings, got '-O3"):
        load_inline("text", CPP, CUDA, functions=["both"], extra_cuda_cflags="-O3")
    with pytest.raises(TypeError, match="'extra_include_paths' must be a list of strings"):
        load("text", [str(source)], extra_include_paths=str(tmp_path))


# ---- operators of torch ----

LIBRARY = """
#include <Python.h>
#include <torch/all.h>
#include <torch/library.h>

extern "C" {
PyObject* PyInit__C(void) {
  static struct PyModuleDef module_def = {PyModuleDef_HEAD_INIT, "_C", NULL, -1, NULL};
  return PyModule_Create(&module_def);
}
}

namespace own {
at::Tensor muladd_cpu(const at::Tensor& a, const at::Tensor& b, double c) {
  TORCH_INTERNAL_ASSERT(a.device().type() == at::DeviceType::CPU);
  return a;
}
TORCH_LIBRARY(crosscheck_own, m) {
  m.def("muladd(Tensor a, Tensor b, *, float c=1.0) -> Tensor");
  m.def("fill_(Tensor(a!) x, Scalar value) -> ()");
}
TORCH_LIBRARY_IMPL(crosscheck_own, CPU, m) { m.impl("muladd", &muladd_cpu); }
}
"""
KERNELS = """
#include <torch/all.h>
#include <torch/library.h>
namespace own {
__global__ void muladd_kernel(int n, const float* a, const float* b, float c, float* out) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = a[i] * b[i] + c;
}
at::Tensor muladd_cuda(const at::Tensor& a, const at::Tensor& b, double c) {
  TORCH_INTERNAL_ASSERT(a.device().type() == at::DeviceType::CUDA);
  at::Tensor out = torch::empty(a.sizes(), a.options());
  muladd_kernel<<<1, 64>>>(a.numel(), a.data_ptr<float>(), b.data_ptr<float>(), c,
                           out.data_ptr<float>());
  return out;
}
void fill(at::Tensor& x, const at::Scalar& value) { x.fill_(value); }
std::tuple<at::Tensor, std::vector<at::Tensor>> parts(at::Tensor x, std::optional<int64_t> n,
                                                      std::vector<double> factors) {
  return {x * factors[0], x.chunk(n.value_or(2))};
}
TORCH_LIBRARY_IMPL(crosscheck_own, CUDA, m) {
  m.impl("muladd", &muladd_cuda);
  m.impl("fill_", &fill);
}
TORCH_LIBRARY_FRAGMENT(crosscheck_own, m) { m.def("parts", &parts); }
}
"""


def test_operators_of_torch(tmp_path: Path) -> None:
    """TORCH_LIBRARY's are those of torch.ops; the kernel for the GPU is what runs."""
    (tmp_path / "bound.cpp").write_text(LIBRARY)
    (tmp_path / "kernels.cu").write_text(KERNELS)
    sources = [str(tmp_path / "bound.cpp"), str(tmp_path / "kernels.cu")]
    own = torch.ops.crosscheck_own
    a, b = torch.randn(2, 40)
    for _ in range(2):  # again, as in a notebook
        load("operators", sources, is_python_module=False)
        assert torch.equal(own.muladd(a, b, c=2.0), a * b + 2.0)
        assert torch.equal(own.muladd.default(a, b=b), a * b + 1.0)
    x = torch.zeros(3)
    assert own.fill_(x, 5) is None
    assert torch.equal(x, torch.full((3,), 5.0))
    first, second = own.parts(a, None, [3.0])
    assert torch.equal(first, 3 * a)
    assert torch.equal(torch.cat(second), a)
    schema = str(own.parts.default._schema)
    assert schema == "crosscheck_own::parts(Tensor _0, int? _1, float[] _2) -> (Tensor, Tensor[])"
    with pytest.raises(RuntimeError, match="Expected a value of type 'Tensor' for argument 'b'"):
        own.muladd(a, 1.0)


CHAINED = """
#include <torch/script.h>
torch::Tensor drawn(torch::Tensor p, int64_t n) { return p.bernoulli() * n; }
torch::Tensor added(torch::Tensor a, torch::Tensor b) { return a + b; }
static auto registry = torch::RegisterOperators()
    .op("crosscheck_chained::drawn", &drawn)
    .op("crosscheck_chained::added(Tensor a, Tensor b) -> Tensor", &added);
"""


def test_operators_registered_by_chained_calls(tmp_path: Path) -> None:
    (tmp_path / "chained.cpp").write_text(CHAINED)
    module = load("chained", [str(tmp_path / "chained.cpp")])
    x = torch.ones(3)
    assert torch.equal(torch.ops.crosscheck_chained.drawn(x, 3), 3 * x)
    assert torch.equal(torch.ops.crosscheck_chained.added(x, b=x), 2 * x)
    assert torch.equal(module.added(x, x), 2 * x)
