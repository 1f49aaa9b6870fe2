"""The CUDA side of debug: one case under the available tools, each in its own process, with the
findings in a form that fits a screen."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from compare.cases import Case
from compare.checking.implementations import unavailable
from compare.debugging.cuda import tool_output
from compare.debugging.cuda.captured import of_target
from compare.debugging.cuda.findings import CudaFindings, Step, WrongResult
from compare.debugging.cuda.reports import (
    Memory,
    Report,
    folded,
    shared_text,
    site,
)
from compare.debugging.findings.placed import Placed
from cuda_reference import BuildError, _compilers
from cuda_reference._watch import Frame
from triton_kernels.interpreter import Argument

HOST_TOOLS = ("values", "initcheck", "address", "undefined", "thread")
GPU_TOOLS = ("values", "memcheck", "racecheck", "initcheck", "synccheck")
_READ = {
    "address": tool_output.address,
    "undefined": tool_output.undefined,
    "thread": tool_output.thread,
}
# These need no setup at process start and share a process; the last may end it.
_TOGETHER = ("values", "initcheck", "undefined")
_NOT_HERE = "unexpected memory mapping"  # TSan fails if the OS randomises addresses too widely


# ---- What there is ----


def missing(mode: str) -> dict[str, str]:
    """Tool → why it cannot run in a mode here; the mode's other tools can."""
    tools = HOST_TOOLS if mode == "cuda-host" else GPU_TOOLS
    reason = unavailable().get(mode)
    if reason:
        return dict.fromkeys(tools, reason)
    if mode == "cuda-gpu":
        reason = None if compute_sanitizer() else "compute-sanitizer is not on PATH or in CUDA_HOME"
        return dict.fromkeys(GPU_TOOLS[1:], reason) if reason else {}
    reasons = {}
    for tool in ("address", "thread"):
        try:
            _compilers.sanitizer_environment(tool)
        except BuildError as error:
            reasons[tool] = str(error)
    return reasons


def compute_sanitizer() -> str | None:
    """NVIDIA's program, on PATH or in a CUDA toolkit."""
    if path := shutil.which("compute-sanitizer"):
        return path
    for toolkit in _compilers._toolkits():
        for folder in ("bin", "compute-sanitizer"):
            program = toolkit / folder / "compute-sanitizer"
            if os.access(program, os.X_OK):
                return str(program)
    return None


# ---- Running ----


def investigate(case: Case, variant: str | None, wanted: dict[str, list[str]]) -> CudaFindings:
    """Run a case under tools, given as mode → names."""
    mode = next(iter(wanted)) if len(wanted) == 1 else "cuda"
    name = f"{mode}/{variant}" if variant else mode
    packed = of_target(case) if ":" in case.op else None
    if packed is not None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "call"
            file.write_bytes(packed)
            return run({"call": str(file)}, f"{case}, {name}", wanted)
    subject = {"case": asdict(case), "mode": mode, "variant": variant}
    return run(subject, f"{case}, {name}", wanted)


def run(subject: dict[str, Any], title: str, wanted: dict[str, list[str]]) -> CudaFindings:
    """Run a case or a call, as a job describes it, under tools, given as mode → names."""
    findings = CudaFindings(title)
    jobs = [(each, group) for each, tools in wanted.items() for group in _grouped(each, tools)]
    # The GPU's tools run one after another, because they share it.
    workers = min(3, os.cpu_count() or 1) if "cuda-gpu" not in wanted else 1
    with (
        _Waiting(jobs) as waiting,
        tempfile.TemporaryDirectory() as folder,
        ThreadPoolExecutor(workers) as pool,
    ):
        futures = [
            pool.submit(_run, subject, each, tools, Path(folder) / f"{i}.jsonl")
            for i, (each, tools) in enumerate(jobs)
        ]
        try:
            for (each, tools), future in zip(jobs, futures):
                for step in future.result():
                    findings.add(each, step)
                waiting.done(each, tools)
        except KeyboardInterrupt:  # the child processes get it, too
            findings.partial = True
            pool.shutdown(cancel_futures=True)
    return findings


class _Waiting:
    """Shows the tools that are not done yet on a terminal's stderr."""

    def __init__(self, jobs: list[tuple[str, list[str]]]) -> None:
        self._left = [(mode, tool) for mode, tools in jobs for tool in tools]
        console = Console(stderr=True)
        self._status = console.status(self._text()) if console.is_terminal else None

    def _text(self) -> str:
        names = ", ".join(f"{mode.removeprefix('cuda-')} {tool}" for mode, tool in self._left)
        return f"running {names}; Ctrl-C ends it"

    def done(self, mode: str, tools: list[str]) -> None:
        """Mark these tools as done."""
        self._left = [each for each in self._left if each[0] != mode or each[1] not in tools]
        if self._status is not None:
            self._status.update(self._text())

    def __enter__(self) -> _Waiting:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._status is not None:
            self._status.stop()


def _grouped(mode: str, tools: list[str]) -> Iterator[list[str]]:
    if mode == "cuda-gpu":
        yield from ([tool] for tool in tools)
        return
    together = [tool for tool in _TOGETHER if tool in tools]
    if together:
        yield together
    yield from ([tool] for tool in tools if tool not in _TOGETHER)


def _run(subject: dict[str, Any], mode: str, tools: list[str], report: Path) -> list[Step]:
    """The findings of the tools of one process."""
    on_gpu = mode == "cuda-gpu"
    # Kernels from elsewhere start a process per call themselves.
    own = ":" in subject.get("case", {}).get("op", "")
    steps = ["gpu"] if on_gpu and tools != ["values"] else tools
    job = {**subject, "mode": mode, "steps": steps}
    command = [sys.executable, "-m", "compare.debugging.cuda.process"]
    command.append(json.dumps({**job, "report": str(report)}))
    environment = {**os.environ, "UBSAN_OPTIONS": "print_stacktrace=1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [*sys.path]))
    environment.pop("CROSSCHECK_SANITIZE", None)
    if steps == ["gpu"]:
        # One allocation per tensor, so that the tool knows its end.
        environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
        options = ["--tool", tools[0], "--show-backtrace", "device"]
        options += ["--report-api-errors", "no"] if tools[0] == "memcheck" else []
        command = [compute_sanitizer() or "compute-sanitizer", *options, *command]
    elif tools[0] in ("address", "thread") and not own:
        environment |= _compilers.sanitizer_environment(tools[0])
    ran = subprocess.run(
        command, env=environment, capture_output=True, text=True, errors="replace", check=False
    )
    lines = report.read_text().splitlines() if report.exists() else []
    events = [json.loads(line) for line in lines]
    begun = max(1, sum(event["event"] == "begin" for event in events))
    reports = list(_steps(tools[:begun], steps, events, ran))
    if begun < len(tools):  # a tool ended the process
        reports += _run(subject, mode, tools[begun:], report.with_suffix(".more.jsonl"))
    return reports


def _steps(
    tools: list[str],
    steps: list[str],
    events: list[dict[str, Any]],
    ran: subprocess.CompletedProcess[str],
) -> Iterator[Step]:
    text = ran.stdout + ran.stderr
    if _NOT_HERE in text:
        reason = "ThreadSanitizer cannot live with this kernel's address randomisation"
        yield Step(tools[0], missing=f"{reason}: sysctl vm.mmap_rnd_bits=28 would let it")
        return
    for tool, name in zip(tools, steps):
        own = _of_step(events, name)
        step = Step(tool)
        memory = _read_events(step, own)
        ended = any(e["event"] == "end" for e in own)
        if name == "gpu":
            step.reports += tool_output.compute_sanitizer(tool, text, memory)
        elif name in _READ:
            step.reports += _READ[name](tool, "" if ended and name != "thread" else text, memory)
        errors = [e for e in own if e["event"] == "error"]
        if errors and (not step.reports or errors[0]["build"]):
            first, *rest = errors[0]["text"].splitlines()
            step.reports.append(Report(tool, first, raw="\n".join(rest)))
        if not ended and not step.reports:
            how = f"status {ran.returncode}"
            if ran.returncode < 0:
                how = signal.Signals(-ran.returncode).name
            tail = "\n".join(text.strip().splitlines()[-tool_output.RAW :])
            step.reports.append(Report(tool, f"the process ended with {how}", raw=tail))
        step.reports = folded(step.reports)
        yield step


def _of_step(events: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    own, on = [], False
    for event in events:
        if event["event"] == "begin":
            on = event["step"] == name
        if on:
            own.append(event)
    return own


# ---- Reading what the child wrote ----


def _read_events(step: Step, events: Iterable[dict[str, Any]]) -> Memory:
    """Fill a step. Returns the tensors and shared arrays of its last launch."""
    memory = Memory()
    followed: list[dict[str, Any]] = []
    for event in map(dict, events):
        kind = event.pop("event")
        if kind == "launch":
            memory = Memory()
        elif kind == "tensor":
            memory.tensors.append(Argument(event["name"], Placed(event)))
        elif kind == "result":
            memory.name_result(Argument(event["name"], Placed(event)))
        elif kind == "values" and event["problem"]:
            step.wrong.append(WrongResult(**event))
        elif kind == "values" and event.get("outside"):
            step.reports.append(
                Report(step.tool, "wrote outside its output; the output itself is right")
            )
        elif kind == "orders":
            step.same_in_both_orders = event["same"]
        elif kind == "finding":
            step.reports.append(_watched(step.tool, event, memory))
        elif kind == "worst":
            step.worst, step.never = tuple(event["index"]), event["never"]
            step.output = event.get("name", "out")
            step.stored = event["stored"] and _site("", event["stored"])
            step.beside = event.get("beside") and _site("", event["beside"])
        elif kind == "followed":
            followed.append(event)
    step.follow(followed, memory)
    return memory


def _site(role: str, told: dict[str, Any]) -> Any:
    stack = [Frame(*frame) for frame in told["stack"]]
    return site(role, stack, tuple(told["block"]), tuple(told["thread"]))


def _watched(tool: str, event: dict[str, Any], memory: Memory) -> Report:
    """A report from a watched run."""
    kind, verb = event["kind"], "write" if event["write"] else "read"
    where = memory.text(event["address"])
    if event["shared"]:
        where = shared_text(*event["shared"])
    size = f"{event['size']} bytes"
    what = {
        "unwritten shared": f"shared memory read before it was written: {where}",
        "outside shared": f"out-of-bounds {verb} of {size}: {where}",
        "unwritten": f"output read before it was written: {where}",
        "outside": f"out-of-bounds {verb} of {size}: {where}",
        "clash": f"two threads write different values, nothing orders them: {where}",
        "read after write": f"reads what another thread wrote, nothing orders them: {where}",
        "write after read": f"overwrites what another thread read, nothing orders them: {where}",
    }[kind]
    sites = [_site(verb, event["here"])]
    if event["other"]:
        sites.append(
            _site("earlier read" if kind == "write after read" else "earlier write", event["other"])
        )
    return Report(tool, what, sites, event["times"])
