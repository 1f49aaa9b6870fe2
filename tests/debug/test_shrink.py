"""--shrink and compare.shrink: cases become minimal, stay the same failure, and become files."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from typer.testing import CliRunner, Result

import compare
from compare import debug, ops, shrink
from compare.cases import CPU, Case
from compare.checking.stores import Stores
from compare.cli import app
from compare.debugging import investigation
from compare.debugging.findings.findings import LINES, Findings
from compare.debugging.findings.hazards import Hazard, Sanitizer, Witness
from compare.debugging.shrink import literals, reproduction, shrinking
from compare.debugging.shrink.literals import Unwritable
from compare.debugging.shrink.scripts import MARK
from compare.debugging.shrink.sources import Sources
from compare.ops import SPECS

SOURCE = Path(__file__).read_text().splitlines()
PLAIN = "reproduces under TRITON_INTERPRET=1: yes"


def line_of(fault: str) -> int:
    """The number of the line that ends in the comment ``# fault: …``."""
    (found,) = [n for n, line in enumerate(SOURCE, 1) if line.endswith(f"# fault: {fault}")]
    return found


@pytest.fixture
def no_child(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Nobody tries out the files, which takes seconds; they are collected."""
    texts: list[str] = []

    def run(text: str) -> str:
        texts.append(text)
        return ""

    monkeypatch.setattr(reproduction, "_run", run)
    return texts


def child(folder: Path, *files: Path) -> str:
    """What files say that run one after another where nothing of this repository is."""
    code = (
        "import runpy, sys\n"
        "for name in ('compare', 'cuda_reference', 'triton_kernels'):\n"
        "    sys.modules[name] = None\n"
        "for file in sys.argv[1:]:\n"
        "    try:\n"
        "        runpy.run_path(file, run_name='__main__')\n"
        "    except Exception as error:\n"
        "        print(f'{type(error).__name__}: {error}')\n"
    )
    settings = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    settings |= {"TRITON_INTERPRET": "1", "PYTHONSAFEPATH": "1", "HOME": str(folder)}
    ran = subprocess.run(
        [sys.executable, "-c", code, *map(str, files)],
        env=settings,
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout


# ---- broken kernels ----


@triton.jit
def dropped_mask(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    tl.store(out_ptr + i, x * x)  # fault: dropped mask


@triton.jit
def square(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    tl.store(out_ptr + i, x * x, mask=i < n)


@triton.jit
def off_by_one(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n - 1, other=0.0)  # fault: mask off by one
    tl.store(out_ptr + i, x * x, mask=i < n)


@triton.jit
def wrong_stride(x_ptr, out_ptr, M, N, BLOCK: tl.constexpr):
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    mask = (m < M) & (n < N)
    x = tl.load(x_ptr + m * N + n, mask=mask, other=0.0)  # fault: stride
    tl.store(out_ptr + m * N + n, x, mask=mask)


@triton.jit
def product(a_ptr, b_ptr, out_ptr, M, N, K, BLOCK: tl.constexpr):
    """For K up to BLOCK; with more, the result is wrong in another way."""
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    k = tl.arange(0, BLOCK)
    a = tl.load(a_ptr + m[:, None] * K + k[None, :], mask=m[:, None] < M, other=0.0)
    b_mask = (k[:, None] < K) & (n[None, :] < N)
    b = tl.load(b_ptr + k[:, None] * N + n[None, :], mask=b_mask, other=0.0)
    acc = tl.dot(a, b, input_precision="ieee")
    mask = (m[:, None] < M) & (n[None, :] < N)
    tl.store(out_ptr + m[:, None] * N + n[None, :], acc, mask=mask)


@triton.jit
def narrow_sum(x_ptr, out_ptr, K, BLOCK: tl.constexpr):
    k = tl.arange(0, BLOCK)
    acc = tl.zeros((1,), tl.float16)
    for k0 in range(0, K, BLOCK):
        acc += tl.sum(tl.load(x_ptr + k0 + k, mask=k < K - k0, other=0.0)).to(tl.float16)
    tl.store(out_ptr + tl.arange(0, 1), acc.to(tl.float32))  # fault: float16 accumulator


@triton.jit
def relu(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    tl.store(out_ptr + i, tl.where(x > 0, x, 0.0), mask=i < n)  # fault: NaN swallowed


@triton.jit
def two_faults(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Wrong past 40; with fewer than 8 another line is."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    tl.store(out_ptr + i, x + (i >= 40), mask=i < n)  # fault: the one
    if n < 8:
        tl.store(out_ptr + i, x + 2, mask=i < n)


def flat(
    kernel: Any, right: Callable[..., Any], *, floor: bool = False, spoil: Any = None
) -> Callable[..., dict[str, Any]]:
    """A make() for a kernel of one input."""

    def make(n: int, BLOCK: int, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
        x, out = torch.randn(n).to(dtype), torch.zeros(n, dtype=dtype)
        if spoil is not None:
            x[n // 2] = spoil
        grid = (n // BLOCK if floor else triton.cdiv(n, BLOCK),)
        oracle = lambda x, out, n: right(x)  # noqa: E731
        return {
            "kernel": kernel,
            "grid": grid,
            "args": (x, out, n),
            "oracle": oracle,
            "BLOCK": BLOCK,
        }

    return make


def sizes_of(found: Findings) -> dict[str, str]:
    return dict(word.split("=") for word in found.shrunk.after.split())


# ---- the known minimum ----


def test_dropped_mask_and_its_file(tmp_path: Path) -> None:
    """Smallest: one element and a block of two."""
    file = tmp_path / "fails.py"
    found = shrink(
        flat(dropped_mask, torch.square),
        {"n": 333, "BLOCK": 128, "dtype": torch.float16},
        output=file,
    )
    assert not found
    assert sizes_of(found) == {"n": "1", "BLOCK": "2", "dtype": "float32"}
    assert found.failure.place.line == line_of("dropped mask")
    assert "out-of-bounds store through out_ptr: 1 of 2 active lanes" in found.failure.error
    assert found.shrunk.runs < 12
    assert found.reproduction.how == PLAIN
    assert found.reproduction.file == file
    lines = str(found).splitlines()
    assert lines[0].startswith(f"shrunk in {found.shrunk.runs} runs: n=333 BLOCK=128 ")
    assert lines[0].endswith("→ n=1 BLOCK=2 dtype=float32")
    assert lines[-2:] == [f"reproduction: {file}", f"  {PLAIN}"]
    assert len(lines) <= LINES
    text = file.read_text()
    assert text == found.reproduction.text
    assert text.startswith(MARK)
    assert "compare" not in text
    assert "triton_kernels" not in text
    assert sorted(p.name for p in tmp_path.glob("*")) == ["fails.py"]


def k_tail(M: int, N: int, K: int, BLOCK: int) -> dict[str, Any]:
    a, b, out = torch.randn(M, K), torch.randn(K, N), torch.zeros(M, N)
    grid = (triton.cdiv(M, BLOCK), triton.cdiv(N, BLOCK))
    return {
        "kernel": product,
        "grid": grid,
        "args": (a, b, out, M, N, K),
        "oracle": lambda a, b, *_: a.double() @ b.double(),
        "bound": lambda reference, *_: 1e-4 * (1 + reference.abs()),
        "BLOCK": BLOCK,
    }


@pytest.mark.usefixtures("no_child")
def test_k_tail_unmasked() -> None:
    found = shrink(k_tail, {"M": 20, "N": 19, "K": 40, "BLOCK": 64})
    # tl.dot cannot multiply smaller blocks than 16 where it is compiled.
    assert found.shrunk.after == "M=1 N=1 K=1 BLOCK=16"
    assert "out-of-bounds load through a_ptr: 15 of 16" in found.failure.error


@pytest.mark.usefixtures("no_child")
def test_tail_dropped() -> None:
    found = shrink(flat(square, torch.square, floor=True), {"n": 1000, "BLOCK": 256})
    assert sizes_of(found) == {"n": "3", "BLOCK": "2"}  # with fewer nothing is launched
    (wrong,) = found.wrong
    assert wrong.unwritten == wrong.deviation.wrong == 1
    assert wrong.history.last is None


@pytest.mark.usefixtures("no_child")
def test_wrong_stride() -> None:
    def make(M: int, N: int, BLOCK: int) -> dict[str, Any]:
        x, out = torch.randn(N, M).t(), torch.zeros(M, N)
        grid = (triton.cdiv(M, BLOCK), triton.cdiv(N, BLOCK))
        return {
            "kernel": wrong_stride,
            "grid": grid,
            "args": (x, out, M, N),
            "oracle": lambda x, *_: x,
            "BLOCK": BLOCK,
        }

    found = shrink(make, {"M": 33, "N": 20, "BLOCK": 32})
    assert found.shrunk.after == "M=2 N=2 BLOCK=1"
    assert found.shrunk.runs < 60
    (wrong,) = found.wrong
    assert wrong.history.last.place.line == line_of("stride") + 1
    # One number of the four is enough, and strides are in the file.
    assert "1 of 4 not 0, integers" in found.shrunk.notes[0]
    assert "x_ptr = x_ptr_memory.as_strided((2, 2), (1, 2), 0)" in found.reproduction.text


@pytest.mark.usefixtures("no_child")
def test_float16_accumulator_needs_enough_k() -> None:
    def make(K: int) -> dict[str, Any]:
        x, out = torch.ones(K), torch.zeros(1)
        return {
            "kernel": narrow_sum,
            "grid": (1,),
            "args": (x, out, K, 512),
            "oracle": lambda x, *_: x.sum(0, keepdim=True),
        }

    found = shrink(make, {"K": 5001})
    assert found.shrunk.after == "K=2049"
    assert found.wrong[0].deviation.got.startswith("2048.0")
    assert found.wrong[0].history.last.place.line == line_of("float16 accumulator")


@pytest.mark.usefixtures("no_child")
def test_nan_swallowed_needs_a_nan() -> None:
    right = lambda x: torch.where(x < 0, 0.0, x)  # noqa: E731
    found = shrink(flat(relu, right, spoil=torch.nan), {"n": 1000, "BLOCK": 256})
    assert sizes_of(found) == {"n": "1", "BLOCK": "1"}
    assert found.wrong[0].deviation.expected.startswith("nan")
    assert found.wrong[0].history.last.place.line == line_of("NaN swallowed")
    assert "nan" in found.reproduction.text


@pytest.mark.usefixtures("no_child")
def test_it_stays_the_same_failure() -> None:
    """Smaller cases fail, too, but in another line."""
    found = shrink(flat(two_faults, torch.clone), {"n": 333, "BLOCK": 64})
    assert sizes_of(found)["n"] == "41"
    assert found.wrong[0].deviation.index == (40,)
    assert found.wrong[0].history.last.place.line == line_of("the one")


class Suspicious(Sanitizer):
    """Reports any run of more than ten programs, and another hazard for every run."""

    def __init__(self) -> None:
        self.many = 0

    def wants(self, program: Any) -> bool:
        self.many += 1
        return True

    def hazards(self) -> list[Hazard]:
        witness = Witness("was there", (0, 0, 0), None, "x_ptr")
        found = [Hazard("always", "there is always one", (witness,))]
        if self.many > 10:
            found.insert(0, Hazard("many programs", f"{self.many} programs", (witness,)))
        return found


@pytest.mark.usefixtures("no_child")
def test_a_hazard_stays_a_hazard_of_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(investigation, "_sanitizers", lambda *_: [Suspicious()])
    found = shrink(flat(square, torch.square), {"n": 333, "BLOCK": 16})
    assert found.verdict == "RIGHT BY LUCK"
    assert sizes_of(found) == {"n": "11", "BLOCK": "1"}
    assert "assert findings, findings" in found.reproduction.text
    with pytest.raises(ValueError, match="nothing to shrink"):
        shrink(flat(square, torch.square), {"n": 333, "BLOCK": 16}, sanitize=False)


# ---- values ----


@pytest.mark.usefixtures("no_child")
def test_values_become_few_and_small() -> None:
    x, out = torch.randn(300) * 1000, torch.randn(300)
    before = x.clone(), out.clone()
    oracle = lambda x, out, n: x * x  # noqa: E731
    found = debug(off_by_one, (2,), (x, out, 300), oracle=oracle, BLOCK=256, shrink=True)
    assert found.wrong[0].deviation.index == (299,)
    assert found.wrong[0].deviation.expected.startswith("1.0 ")
    assert "input values: 300 of 300 not 0 → 1 of 300 not 0, integers" in str(found)
    assert "x_ptr = torch.full((300,), 0.0, dtype=torch.float32" in found.reproduction.text
    assert "x_ptr[299] = 1.0" in found.reproduction.text
    assert torch.equal(x, before[0])
    assert torch.equal(out, before[1])


@pytest.mark.usefixtures("no_child")
def test_values_stay_where_the_oracle_cannot_judge_others() -> None:
    x, out = torch.randn(30), torch.zeros(30)
    found = debug(off_by_one, (1,), (x, out, 30), oracle=lambda: x * x, BLOCK=32, shrink=True)
    assert found.wrong
    assert "oracle() takes no arguments" in found.shrunk.notes[0]
    assert str(found).splitlines()[0] == "shrunk in 0 runs: nothing is smaller"
    assert found.reproduction.text
    with pytest.raises(TypeError, match="take nothing, or the kernel's 3 positional"):
        debug(off_by_one, (1,), (x, out, 30), oracle=lambda x: x * x, BLOCK=32)


@pytest.mark.usefixtures("no_child")
def test_values_of_expanded_inputs_and_of_inputs_that_are_special() -> None:
    x = torch.full((40,), torch.nan)
    x[3:9], out = 5.5, torch.zeros(40)
    right = lambda x, *_: torch.where(x < 0, 0.0, x)  # noqa: E731
    found = debug(relu, (1,), (x, out, 40), oracle=right, BLOCK=64, shrink=True)
    assert found.wrong[0].deviation.wrong == 1  # one NaN is enough
    wide = torch.full((1,), 7.0).expand(40)
    found = debug(off_by_one, (1,), (x, wide, 40), oracle=lambda *_: x, BLOCK=64, shrink=True)
    assert found.failure or found.wrong


# ---- ops ----


def words_of(found: Any) -> str:
    return " ".join(found.output.split())


def command(*words: str) -> Result:
    return CliRunner().invoke(app, ["debug", *words])


@triton.jit
def spoil(out_ptr):
    tl.store(out_ptr + 7, 99)  # fault: second launch


def with_spoiled_square(monkeypatch: pytest.MonkeyPatch) -> None:
    """square stores one element wrongly, by a kernel of its own."""
    right = SPECS["square"].triton

    def wrong(*args: Any, **kwargs: Any) -> torch.Tensor:
        out = right(*args, **kwargs)
        if out.numel() > 7:
            spoil[(1,)](out)
        return out

    spec = SPECS["square"].changed(triton=wrong)
    monkeypatch.setitem(ops.SPECS, "square", spec)


def test_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_spoiled_square(monkeypatch)
    monkeypatch.chdir(tmp_path)
    wanted = ["--dtype", "float16", "--layout", "transposed", "--seed", "3"]
    done = command("square", *wanted, "--shrink")
    assert done.exit_code == 1, done.output
    lines = done.output.splitlines()
    before = "float16 33x129 transposed normal seed=3"
    assert lines[0].endswith(f"runs: {before} → float32 8 contiguous integers seed=0")
    assert "worst out[7]: got 99.0" in done.output
    assert f"test_shrink.py:{line_of('second launch')} in spoil" in done.output
    assert lines[-2:] == ["reproduction: reproduce_square.py", f"  {PLAIN}"]
    assert len(lines) <= LINES
    text = Path("reproduce_square.py").read_text()
    assert text.count("@triton.jit") == 6  # both kernels, and what the op's calls
    # The replay line is true: it finds the same, and nothing that is smaller; it may write again.
    replay = lines[1].strip().removeprefix("python -m compare debug ").split()
    monkeypatch.setattr(reproduction, "_run", lambda text: "")
    again = command(*replay, "--shrink")
    assert again.exit_code == 1
    assert "nothing is smaller" in again.output.splitlines()[0]
    assert "worst out[7]: got 99.0" in again.output


@pytest.mark.usefixtures("no_child")
def test_the_worst_elements_input_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a thousand bit patterns one is wrong."""
    pattern = 0x01CD
    value = torch.tensor([pattern], dtype=torch.int16).view(torch.float16)

    def oracle(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x == value.to(x.dtype), 0.5, SPECS["square"].oracle(x)).to(x.dtype)

    spec = SPECS["square"].changed(oracle=oracle)
    case = Case("square", "float16", (1024,), values="every")
    found = shrinking.shrink_case(spec, case, None, spec.triton)
    assert found.shrunk.after == "float16 1 contiguous 0x01cd seed=0"
    assert found.wrong[0].deviation.expected.startswith("0.5")


def op_files(texts: list[str]) -> Iterator[tuple[str, str]]:
    """A file for each op that can have one, and what it says: the oracle is what is wrong."""
    options: dict[str, dict[str, Any]] = {
        "add": {"y": "row", "alpha": 0.5},
        "gemm_bias_act": {"act": "gelu", "bias": True, "c": "row", "beta": 2.0},
    }
    for op, healthy in SPECS.items():
        wrong = lambda *a, s=healthy, **k: s.oracle(*a, **k) + 1  # noqa: E731
        spec = healthy.changed(oracle=wrong)
        of_matrices = not spec.bounded or op == "act_backward"
        shape = (3, 5) if of_matrices else (4, 5, 6)
        chosen = options.get(op, dict(spec.default_options))
        case = Case(op, "float32", shape, "padded", "integers", options=chosen)
        subject = shrinking.Op(spec, case, None, spec.triton)
        found, before = investigation.investigate(subject), len(texts)
        made = reproduction.reproduce(subject, found, None)
        if op == "act_backward":  # whose two results compare has as views of one matrix
            assert made.how == "out is not an argument of a launch as it stands"
            continue
        assert made.text, made.how
        assert "it passes" in made.how  # which the fixture said
        d = found.wrong[0].deviation
        yield texts[before], f"; {d.wrong} of {d.total} elements wrong"


@pytest.mark.skipif(
    triton.__version__.startswith("3.6.") and np.__version__ >= "2.4",
    reason="Triton 3.6's own interpreter cannot loop with numpy 2.4",
)
def test_files_need_nothing_of_ours(no_child: list[str], tmp_path: Path) -> None:
    """They fail with the right words, and pass when the kernel is mended in them."""
    files = list(op_files(no_child))
    assert len(files) == len(SPECS) - 1
    text = shrink(flat(dropped_mask, torch.square), {"n": 9, "BLOCK": 8}).reproduction.text
    text = no_child[-2]  # the last one is for the mended interpreter
    mended = text.replace(
        "tl.store(out_ptr + i, x * x)", "tl.store(out_ptr + i, x * x, mask=i < n)"
    )
    files += [(text, "Error: 1 elements around out_ptr were overwritten"), (mended, "any more")]
    # Triton's own interpreter loads whatever lies behind a tensor: there the file puts NaN.
    shrink(k_tail, {"M": 3, "N": 3, "K": 9, "BLOCK": 16})
    text = no_child[-2]
    mended = text.replace("mask=m[:, None] < M,", "mask=(m[:, None] < M) & (k[None, :] < K),")
    files += [(text, "; 1 of 1 elements wrong"), (mended, "any more")]
    files.append(views(no_child))
    for number, (text, _) in enumerate(files):
        (tmp_path / f"{number}.py").write_text(text)
    said = child(tmp_path, *(tmp_path / f"{n}.py" for n in range(len(files)))).splitlines()
    for line, (_, words) in zip(said, files, strict=True):
        assert line.endswith(words), (line, words)
        assert line.startswith(("AssertionError: ", "passes: ")), line


def test_what_only_the_mended_interpreter_shows(tmp_path: Path) -> None:
    """Undefined lanes read NaN there and zeros elsewhere."""
    x, out = torch.randn(5, 24), torch.zeros(5)
    file = tmp_path / "fails.py"
    found = debug(
        unmasked, (5,), (x, out, 24), oracle=lambda x, *_: x.sum(1), BLOCK=32, shrink=file
    )
    assert found.wrong[0].all_nan
    assert "only in the mended interpreter" in found.reproduction.how
    assert "with triton_kernels.interpret():" in file.read_text()


@triton.jit
def unmasked(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * n + i, mask=i < n)
    tl.store(out_ptr + tl.program_id(0), tl.sum(x))


# ---- interruption ----


@pytest.mark.usefixtures("no_child")
@pytest.mark.parametrize("inside", [True, False])
def test_ctrl_c_keeps_the_best(inside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it comes in the kernel or outside of it."""
    runs = 0
    plain = shrinking.investigate

    def interrupted(*args: Any, **kwargs: Any) -> Findings:
        nonlocal runs
        runs += kwargs.get("replay") is False
        if runs == 4:
            runs += 1
            if inside:
                monkeypatch.setattr(Stores, "launch", interrupt)
            else:
                raise KeyboardInterrupt
        return plain(*args, **kwargs)

    inner = Stores.launch

    def interrupt(self: Stores, launch: Any) -> None:
        monkeypatch.setattr(Stores, "launch", inner)
        raise KeyboardInterrupt

    monkeypatch.setattr(shrinking, "investigate", interrupted)
    found = shrink(flat(two_faults, torch.clone), {"n": 333, "BLOCK": 64})
    assert found.wrong
    assert found.shrunk.stopped == "Ctrl-C"
    assert "ended by Ctrl-C" in str(found).splitlines()[0]
    assert 41 < int(sizes_of(found)["n"]) < 333
    assert found.reproduction.text


@pytest.mark.usefixtures("no_child")
def test_the_number_of_runs_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shrinking, "RUNS", 3)
    found = shrink(flat(two_faults, torch.clone), {"n": 333, "BLOCK": 64})
    assert found.shrunk.stopped == "the limit of 3 runs"
    assert found.shrunk.runs == 3


# ---- errors ----


def test_nothing_to_shrink(no_child: list[str]) -> None:
    with pytest.raises(ValueError, match="nothing to shrink: the case passes"):
        shrink(flat(square, torch.square), {"n": 33, "BLOCK": 16})
    x, out = torch.randn(30), torch.zeros(30)
    found = debug(square, (1,), (x, out, 30), oracle=lambda: x * x, BLOCK=32, shrink=True)
    assert found
    assert "note: nothing to shrink: the case passes" in str(found)
    done = command("square", "--shape", "33", "--shrink", "--output", "none.py")
    assert done.exit_code == 0
    assert "nothing to shrink: the case passes" in words_of(done)
    assert not Path("none.py").exists()
    assert not no_child


def test_files_of_others_are_not_overwritten(tmp_path: Path, no_child: list[str]) -> None:
    file = tmp_path / "precious.py"
    file.write_text("x = 1\n")
    make, x = flat(dropped_mask, torch.square), torch.randn(5)
    calls: list[Callable[[Path], Any]] = [
        lambda file: shrink(make, {"n": 5, "BLOCK": 8}, output=file),
        lambda file: debug(dropped_mask, (1,), (x, x.clone(), 5), BLOCK=8, shrink=file),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="not one of ours"):
            call(file)
        with pytest.raises(ValueError, match="cannot write there"):
            call(tmp_path / "no" / "such.py")
    done = command("square", "--shrink", "--output", str(file))
    assert done.exit_code == 2
    assert "not one of ours" in " ".join(done.output.replace("│", " ").split())
    assert file.read_text() == "x = 1\n"
    assert not no_child
    file.write_text(f"{MARK}\nold\n")
    assert not calls[0](file)
    assert "dropped_mask" in file.read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--output", "x.py"], "--output is for --shrink"),
        (["--shrink", "--program", "0"], "exclude each other"),
        (["--shrink", "--output", "no/such/folder/x.py"], "cannot write there"),
    ],
)
def test_usage_errors_exit_2(words: list[str], says: str) -> None:
    done = command("square", *words)
    assert done.exit_code == 2, done.output
    assert says in " ".join(done.output.replace("│", " ").split()), done.output


def test_bad_arguments() -> None:
    with pytest.raises(TypeError, match="a dict of the sizes"):
        shrink(square, (1,))
    with pytest.raises(TypeError, match=r"must return a dict of the arguments .* returned tuple"):
        shrink(lambda n: (1, 2), {"n": 3})
    with pytest.raises(TypeError, match="returned a dict of kernel, args"):
        shrink(lambda n: {"kernel": square, "args": ()}, {"n": 3})
    x = torch.randn(5)
    with pytest.raises(ValueError, match="program and shrink exclude"):
        debug(square, (1,), (x, x.clone(), 5), BLOCK=8, shrink=True, program=(0,))


# ---- sources and literals ----

SCALE = tl.constexpr(3)
helpers = types.ModuleType("helpers")
helpers.FACTOR = tl.constexpr(2)  # type: ignore[attr-defined]


@triton.jit
def triple(x):
    return x * SCALE


thrice = triple
helpers.triple = triple  # type: ignore[attr-defined]
HALF = tl.float16


@triton.heuristics({"BLOCK": lambda args: 8})
@triton.jit(do_not_specialize=["n"])
def with_helpers(pair, n, bias: tl.constexpr, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(pair[0] + i, mask=i < n, other=0.0) + tl.load(pair[1] + 2 * i, mask=i < n)
    x = thrice(x.to(HALF)) + helpers.triple(x) * helpers.FACTOR + bias[0]
    out.store([0], x.to(tl.float32))


def views(texts: list[str]) -> tuple[str, str]:
    """All that a launch may consist of, in a file; and what it says."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    memory = torch.arange(40.0)
    pair = memory[3:11], memory[8:40].as_strided((8,), (2,), 8)
    args = (pair, 8, (1, 2), TensorDescriptor(torch.zeros(8), [8], [1], [8]))
    want = 9 * (pair[0] + pair[1]) + 1
    right = debug(with_helpers, (1,), args, oracle=lambda: want)
    assert right, right
    found = debug(with_helpers, (1,), args, oracle=lambda: -want, shrink=True)
    assert found.wrong
    return texts[-2], f"out[0] is {want[0]}, expected {-want[0]}; 8 of 8 elements wrong"


def test_views_tuples_descriptors_constants_and_modules(no_child: list[str]) -> None:
    text, _ = views(no_child)
    assert "heuristics" not in text
    assert "@triton.jit(do_not_specialize=['n'])" in text
    assert text.count("def triple") == 1
    assert "SCALE = tl.constexpr(3)" in text
    assert "HALF = tl.float16" in text
    assert "pair_memory.as_strided((8,), (2,), 5)" in text


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    scope: dict[str, Any] = {"triton": triton, "tl": tl}
    with pytest.raises(Unwritable, match="a object cannot be written"):
        Sources().expression(object())
    sources = Sources()
    sources.name("f", 1.5)
    sources.name("f", 1.5)
    with pytest.raises(Unwritable, match="two different things are called 'f'"):
        sources.name("f", 2.5)
    with pytest.raises(Unwritable, match="defined by a def"):
        Sources().name("<lambda>", lambda: 1)
    exec("def nowhere(x): return x", scope)
    with pytest.raises(Unwritable, match="source of nowhere cannot be read"):
        Sources().name("nowhere", scope["nowhere"])
    x = torch.randn(30_000)
    file = tmp_path / "long.py"
    found = debug(square, (235,), (x, x.clone(), 30_000), oracle=lambda: x, BLOCK=128, shrink=file)
    assert found.wrong
    assert "no reproduction: a tensor of 30000 different numbers" in str(found)
    assert not file.exists()


@pytest.mark.parametrize("kind", ["normal", "special", "integers"])
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64", "int64", "uint8"])
def test_tensors_as_source(name: str, kind: str) -> None:
    dtype = getattr(torch, name)
    generator = torch.Generator().manual_seed(1)
    scope: dict[str, Any] = {"torch": torch, "inf": torch.inf, "nan": torch.nan}
    for shape in ((), (1,), (3, 4), (2, 3, 5), (0, 4)):
        t = compare.cases.random_values(shape, dtype, kind, generator, CPU)
        lines = [f"t = {literals.tensor(t)}", *literals.assignments("t", t)]
        exec("\n".join(lines), scope)
        again = scope["t"]
        assert again.shape == t.shape
        assert again.dtype == dtype
        assert bool(compare.numerics.same_bits(again, t).all()), (again, t)
    sparse = torch.zeros(30, 40, dtype=dtype)
    sparse[3, 7], sparse[29, 39] = 5, 6
    exec(f"t = {literals.tensor(sparse)}\n" + "\n".join(literals.assignments("t", sparse)), scope)
    assert torch.equal(scope["t"], sparse)
    assert literals.assignments("t", sparse) == [
        f"t[3, 7] = {sparse[3, 7].item()}",
        f"t[29, 39] = {sparse[29, 39].item()}",
    ]
