"""--shrink and compare.shrink: cases become minimal and stay the same failure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import broken_kernels
import marked_lines
import pytest
import torch
import triton
import triton.language as tl
from broken_kernels import dropped_mask, square
from shrinkable import flat, k_tail

from compare import debug, shrink
from compare.checking.stores import Stores
from compare.debugging import investigation
from compare.debugging.findings.findings import LINES, Findings
from compare.debugging.findings.hazards import Hazard, Sanitizer, Witness
from compare.debugging.shrink import shrinking
from compare.debugging.shrink.scripts import MARK
from compare.debugging.shrink.simpler_values import digest

PLAIN = "reproduces under TRITON_INTERPRET=1: yes"


line_of = marked_lines.finder("# fault: ", __file__, broken_kernels.__file__)


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


def test_values_of_one_element_are_told_apart_whatever_their_strides() -> None:
    for shape in ((), (1, 1)):
        x = torch.empty_strided(shape, (2,) * len(shape)).fill_(3.0)
        assert digest({0: x}) == digest({0: x.clone()})
        assert digest({0: x}) != digest({0: x + 1})
