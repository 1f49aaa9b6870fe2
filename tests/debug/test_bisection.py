"""--bisect: one case interpreted and compiled in several ways; precision, compiler or logic?"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.language.semantic import TritonSemantic
from typer.testing import CliRunner

from compare import debug
from compare.checking import judging, running
from compare.cli import app
from compare.debugging import investigation, subjects
from compare.debugging.compiled import bisection
from compare.debugging.compiled.bisection import Bisection, Run
from triton_kernels.interpreter import cross_compile, recompile

# ---- kernels ----


@triton.jit
def residue(x_ptr, y_ptr, product_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """x·y − the rounded product: zero, unless the multiplication is fused into the difference."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    y = tl.load(y_ptr + i, mask=i < n, other=0.0)
    p = tl.load(product_ptr + i, mask=i < n, other=0.0)
    tl.store(out_ptr + i, x * y - p, mask=i < n)


@triton.jit
def product(a_ptr, b_ptr, out_ptr, K, PRECISION: tl.constexpr, BLOCK: tl.constexpr):
    i, j = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in range(0, K, BLOCK):
        a = tl.load(a_ptr + i * K + k + j)
        b = tl.load(b_ptr + (k + i) * BLOCK + j)
        if PRECISION is None:
            acc += tl.dot(a, b)
        else:
            acc += tl.dot(a, b, input_precision=PRECISION)
    tl.store(out_ptr + i * BLOCK + j, acc)


@triton.jit
def shifted(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n - 1, other=0.0) + 1, mask=i < n)


@triton.jit
def plus_one(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n, other=0.0) + 1, mask=i < n)


# ---- the verdict ----

RIGHT, WRONG = torch.tensor([False, False, False]), torch.tensor([False, True, True])
OTHERS = torch.tensor([True, False, False])
NAMES = {
    "again": "compiled, again",
    "fusion": "without FMA contraction",
    "precision": "input precision ieee for tf32",
    "stages": "num_stages=1 for 3",
    "warps": "num_warps=8 for 4",
    "unoptimised": "without ptxas's optimisation",
}


def table(interpreted: Any, compiled: Any, **others: Any) -> Bisection:
    """Runs with these wrong elements; a text is an error."""
    found = {"interpreted": interpreted, "compiled": compiled, **others}
    return Bisection(
        [
            Run(key, NAMES.get(key, key), error=wrong)
            if isinstance(wrong, str)
            else Run(key, NAMES.get(key, key), wrong, float(wrong.sum()), 0)
            for key, wrong in found.items()
        ]
    )


def every(wrong: Any, **but: Any) -> dict[str, Any]:
    return {**dict.fromkeys(NAMES, wrong), **but}


@pytest.mark.parametrize(
    ("runs", "says"),
    [
        (table(RIGHT, RIGHT, **every(RIGHT)), "no difference: right interpreted and compiled"),
        (
            table(RIGHT, RIGHT, **every(RIGHT, precision=WRONG)),
            "no difference: right interpreted and compiled; wrong with input precision ieee for "
            "tf32",
        ),
        (
            table(RIGHT, WRONG, **every(WRONG, fusion=RIGHT)),
            "compiler: the difference vanishes without FMA contraction: it fuses",
        ),
        (
            table(RIGHT, WRONG, **every(WRONG, stages=RIGHT, unoptimised=RIGHT)),
            "compiler: the difference vanishes with num_stages=1 for 3: software pipelining; also "
            "without ptxas's optimisation",
        ),
        (
            table(RIGHT, WRONG, **every(WRONG, warps=RIGHT)),
            "compiler or a race within a block: the difference vanishes with num_warps=8 for 4",
        ),
        (
            table(RIGHT, WRONG, **every(WRONG, unoptimised=RIGHT)),
            "compiler: the difference vanishes without ptxas's optimisation: ptxas",
        ),
        (
            table(WRONG, WRONG, **every(WRONG, precision=RIGHT)),
            "precision: right with input precision ieee for tf32, wrong as written",
        ),
        (
            table(RIGHT, WRONG, **every(WRONG, precision=RIGHT, fusion=RIGHT)),
            "precision: right with input precision ieee for tf32, wrong as written; also without",
        ),
        (table(WRONG, WRONG, **every(WRONG)), "logic: wrong in every row, in the same elements"),
        (table(WRONG, WRONG, **every(WRONG, fusion=OTHERS)), "logic: wrong in every row"),
        (
            table(WRONG, WRONG, **every(WRONG, fusion="no")),
            "logic: wrong in every row, in the same elements",
        ),
        (table(WRONG, RIGHT, **every(RIGHT)), "emulation: only the interpreter differs"),
        (table(RIGHT, WRONG, **every(WRONG)), "compiler, or a race that the interpreter's order"),
        (table(RIGHT, WRONG, **every(WRONG, again=OTHERS)), "order: two compiled runs are wrong"),
        (table(RIGHT, RIGHT, **every(RIGHT, again=OTHERS)), "order: two compiled runs are wrong"),
        (
            table(WRONG, WRONG, **every(WRONG, fusion=RIGHT)),
            "rounding, not the compiler alone: right only without FMA contraction",
        ),
        (
            table(RIGHT, "boom", **every("boom", stages=RIGHT)),
            "compiler: the kernel does not run compiled; it does with num_stages=1 for 3",
        ),
        (table(RIGHT, "boom"), "compiler: the kernel does not run compiled"),
    ],
)  # fmt: skip
def test_verdicts(runs: Bisection, says: str) -> None:
    assert runs.verdict.startswith(says)
    exact = says.endswith(("elements", "compiled", "row", "tf32", "optimisation", "for 3"))
    assert not exact or runs.verdict == says


def test_the_table_reads_well() -> None:
    found = table(RIGHT, WRONG, again=WRONG, fusion=RIGHT, precision="RuntimeError: no\nmore")
    found.runs[3].differ = 2
    assert found.lines()[:-1] == [
        "  run                             wrong  worst ulp  bits as compiled",
        "  interpreted                    0 of 3          0  yes",
        "  compiled                       2 of 3          2",
        "  compiled, again                2 of 3          2  yes",
        "  without FMA contraction        0 of 3          0  2 differ",
        "  input precision ieee for tf32       –          –  RuntimeError: no",
    ]
    assert json.loads(json.dumps(found.to_dict()))["runs"][3]["bits_differ"] == 2


# ---- the runs, with a stand-in for the GPU ----


class StandIn:
    """A subject whose compiled result depends on the settings that are in force."""

    title, outside_is_usage = "stand-in", False

    def __init__(self, compiled: dict[str, Any], interpreted: float = 1.0) -> None:
        self.values, self.interpreted = {"": 1.0, **compiled}, interpreted
        self.in_force = ""

    def compilable(self) -> bool:
        return True

    def prepare(self, device: torch.device) -> Any:
        return {"device": device.type, "out": torch.zeros(5)}

    def launch(self, state: Any, shadows: Any = None) -> None:
        value = self.interpreted
        if state["device"] == "cuda":
            value = self.values.get(self.in_force, self.values[""])
        if isinstance(value, BaseException):
            raise value
        state["out"][1:] = value
        state["out"][0] = 1

    def judge(self, state: Any, stores: Any) -> list[subjects.Result]:
        out, want = state["out"], torch.ones(5)
        error = (out - want).abs()
        found = judging.Comparison(error == 0, error, torch.zeros(5), error)
        return [subjects.Result("out", out, want, found)]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """One that knows the settings by a word and has tl.dots of float32 unless told otherwise."""
    known = SimpleNamespace(precisions={"ieee"}, subject=None)

    @contextlib.contextmanager
    def recompiling(**settings: Any) -> Iterator[recompile.Seen]:
        word = "" if not settings else "precision" if "precision" in settings else "unoptimised"
        if "change" in settings:
            word = str(settings["change"]({"num_warps": 8, "num_stages": 2}))
        known.subject.in_force = word
        try:
            yield recompile.Seen(
                [{"num_warps": 8, "num_stages": 2}],
                known.precisions if word == "precision" else set(),
            )
        finally:
            known.subject.in_force = ""

    monkeypatch.setattr(recompile, "recompiling", recompiling)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def investigated(subject: StandIn, bisect: bool | None = None) -> Any:
        known.subject = subject
        return investigation.investigate(subject, bisect=bisect)

    known.investigate = investigated
    return known


def test_every_way_is_run_and_told_apart(gpu: Any) -> None:
    found = gpu.investigate(StandIn({"": 2.0, "{'enable_fp_fusion': False}": 1.0}))
    assert not found
    assert [run.name for run in found.bisection.runs] == [
        "interpreted",
        "compiled",
        "compiled, again",
        "without FMA contraction",
        "input precision tf32 for ieee",
        "num_stages=1 for 2",
        "num_warps=4 for 8",
        "without ptxas's optimisation",
    ]
    counts = [int(run.wrong.sum()) for run in found.bisection.runs]
    assert counts == [0, 4, 4, 0, 4, 4, 4, 4]
    assert [run.differ for run in found.bisection.runs] == [4, None, 0, 4, 0, 0, 0, 0]
    assert found.bisection.verdict.startswith("compiler: the difference vanishes without FMA")
    assert "  without FMA contraction        0 of 5          0  4 differ\n" in str(found)
    assert found.to_dict()["bisection"]["verdict"] == found.bisection.verdict
    for word, verdict in (
        ("{'num_stages': 1}", "compiler: the difference vanishes with num_stages=1 for 2"),
        ("{'num_warps': 4}", "compiler or a race within a block"),
        ("precision", "precision: right with input precision tf32 for ieee"),
        ("unoptimised", "compiler: the difference vanishes without ptxas's"),
    ):
        assert gpu.investigate(StandIn({"": 2.0, word: 1.0})).bisection.verdict.startswith(verdict)


def test_it_starts_by_itself_where_only_one_world_is_right(gpu: Any) -> None:
    assert gpu.investigate(StandIn({"": 2.0})).bisection
    assert gpu.investigate(StandIn({}, interpreted=2.0)).bisection.verdict.startswith("emulation")
    assert gpu.investigate(StandIn({})).bisection is None
    assert gpu.investigate(StandIn({"": 2.0}, interpreted=2.0)).bisection is None
    assert gpu.investigate(StandIn({"": 2.0}), bisect=False).bisection is None
    both = gpu.investigate(StandIn({"": 2.0}, interpreted=2.0), bisect=True)
    assert both.bisection.verdict == "logic: wrong in every row, in the same elements"
    right = gpu.investigate(StandIn({}), bisect=True)
    assert right
    assert right.bisection.verdict == "no difference: right interpreted and compiled"


def test_kernels_without_a_float32_dot_have_no_precision_row(gpu: Any) -> None:
    gpu.precisions = set()
    keys = [run.key for run in gpu.investigate(StandIn({}), bisect=True).bisection.runs]
    assert keys == ["interpreted", "compiled", "again", "fusion", "stages", "warps", "unoptimised"]


def test_a_way_that_fails_is_a_row(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {"": 2.0, "precision": RuntimeError("no tf32"), "{'num_stages': 1}": 1.0}
    found = gpu.investigate(StandIn(broken))
    assert "input precision tf32 for ieee       –          –  RuntimeError: no tf32" in str(found)
    assert found.bisection.verdict.startswith("compiler: the difference vanishes with num_stages")
    found = gpu.investigate(StandIn({"": RuntimeError("no"), "{'num_stages': 1}": 1.0}))
    assert found.bisection.verdict.endswith("it does with num_stages=1 for 2")
    monkeypatch.setattr(running, "gpu_is_lost", lambda: True)
    found = gpu.investigate(StandIn({"": RuntimeError("illegal address")}))
    assert str(found).count("an error before broke the GPU's context") == 6


def test_a_gpu_without_room_is_no_finding(gpu: Any) -> None:
    full = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 GiB. GPU 0 has")
    found = gpu.investigate(StandIn({"": full}))
    assert found
    assert "compiled: not run: out of memory, asked for 8.00 GiB" in str(found)


def test_ctrl_c_keeps_the_rows_so_far(gpu: Any) -> None:
    found = gpu.investigate(StandIn({"": 2.0, "{'num_stages': 1}": KeyboardInterrupt()}))
    assert [run.error for run in found.bisection.runs] == ["", "", "", "", "", "interrupted"]


# ---- other settings of the compiler ----


def meta(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


def assembly(kernel: str, **options: Any) -> Any:
    x = meta(64, 64)
    if kernel == "residue":
        return residue.warmup(x, x, x, x, 4096, BLOCK=64, grid=(1,), **options)
    return product.warmup(x, x, x, 64, BLOCK=32, grid=(1,), **options)


def test_other_settings_reach_the_compiler_and_no_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # or Triton 3.9 warns
    before = dict(os.environ), triton.JITFunction.run, TritonSemantic.dot
    with cross_compile.compiling(90):
        fused = assembly("residue")
        assert "fma.rn" in fused.asm["ptx"]
        with recompile.recompiling(lambda options: {"enable_fp_fusion": False}):
            assert "fma.rn" not in assembly("residue").asm["ptx"]
        assert assembly("residue") is fused
        for given in (None, "ieee"):
            plain = assembly("product", PRECISION=given)
            assert ("tf32" in plain.asm["ptx"]) is (given != "ieee")
            with recompile.recompiling(precision=bisection._other) as seen:
                other = assembly("product", PRECISION=given)
                assert ("tf32" in other.asm["ptx"]) is (given == "ieee")
            assert seen.precisions == {given or "tf32"}
            assert assembly("product", PRECISION=given) is plain
        with recompile.recompiling(lambda o: {"num_stages": 1, "num_warps": 8}) as seen:
            metadata = assembly("product", PRECISION="ieee", num_stages=2).metadata
        assert (metadata.num_stages, metadata.num_warps) == (1, 8)
        assert seen.options == [{"num_warps": 4, "num_stages": 2}]
        with recompile.recompiling(optimise=False):
            slow = assembly("product", PRECISION=None)
        fast = assembly("product", PRECISION=None)
        assert len(slow.asm["cubin"]) > 1.5 * len(fast.asm["cubin"])
        assert triton.knobs.cache.dir == str(tmp_path)
        product.device_caches.clear()
        assert "tf32" not in assembly("product", PRECISION="ieee").asm["ptx"], "on disk, too"
    assert (dict(os.environ), triton.JITFunction.run, TritonSemantic.dot) == before
    assert not triton.knobs.nvidia.disable_ptxas_opt


# ---- usage ----


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_says_so() -> None:
    done = CliRunner().invoke(app, ["debug", "add", "--bisect"])
    assert done.exit_code == 2
    text = " ".join(done.output.replace("│", " ").split())
    assert "--bisect: it compares with compiled kernels, which need a GPU" in text
    x = torch.zeros(5)
    with pytest.raises(RuntimeError, match=r"bisect=True: it compares .* there is no CUDA device"):
        debug(plus_one, (1,), (x, x, 5), oracle=lambda: x, bisect=True, BLOCK=8)
    assert CliRunner().invoke(app, ["debug", "add", "--no-bisect"]).exit_code == 0


def test_it_needs_an_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    x = torch.zeros(5)
    with pytest.raises(ValueError, match="bisect needs an oracle"):
        debug(plus_one, (1,), (x, x, 5), bisect=True, BLOCK=8)


# ---- on a GPU ----


@pytest.mark.gpu_only
def test_fma_contraction_is_found_out() -> None:
    g = torch.Generator().manual_seed(0)
    x, y = (torch.randn(1000, generator=g) for _ in range(2))
    args = (x, y, x * y, torch.full((1000,), torch.nan), 1000)
    found = debug(residue, (4,), args, oracle=lambda: torch.zeros(1000), BLOCK=256)
    assert not found
    assert not found.wrong, found
    assert found.bisection.verdict.startswith(
        "compiler: the difference vanishes without FMA contraction"
    ), found
    runs = {run.key: run for run in found.bisection.runs}
    assert runs["interpreted"].right
    assert int(runs["compiled"].wrong.sum()) > 500
    assert runs["again"].differ == 0
    assert runs["fusion"].differ == int(runs["compiled"].wrong.sum())
    assert "precision" not in runs


@pytest.mark.gpu_only
def test_tf32_is_found_out() -> None:
    g = torch.Generator().manual_seed(0)
    a, b = torch.randn(64, 128, generator=g), torch.randn(128, 64, generator=g)
    want = a.double() @ b.double()
    limit = 130 * 2.0**-24 * (a.abs().double() @ b.abs().double())
    for precision, says in (
        (None, "precision: right with input precision ieee for tf32, wrong as written"),
        ("tf32", "precision: right with input precision ieee for tf32, wrong as written"),
        ("ieee", "no difference: right interpreted and compiled; wrong with input precision tf32"),
    ):
        found = debug(
            product,
            (1,),
            (a, b, torch.zeros(64, 64), 128),
            oracle=lambda: want,
            bound=lambda reference, *_: limit,
            bisect=True,
            PRECISION=precision,
            BLOCK=64,
        )
        assert bool(found) is (precision == "ieee"), found
        assert found.bisection.verdict.startswith(says), found


@pytest.mark.gpu_only
def test_a_healthy_kernel_and_a_logic_error() -> None:
    x, out = torch.linspace(1, 2, 1000), torch.full((1000,), torch.nan)
    for kernel, says in (
        (plus_one, "no difference: right interpreted and compiled"),
        (shifted, "logic: wrong in every row, in the same elements"),
    ):
        found = debug(kernel, (4,), (x, out, 1000), oracle=lambda: x + 1, bisect=True, BLOCK=256)
        assert bool(found) is (kernel is plus_one)
        assert found.bisection.verdict == says, found
        assert not any(run.differ for run in found.bisection.runs), found


@pytest.mark.gpu_only
def test_the_command_on_a_gpu() -> None:
    done = CliRunner().invoke(app, ["debug", "gemm_bias_act", "--dtype", "float32", "--bisect"])
    assert done.exit_code == 0, done.output
    assert "no difference: right interpreted and compiled" in done.output
    assert "input precision tf32 for ieee" in done.output
