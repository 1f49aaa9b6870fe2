"""Which functions of a package are mutated for a target: those that its spec can run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from compare.cli import app
from compare.mutation import of_targets, planting
from compare.mutation.mutant import Mutant
from compare.mutation.planting import Plan, Trial
from compare.mutation.trial import LINED
from compare.ops import _targets

KERNELS = """
import triton
import triton.language as tl


if triton.__version__:

    @triton.jit
    def twice(x):
        return x * 2


@triton.jit
def scale_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, twice(tl.load(x_ptr + i, mask=i < N)), mask=i < N)


@triton.jit
def shift_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < N) + 1, mask=i < N)


def scale(x):
    scale_kernel[(1,)](x, x, 4, BLOCK=4)


def shift(x):
    shift_kernel[(1,)](x, x, 4, BLOCK=4)


BY_NAME = {"shift": shift}
"""
SOURCE = """
#include "inner.cuh"
__global__ void scale_kernel(const float* x, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = doubled(x[i]);
}
__global__ void shift_kernel(const float* x, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = x[i] + 1;
}
torch::Tensor scale_forward(torch::Tensor x) {
  scale_kernel<<<1, 32>>>(x.data_ptr<float>(), x.data_ptr<float>(), x.numel());
  return x;
}
torch::Tensor shift(torch::Tensor x) {
  shift_kernel<<<1, 32>>>(x.data_ptr<float>(), x.data_ptr<float>(), x.numel());
  return x;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("scale", &scale_forward, "x * 2");
  m.def("shift", &shift);
}
"""
SPECS = """
import compare
import cuda_reference
from pair import kernels
from pair.kernels import scale as scaled

twin = None  # nobody calls it here
inline = cuda_reference.load_inline(
    "extern \\"C\\" int f(float* x, cudaStream_t s) { return 0; }",
    {"f": "float* x, cudaStream_t s"},
)


def spec(**given):
    return compare.Function("pair", shapes=[(4,)], **given)


def forward(name):
    return lambda x: getattr(twin, name)(x)


ONE = spec(triton=scaled, cuda=lambda x: twin.scale(x), oracle=lambda x: kernels.shift(x))
OTHER = spec(triton=kernels.BY_NAME["shift"], oracle=lambda x: x + 1)
STRING = spec(cuda=lambda x: inline.f(x), oracle=lambda x: x)
globals()["HIDDEN"] = spec(triton=kernels.shift, oracle=lambda x: x + 1)
CHOSEN = spec(cuda=forward("sca" + "le"), oracle=lambda x: x)
NAMED = compare.Function("shift", triton=scaled, oracle=lambda x: x * 2, shapes=[(4,)])
"""
SHIFTS, SCALES = {"shift_kernel"}, {"scale_kernel", "twice"}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Two kernels a side; a file of no language, that nobody imports; a header."""
    folder = tmp_path / "pair"
    folder.mkdir()
    inner = "__device__ inline float doubled(float x) { return x * 2; }\n"
    inner += "__device__ inline float unused(float x) { return x * 3; }\n"
    files = {"__init__.py": "", "kernels.py": KERNELS, "specs.py": SPECS, "pair.cu": SOURCE}
    for name, text in {**files, "template.py": "def {{ name }}(:\n", "inner.cuh": inner}.items():
        (folder / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for module in [name for name in sys.modules if name.partition(".")[0] == "pair"]:
        del sys.modules[module]
    for cached in (_targets.target, _targets.sources, of_targets._of_side, of_targets._spans):
        cached.cache_clear()


def functions(name: str, side: str) -> set[str]:
    return {each.function for each in of_targets.mutants(f"pair.specs:{name}", [side])}


def test_what_a_spec_names_is_mutated(package: Path) -> None:
    """Through imports under other names, tables and names that C++ exports; of its oracle nothing,
    and nothing of a side that it has not."""
    assert functions("ONE", "triton") == SCALES
    assert functions("ONE", "cuda") == {"scale_kernel", "scale_forward", "doubled"}
    assert functions("OTHER", "triton") == SHIFTS
    assert functions("OTHER", "cuda") == set()
    assert functions("NAMED", "triton") == SCALES
    others = of_targets.unreached("pair.specs:ONE", ["triton", "cuda"])
    assert others == [
        ("pair/kernels.py", "shift_kernel"),
        ("pair/inner.cuh", "unused"),
        ("pair/pair.cu", "shift_kernel"),
        ("pair/pair.cu", "shift"),
    ]


def test_where_names_tell_nothing_everything_is_mutated(package: Path) -> None:
    assert functions("HIDDEN", "triton") == SHIFTS | SCALES
    assert functions("CHOSEN", "cuda") > {"scale_kernel", "shift_kernel"}
    assert not of_targets.unreached("pair.specs:HIDDEN", ["triton"])
    assert functions("STRING", "cuda") == set()


def test_a_package_without_an_init_file_is_mutated(package: Path) -> None:
    (package / "__init__.py").unlink()
    assert functions("ONE", "triton") == SCALES
    assert _targets.sources("pair.specs:ONE")[0] == package.parent


SIDEWAYS = """
import sys
sys.path.insert(0, {folder!r})
import compare
from doubling import double

SPEC = compare.Function("double", triton=double, oracle=lambda x: x * 2, shapes=[(4,)],
                        layouts=["contiguous"], values=["normal"])
"""
DOUBLING = """
import torch
import triton
import triton.language as tl


@triton.jit
def double_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < N) * 2, mask=i < N)


def double(x):
    out = torch.empty_like(x)
    double_kernel[(1,)](x, out, x.numel(), BLOCK=4)
    return out
"""


def test_a_target_that_does_not_load_the_copy_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every fault would survive. Without the absolute path they are judged."""
    (tmp_path / "doubling.py").write_text(DOUBLING)
    for name, folder in (("sideways", str(tmp_path)), ("straight", "")):
        (tmp_path / f"{name}.py").write_text(SIDEWAYS.format(folder=folder))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    said = planting.healthy(["triton"], Plan(["sideways:SPEC"]))
    assert said.startswith(
        "faults would not be seen: sideways:SPEC runs, whatever stands in the copy of doubling.py."
    )
    assert planting.healthy(["triton"], Plan(["straight:SPEC"])) == ""


EXPLAINED = """
[[survivor]]
file = "pair/kernels.py"
function = "shift_kernel"
statement = "no = such + line"
mutant = "no = such - line"
reason = "equivalent"
because = "Of the other spec."
"""


def test_the_command_names_what_it_leaves_out(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And an entry about it is not stale. Two targets have both kernels."""

    def run(mutants: list[Mutant], plan: Any, jobs: int) -> Iterator[Trial]:
        for each in mutants:
            assert plan.request(each).count("pair.specs:") == 1  # its own spec alone judges it
            yield Trial(each, "killed")

    monkeypatch.setattr(planting, "healthy", lambda sides, plan: "")
    monkeypatch.setattr(planting, "run", run)
    (package / "explained.toml").write_text(EXPLAINED)

    def mutate(*specs: str) -> Result:
        named = [word for spec in specs for word in ("--target", f"pair.specs:{spec}")]
        return CliRunner().invoke(app, ["mutate", *named, "--side", "triton"])

    done = mutate("ONE")
    assert done.exit_code == 0, done.output
    assert "not mutated, as pair.specs:ONE cannot run them: shift_kernel" in done.output
    done = mutate("ONE", "OTHER")
    assert "not mutated" not in done.output
    assert "stale: pair/kernels.py shift_kernel" in done.output
    done = mutate("STRING")
    assert done.exit_code == 2
    said = " ".join(done.output.replace("│", " ").split())
    assert "where faults are planted: no kernel of pair.specs:STRING" in said


SIZES = """
import torch
import triton
import triton.language as tl


@triton.jit
def half(x): return x / 2


@triton.jit
def fifth(x): return x / 5


@triton.jit
def small_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = half(tl.load(x_ptr + i, mask=i < N, other=0.0))
    if N > 32:
        x = fifth(x) + 1
    tl.store(out_ptr + i, x, mask=i < N)


@triton.jit
def large_kernel(
    x_ptr,
    out_ptr,
    N,
    BLOCK: tl.constexpr,
):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < N, other=0.0) / 2, mask=i < N)


def halved(x):
    out = torch.empty_like(x)
    kernel = small_kernel if x.numel() < 64 else large_kernel
    kernel[(1,)](x, out, x.numel(), BLOCK=64)
    return out
"""
HALVES = """
import compare
from pair.sizes import halved

SPEC = compare.Function("half", triton=halved, oracle=lambda x: x / 2, shapes=[(4,), (5,)],
                        layouts=["contiguous"], values=["normal"])
"""


def test_what_no_case_runs_is_not_tried(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that no case launches are named, also of a file that nobody imports; a line that no
    case comes to in a kernel that runs is a survivor at once."""
    (package / "sizes.py").write_text(SIZES)
    (package / "again.py").write_text(SIZES)
    (package / "halves.py").write_text(HALVES)
    name = "pair.halves:SPEC"
    mutants = of_targets.mutants(name, ["triton"])
    plan = planting.recorded_targets(Plan([name], modes=(LINED,)), mutants)
    assert plan.lines is not None
    ran = {(m.file, m.function) for m in mutants if plan.lines.run(m)}
    assert ran == {("pair/sizes.py", "small_kernel"), ("pair/sizes.py", "half")}
    assert ("pair/sizes.py", "large_kernel") in {(m.file, m.function) for m in mutants}
    running = [m for m in mutants if plan.lines.run(m)]
    missed = [m for m in running if plan.reached_by_none(m)]
    assert {m.statement[0] for m in missed} == {"x = fifth(x) + 1"}
    store = next(m for m in running if m.statement[0].startswith("tl.store("))
    assert plan.lines.reaching(store, [name]) is None  # any case may tell

    def run(mutants: list[Mutant], plan: Any, jobs: int) -> Iterator[Trial]:
        yield from (Trial(each, "killed") for each in mutants)

    monkeypatch.setattr(planting, "healthy", lambda sides, plan: "")
    monkeypatch.setattr(planting, "run", run)
    done = CliRunner().invoke(app, ["mutate", "--target", name, "--side", "triton"])
    assert done.exit_code == 0, done.output
    said = f"not mutated, as no case of {name} runs them: "
    (line,) = (line for line in done.output.splitlines() if line.startswith(said))
    assert set(line.removeprefix(said).split(", ")) == {
        "fifth (pair/sizes.py)",
        "large_kernel (pair/sizes.py)",
        *(f"{each} (pair/again.py)" for each in ("half", "fifth", "small_kernel", "large_kernel")),
    }


LOADED = """
import compare
from pathlib import Path
from cuda_reference._extension import Extension
from cuda_reference._host_sources import Options

HERE = Path(__file__).parent
files = [HERE / "csrc" / "twice.cu", HERE.parent / "outside.cu"]
texts = {str(file): file.read_text() for file in files}
twin = Extension("twin", texts, Options(None, None, None, None), None, None, listed=False)
SPEC = compare.Function("twice", cuda=lambda x: twin.twice(x), oracle=lambda x: x, shapes=[(4,)])
"""
TWICE = """
#include "parts/inner.cuh"
#if FAST
__global__ void twice(float* x, int n) {
#else
__global__ void twice(float* x, long n) {
#endif
  if (threadIdx.x < n) x[threadIdx.x] = doubled(x[threadIdx.x]);
}
"""
INNER = "__device__ inline float doubled(float x) { return x * 2; }\n"


def test_sources_are_found_where_they_are_loaded_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In folders below, with their headers and what lies beside them; those elsewhere are named.
    A file whose braces do not match stops nothing."""
    root, parts = tmp_path / "root", tmp_path / "root" / "csrc" / "parts"
    parts.mkdir(parents=True)
    (root / "notes.txt").write_text("")
    (root / "loaded_from.py").write_text(LOADED)
    (root / "csrc" / "twice.cu").write_text(TWICE)
    (parts / "inner.cuh").write_text(INNER)
    (root / "csrc" / "generated.h").write_text("")
    (tmp_path / "outside.cu").write_text("__global__ void other(float* x) { x[0] += 1; }")
    monkeypatch.chdir(root)
    monkeypatch.syspath_prepend(root)
    name = "loaded_from:SPEC"
    assert _targets.sources(name) == (
        root,
        ("csrc/generated.h", "csrc/parts/inner.cuh", "csrc/twice.cu", "loaded_from.py"),
    )
    assert {each.function for each in of_targets.mutants(name, ["cuda"])} == {"doubled"}
    (parts / "inner.cuh").write_text("")
    of_targets._of_side.cache_clear()
    said = CliRunner().invoke(app, ["mutate", "--target", name, "--side", "cuda"])
    assert said.exit_code == 2
    words = "".join(said.output.replace("│", "").split())
    _, _, away = words.partition("itsCUDAsourceslieelsewhere:")
    assert f"{tmp_path}/outside.cu" in away  # beside what other tests of the process have loaded
    del sys.modules["loaded_from"]
