"""python -m compare bench from end to end, on a simulated GPU: what it prints, keeps and says."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pynvml
import pytest
import torch
from simulated_gpu import COOL, Rig
from typer.testing import CliRunner, Result

from compare.cases import Case
from compare.cli import app
from compare.ops import SPECS
from compare.specs import Spec
from compare.timing import bench as benchmarks
from compare.timing import gpu, nvml, saved
from compare.timing.results import CaseResult


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    found = Rig()
    for target, name, value in found.replaced():
        monkeypatch.setattr(target, name, value)
    return found


def bench(*words: str) -> Result:
    return CliRunner().invoke(app, ["bench", *words])


def flat(text: str) -> str:
    return re.sub(r"[\s│]+", " ", text)


SQUARE = ("square", "--dtype", "float16", "--providers", "triton,eager,compile")
SMALL = (*SQUARE, "--shapes", "4096,4096", "--samples", "20")


def entries(case: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {entry["provider"]: entry for entry in case["entries"]}


def test_times_rates_and_ratios_reach_the_file(rig: Rig, tmp_path: Path) -> None:
    rig.factor = {"triton": 1.25, "eager": 2.5, "compile": 5.0}
    done = bench(*SMALL, "--json", str(tmp_path / "b.json"))
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "b.json").read_text())
    (case,) = found["cases"]
    moved = 2 * 2 * 4096**2
    assert (case["flops"], case["bytes"], case["rate_unit"]) == (4096**2, moved, "GB/s")
    assert "sweep" not in case
    limit = moved / 4e6
    by = entries(case)
    assert by["triton"]["median"] == pytest.approx(1.25 * limit)
    assert by["triton"]["percent_of_limit"] == pytest.approx(80)
    assert by["triton"]["rate"] == pytest.approx(3200)
    assert by["triton"]["speedup"]["value"] == pytest.approx(2)
    assert by["triton"]["microseconds"] == pytest.approx([1.25 * limit] * 20, abs=1e-3)
    assert case["best_peer"] == "eager"
    assert (found["cold"], found["graph"], found["full"], found["ended"]) == (
        (True, False, False, "")
    )
    assert found["environment"]["gpu"] == "Simulated"
    assert re.fullmatch(r"([0-9a-f]{40}(-dirty)?|unknown)", found["environment"]["commit"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]{8}\+00:00", found["environment"]["date"])
    assert found["state_before"] == found["state_after"] == COOL
    again = CaseResult.from_dict(case).to_dict()
    medians = [found.pop("entries")[0]["median"] for found in (again, case)]
    assert medians[0] == pytest.approx(medians[1], abs=1e-3)
    assert again == case


def test_a_slower_run_is_a_regression(rig: Rig, tmp_path: Path) -> None:
    before = str(tmp_path / "before.json")
    assert bench(*SMALL, "--json", before).exit_code == 0
    assert bench(*SMALL, "--baseline", before).exit_code == 0
    rig.factor = {"triton": 1.25 * 1.06}
    done = bench(*SMALL, "--baseline", before)
    assert done.exit_code == 1
    assert "square float16 4096×4096, triton: 6 % slower than the baseline" in done.output


@pytest.mark.parametrize("way", ["--warm", "--graph"])
def test_another_way_of_measuring_is_told_and_kept_apart(
    rig: Rig, tmp_path: Path, way: str
) -> None:
    other, plain = str(tmp_path / "other.json"), str(tmp_path / "plain.json")
    assert bench(*SMALL, way, "--json", other).exit_code == 0
    assert bench(*SMALL, "--json", plain).exit_code == 0
    found = json.loads(Path(other).read_text())
    assert (found["cold"], found["graph"]) == (way != "--warm", way == "--graph")
    then, now = (
        entries(json.loads(Path(f).read_text())["cases"][0])["triton"] for f in (other, plain)
    )
    assert then["median"] == pytest.approx(now["median"] / (2 if way == "--warm" else 1))
    assert (then["percent_of_limit"] is None) == (way == "--warm")
    done = bench(*SMALL, "--baseline", other)
    assert done.exit_code == 2
    assert f"({way}), this run takes them with a cold cache" in flat(done.stderr)
    assert bench(*SMALL, way, "--baseline", other).exit_code == 0


def test_files_of_before_these_options_are_cold_calls(rig: Rig, root: Path) -> None:
    file = str(root / "docs" / "benchmarks" / "h200.json")
    assert "no file" not in bench(*SMALL, "--baseline", file).output
    assert "with a warm cache" in bench(*SMALL, "--warm", "--baseline", file).stderr


def amid_samples(provider: str, rig: Rig, sticky: bool = False) -> Callable[[str, Case], None]:
    calls: dict[str, int] = {}

    def before(name: str, case: Case) -> None:
        calls[str(case)] = calls.get(str(case), 0) + (name == provider)
        if name == provider and case.shape[0] == 4096 and calls[str(case)] > 35:
            rig.gpu.broken = sticky
            raise torch.OutOfMemoryError("CUDA out of memory")

    return before


TWO = (*SQUARE, "--shapes", "4096,4096", "--shapes", "2048,2048", "--samples", "20")


def test_one_that_raises_amid_its_samples_ends_nothing(rig: Rig, tmp_path: Path) -> None:
    rig.before = amid_samples("triton", rig)
    done = bench(*TWO, "--json", str(tmp_path / "b.json"))
    assert done.exit_code == 1
    assert "OutOfMemoryError CUDA out of memory" in done.output
    first, second = json.loads((tmp_path / "b.json").read_text())["cases"]
    assert entries(first)["triton"] == {
        "provider": "triton",
        "problem": "OutOfMemoryError CUDA out of memory",
    }
    assert entries(first)["eager"]["samples"] == 20
    assert entries(second)["triton"]["samples"] == 20


def test_a_gpu_that_is_lost_ends_it_with_what_is_measured(rig: Rig, tmp_path: Path) -> None:
    rig.before = amid_samples("compile", rig, sticky=True)
    words = (*SQUARE, "--samples", "20", "--json", str(tmp_path / "b.json"))
    done = bench(*words)
    assert done.exit_code == 1
    why = "the GPU no longer answers; square float16 (4096, 4096), compile: OutOfMemoryError"
    assert why in flat(done.output)
    assert "2 of 4 cases are timed" in flat(done.output)
    found = json.loads((tmp_path / "b.json").read_text())
    assert [case["shape"] for case in found["cases"]] == [[1024, 1024], [2048, 2048]]
    assert why in found["ended"]


def test_no_memory_for_the_inputs_is_that_cases_problem(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def inputs(spec: Spec, case: Case, seed: int) -> Any:
        if case.shape[0] == 4096:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return (seed,), {}

    monkeypatch.setattr(benchmarks, "inputs", inputs)
    done = bench(*TWO)
    assert done.exit_code == 1
    assert "no memory for the inputs: CUDA out of memory" in done.output
    assert "2048×2048, limit" in done.output


# ---- throttling ----


def test_throttling_is_flagged_and_the_power_cap_told(rig: Rig, tmp_path: Path) -> None:
    rig.state["throttling"] = ["power cap"]
    done = bench(*SMALL, "--json", str(tmp_path / "b.json"))
    assert "(power cap)" in done.output
    assert "slowed" not in done.output
    rig.state["throttling"] = ["power cap", "thermal"]
    done = bench(*SMALL, "--json", str(tmp_path / "b.json"))
    assert "the GPU was slowed meanwhile: thermal" in done.output
    assert "the GPU was slowed in 1 of 1 cases" in done.output
    (case,) = json.loads((tmp_path / "b.json").read_text())["cases"]
    assert case["throttling"] == ["power cap", "thermal"]
    assert case["state_after"]["sm_clock_mhz"] == 1980.0


class FakeNvml(ModuleType):
    """The module pynvml: an H200 of this UUID."""

    class NVMLError(Exception):
        pass

    def __init__(self, reasons: int = 0, library: bool = True, driver: int = 580) -> None:
        super().__init__("pynvml")
        self._reasons, self._library, self._driver = reasons, library, driver

    def nvmlInit(self) -> None:
        if not self._library:
            raise self.NVMLError("NVML Shared Library Not Found")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        if uuid != "GPU-12ab":
            raise self.NVMLError("Not Found")
        return 7

    def nvmlDeviceGetClockInfo(self, device: int, kind: int) -> int:
        return {1: 1980, 2: 3201}[kind]

    def nvmlDeviceGetTemperature(self, device: int, sensor: int) -> int:
        assert (device, sensor) == (7, 0)
        return 41

    def nvmlDeviceGetPowerUsage(self, device: int) -> int:
        return 123_220

    def nvmlDeviceGetEnforcedPowerLimit(self, device: int) -> int:
        raise self.NVMLError("Not Supported")

    def nvmlDeviceGetCurrentClocksEventReasons(self, device: int) -> int:
        if self._driver < 535:
            raise self.NVMLError("Function Not Found")
        return self._reasons

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, device: int) -> int:
        if self._driver >= 535:
            raise AssertionError("asked by its old name")
        return self._reasons


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    class Properties:
        uuid = "12ab"

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Properties)
    nvml._opened.cache_clear()
    yield Properties
    nvml._opened.cache_clear()


@pytest.mark.parametrize("driver", [580, 525])
def test_the_state_by_nvml(driver: int, monkeypatch: pytest.MonkeyPatch, device: Any) -> None:
    fake = FakeNvml(0x1 | 0x4 | 0x20 | 0x40, driver=driver)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    assert nvml.missing() == ""
    assert nvml.state() == {
        "sm_clock_mhz": 1980,
        "memory_clock_mhz": 3201,
        "temperature_c": 41,
        "power_w": 123.22,
        "power_limit_w": None,
        "throttling": ["power cap", "thermal"],
    }


def test_nvidia_ml_py_has_every_function_that_is_asked() -> None:
    names = {name for name in vars(FakeNvml) if name.startswith("nvml")}
    asked = {function for function, _, _ in nvml._NUMBERS.values()} | {*nvml._REASONS}
    assert asked | {"nvmlInit", "nvmlDeviceGetHandleByUUID"} == names
    assert all(callable(getattr(pynvml, name)) for name in names)
    assert issubclass(pynvml.NVMLError, Exception)


@pytest.mark.parametrize(
    ("module", "uuid", "says"),
    [
        (None, "12ab", "the package nvidia-ml-py is not installed"),
        (FakeNvml(library=False), "12ab", "NVML: NVML Shared Library Not Found"),
        (FakeNvml(), "unknown", "NVML: Not Found"),
    ],
)
def test_without_nvml_there_is_no_state(
    module: ModuleType | None, uuid: str, says: str, monkeypatch: pytest.MonkeyPatch, device: Any
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", module)  # None: importing it fails
    device.uuid = uuid
    assert nvml.state() == {}
    assert nvml.missing() == says


def test_without_a_gpu_there_is_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert nvml.state() == {}
    assert nvml.missing() == "no CUDA device"


def test_bench_says_that_nobody_watches_the_clocks(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "not watched" not in bench(*SMALL).output
    monkeypatch.setattr(nvml, "missing", lambda: "NVML: Driver Not Loaded")
    done = bench(*SMALL)
    assert done.exit_code == 0, done.output
    said = "clocks, power and throttling are not watched: NVML: Driver Not Loaded"
    assert said in flat(done.output)


def test_a_watch_collects_what_it_saw(monkeypatch: pytest.MonkeyPatch) -> None:
    states = iter([{"throttling": []}, {"throttling": ["thermal"]}, {"throttling": ["slowdown"]}])
    monkeypatch.setattr(nvml, "state", lambda: next(states))
    watch = nvml.Watch()
    watch.look()
    watch.look()
    assert watch.throttling == {"thermal", "slowdown"}
    assert (watch.before, watch.after) == ({"throttling": []}, {"throttling": ["slowdown"]})


# ---- sweeps and the full run ----


def test_a_sweep_is_one_table_and_has_its_place_in_the_file(rig: Rig, tmp_path: Path) -> None:
    rig.factor = {"eager": 2.5}
    words = ("square", "--sweep", "--dtype", "float32", "--samples", "5")
    done = bench(*words, "--json", str(tmp_path / "b.json"))
    assert done.exit_code == 0, done.output
    cases = json.loads((tmp_path / "b.json").read_text())["cases"]
    sizes = [4**k for k in range(6, 15)]
    assert [(case["sweep"], case["x"], case["shape"]) for case in cases] == [
        ("numel", n, [n]) for n in sizes
    ]
    assert done.output.count("square float32, GB/s and × best peer") == 1
    rows = [line.split() for line in done.output.splitlines() if line.split()[:1] == ["268435456"]]
    assert rows == [["268435456", *["3200", "1.00"] * 3, "1600", "0.50", "3200", "best"]]
    assert "numel" in done.output.splitlines()[-1]  # a line of the summary


def test_a_wide_sweep_comes_in_several_tables(rig: Rig) -> None:
    done = bench("add", "numel", "--sweep", "--dtype", "float16", "--samples", "3")
    assert done.output.count("add float16, GB/s") == 2
    assert all(len(line) <= 120 for line in done.output.splitlines())
    assert "f16x8_pack" in done.output


def test_each_sweep_has_its_own_table(rig: Rig) -> None:
    done = bench("gemm_bias_act", "--sweep", "--dtype", "bfloat16", "--samples", "3")
    tables = done.output.split("gemm_bias_act bfloat16, TFLOP/s and × best peer")[1:]
    sizes = [[line.split()[0] for line in t.splitlines() if line[:5].strip()] for t in tables]
    assert sizes[0][:3] == ["M=N=K", "256", "384"]
    assert sizes[1][:3] == ["M", "1", "2"]
    assert "384" not in sizes[1]


def test_what_went_wrong_in_a_sweep_is_told_below(rig: Rig) -> None:
    rig.before = amid_samples("triton", rig)
    done = bench("linear_gelu", "M=N=K", "--sweep", "--dtype", "float16", "--samples", "20")
    (row,) = [line for line in done.output.splitlines() if line.split()[:1] == ["4096"]]
    assert row.split()[1] == "failed"
    assert "M=N=K 4096 triton: OutOfMemoryError" in flat(done.output)
    assert " 8192 " in done.output
    assert done.exit_code == 1


def test_slow_providers_are_in_a_sweep_only_by_name() -> None:
    done = bench("gemm_bias_act", "M=N=K", "--sweep", "--dry-run", "--dtype", "bfloat16")
    lines = done.stdout.splitlines()[:-1]
    assert len(lines) == 11
    assert {line.split(": ")[1] for line in lines} == {"triton, eager, compile, cublaslt"}
    named = ("--providers", "triton,cuda,max-autotune")
    done = bench("gemm_bias_act", "M", "--sweep", "--dry-run", "--dtype", "bfloat16", *named)
    assert len(done.stdout.splitlines()) == 15 + 1
    assert "4096x4096x4096" in done.stdout
    assert done.stdout.splitlines()[0].endswith(": triton, cuda, max-autotune")


def test_full_is_everything() -> None:
    plain = bench("linear_gelu", "add", "--dry-run").stdout.splitlines()
    full = bench("linear_gelu", "add", "--dry-run", "--full").stdout.splitlines()
    assert len(full) == len(plain) + 3 * (9 + 11 + 15)
    assert sum("max-autotune" in line for line in plain) == 6  # not where tuning takes long
    assert sum("max-autotune" in line for line in full) == 3 * (10 + 11 + 15)


# ---- going on ----


def interrupted(rig: Rig, size: int) -> None:
    def before(name: str, case: Case) -> None:
        if case.shape[0] == size:
            raise KeyboardInterrupt

    rig.before = before


WHOLE = (*SQUARE, "--samples", "5")


def test_a_run_goes_on_where_another_ended(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (*WHOLE, "--json", str(tmp_path / "b.json"), "--resume")
    interrupted(rig, 4096)
    done = bench(*words)
    assert "interrupted: 2 of 4 cases are timed" in done.output
    then = json.loads((tmp_path / "b.json").read_text())
    assert then["ended"] == "interrupted"
    rig.before, rig.timed = (lambda name, case: None), []
    slower = gpu.Ceilings(2e12, {"float16": 4e14}, "Simulated")
    monkeypatch.setattr(gpu, "ceilings", lambda: slower)
    done = bench(*words)
    assert done.exit_code == 0, done.output
    assert "going on after 2 cases" in done.output
    assert rig.timed == ["square float16 4096x4096", "square float16 16384x16384"]
    now = json.loads((tmp_path / "b.json").read_text())
    assert now["cases"][:2] == then["cases"]
    assert [case["shape"][0] for case in now["cases"]] == [1024, 2048, 4096, 16384]
    assert now["ended"] == ""
    assert now["ceilings"] == then["ceilings"]  # that the cases before were judged by
    assert [entries(case)["triton"]["percent_of_limit"] for case in now["cases"]] == (
        pytest.approx([80] * 4)
    )
    rig.timed = []
    done = bench(*words)  # all is there: the summary, and nothing measured
    assert rig.timed == []
    assert flat(done.output).count("square float16 4 ") == 1


def test_what_failed_before_still_fails_a_resumed_run(rig: Rig, tmp_path: Path) -> None:
    rig.before = amid_samples("triton", rig)
    words = (*SQUARE, "--samples", "20", "--json", str(tmp_path / "b.json"), "--resume")
    assert bench(*words).exit_code == 1
    rig.before, rig.timed = (lambda name, case: None), []
    assert bench(*words).exit_code == 1
    assert rig.timed == []


@pytest.mark.parametrize(
    ("words", "patched", "says"),
    [
        (["--warm"], None, "cold was True and is False"),
        (["--providers", "eager"], None, "providers was ['triton', 'eager', 'compile'] and is"),
        (["--samples", "6"], None, "samples was 5 and is 6"),
        ([], (saved, "sources", lambda: "f00"), "the sources are not those that were measured"),
        ([], (torch, "__version__", "9.9"), "and is '9.9'"),
        ([], (torch.cuda, "get_device_name", lambda: "Other"), "gpu was 'Simulated' and is 'Other"),
    ],
)
def test_a_run_does_not_go_on_with_anothers_file(
    rig: Rig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    patched: Any,
    says: str,
) -> None:
    file = tmp_path / "b.json"
    assert bench(*WHOLE, "--json", str(file)).exit_code == 0
    kept = file.read_text()
    if patched:
        monkeypatch.setattr(*patched)
    done = bench(*WHOLE, *words, "--json", str(file), "--resume")
    assert done.exit_code == 2
    assert says in flat(done.stderr), done.stderr
    assert file.read_text() == kept


def test_a_commit_alone_changes_nothing(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (*WHOLE, "--json", str(tmp_path / "b.json"), "--resume")
    assert bench(*words).exit_code == 0
    monkeypatch.setattr(saved, "commit", lambda: "0" * 40)
    rig.timed = []
    assert bench(*words).exit_code == 0
    assert rig.timed == []


def test_no_file_to_go_on_with(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text('{"cases": []}')
    done = bench(*WHOLE, "--json", str(tmp_path / "b.json"), "--resume")
    assert done.exit_code == 2
    assert "no file to go on with" in flat(done.stderr)


def test_the_file_is_whole_after_every_case(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash, in a case or amid writing, leaves what was measured before it."""
    file = tmp_path / "b.json"

    def before(name: str, case: Case) -> None:
        if case.shape[0] == 4096:
            assert len(json.loads(file.read_text())["cases"]) == 2
            raise SystemExit(9)  # as a process that is killed: nothing runs after it

    rig.before = before
    assert bench(*WHOLE, "--json", str(file)).exit_code == 9
    whole = file.read_text()
    assert len(json.loads(whole)["cases"]) == 2
    write = Path.write_text

    def breaks(path: Path, text: str) -> int:
        write(path, text[:100])
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "write_text", breaks)
    rig.before = lambda name, case: None
    assert isinstance(bench(*WHOLE, "--json", str(file)).exception, OSError)
    assert file.read_text() == whole
    assert [path.name for path in tmp_path.iterdir()] == ["b.json"]


# ---- what the machine is ----


def test_the_commit_is_git_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved, "ROOT", tmp_path)
    assert saved.commit() == "unknown"
    (tmp_path / ".git").mkdir()
    answers = {"rev-parse": "abc", "status": ""}
    monkeypatch.setattr(saved, "_git", lambda verb, *_: answers[verb])
    assert saved.commit() == "abc"
    answers["status"] = " M compare/cases.py"
    assert saved.commit() == "abc-dirty"

    def without(*_: str) -> str:
        raise FileNotFoundError("git")

    monkeypatch.setattr(saved, "_git", without)
    assert saved.commit() == "unknown"


def test_every_source_of_both_sides_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: Path
) -> None:
    hashed: list[str] = []
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: hashed.append(path.name) or read(path))
    saved.sources.cache_clear()
    found = saved.sources()
    assert {"square.py", "square.cu", "elementwise.cuh", "engine.py", "products.py"} <= set(hashed)
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b" " * (path.suffix == ".cu"))
    saved.sources.cache_clear()
    assert saved.sources() != found
    saved.sources.cache_clear()


def test_every_op_has_sweeps_that_its_functions_take() -> None:
    for spec in SPECS.values():
        found = list(spec.sweeps("float16", spec.default_options))
        assert len({(name, x) for name, x, _ in found}) == len(found) >= 9
        for name, x, case in found:
            assert x == (case.numel if name == "numel" else case.shape[0]), name
            args, kwargs = spec.inputs(case, torch.device("meta"))
            numel = math.prod(case.shape[:2])  # of an elementwise op or a matrix product
            summed = {"sum_to": case.shape[-1], "act_backward": numel + case.shape[-1]}
            expected = summed.get(spec.name, numel)
            assert spec.eager(*args, **kwargs).numel() == expected
