"""compare.debug_cuda of functions that cuda_reference.load made: sources for torch's extensions,
unchanged, each wrong in its own way, and one that is right."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from loaded_kernels import HEADER, SOURCE, line
from torch import Tensor

from compare import debug_cuda
from compare.checking.implementations import unavailable
from compare.debugging.cuda import side
from compare.debugging.cuda.reports import site
from compare.ops import spec_of
from cuda_reference import load, load_inline
from cuda_reference._compilers import CSRC
from cuda_reference._extension import Extension
from cuda_reference._watch import Frame

needs_host = pytest.mark.skipif(
    "cuda-host" in unavailable(), reason=f"cuda-host: {unavailable().get('cuda-host')}"
)
pytestmark = [needs_host, pytest.mark.usefixtures("own_library_cache", "forked_tools")]
FAST = ("values", "initcheck")  # one process, without the sanitizers
X = torch.arange(60.0).view(3, 20)


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Extension]:
    folder = tmp_path_factory.mktemp("s") / "cuda"  # as packages have it
    folder.mkdir()
    (folder / "loaded.cu").write_text(SOURCE)
    (folder / "lanes.cuh").write_text(HEADER)
    with pytest.MonkeyPatch.context() as patch:
        # Else torch builds the source, too, which takes it a minute.
        patch.setattr(torch.cuda, "is_available", lambda: False)
        yield load("loaded", [str(folder / "loaded.cu")])


def sums(x: Tensor, *_: Tensor) -> Tensor:
    return x.sum(1)


def test_rows_with_gaps_between_them(module: Extension) -> None:
    """A wrapper gets its tensor as it lies, and a result that it made is judged."""
    x = torch.arange(90.0).view(3, 30)[:, :20]
    found = debug_cuda(module.row_sums, (x,), oracle=sums, tools=FAST)
    assert found, found
    found = debug_cuda(module.row_sums, (x,), oracle=lambda x: x.sum(1) + 1, tools=["values"])
    assert "worst result[0]: got 190.0" in str(found)


def test_a_race(module: Extension) -> None:
    found = debug_cuda(module.race, (X,), oracle=sums, tools=(*FAST, "thread"))
    text = str(found)
    assert "result float32 (3,): 3 of 3 elements wrong" in text
    assert "result[0] stored by block (0, 0, 0) thread (0, 0, 0)" in text
    steps = {step.tool: step for _, step in found.steps}
    if not steps["thread"].missing:
        assert "thread: data race" in text
        assert ": part[" in text
        assert f"{line('part[i] += part[i + half]')} in row_sums_kernel<false>: " in text


def test_dynamic_shared_memory_that_nobody_wrote(module: Extension) -> None:
    """In the array's own terms; nothing is returned, so the oracle is of the last argument."""
    text = str(debug_cuda(module.unwritten, (X, torch.zeros(3)), oracle=sums, tools=FAST))
    assert "out float32 (3,): 3 of 3 elements wrong: all of them; all NaN" in text
    assert "initcheck: shared memory read before it was written: row[20]" in text
    assert f"{line('sum += row[k]')} in unwritten_kernel: for (int k" in text


def test_who_stored_the_wrong_element(module: Extension) -> None:
    args = (X, torch.arange(20.0), torch.empty(3, 20))
    found = debug_cuda(
        module.wrong_bias, args, oracle=lambda x, bias, _: {"y": x + bias}, tools=FAST
    )
    text = str(found)
    assert "worst y[0, 1]: got 1.0" in text
    assert "y[0, 1] stored by block (0, 0, 0) thread (1, 0, 0)" in text
    assert f"{line('+ bias[row]')} in add_bias_kernel: if (column" in text
    assert "load  bias[0] " in text  # of the wrong element's thread: the fault
    assert found.to_json()


def test_beside_tensors_that_the_function_made(module: Extension) -> None:
    tools = (*FAST, "address")
    found = debug_cuda(module.outside, (X, 0), oracle=lambda x, _: (x + x, x + x), tools=tools)
    text = str(found)
    assert "result[0] float32 (3, 20): 2 of 60 elements wrong" in text
    assert "out-of-bounds write of 4 bytes: element offset 60 of result[1]" in text
    assert text.count(f"{line('out[i] = twice(x[i])')} in double_kernel: if (threadIdx.x") >= 3
    steps = {step.tool: step for _, step in found.steps}
    if not steps["address"].missing:
        assert "address: out-of-bounds read of 4 bytes: element offset 60 of x" in text


def test_barriers_and_results_that_hold_nothing(module: Extension) -> None:
    text = str(debug_cuda(module.barrier, (torch.zeros(8),), tools=["values"]))
    assert "deadlock, a barrier that not every thread reaches" in text
    text = str(debug_cuda(module.every_other, (X,), oracle=lambda x: x, tools=FAST))
    assert "result[0:3, 1:20:2]; all NaN" in text
    assert "never stored by any thread: 30 of them" in text
    assert "the nearest one stored, by block (0, 0, 0) thread (" in text
    assert (
        f"what these lines depend on:\n  :{line('int i = 2 *').split(':')[-1]} int i = 2 *" in text
    )
    text = str(debug_cuda(module.total, (X,), tools=["initcheck"]))
    assert "initcheck: output read before it was written: result[0]" in text


HOST_STORES = """
__global__ void sums_kernel(const float* x, float* y, int n) {
  if (threadIdx.x < n) atomicAdd(y + threadIdx.x % 4, x[threadIdx.x]);
}
std::vector<torch::Tensor> sums(torch::Tensor x, int64_t how) {
  auto y = torch::empty({2, 4}, x.options()), row = y.select(0, 0);
  auto zeros = torch::zeros({4}, x.options());
  float* data = y.data_ptr<float>();
  if (how == 0) cudaMemset(data, 0, 16);
  if (how == 1) y.zero_();
  if (how == 2) for (int i = 0; i < 4; ++i) data[i] = 0;
  if (how == 3) y.slice(1, 0, 4).fill_(0);
  if (how == 4) row.copy_(zeros);
  if (how == 5) cudaMemcpy(data, zeros.data_ptr(), 16, cudaMemcpyDeviceToDevice);
  if (how == 6) y.index_put_({0}, zeros);
  if (how == 7) y.slice(1, 0, 3).zero_();
  sums_kernel<<<1, 32>>>(x.data_ptr<float>(), data, x.numel());
  return {row, zeros};
}
"""


def test_what_the_host_stores_is_written() -> None:
    """By CUDA's runtime, by torch or by itself, between the launches. Columns may be left out."""
    module = load_inline("host_stores", cuda_sources=HOST_STORES, functions=["sums"])
    x = torch.arange(20.0)
    wanted = (x.view(5, 4).sum(0), None)  # None: any values
    for how in range(7):
        found = debug_cuda(module.sums, (x, how), oracle=lambda: wanted, tools=["initcheck"])
        assert found, (how, found)
    found = debug_cuda(module.sums, (x, 7), tools=["initcheck"])
    assert "output read before it was written: result[0][3]" in str(found), found


def test_unfit_arguments(module: Extension) -> None:
    with pytest.raises(TypeError, match=r"row_sums\(\) takes 1 arguments \(Tensor\)"):
        debug_cuda(module.row_sums, (X, X))
    with pytest.raises(TypeError, match=r"tensor for each result or parameter \(result, x\)"):
        debug_cuda(module.row_sums, (X,), oracle=lambda x: (x, x))
    with pytest.raises(TypeError, match=r"by these names"):
        debug_cuda(module.unwritten, (X, torch.zeros(3)), oracle=lambda *_: {"result": X})
    with pytest.raises(ValueError, match=r"returned shape \[3, 20\] for out"):
        debug_cuda(module.unwritten, (X, torch.zeros(3)), oracle=lambda *_: X)
    text = str(debug_cuda(module.row_sums, (X,), oracle=lambda x: x, tools=["values"]))
    assert "result has shape [3], the oracle's [3, 20]" in text


def test_a_string_in_torchs_form() -> None:
    """Whose lines are known, too."""
    source = "__global__ void beside(float* x) {\n  x[64] = x[threadIdx.x];\n}\n"
    source += "void f(torch::Tensor x) { beside<<<1, 1>>>(x.data_ptr<float>()); }"
    module = load_inline("text", cuda_sources=source, functions=["f"])
    text = str(debug_cuda(module.f, (torch.zeros(64),), tools=["initcheck"]))
    assert "write text.cu:2 in beside: x[64] = x[threadIdx.x];" in text


TARGET = """
import compare, cuda_reference, torch

SOURCE = '''__global__ void shifted_kernel(const float* x, float* y, int n) {
  int i = blockIdx.x * 32 + threadIdx.x;
  if (i < n) y[i] = i % 7 ? x[i] : y[i];
}
void shifted(const float* x, float* y, int n, cudaStream_t stream) {
  shifted_kernel<<<(n + 31) / 32, 32, 0, stream>>>(x, y, n);
}
'''
PARAMETERS = "const float* x, float* y, int n, cudaStream_t stream"
module = cuda_reference.load_inline(SOURCE, {"shifted": PARAMETERS})


def shifted(x):
    y = torch.empty_like(x)
    module.shifted(x, y, x.numel())
    return y


SHIFTED = compare.Function(
    "shifted", cuda=shifted, oracle=lambda x: x, shapes=[(33,)], layouts=["contiguous"]
)
"""


def test_the_call_that_a_target_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target's twin that makes one call is debugged as this call is."""
    (tmp_path / "shifted_target.py").write_text(TARGET)
    monkeypatch.syspath_prepend(str(tmp_path))
    case = next(spec_of("shifted_target:SHIFTED").cases("float32", "quick"))
    text = str(side.investigate(case, None, {"cuda-host": list(FAST)}))
    assert text.startswith("shifted_target:SHIFTED float32 33")
    assert "y float32 (33,): 5 of 33 elements wrong" in text
    assert "y[0] stored by block (0, 0, 0) thread (0, 0, 0)" in text
    assert "initcheck: output read before it was written: y[0]" in text
    assert "shifted.cu:3 in shifted_kernel: if (i < n) y[i] = i % 7 ? x[i] : y[i];" in text
    del sys.modules["shifted_target"]


@pytest.mark.gpu_only
def test_on_the_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch builds the unchanged source there, and the tools get what it returns."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # which the module's fixture hid
    (tmp_path / "loaded.cu").write_text(SOURCE)
    (tmp_path / "lanes.cuh").write_text(HEADER)
    module = load("loaded_for_gpu", [str(tmp_path / "loaded.cu")])
    found = debug_cuda(module.row_sums, (X.cuda(),), oracle=sums, tools=FAST)
    assert found, found
    assert "on the GPU: values ok" in str(found)
    args = (X.cuda(), torch.arange(20.0, device="cuda"), X.cuda())
    found = debug_cuda(module.wrong_bias, args, oracle=lambda x, b, _: x + b, tools=["values"])
    assert not found


def test_places_where_the_compiler_inlined_a_kernel_into_what_runs_it(tmp_path: Path) -> None:
    """Then the innermost place has the name of that; a launch's lambda is no kernel."""
    (tmp_path / "csrc").mkdir()
    kernels, runs = str(tmp_path / "csrc" / "kernels.cuh"), str(CSRC / "cuda_on_cpu_block.h")
    Path(kernels).write_text("\n" * 50)
    machinery = Frame("void cuda_on_cpu::call_body<…>(void const*)", runs, 21)
    kernel = "void (anonymous namespace)::scale<float, 4>(float*)"
    launch = Frame(
        "auto go()::{lambda(auto&...)#1}::operator()<float*>(float*&) const", kernels, 40
    )
    stack = [
        machinery._replace(file=kernels, line=3),
        Frame(kernel, kernels, 17),
        launch,
        machinery,
    ]
    place = site("read", stack)
    assert (place.function, place.line, place.calls) == ("scale<float, 4>", 3, (17,))
    called = [Frame(kernel, kernels, 17), machinery._replace(file=kernels, line=40), machinery]
    assert site("read", called)[1:4] == ("scale<float, 4>", kernels, 17)
