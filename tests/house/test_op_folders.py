"""The folders of ops, in a copy: what is absent is done without, what is broken is named, what is
added is there."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkout import ROOT, copy_folders
from processes import python

from cuda_reference import _signatures

PACKAGES = ("triton_kernels", "cuda_reference")
HEAD = """
import torch, triton, triton.language as tl
from triton_kernels import _arguments, _elementwise_op
"""
LEAKY = (
    HEAD
    + """
__all__ = ["leaky"]

@triton.jit
def leaky_element(x, slope):
    return tl.where(x < 0, x * slope, x)

def leaky(x, slope, *, out=None):
    return _leaky(x, slope, out=out)

_leaky = _elementwise_op.define(
    "leaky", "Tensor x, Scalar slope", leaky_element, _arguments.FLOATS
)
"""
)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of both packages, and of what writes their stubs."""
    copy_folders(tmp_path, *PACKAGES, ".ci")
    return tmp_path


def runs(where: Path, code: str) -> None:
    done = python(where, "-c", code)
    assert done.returncode == 0, done.stderr


def last_line(where: Path, code: str) -> str:
    """The error that the code ends with."""
    done = python(where, "-c", code)
    assert done.returncode, "no error"
    return done.stderr.strip().splitlines()[-1]


# ---- an op that is absent ----

MODELS = """
import torch, torch.nn.functional as F, triton_kernels as tk
from torch import nn
from triton_kernels import _operator, graph

class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
    def forward(self, x):
        return F.gelu(self.linear(x)), torch.relu(x * x) * 0.5

model, x = Chain(), torch.randn(4, 8)
with tk.interpret(), torch.no_grad():
    fused = tk.fuse(model, min_score=0)
    torch.testing.assert_close(fused(x), model(x))
    kernels = {step.kernel for step in fused.plan.steps}
    sequential = nn.Sequential(nn.Linear(8, 8), nn.GELU())
    right = sequential(x)
    tk.replace_modules(sequential, min_score=0)
    torch.testing.assert_close(sequential(x), right)
    layer = type(sequential[0]).__name__
    tk.nn.MLP(8, 8, 8)(x)

import torch.distributed.tensor
_operator._register_sharding()
"""
GATED = {"GatedMLP", "linear_gated"}
WITHOUT = {
    "act_mul": (
        {"linear_gelu", "square", "relu_scale"},
        "LinearGELU",
        {"LinearGELU", "ReLUScale"},
    ),
    "square": ({"linear_gelu", "relu_scale"}, "LinearGELU", {"LinearGELU", "ReLUScale", *GATED}),
    # linear_gelu is in the same file.
    "linear_act": ({"gemm_bias_act", "square", "relu_scale"}, "LinearAct", {"ReLUScale", *GATED}),
    "relu_scale": ({"linear_gelu", "square"}, "LinearGELU", {"LinearGELU", *GATED}),
}


@pytest.mark.parametrize("absent", WITHOUT)
def test_models_do_without_an_op(absent: str, copy: Path) -> None:
    (copy / "triton_kernels" / "ops" / f"{absent}.py").unlink()
    kernels, layer, modules = WITHOUT[absent]
    more = f"""
assert not any(name.startswith({absent!r}) for name in (*tk.OPS, *tk.__all__))
assert not hasattr(tk, {absent!r})
assert not any(name.startswith({absent!r}) for name in graph.capabilities.ENTRIES)
assert kernels == {kernels!r}, kernels
assert layer == {layer!r}, layer
assert set(tk.nn.__all__) == {{"MLP", "LinearAct"}} | {modules!r}, tk.nn.__all__
"""
    runs(copy, MODELS + more)


def test_with_all_ops_present(copy: Path) -> None:
    """What the test above compares with. A private file is no op."""
    (copy / "triton_kernels" / "ops" / "_helpers.py").write_text("1 / 0")
    kernels = {"linear_gelu", "square", "relu_scale"}
    runs(copy, MODELS + f"assert kernels == {kernels!r}, kernels")


def test_models_do_without_all_of_them(copy: Path) -> None:
    for absent in WITHOUT:
        (copy / "triton_kernels" / "ops" / f"{absent}.py").unlink()
    more = 'assert tk.OPS == ("act_backward", "add", "gemm_bias_act", "sum_to"), tk.OPS'
    runs(copy, MODELS + more)


def test_a_cuda_op_goes_with_its_source(copy: Path) -> None:
    csrc, ops = (copy / "cuda_reference" / name for name in ("csrc", "ops"))
    (csrc / "relu_scale.cu").unlink()
    (ops / "relu_scale.py").unlink()
    (csrc / "square.cu").unlink()
    assert f"ImportError: {ops / 'square.py'} has no {csrc / 'square.cu'}" in last_line(
        copy, "import cuda_reference"
    )
    (ops / "square.py").unlink()
    runs(
        copy,
        "import cuda_reference as c\n"
        'assert c.OPS == ("act_backward", "act_mul", "act_mul_backward", "add", "gemm_bias_act", '
        '"linear_act", "linear_gelu", "sum_to"), c.OPS\n'
        'assert not hasattr(c, "relu_scale_add")',
    )


# ---- an op file that is wrong ----


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("cube", "1 / 0", "cube.py: ZeroDivisionError: division by zero"),
        ("cube", "def cube(:", "cube.py: SyntaxError: invalid syntax"),
        # act_backward.py, which comes first, imports it.
        ("add", "from triton_kernels import nothing", "add.py: ImportError: cannot import name"),
        ("cube", "def cube(x): ...", "cube.py has no __all__"),
        ("cube", '__all__ = ["cube"]', "cube.py has 'cube' in __all__, but no such function"),
        ("fuse", '__all__ = ["fuse"]\ndef fuse(): ...', "an op cannot be called 'fuse'"),
        (
            "leaky",
            LEAKY.replace("_element(x, slope)", "_element(x, y, slope)"),
            "leaky.py: TypeError: leaky: the formula leaky_element takes 3 operands, but the op "
            "has 2: Tensor x, Scalar slope",
        ),
    ],
)
def test_a_broken_op_file_is_named(file: str, text: str, words: str, copy: Path) -> None:
    (copy / "triton_kernels" / "ops" / f"{file}.py").write_text(text)
    line = last_line(copy, "import triton_kernels")
    assert line.startswith("ImportError: ")
    assert words in line


def test_two_files_with_one_name_are_named(copy: Path) -> None:
    text = '__all__ = ["add"]\ndef add(): ...'
    for package in PACKAGES:
        ops = copy / package / "ops"
        (ops / "plus.py").write_text(text)
        first, second = ops / "add.py", ops / "plus.py"
        if package == "cuda_reference":
            (copy / package / "csrc" / "plus.cu").touch()
            first, second = (copy / package / "csrc" / f"{name}.cu" for name in ("add", "plus"))
        line = last_line(copy, f"import {package}")
        assert line == f"ImportError: {first} and {second} both export 'add'"


def test_a_broken_host_file_is_named(copy: Path) -> None:
    file = copy / "cuda_reference" / "ops" / "square.py"
    file.write_text("1 / 0")
    line = last_line(copy, "import cuda_reference")
    assert line == f"ImportError: {file}: ZeroDivisionError: division by zero"


LAUNCHER = 'extern "C" int cube({}, cudaStream_t stream) {{\n  {}(LAUNCH(cube<C>));\n}}\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", 'expected every extern "C" to be'),
        (LAUNCHER.format("const Tensor* x, int n", "WITH_COMPUTE_TYPE"), "cube has parameters"),
        (LAUNCHER.format("const float* x, const Tensor* out", "WITH_COMPUTE_TYPE"), "has param"),
        (LAUNCHER.format("const Tensor* x, const Tensor* out", "SOME_TYPE"), "WITH_COMPUTE_TYPE"),
        (
            LAUNCHER.format("const Tensor* x, const Tensor* out", "WITH_COMPUTE_TYPE")
            + 'extern "C" void other(int n);\n',
            'expected every extern "C" to be',
        ),
    ],
)
def test_a_cuda_source_that_says_too_little_is_named(text: str, words: str, tmp_path: Path) -> None:
    source = tmp_path / "cube.cu"
    source.write_text(text)
    with pytest.raises(ImportError, match=str(source)) as caught:
        _signatures.signatures(source)
    assert words in str(caught.value)


def test_a_cuda_source_declares_its_ops() -> None:
    found = _signatures.signatures(ROOT / "cuda_reference" / "csrc" / "relu_scale.cu")
    assert [(s.op, s.operands, s.numbers, s.floating, s.formula) for s in found] == [
        ("relu_scale", ("x",), ("scale",), True, "relu(x)·scale"),
        ("relu_scale_add", ("x", "y"), ("scale",), True, "fma(relu(x), scale, y)"),
        ("relu_scale_backward", ("grad", "x"), ("scale",), True, "0 where x <= 0, else grad·scale"),
    ]


# ---- an op that is added ----


def test_a_forward_only_op_says_so(copy: Path) -> None:
    """Through the launcher, the registered op, torch.func and torch.compile."""
    (copy / "triton_kernels" / "ops" / "leaky.py").write_text(LEAKY)
    runs(
        copy,
        """
import torch, triton_kernels as tk
assert "leaky" in tk.OPS
x = torch.tensor([-2.0, 3.0])
wanting = x.clone().requires_grad_()
registered = torch.ops.triton_kernels.leaky
calls = {
    "launcher": lambda: tk.leaky(wanting, 0.5),
    "registered": lambda: registered(wanting, 0.5),
    "torch.func": lambda: torch.func.grad(lambda t: tk.leaky(t, 0.5).sum())(x),
    "compiled": lambda: torch.compile(tk.leaky, backend="aot_eager")(wanting, 0.5),
}
with tk.interpret():
    assert tk.leaky(x, 0.5).tolist() == registered(x, 0.5).tolist() == [-1.0, 3.0]
    assert torch.func.vmap(lambda t: tk.leaky(t, 0.5))(x).tolist() == [-1.0, 3.0]
    with torch.no_grad():
        assert tk.leaky(wanting, 0.5).tolist() == [-1.0, 3.0]
    for name, call in calls.items():
        try:
            call()
        except Exception as error:
            assert "leaky(): argument 'x' requires grad, but the op has no gradient" in str(error)
            assert isinstance(error, NotImplementedError) or name == "compiled", (name, error)
        else:
            raise AssertionError(name)
""",
    )


def test_stubs_follow_the_folders(copy: Path) -> None:
    assert python(copy, ".ci/stubs", "--check").returncode == 0
    (copy / "triton_kernels" / "ops" / "leaky.py").write_text(LEAKY)
    (copy / "cuda_reference" / "csrc" / "relu_scale.cu").unlink()
    stale = python(copy, ".ci/stubs", "--check")
    assert stale.returncode == 1
    files = "triton_kernels/__init__.pyi, cuda_reference/__init__.pyi"
    assert stale.stderr == f"stale: {files}; run `make stubs`\n"
    assert python(copy, ".ci/stubs").returncode == 0
    triton, cuda = ((copy / package / "__init__.pyi").read_text() for package in PACKAGES)
    assert "from triton_kernels.ops.leaky import leaky as leaky" in triton
    assert "relu_scale" not in cuda
    assert python(copy, ".ci/stubs", "--check").returncode == 0
