"""The faults that mutate can plant: from a kernel's syntax, each an edit of its source."""

from __future__ import annotations

import ast
from collections import Counter

import pytest
import torch

from compare.checking import telling
from compare.checking.telling import telling_first
from compare.mutation import cuda_faults, population, trial, triton_faults
from compare.ops import SPECS

KERNEL = '''"""Ünïcode before the kernel."""
import triton
import triton.language as tl


@triton.jit
def scale_kernel(x_ptr, out_ptr, n, stride_x, stride_o, C: tl.constexpr, BLOCK: tl.constexpr):
    """A docstring with 1.5 in it, x < y."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = (i < n) & (i >= 0)
    x = tl.load(x_ptr + i * stride_x, mask=mask, other=0.0).to(C)  # “quoted” + more
    total = tl.zeros((BLOCK,), C)
    total += tl.where(x < 0, 0.5, x)
    tl.store(out_ptr + i * stride_o, total, mask=mask)


def launch(x):
    if x.dim() > 3 or x.dtype is half:
        raise ValueError(x)
    if x.numel() > 5 and x.dtype in (half, single):
        Launch(scale_kernel)


def elsewhere(x):
    return x < 3
'''


def triton_edits(text: str) -> list[tuple[str, str, str, str]]:
    found = [(m.function, m.edit.kind, *m.statement) for m in triton_faults.faults("x.py", text)]
    for mutant in triton_faults.faults("x.py", text):
        ast.parse(mutant.mutated)
    return found


def test_faults_of_a_triton_kernel() -> None:
    edits = triton_edits(KERNEL)
    load = "x = tl.load(x_ptr + i * stride_x, mask=mask, other=0.0).to(C) # “quoted” + more"
    mask = "mask = (i < n) & (i >= 0)"
    total = "total += tl.where(x < 0, 0.5, x)"
    store = "tl.store(out_ptr + i * stride_o, total, mask=mask)"
    expected = [
        ("program id", "tl.program_id(0)", "tl.program_id(1)"),
        ("narrowed", "tl.int64", "tl.int32"),
        ("cast dropped", "tl.program_id(0).to(tl.int64)", "tl.program_id(0)"),
        ("operator", "* BLOCK", "+ BLOCK"),
    ]
    first = "i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)"
    for kind, old, new in expected:
        assert ("scale_kernel", kind, first, first.replace(old, new)) in edits
    expected_lines = [
        ("mask weakened", mask, "mask = (i < n)"),
        ("mask weakened", mask, "mask = (i >= 0)"),
        ("operator", mask, mask),  # the edit of & makes |, below
        ("comparison", mask, "mask = (i <= n) & (i >= 0)"),
        ("mask dropped", load, load.replace(", mask=mask, other=0.0", "")),
        ("stride", load, load.replace("stride_x", "stride_o")),
        ("accumulator narrowed", "total = tl.zeros((BLOCK,), C)", None),
        ("constant", total, total.replace("0.5", "0.5005")),
        ("NaN", total, "total += tl.where(x >= 0, x, 0.5)"),
        ("alternative", total, "total += x"),
        ("statement removed", total, "pass"),
        ("operator", total, total.replace("+=", "-=")),
        ("statement removed", store, "pass"),
    ]
    del expected_lines[2]
    for kind, old, new in expected_lines:
        wanted = new or old.replace("C)", "tl.float16)")
        assert ("scale_kernel", kind, old, wanted) in edits, (kind, old, wanted)
    condition = "if x.numel() > 5 and x.dtype in (half, single):"
    for kind, new in [
        ("comparison", condition.replace(">", ">=")),
        ("logic", condition.replace("and", "or")),
        ("guard dropped", "if ((x.dtype in (half, single))):"),
        ("alternative", condition.replace("half, single", "single,")),
    ]:
        assert ("launch", kind, condition, new) in edits
    assert {function for function, *_ in edits} == {"scale_kernel", "launch"}
    assert not any("docstring" in old for _, _, old, _ in edits)
    assert not any("x.dim()" in old for _, _, old, _ in edits)  # what it refuses no case has


FOREIGN = """
import triton
import triton.language as tl
from triton.language import core

if has_triton():

    @triton.jit
    def softplus(x):
        return tl.log(tl.exp(x) + 1)

try:
    from elsewhere import clamp
except ImportError:

    @triton.jit
    def clamp(x, low):
        return tl.maximum(x, low)


def made_kernel(block):
    @triton.jit
    def inner_kernel(x_ptr, out_ptr, count_ptr, n):
        i = tl.program_id(axis=0) * block + tl.arange(0, block)
        x = tl.load(x_ptr + i, i < n, 0.0)
        for k in core.static_range(4):
            x = tl.where(x=x, y=clamp(x, 0), condition=x > k)
        tl.store(out_ptr + i, softplus(x), i < n)
        tl.atomic_add(count_ptr, tl.sum(x), mask=n > 0)
        block_ptr = tl.make_block_ptr(x_ptr, (n,), (1,), (0,), (block,), (0,))
        y = tl.load(block_ptr, boundary_check=(0,), padding_option='zero')

    return inner_kernel
"""


def test_faults_of_kernels_as_others_write_them() -> None:
    """Under a condition, in a function; masks by position; axes by keyword."""
    edits = [(kind, old, new) for _, kind, old, new in triton_edits(FOREIGN)]
    load, store = "x = tl.load(x_ptr + i, i < n, 0.0)", "tl.store(out_ptr + i, softplus(x), i < n)"
    atomic = "tl.atomic_add(count_ptr, tl.sum(x), mask=n > 0)"
    block = "y = tl.load(block_ptr, boundary_check=(0,), padding_option='zero')"
    axis = "i = tl.program_id(axis=0) * block + tl.arange(0, block)"
    loop = "for k in core.static_range(4):"
    for kind, old, new in [
        ("mask dropped", load, "x = tl.load(x_ptr + i)"),
        ("mask dropped", store, "tl.store(out_ptr + i, softplus(x))"),
        ("mask dropped", atomic, "tl.atomic_add(count_ptr, tl.sum(x))"),
        ("mask dropped", block, "y = tl.load(block_ptr)"),
        ("statement removed", atomic, "pass"),
        ("program id", axis, axis.replace("axis=0", "1")),
        ("bound", loop, "for k in core.static_range(4 - 1):"),
        ("function", "return tl.maximum(x, low)", "return tl.minimum(x, low)"),
        ("term dropped", "return tl.log(tl.exp(x) + 1)", "return tl.log(tl.exp(x))"),
    ]:
        assert (kind, old, new) in edits, (kind, old, new)
    assert ("program id", axis, axis.replace("axis=0", "0")) not in edits  # the same axis


CUDA = """// a comment with x < y and "a string
#define TWICE(x) ((x) + (x))
template <class C>
__global__ void scale_kernel(Tensor x, float limit, long long n) {
  const long long i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n || n == 0) return;
  const char* text = "i < n; \\" 2";
  C sum = 0;
  /* i > n */ sum += static_cast<C>(x[i * x.stride[0]]) * C(0.25);
  sum = fmaf(sum, C(0.5), f(x, 1));
  __syncthreads();
  out[i] = sum < limit ? sum : limit;
}
struct Epilogue {
  int act;
  __device__ int apply(int v) const { return v + act; }
};
"""


def test_faults_of_a_cuda_kernel() -> None:
    mutants = list(cuda_faults.faults("x.cu", CUDA))
    edits = {(m.function, m.edit.kind, *m.statement) for m in mutants}
    where = "const long long i = blockIdx.x * blockDim.x + threadIdx.x;"
    guard = "if (i >= n || n == 0) return;"
    total = "/* i > n */ sum += static_cast<C>(x[i * x.stride[0]]) * C(0.25);"
    fused = "sum = fmaf(sum, C(0.5), f(x, 1));"
    choice = "out[i] = sum < limit ? sum : limit;"
    expected = [
        ("narrowed", where, where.replace("long long", "int")),
        ("thread id", where, where.replace("threadIdx.x", "threadIdx.y")),
        ("comparison", guard, guard.replace(">=", ">")),
        ("logic", guard, guard.replace("||", "&&")),
        ("guard dropped", guard, guard.replace("|| n == 0", "")),
        ("not fused", fused, "sum = ((sum) * (C(0.5)) + (f(x, 1)));"),
        ("statement removed", guard, ";"),
        ("narrowed", "C sum = 0;", "float sum = 0;"),
        ("stride", total, total.replace("[0]", "[1]")),
        ("constant", total, total.replace("0.25", "0.25025")),
        ("statement removed", "__syncthreads();", ";"),
        ("condition", choice, choice.replace("?", "== 0 ?")),
        ("NaN", choice, "out[i] = sum >= limit ? limit : sum;"),
    ]
    for edit in expected:
        assert ("scale_kernel", *edit) in edits, edit
    apply = "__device__ int apply(int v) const { return v + act; }"
    assert ("apply", "operator", apply, apply.replace("+", "-")) in edits
    for old in ("a comment", "TWICE", "const char* text"):
        assert not any(old in before for _, _, before, _ in edits)
    assert not any("template" in before for _, _, before, _ in edits)


def test_a_kernel_with_launch_bounds_has_its_own_name() -> None:
    bounds = "__launch_bounds__(128, LEAST<N>)"
    text = f"template <int N>\n__global__ void {bounds}\n  scale(int n) {{ f(); }}"
    (body,) = cuda_faults.bodies(text)
    assert (body.name, body.is_kernel) == ("scale", True)


def test_every_kernel_has_at_least_five(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(population, "gluon_missing", lambda *_: "")
    mutants = population.population(["triton", "cuda"], list(SPECS))
    counts = Counter((m.file, m.function) for m in mutants)
    kernels = 0
    for file in {m.file for m in mutants} | set(population.files()):
        text = (population.ROOT / file).read_text(encoding="utf-8")
        if file.endswith(".py"):
            functions = [f for f in ast.parse(text).body if isinstance(f, ast.FunctionDef)]
            names = [f.name for f in functions if triton_faults.is_kernel(f)]
        else:
            names = [body.name for body in cuda_faults.bodies(text) if body.is_kernel]
        for name in names:
            kernels += 1
            assert counts[file, name] >= 5, (file, name)
    assert kernels > 50
    keys = [(m.file, m.edit) for m in mutants]
    assert len(keys) == len(set(keys))
    assert all(m.mutated != m.text for m in mutants)


def functions(side: str, op: str) -> set[tuple[str, str]]:
    mutants = population.population([side], [op])
    return {(m.file.rsplit("/", 1)[1], m.function) for m in mutants}


def test_an_ops_mutants_are_those_of_functions_that_it_reaches() -> None:
    square, act_mul = functions("triton", "square"), functions("triton", "act_mul")
    files = {file for file, _ in square}
    assert files == {"square.py", "_elementwise.py", "_elementwise_kernels.py", "_scalars.py"}
    assert ("square.py", "square_backward_element") not in square
    assert ("square.py", "square_backward_element") in functions("triton", "square_backward")
    assert {("_elementwise_kernels.py", "corner"), ("_elementwise.py", "_tile")} <= square
    assert {("activations.py", "normal_odds"), ("act_mul.py", "act_mul_element")} <= act_mul
    assert ("_sum_to_tiles.py", "tile_of") in functions("triton", "sum_to")
    linear = functions("triton", "linear_act")
    assert {("repacking.py", "copy_tile"), ("choice.py", "tiles_for")} <= linear
    assert not {"_elementwise_kernels.py", "act_backward.py"} & {file for file, _ in linear}


def test_so_in_cuda() -> None:
    square, backward = functions("cuda", "square"), functions("cuda", "square_backward")
    both = {("elementwise.cuh", "offset"), ("rungs.cuh", "stream_kernel")}
    assert both <= square
    assert both <= backward
    assert ("square.cu", "square_2d_kernel") in square - backward
    assert ("square.cu", "square_backward_kernel") in backward - square
    operators = {
        op: {m.line for m in population.population(["cuda"], [op]) if m.function == "operator"}
        for op in ("square", "square_backward")
    }
    assert all(operators.values())
    assert not operators["square"] & operators["square_backward"]  # each its own struct's
    linear = functions("cuda", "linear_act")  # of a struct's functions those that it calls
    assert ("activations.cuh", "forward") in linear
    assert not {("activations.cuh", "derivative"), ("elementwise.cuh", "offset")} & linear
    assert ("activations.cuh", "derivative") in functions("cuda", "act_backward")


def test_every_function_is_some_ops() -> None:
    everything = {(m.file, m.edit) for m in population.population(["triton", "cuda"], list(SPECS))}
    of_ops = [population.population(["triton", "cuda"], [op]) for op in SPECS]
    assert {(m.file, m.edit) for mutants in of_ops for m in mutants} == everything
    made = {
        (m.file, m.edit)
        for file in population.files()
        if not file.startswith(population.GLUON)
        for m in (triton_faults if file.endswith(".py") else cuda_faults).faults(
            file, (population.ROOT / file).read_text(encoding="utf-8")
        )
    }
    # What no op is made of: sources of other people's kernels, and activations that users bring.
    left_out = {file for file, _ in made - everything}
    assert left_out == {"cuda_reference/csrc/inline.cuh", "triton_kernels/own_activations.py"}


def test_every_op_that_reaches_a_mutant_judges_it() -> None:
    mutants = population.population(["triton"], ["square"])
    own = next(m for m in mutants if m.function == "square_element")
    shared = next(m for m in mutants if m.function == "corner")
    assert population.judges(own, ["square"]) == ["square"]
    assert population.seen_by(shared, ["square"]) == ["square"]
    assert {"square", "add", "act_mul_backward"} <= set(population.judges(shared, ["square"]))
    assert "sum_to" not in population.judges(shared, ["square"])


def test_the_telling_cases_come_first() -> None:
    ops = ["act_backward", "square"]
    cases = [
        (SPECS[op], case) for op in ops for case in trial.cases_of(SPECS[op], trial.LINED, "quick")
    ]
    ordered = [case for _, case in telling_first(cases)]
    wanted = [c for op in ops for d in SPECS[op].dtypes for c in SPECS[op].cases(d, "quick")]
    assert set(map(str, ordered)) <= set(map(str, wanted))
    coordinates = {pair for case in ordered for pair in telling.coordinates(case)}
    first = {pair for case in ordered[:60] for pair in telling.coordinates(case)}
    assert first == coordinates  # every act, dtype, layout and kind of values is among them
    assert len(ordered) > 300


def test_on_a_gpu_the_full_levels_own_cases_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """They alone show what a check on the CPU has left, such as offsets past 2³¹."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # else they are not made
    spec = SPECS["square"]
    quick = set(map(str, trial.cases_of(spec, "triton-compiled", "quick")))
    how = "full", None, None, None, ""
    tried = [case for _, case in trial._tried(["square"], "triton-compiled", *how)]
    new = len(tried) - len(quick)
    assert new > 10
    assert not {str(case) for case in tried[:new]} & quick
    assert all(case.numel > 2**30 for case in tried[:4])
    on_the_cpu = trial._tried(["square"], "cuda-host", *how)
    assert str(next(on_the_cpu)[1]) in quick
