"""The file that a shrunk case becomes: of ops and kernels, with sources and literals of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import marked_lines
import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from broken_kernels import dropped_mask, square
from every_function import PAIRS
from shrinkable import flat, k_tail
from typer.testing import CliRunner, Result

import compare
from compare import debug, ops, shrink
from compare.cases import CPU, Case
from compare.cli import app
from compare.debugging import investigation
from compare.debugging.findings.findings import LINES
from compare.debugging.shrink import literals, reproduction, shrinking
from compare.debugging.shrink.literals import Unwritable
from compare.debugging.shrink.scripts import MARK
from compare.debugging.shrink.sources import Sources
from compare.ops import SPECS

PLAIN = "reproduces under TRITON_INTERPRET=1: yes"


line_of = marked_lines.finder("# fault: ", __file__)


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
    assert f"{Path(__file__).name}:{line_of('second launch')} in spoil" in done.output
    assert lines[-2:] == ["reproduction: reproduce_square.py", f"  {PLAIN}"]
    assert len(lines) <= LINES
    text = Path("reproduce_square.py").read_text()
    assert text.count("@triton.jit") == 10  # both kernels, and what the op's calls
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
        of_matrices = not spec.bounded or op in (*PAIRS, "act_mul")
        shape = (3, 5) if of_matrices else (4, 5, 6)
        chosen = options.get(op, dict(spec.default_options))
        case = Case(op, "float32", shape, "padded", "integers", options=chosen)
        subject = shrinking.Op(spec, case, None, spec.triton)
        found, before = investigation.investigate(subject), len(texts)
        made = reproduction.reproduce(subject, found, None)
        if op in PAIRS:  # whose two results compare has as views of one tensor
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
    assert len(files) == len(SPECS) - len(PAIRS)
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
