"""load_inline: what it computes, what it refuses, and what it says of a source that is wrong."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import processes
import pytest
import torch
from cached import needs_host_target, needs_nvcc

from cuda_reference import BuildError, _build, _compilers, load_inline
from cuda_reference._declarations import TYPES
from cuda_reference._inline import InlineModule

pytestmark = pytest.mark.usefixtures("own_library_cache", "forked_tools")


TWICE = """
__global__ void twice(const float* x, float* out, int n) {
  int i = threadIdx.x;
  if (i < n) out[i] = 2 * x[i];
}
int run(const float* x, float* out, int n, cudaStream_t stream) {
  LAUNCH(twice, 1, n, 0, stream, x, out, n);
  return cudaGetLastError();
}
void returns_nothing(cudaStream_t stream, const float* x, float* out, int n) {
  LAUNCH(twice, 1, n, 0, stream, x, out, n);
}
extern "C" cudaError_t stream_between(const float* x, cudaStream_t stream, float* out, int n) {
  LAUNCH(twice, 1, n, 0, stream, x, out, n);
  return cudaGetLastError();
}
"""
DECLARED = "const float* x, float* out, int n, cudaStream_t stream"
RUN = {"run": DECLARED}
ALL_THREE = {
    **RUN,
    "returns_nothing": "cudaStream_t stream, const float* x, float* out, int n",
    "stream_between": "float const* __restrict__ x, cudaStream_t stream, float* const out, int n",
}
NUMBERS = [base for base, (ctype, _) in TYPES.items() if ctype is not None]


def identifier(base: str) -> str:
    return base.replace(" ", "_")


def every_type() -> tuple[str, dict[str, str]]:
    """For each type a launcher that copies through its pointers, and one that stores a number."""
    functions = {}
    source = "template <class T>\n__global__ void copy(const T* x, T* out, int n) {\n"
    source += "  int i = threadIdx.x;\n  if (i < n) out[i] = x[i];\n}\n"
    for base in TYPES:
        name = identifier(base)
        if base == "void":
            continue
        declared = f"const {base}* x, {base}* out, int n, cudaStream_t stream"
        source += (
            f"void copy_{name}({declared}) {{\n"
            f"  LAUNCH(copy<{base}>, 1, n, 0, stream, x, out, n);\n}}\n"
        )
        functions[f"copy_{name}"] = declared
        if base in NUMBERS:
            source += f"void set_{name}({base} v, {base}* p, cudaStream_t) {{ *p = v; }}\n"
            functions[f"set_{name}"] = f"{base} value, {base}* out, cudaStream_t s"
    return source, functions


@pytest.fixture(scope="module")
def twice() -> InlineModule:
    return load_inline(TWICE, ALL_THREE, name="twice")


@pytest.fixture(scope="module")
def types() -> InlineModule:
    return load_inline(*every_type(), name="types")


# ---- what it computes ----


@needs_host_target
@pytest.mark.parametrize("function", ALL_THREE)
def test_every_kind_of_launcher(twice: InlineModule, function: str) -> None:
    x, out = torch.tensor([1.5, -2.0, 3.0]), torch.full((4,), 7.0)
    assert getattr(twice, function)(x, out, 3) is None
    assert out.tolist() == [3.0, -4.0, 6.0, 7.0]


@needs_host_target
@pytest.mark.parametrize("function", ALL_THREE)
def test_failed_launch_tells_launcher_shapes_and_reason(twice: InlineModule, function: str) -> None:
    x = torch.zeros(2, 1000)
    with pytest.raises(
        RuntimeError, match=rf"^{function}\(\) on x \[2, 1000\], out \[2, 1000\]: "
    ) as e:
        getattr(twice, function)(x, torch.zeros_like(x), 2000)
    assert "a block has at most 1024 threads" in str(e.value)
    getattr(twice, function)(x, torch.zeros_like(x), 1)  # the error is gone


@needs_host_target
@pytest.mark.parametrize("base", [base for base in TYPES if base != "void"])
def test_pointers_carry_every_dtype(types: InlineModule, base: str) -> None:
    copy, dtypes = getattr(types, f"copy_{identifier(base)}"), TYPES[base][1]
    for dtype in dtypes:
        x = torch.tensor([0, 1, 0, 1, 1]).to(dtype)
        out = torch.zeros_like(x)
        copy(x, out, 5)
        assert torch.equal(out, x)
    other = torch.zeros(5, dtype=torch.complex64)
    allowed = ", ".join(str(dtype)[6:] for dtype in dtypes)
    with pytest.raises(TypeError, match=f"'x' is torch.complex64, but must be one of: {allowed}$"):
        copy(other, torch.zeros(5, dtype=dtypes[0]), 5)


@needs_host_target
@pytest.mark.parametrize("base", NUMBERS)
def test_numbers_arrive_whole_or_are_refused(types: InlineModule, base: str) -> None:
    dtype = TYPES[base][1][0]
    set_ = getattr(types, f"set_{identifier(base)}")
    out = torch.zeros((), dtype=dtype)
    if dtype == torch.bool:
        good, bad = [True, False], [1, 0.0]
        mistake, says = TypeError, "declared bool"
    elif dtype.is_floating_point:
        limit = torch.finfo(dtype).max
        good, bad = [0.5, 3, limit, -limit, float("inf")], [True, "1", torch.tensor(1.0)]
        mistake, says = TypeError, f"declared {base}"
    else:
        least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
        good, bad = [least, most], [least - 1, most + 1]
        mistake, says = ValueError, f"does not fit {base}"
        for wrong in (1.0, True, None, torch.tensor(1)):
            with pytest.raises(TypeError, match=f"'value' is declared {base}, but got"):
                set_(wrong, out)
    for value in good:
        set_(value, out)
        assert out.item() == value
    for value in bad:
        with pytest.raises(mistake, match=says):
            set_(value, out)
    if base == "float":
        with pytest.raises(ValueError, match=r"'value' = 1e\+39 does not fit float"):
            set_(1e39, out)


@needs_host_target
def test_null_and_void_pointers() -> None:
    module = load_inline(
        "int pick(const void* x, const float* bias, void* out, cudaStream_t stream) {\n"
        "  *static_cast<int*>(out) = bias ? 1 : *static_cast<const signed char*>(x);\n"
        "  return 0;\n}\n",
        {"pick": "const void* x, const float* bias, void* out, cudaStream_t stream"},
    )
    out = torch.zeros(1, dtype=torch.int32)
    module.pick(torch.tensor([-5], dtype=torch.int8), None, out)
    assert out.item() == -5
    module.pick(torch.tensor([1j]), torch.zeros(1), out)
    assert out.item() == 1
    with pytest.raises(TypeError, match="every pointer is None"):
        module.pick(None, None, None)


@needs_host_target
def test_compiled_once(twice: InlineModule, monkeypatch: pytest.MonkeyPatch) -> None:
    x, out = torch.ones(3), torch.zeros(3)
    twice.run(x, out, 3)
    monkeypatch.setattr(_build, "_run_ninja", None)
    again = load_inline(TWICE, ALL_THREE, name="twice")
    again.run(x, out, 3)
    assert out.tolist() == [2.0, 2.0, 2.0]
    with pytest.raises(TypeError, match="NoneType"):  # another source: the compiler is called
        load_inline(TWICE.replace("2 *", "3 *"), ALL_THREE, name="twice").run(x, out, 3)


def test_nothing_is_compiled_before_the_first_call(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_REFERENCE_CACHE", str(tmp_path / "cache"))
    module = load_inline(TWICE, RUN)
    assert not (tmp_path / "cache").exists()
    with pytest.raises(BuildError, match=r"install g\+\+"):
        module.run(torch.ones(3), torch.zeros(3), 3)


def test_it_describes_itself(twice: InlineModule) -> None:
    assert repr(twice) == (
        "<CUDA source 'twice': run(x, out, n), returns_nothing(x, out, n), "
        "stream_between(x, out, n)>"
    )
    assert "run(const float* x, float* out, int n, cudaStream_t stream)" in str(twice.run.__doc__)
    assert twice.run.__name__ == "run"
    assert {"run", "returns_nothing", "stream_between"} <= set(dir(twice))
    with pytest.raises(AttributeError, match=r"run\(x, out, n\).* has no function 'rum'"):
        twice.rum(1)


# ---- what it refuses ----


def test_unfit_tensors(twice: InlineModule) -> None:
    x, out = torch.ones(4), torch.zeros(4)
    with pytest.raises(TypeError, match=r"takes 3 arguments \(x, out, n; .*but got 2"):
        twice.run(x, out)
    with pytest.raises(TypeError, match="must be one of: float32"):
        twice.run(x.double(), out, 4)
    with pytest.raises(TypeError, match=r"'x' must be a torch\.Tensor, but got list"):
        twice.run([1.0], out, 4)
    with pytest.raises(ValueError, match=r"'x' is not contiguous .*pass x\.contiguous\(\)"):
        twice.run(torch.ones(8)[::2], out, 4)
    with pytest.raises(ValueError, match=r"'out' is not contiguous .*strides \[0\].*copy_\(\)"):
        twice.run(x, torch.zeros(1).expand(4), 4)
    with pytest.raises(RuntimeError, match=r"'x' is on cpu, but 'out' on meta"):
        twice.run(x, out.to("meta"), 4)
    with pytest.raises(RuntimeError, match="device meta is not supported"):
        twice.run(x.to("meta"), out.to("meta"), 4)


@needs_host_target
def test_gradients_are_refused(twice: InlineModule) -> None:
    x, out = torch.ones(4), torch.zeros(4)
    with pytest.raises(RuntimeError, match=r"'x' requires grad.*torch\.no_grad"):
        twice.run(x.clone().requires_grad_(), out, 4)
    with torch.no_grad():
        twice.run(x.clone().requires_grad_(), out, 4)
        assert out.tolist() == [2.0] * 4
        with pytest.raises(RuntimeError, match=r"'out' is written \(float\*\).*out\.detach\(\)"):
            twice.run(x, out.clone().requires_grad_(), 4)


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ("", "parameter '': write a type and a name"),
        (
            "const float*, cudaStream_t stream",
            r"parameter 'const float\*': write a type and a name",
        ),
        ("float* x, unsigned int, cudaStream_t s", "parameter 'unsigned int': write a type and a"),
        (
            "const foo* x, cudaStream_t stream",
            r"parameter 'const foo\* x': unknown type; known are",
        ),
        ("float** x, cudaStream_t stream", r"parameter 'float\*\* x': write a type and a name"),
        ("float& x, cudaStream_t stream", "parameter 'float& x': write"),
        ("float x[], cudaStream_t stream", r"parameter 'float x\[\]': write"),
        (
            "float* x, half h, cudaStream_t s",
            "parameter 'half h': a half cannot be passed by value",
        ),
        ("float* x, float* x, cudaStream_t s", "two parameters are called 'x'"),
        ("float* x, cudaStream_t a, cudaStream_t b", "has several cudaStream_t"),
        ("int n, cudaStream_t stream", "has no pointer"),
    ],
)
def test_bad_declarations(declared: str, says: str) -> None:
    with pytest.raises(ValueError, match=rf"^load_inline\(\): functions\['run'\].*{says}"):
        load_inline(TWICE, {"run": declared})


def test_bad_arguments() -> None:
    with pytest.raises(TypeError, match="'source' must be a string, got PosixPath"):
        load_inline(Path("x.cu"), RUN)  # type: ignore[arg-type]
    for functions in ({}, ["run"], "run"):
        with pytest.raises(TypeError, match="'functions' must be a dict"):
            load_inline(TWICE, functions)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"functions\['run'\] must be a string"):
        load_inline(TWICE, {"run": None})  # type: ignore[dict-item]
    for name in ("../x", "_run", "1", ""):
        with pytest.raises(ValueError, match="is no name"):
            load_inline(TWICE, RUN, name=name)
        with pytest.raises(ValueError, match="is no name"):
            load_inline(TWICE, {name: DECLARED})


# ---- a source that is wrong ----


def says_of(source: str, functions: dict[str, str], target: _compilers.Target) -> str:
    """The build error of a source."""
    module = load_inline(source, functions, name="wrong")
    with pytest.raises(BuildError) as caught:
        module.run.library(target)
    return str(caught.value)


@pytest.fixture(
    params=[pytest.param("host", marks=needs_host_target), pytest.param("cuda", marks=needs_nvcc)]
)
def target(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> _compilers.Target:
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
    found: _compilers.Target = request.param
    return found


@pytest.mark.parametrize("wrong", ["const double* x, float* out, int n, cudaStream_t stream",
                                   "const float* x, float* out, long long n, cudaStream_t stream",
                                   "float* x, const float* out, int n, cudaStream_t stream",
                                   "const float* x, float* out, cudaStream_t stream"])  # fmt: skip
def test_compiler_verifies_the_declaration(wrong: str, target: _compilers.Target) -> None:
    message = says_of(TWICE, {"run": wrong}, target)
    assert "functions['run']:1: error: static assertion failed" in message
    assert f"the source's run() does not take ({wrong})" in message


def test_compiler_verifies_the_result(target: _compilers.Target) -> None:
    source = TWICE.replace("int run(", "float run(")
    assert "run() must return cudaError_t, int or void" in says_of(source, RUN, target)


def test_compile_error_shows_the_line_of_the_string(target: _compilers.Target) -> None:
    message = says_of(TWICE.replace("2 *", "TWO *"), RUN, target)
    assert f"could not build wrong.cu for the {target} target" in message
    assert "wrong.cu:4: error: " in message
    assert "4 | if (i < n) out[i] = TWO * x[i];" in message


@needs_host_target
def test_chevrons_and_shared_as_they_are_written() -> None:
    source = re.sub(r"LAUNCH\(twice, (.*), stream, (.*)\)", r"twice<<<\1, stream>>>(\2)", TWICE)
    source = source.replace("2 * x[i];", "held[i];")
    source = source.replace("x;\n", "x;\n  __shared__ float held[64];\n  held[i] = 2 * x[i];\n")
    module = load_inline(source, ALL_THREE, name="written")
    out = torch.zeros(3)
    module.run(torch.tensor([1.0, 2.0, 3.0]), out, 3)
    assert out.tolist() == [2.0, 4.0, 6.0]
    with pytest.raises(RuntimeError, match="invalid configuration: a block has at most 1024"):
        module.run(torch.zeros(2000), torch.zeros(2000), 2000)


# ---- as a user runs it ----


def run_file(file: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(_compilers.CSRC.parent.parent), **variables}
    return subprocess.run(
        [sys.executable, str(file)], env=environment, capture_output=True, text=True, check=False
    )


@needs_host_target
def test_documented_example(root: Path, tmp_path: Path) -> None:
    marked = re.search(
        r"^<!-- the load_inline example.*-->\n```python\n(.*?)^```",
        (root / "docs" / "CHECKING.md").read_text(),
        re.M | re.S,
    )
    assert marked, "docs/CHECKING.md has lost the example or its marker"
    (tmp_path / "example.py").write_text(marked[1] + "print(report)\n")
    ran = processes.python(root, str(tmp_path / "example.py"))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("pass: bitwise equal\n")
    fault = marked[1].replace("row >= rows", "row >= rows - 1")
    assert fault != marked[1]
    (tmp_path / "fault.py").write_text(fault)
    ran = processes.python(root, str(tmp_path / "fault.py"))
    assert ran.returncode == 1
    assert "AssertionError: FAIL: the cuda side is wrong" in ran.stderr


@needs_host_target
def test_address_sanitizer_sees_inline_kernels(tmp_path: Path) -> None:
    try:
        variables = _compilers.sanitizer_environment("address")
    except BuildError as error:
        pytest.skip(str(error))
    source = TWICE.replace("if (i < n) ", "")
    (tmp_path / "overrun.py").write_text(
        "import torch\n"
        "from cuda_reference import load_inline\n"
        f"module = load_inline({source!r}, {RUN!r})\n"
        "module.run(torch.ones(64), torch.zeros(64), 64)\n"
        "print('fine so far', flush=True)\n"
        "module.run(torch.ones(64), torch.zeros(64), 65)\n"
    )
    ran = run_file(tmp_path / "overrun.py", **variables)
    assert ran.stdout == "fine so far\n", ran.stderr
    assert ran.returncode != 0
    assert "heap-buffer-overflow" in ran.stderr
    assert "run.cu:4" in ran.stderr


# ---- on a GPU ----


@pytest.mark.gpu_only
@needs_nvcc
def test_gpu(twice: InlineModule) -> None:
    x = torch.randn(1000, device="cuda")
    for function in ALL_THREE:
        out = torch.zeros_like(x)
        getattr(twice, function)(x, out, 1000)
        assert torch.equal(out, 2 * x)
        with pytest.raises(
            RuntimeError, match=rf"{function}\(\) on x \[1000\].*launch failed: invalid"
        ):
            getattr(twice, function)(x, out, 2000)
    with pytest.raises(RuntimeError, match="must be on one device"):
        twice.run(x.cpu(), x, 1000)


@pytest.mark.gpu_only
@needs_nvcc
def test_gpu_current_stream(twice: InlineModule) -> None:
    x, out = torch.zeros(1000, device="cuda"), torch.zeros(1000, device="cuda")
    twice.run(x, out, 1000)  # compiled, loaded
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        x.fill_(3)
        twice.run(x, out, 1000)  # on another stream it would see the zeros
    stream.synchronize()
    assert out.unique().tolist() == [6.0]
