"""Files of the commands, made up, and a reader of the page that they become."""

from __future__ import annotations

from functools import cache
from html.parser import HTMLParser
from typing import Any

import pytest

from compare.mutation.explained import Explanation
from compare.mutation.mutant import Edit, Mutant
from compare.mutation.planting import Trial
from compare.mutation.tables import Report
from compare.profiling import counters
from compare.profiling.counters import Counted, Counters
from compare.profiling.reading import Kernel, Profile
from compare.reporting import page
from compare.reporting.sources import Source

needs_packages = pytest.mark.usefixtures("packages")
HOSTILE = "<script>alert(1)</script> $x_{1}$ \"'&"
ENVIRONMENT = {"triton_kernels": "0.1.0", "torch": "2.13.0", "triton": "3.7.1", "gpu": "Tesla X"}


def check_row(op: str, dtype: str, unit: str, **changes: Any) -> dict[str, Any]:
    worst = {"triton-interpreted": 0.0, "cuda-host": 0.0}
    errors: dict[str, Any] = {name: {"exact_ulp": {"0": 1200}} for name in worst}
    if unit != "ulp":
        worst = {"triton-interpreted": 0.97, "cuda-host": 0.5}
        measured = {
            "ulp": {"0": 500, "0.5": 400, "2": 100},
            "bound_ulp": {"1": 600, "4": 300, "inf": 100},
            "fraction": {"0": 500, "0.25": 400, "1": 100},
        }
        errors = dict.fromkeys([*worst, "cuda-host/tiled"], measured)
    return {
        "op": op,
        "dtype": dtype,
        "cases": 5,
        "seconds": 1.0,
        "runs": dict.fromkeys(worst, 7),
        "worst": worst,
        "unit": unit,
        "errors": errors,
        "triton_equals_cuda": True if unit == "ulp" else None,
        "coverage": "sampled",
        "verdict": "pass",
        "passed": True,
        "mismatches": [],
        **changes,
    }


def check_file(*more: dict[str, Any]) -> dict[str, Any]:
    rows = [
        check_row("add", "float16", "ulp"),
        check_row("add", "int8", "ulp"),
        check_row("gemm_bias_act", "float16", "fraction of the bound"),
        *more,
    ]
    return {
        "passed": not more,
        "environment": ENVIRONMENT,
        "not_run": {"cuda-gpu": "no CUDA device here"},
        "required_but_missing": [],
        "seconds": 12.0,
        "rows": rows,
    }


def failing_row() -> dict[str, Any]:
    deviation = {
        "wrong": 3,
        "total": 91,
        "index": [6, 10],
        "got": "nan (0x7e00)",
        "expected": "2.0 (0x4000)",
        "ulps": "inf",
        "error": "inf",
        "bound": 0.0,
    }
    mismatch = {
        "implementation": "cuda-host/f16x8_pack",
        "case": f"add float32 7x13 {HOSTILE}",
        "problem": "wrong values",
        "deviation": deviation,
        "program_id": [0, 0, 0],
        "replay": "python -m compare check add --shape 7,13",
        "debug": "python -m compare debug add --shape 7,13",
    }
    row = check_row("add", "float32", "ulp", passed=False, verdict="CUDA: the reference kernel")
    row["worst"] = {"triton-interpreted": 0.0, "cuda-host": "inf"}
    row["errors"]["cuda-host"] = {"exact_ulp": {"0": 1197, "4": 1, "inf": 2}}
    return {**row, "mismatches": [mismatch]}


def entry(provider: str, median: float, peer: float | None, **more: Any) -> dict[str, Any]:
    ratio = None if peer is None else peer / median
    return {
        "provider": provider,
        "problem": "",
        "median": median,
        "p20": 0.9 * median,
        "p80": 1.2 * median,
        "samples": 60,
        "replay": median,
        "host": 30.0,
        "first_call_seconds": 0.1,
        "rate": 1000 / median,
        "percent_of_limit": 100 * 5 / median,
        "speedup": ratio and {"value": ratio, "low": 0.95 * ratio, "high": 1.05 * ratio},
        **more,
    }


def bench_case(op: str, dtype: str, shape: tuple[int, ...], **more: Any) -> dict[str, Any]:
    """Triton takes 10 µs, eager 20, torch.compile 12."""
    return {
        "op": op,
        "dtype": dtype,
        "shape": list(shape),
        "options": {"alpha": 2} if op == "add" else {},
        "limit": 5.0,
        "rate_unit": "GB/s" if op == "add" else "TFLOP/s",
        "best_peer": "compile",
        "seconds": 1.0,
        "entries": [
            entry("triton", 10.0, 12.0),
            entry("cuda/f16x8", 15.0, 12.0),
            entry("eager", 20.0, 12.0),
            entry("compile", 12.0, None),
            {"provider": "cuda", "problem": "host-bound: launching takes 99 µs"},
        ],
        **more,
    }


def bench_file(*more: dict[str, Any]) -> dict[str, Any]:
    product = bench_case("gemm_bias_act", "float16", (64, 64, 64), flops=2 * 64**3, bytes=24576)
    return {
        "environment": ENVIRONMENT,
        "commit": "0123abc",
        "state_before": {"sm_clock_mhz": 1980.0, "power_w": 120.0, "throttling": []},
        "state_after": {"sm_clock_mhz": 1500.0, "power_w": 650.0, "throttling": ["power cap"]},
        "ceilings": {
            "bandwidth": 4e12,
            "rates": {"float16": 7e14, "bfloat16": 7e14},
            "name": "Tesla X",
            "datasheet": {"bytes": 5e12, "float16": 9e14},
        },
        "cases": [
            bench_case("add", "float16", (1024, 1024)),
            bench_case("add", "float16", (2048, 2048)),
            product,
            *more,
        ],
    }


def sweep_cases() -> list[dict[str, Any]]:
    return [
        bench_case("add", "float16", (n,), sweep="numel", x=n, flops=2 * n, bytes=6 * n)
        for n in (1024, 4096, 16384)
    ]


def sample_cases() -> list[dict[str, Any]]:
    """A stratum of two; the control is the best peer, and a little off."""
    more = {"flops": 1, "bytes": 6, "matrix": False, "throttling": [], "layout": "misaligned"}
    state: dict[str, Any] = {"state_before": {}, "state_after": {}}
    times = {"triton": 10.0, "eager": 20.0, "compile": 12.0, "control": 12.5}
    entries = [
        entry(name, time, None if name == "compile" else 12.0, microseconds=[time] * 3)
        for name, time in times.items()
    ]
    place = {"stratum": "offset view", "again": False, "entries": entries}
    return [
        bench_case("add", "float16", (n, 16), **more, **state, **place, options={})
        for n in (64, 4096)
    ]


def compile_file() -> dict[str, Any]:
    figures = {
        "registers": 77,
        "spills": 8,
        "stack": 16,
        "shared": 2048,
        "loads": {"32": 1, "128": 2},
        "stores": {"64": 4},
        "tensor": {"HMMA": 12},
    }
    triton = {"kernel": "flat_kernel", "config": {}, "error": "", "figures": figures}
    cuda = {"kernel": "add<float>", "config": {}, "error": "ptxas: <boom>", "figures": None}
    problems = [
        {"side": "triton", "problem": "spills 8 bytes a thread", "accepted": "once a tile"},
        {"side": "cuda", "problem": "does not compile: ptxas: <boom>", "accepted": ""},
    ]
    place = {"arch": "sm_90", "op": "add", "dtype": "float16"}
    return {
        "passed": False,
        "environment": ENVIRONMENT,
        "archs": {"sm_90": {"shared_limit": 232448}},
        "not_compiled": {},
        "seconds": 3.0,
        "rows": [
            {**place, "label": "flat", "triton": triton, "cuda": cuda, "problems": problems},
            {**place, "label": "naive", "triton": None, "cuda": None, "problems": []},
        ],
    }


def host_file() -> dict[str, Any]:
    """Triton takes 1.5 times torch's time; the twin is wrong."""
    calls = [
        {"provider": "triton", "problem": "", "microseconds": 9.0, "times_torch": [1.5, 1.4, 1.6]},
        {"provider": "eager", "problem": "", "microseconds": 6.0, "times_torch": None},
        {"provider": "cuda", "problem": f"wrong: {HOSTILE}"},
    ]
    row = {"op": "add", "dtype": "float16", "shape": [256, 256], "options": {"y": "row"}}
    return {
        "environment": ENVIRONMENT,
        "seconds": 2.0,
        "host": [{**row, "what": "seen shape", "calls": calls}],
    }


def mutate_file() -> dict[str, Any]:
    """Of mutants that are made up, as the command writes it."""

    def mutant(new: str) -> Mutant:
        return Mutant("triton", "x.py", "kernel", Edit("operator", 4, 9, new), "a = b + c\n")

    ends = {"b - c": "killed", "b * c": "survived", HOSTILE: "survived", "b c": "did not compile"}
    because = "c is 0."
    known = [Explanation("x.py", "kernel", "equivalent", because, "a = b + c", "a = b * c")]
    trials = [Trial(mutant(new), end) for new, end in ends.items()]
    stale = [Explanation("y.py", "gone", "gpu", "2³¹.")]
    written = Report(trials, known, {"ops": ["add", "square"]}, stale).to_dict()
    return {**written, "environment": ENVIRONMENT, "date": "2026-11-23"}


def profile_file(op: str = "add", **more: Any) -> dict[str, Any]:
    """Triton has one kernel; eager has two, one of which waits for the host; the twin is wrong."""
    profiles = [
        Profile("triton", 9.0, 4.0, 21.0, 0.02, [Kernel("add_flat", 1.0, 4.0)]),
        Profile("eager", 15.0, 2.0, 30.0, 0.6, [
            Kernel("void mul<float, 4>(int, float*)", 1.0, 1.5), Kernel(HOSTILE, 0.5, 0.5),
        ]),
        Profile("compile", 12.0),
    ]  # fmt: skip
    values = dict.fromkeys(counters.METRICS, 12.5)
    values["gpu__time_duration.sum"] = None
    counted = [
        Counters("triton", kernels=[Counted("add_flat", 2, values)]),
        Counters("eager", problem="ncu saw no kernel"),
    ]
    return {
        **{"op": op, "dtype": "float16", "shape": [2048, 2048], "options": {"alpha": 2}},
        **{"steps": 5, "calls": 10, "environment": ENVIRONMENT},
        "problems": {"cuda": "wrong: off by 3"},
        "profiles": [each.to_dict() for each in profiles],
        "counters": [each.to_dict() for each in counted],
        **more,
    }


def everything() -> list[Source]:
    return [
        Source("check.json", "check", check_file(failing_row())),
        Source("bench.json", "bench", bench_file(*sweep_cases(), *sample_cases())),
        Source("host.json", "host", host_file()),
        Source("profile.json", "profile", profile_file()),
        Source("compile.json", "compile", compile_file()),
        Source("mutate.json", "mutate", mutate_file()),
    ]


VOID = {"meta", "link", "br", "input", "wbr"}


class Page(HTMLParser):
    """A page's elements, its text, and whether every tag is closed where it must be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.rows: list[list[str]] = []
        self.declared = False
        self.feed(text)
        self.close()
        assert not self.open
        assert self.declared

    def handle_decl(self, decl: str) -> None:
        self.declared = decl == "doctype html"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}>, line {self.getpos()[0]}"

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self.open):
            self.words.append(data)
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())

    def line(self, *starts: str) -> list[str]:
        """The one row of a table that begins so."""
        found = [row for row in self.rows if [w.strip() for w in row[: len(starts)]] == [*starts]]
        assert len(found) == 1, (starts, found)
        return [" ".join(word.split()) for word in found[0]]


@cache
def text_of_everything() -> str:
    return page.html(everything())


def whole() -> Page:
    return Page(text_of_everything())
