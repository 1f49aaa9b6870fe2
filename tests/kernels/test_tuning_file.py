"""The per-user file of what was measured: kept whole, private, and only believed where it holds."""

from __future__ import annotations

import json
import os
import signal
import stat
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from triton_kernels import _launch, _measured
from triton_kernels._gpu import GPUS
from triton_kernels._measured import RATES, SHIPPED, SHIPPED_OF, Constants, Measurement, Rates
from triton_kernels.gemm import Problem, choice, choose
from triton_kernels.graph import capabilities

CARD = GPUS["sm_90"]._replace(name="Some Card 80GB")
CONSTANTS = Constants((1.0, 0.4, 0.3, 0.2, 0.1), 2048, 1 << 20)
MEASURED = Rates(6e-6, 5e-6, 3e-6, 2e12, 7e14, 0.8)
FOUND = Measurement(CONSTANTS, {"linear_act": {0: (0.7, 0.6), 4: (1.5, 1.25)}}, MEASURED)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of one's own, and nothing remembered of others."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield tmp_path
    forget()


def forget() -> None:
    """As in a new process."""
    for cached in (_measured.measurement, choose, capabilities.entries):
        cached.cache_clear()


def read_again() -> Measurement | None:
    forget()
    return _measured.measurement(CARD)


def test_what_is_kept_is_read_again(home: Path) -> None:
    assert _measured.measurement(CARD) is None
    assert _measured.constants(CARD) == SHIPPED
    path = _measured.save(CARD, FOUND)
    assert path == home / "triton-kernels-crosscheck" / "tuned-some-card-80gb.json"
    assert read_again() == FOUND
    assert _measured.constants(CARD) == CONSTANTS
    assert _measured.rates(CARD) == MEASURED
    _measured.save(CARD, FOUND._replace(rates=None))  # as of a GPU where speeds decide
    assert read_again() == FOUND._replace(rates=None)
    assert _measured.rates(CARD) is None


def test_rates_ship_for_two_gpus() -> None:
    h200, h100 = (CARD._replace(name=name) for name in (SHIPPED_OF, "NVIDIA H100 80GB HBM3"))
    assert _measured.rates(h200) == _measured.rates(GPUS["sm_90"]) == RATES[SHIPPED_OF]
    assert _measured.rates(h100) != _measured.rates(h200)
    assert _measured.rates(CARD) is None
    _measured.save(h100, FOUND)
    forget()
    assert _measured.rates(h100) == MEASURED, "what was measured wins"


def test_another_gpu_and_one_that_is_not_there_have_nothing(home: Path) -> None:
    _measured.save(CARD, FOUND)
    other = CARD._replace(name="Another Card")
    for gpu in (other, GPUS["sm_90"], GPUS["sm_80"]):
        assert _measured.measurement(gpu) is None
    assert not _measured.file(other).exists()


def test_a_gpu_of_which_part_is_used_has_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What check cuts for few multiprocessors is no other GPU's file: no warning."""
    _measured.save(CARD, FOUND)
    monkeypatch.setattr(_launch, "_properties", lambda device: CARD)
    monkeypatch.setattr(_launch, "interpreted", lambda kernel: False)
    cuda = torch.device("cuda")
    assert _measured.measurement(_launch.gpu(None, cuda)) == FOUND
    with _launch.multiprocessors(2), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _launch.gpu(None, cuda).multiprocessors == 2
        assert _measured.measurement(_launch.gpu(None, cuda)) is None


def test_it_is_this_users_alone() -> None:
    before = os.umask(0)
    try:
        path = _measured.save(CARD, FOUND)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_failed_write_leaves_the_old(monkeypatch: pytest.MonkeyPatch) -> None:
    path = _measured.save(CARD, FOUND)

    def full(_: int) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="no space"):
            _measured.save(CARD, Measurement(SHIPPED, {}))
    assert read_again() == FOUND
    assert os.listdir(path.parent) == [path.name]


def test_a_killed_write_leaves_the_old(monkeypatch: pytest.MonkeyPatch) -> None:
    _measured.save(CARD, FOUND)
    child = os.fork()
    if not child:  # dies with the new content written, but not in its place
        os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
        try:
            _measured.save(CARD, Measurement(SHIPPED, {}))
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert read_again() == FOUND


# ---- files that are not used ----


def changed(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))

    return write


def holding_for(**values: Any) -> Callable[[Path], None]:
    return changed(lambda content: content["holds_for"].update(values))


def with_rates(**values: Any) -> Callable[[Path], None]:
    return changed(lambda content: content["rates"].update(values))


def with_constants(**values: Any) -> Callable[[Path], None]:
    return changed(lambda content: content["constants"].update(values))


WRONG: dict[str, tuple[Callable[[Path], Any], str]] = {
    "cut off": (lambda p: p.write_text(p.read_text()[:200]), "damaged"),
    "empty": (lambda p: p.write_text(""), "damaged"),
    "no text": (lambda p: p.write_bytes(b"\xff\xfe\0"), "damaged"),
    "a list": (lambda p: p.write_text("[1]"), "damaged"),
    "deep": (lambda p: p.write_text("[" * 100_000), "damaged"),
    "no constants": (changed(lambda c: c.pop("constants")), "damaged"),
    "a cost less": (with_constants(costs=[1.0, 0.5]), "2 costs"),
    "a negative cost": (with_constants(costs=[1.0, -0.5, 0.3, 0.2, 0.1]), "no positive number"),
    "NaN": (with_constants(costs=[1.0, float("nan"), 0.3, 0.2, 0.1]), "no positive number"),
    "a word": (with_constants(long="much"), "no number"),
    "a speed that is none": (
        changed(lambda c: c["speeds"].update(linear_act={"0": [True, 1.0]})),
        "no number",
    ),
    "no rates": (changed(lambda c: c.pop("rates")), "damaged"),
    "a rate less": (changed(lambda c: c["rates"].pop("library")), "damaged"),
    "a rate of nothing": (with_rates(ours=0), "no positive number"),
    "rates in a list": (changed(lambda c: c.update(rates=[1.0] * 6)), "damaged"),
    "another GPU": (holding_for(name="Another Card"), "name Another Card, not Some Card 80GB"),
    "fewer multiprocessors": (holding_for(multiprocessors=66), "multiprocessors 66, not 132"),
    "another Triton": (holding_for(triton="2.0.0"), "triton 2.0.0, not"),
    "other kernels": (holding_for(sources="0123456789ab"), "sources 0123456789ab, not"),
    "an older form": (changed(lambda c: c["holds_for"].pop("cuda")), "cuda nothing, not"),
    "others can write it": (lambda p: p.chmod(0o622), "others could have written it"),
    "a folder": (lambda p: (p.unlink(), p.mkdir()), "Is a directory"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_does_not_hold_is_left_alone_with_one_warning(wrong: str) -> None:
    path = _measured.save(CARD, FOUND)
    break_it, says = WRONG[wrong]
    break_it(path)
    forget()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert _measured.measurement(CARD) is None
        assert _measured.constants(CARD) == SHIPPED
        choose(Problem(4096, 4096, 4096, torch.bfloat16, torch.bfloat16), CARD)
        assert _measured.rates(CARD) is None
        sources = {each.source for each in capabilities.entries("linear_act", CARD)}
        assert sources == {"shipped", "estimated"}
    (warning,) = seen
    text = str(warning.message)
    assert warning.category is RuntimeWarning
    assert says in text
    assert str(path) in text
    assert "tune() measures again" in text


def test_the_sources_of_the_kernels_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One byte in a file that the kernels are in, and none elsewhere."""
    package = tmp_path / "package"
    for name in ("gemm/kernels.py", "ops/add.py", "activations.py", "graph/planning.py"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(name)
    monkeypatch.setattr(_measured, "__file__", str(package / "_measured.py"))

    def now() -> str:
        return _measured._sources.__wrapped__()

    before = now()
    (package / "graph/planning.py").write_text("other")
    assert now() == before
    hashes = {before}
    for name in ("gemm/kernels.py", "ops/add.py", "activations.py"):
        (package / name).write_text("other")
        hashes.add(now())
    assert len(hashes) == 4


# ---- it wins ----


def test_measured_costs_win_over_shipped_ones() -> None:
    """Half as dear a tile of 128×128 takes what 128×256 had."""
    product = Problem(4096, 4096, 1024, torch.bfloat16, torch.bfloat16)
    assert choose(product, CARD).tiles[:2] == (128, 256)
    _measured.save(CARD, Measurement(SHIPPED._replace(costs=(1.0, 0.3, 0.31, 0.2, 0.17)), {}))
    choose.cache_clear()
    assert choose(product, CARD).tiles[:2] == (128, 128)
    assert choose(product, GPUS["sm_90"]).tiles[:2] == (128, 256), "shipped, of a GPU by figures"


def test_the_file_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    _measured.save(CARD, FOUND)
    forget()
    read, times = _measured._read, []
    monkeypatch.setattr(_measured, "_read", lambda *args: (times.append(1), read(*args))[1])
    for n in range(1, 50):
        choose(Problem(64 * n, 4096, 1024, torch.bfloat16, torch.bfloat16), CARD)
    assert len(times) == 1


def test_other_thresholds_win_too() -> None:
    long = Problem(4096, 2048, 2048, torch.bfloat16, torch.bfloat16)
    costs = (1.0, 0.3, 0.31, 0.2, 0.17)
    old = GPUS["sm_80"]._replace(name="Old Card", multiprocessors=132)
    square = Problem(1408, 1408, 2048, torch.bfloat16, torch.bfloat16)
    assert choose(square, old).tiles[:2] == (64, 128)
    found = Measurement(Constants(costs, 2048, 1 << 20), {})
    for gpu in (CARD, old):
        _measured.save(gpu, found)
    choice.choose.cache_clear()
    assert choose(long, CARD).tiles == (128, 128, 64, 8, 4, 5)
    assert choose(square, old).tiles[:2] == (128, 256)
