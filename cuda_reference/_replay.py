"""Repeats a call on CPU tensors in another process, under a tool.

The tool is one of the sanitizers of :mod:`cuda_reference._compilers`, or "watch":
:mod:`cuda_reference._watch`. The process runs :mod:`cuda_reference._replayed`.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from cuda_reference import _compilers, _guards
from cuda_reference._guards import Given
from cuda_reference._torch_calls import span

if TYPE_CHECKING:
    from cuda_reference._on_host import OnHost

KINDS = ("address", "thread", "undefined", "watch")
_asked: contextvars.ContextVar[str | None] = contextvars.ContextVar("sanitize", default=None)
_recorder: contextvars.ContextVar[Recorder | None] = contextvars.ContextVar(
    "recorder", default=None
)
_SHOWN = 4  # the most findings in an error


@contextlib.contextmanager
def under(kind: str) -> Iterator[None]:
    """Inside this context every call on CPU tensors runs under a tool, as by ``sanitize=kind``."""
    token = _asked.set(kind)
    try:
        yield
    finally:
        _asked.reset(token)


def asked() -> str | None:
    """The tool of the innermost :func:`under`, or None."""
    return _asked.get()


class Recorder(Protocol):
    """An object whose methods are called at every call on CPU tensors."""

    def begin(self, call: OnHost, values: Sequence[Any]) -> None:
        """Called before the call."""

    def end(self, result: Any) -> None:
        """Called after the call, unless it raised."""


@contextlib.contextmanager
def recorded_by(recorder: Recorder) -> Iterator[None]:
    """Inside this context the recorder's methods are called."""
    token = _recorder.set(recorder)
    try:
        yield
    finally:
        _recorder.reset(token)


def recorder() -> Recorder | None:
    """The recorder of the innermost :func:`recorded_by`, or None."""
    return _recorder.get()


class Replay:
    """A call that is repeated under a tool, with its outcome.

    Attributes:
        findings: the tool's findings, as texts of one or more lines.
        error: the call's error, or how its process ended; None if the call returned.
        result: the call's result.
    """

    def __init__(self, launcher: OnHost, values: Sequence[Any], kind: str) -> None:
        given = launcher.given(values)
        job = {
            "launcher": launcher.described(),
            "kind": kind,
            "values": [None if isinstance(value, Tensor) else value for value in values],
            "places": [place for place, value in enumerate(values) if isinstance(value, Tensor)],
            "groups": packed(given),
        }
        with tempfile.TemporaryDirectory() as folder:
            file, report = Path(folder) / "job", Path(folder) / "report"
            file.write_bytes(pickle.dumps(job))
            ran = subprocess.run(
                [sys.executable, "-m", f"{__name__}ed", str(file), str(report)],
                env=_environment(kind),
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
            )
            said = pickle.loads(report.read_bytes()) if report.exists() else {}
        self.error: str | None = said.get("error")
        self.findings: list[str] = said.get("findings", [])
        self._outside: int = said.get("outside", 0)  # how many of the first findings are outside
        self.result: Any = said.get("result")
        self._written: list[tuple[int, bytes]] = said.get("written", [])
        self._given = given
        if kind != "watch":
            self.findings += _sanitizers_words(ran.stdout + ran.stderr, launcher.sources)
        if not said and not self.findings:
            how = signal.Signals(-ran.returncode).name if ran.returncode < 0 else ran.returncode
            tail = "\n".join(ran.stderr.strip().splitlines()[-6:])
            self.error = f"the process under {kind} ended with {how}\n{tail}".rstrip()

    def copy_back(self) -> None:
        """Copy what the call wrote to the given tensors."""
        for place, content in self._written:
            ctypes.memmove(self._given[place].tensor.data_ptr(), content, len(content))

    def outside(self) -> list[str]:
        """The findings about accesses outside of tensors and shared arrays, of a watched call."""
        return self.findings[: min(self._outside, _SHOWN)]

    def text(self) -> str:
        """The findings and the error as text."""
        more = len(self.findings) - _SHOWN
        parts = self.findings[:_SHOWN] + ([f"… {more} more"] if more > 0 else [])
        return "\n".join(parts + ([self.error] if self.error else []))


def packed(given: Sequence[Given]) -> list[dict[str, Any]]:
    """Tensors as plain data, for another process to unpack."""
    return [_packed(group, given) for group in _guards.grouped(given)]


def _packed(group: _guards.Group, given: Sequence[Given]) -> dict[str, Any]:
    """A group of tensors as plain data, without the gaps between them."""
    low = group.low - group.low % 64
    return {
        "size": group.high - low,
        "members": [
            {
                "place": place,
                "offset": given[place].tensor.data_ptr() - low if given[place].bytes else 0,
                "shape": tuple(given[place].argument.shape),
                "strides": given[place].argument.stride(),
                "dtype": given[place].tensor.dtype,
                "content": ctypes.string_at(given[place].tensor.data_ptr(), given[place].bytes),
            }
            for place in group.members
        ],
    }


def _environment(kind: str) -> dict[str, str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    if kind == "watch":
        return {**environment, "CROSSCHECK_SANITIZE": kind}
    return {**environment, **_compilers.sanitizer_environment(kind)}


_FRAME = re.compile(
    r"\s*#\d+ (?:0x[0-9a-f]+ in )?(.*?) ([^ ]*/[^ ]*?):(\d+)(?::\d+)?(?: \(.*)?$", re.M
)


def say_where(address: int, given: Given) -> None:
    """Print a tensor's address and layout, for the parent process, which reads the output."""
    t = given.argument
    layout = [str(t.dtype).removeprefix("torch."), list(t.shape), list(t.stride()), given.written]
    print(f"a tensor at {address:#x}: {json.dumps([given.name, *layout])}", flush=True)


def _said_where(said: str) -> Iterator[tuple[int, Given]]:
    for at, described in re.findall(r"^a tensor at (0x[0-9a-f]+): (.*)$", said, re.M):
        name, dtype, shape, strides, written = json.loads(described)
        layout = torch.empty_strided(shape, strides, dtype=getattr(torch, dtype), device="meta")
        yield int(at, 16), span(name, layout)._replace(written=written)


def _sanitizers_words(said: str, files: Collection[str]) -> list[str]:
    """A sanitizer's reports as texts: the kind of fault, the places in the source, the thread."""
    heads = r"^.*(?:ERROR: AddressSanitizer|WARNING: ThreadSanitizer|runtime error): ?.*$"
    starts = list(re.finditer(heads, said, re.M))
    ends = [*(start.start() for start in starts[1:]), len(said)]
    who = re.search(r"^in kernel .*$", said, re.M)
    tensors = list(_said_where(said))
    findings: dict[str, None] = {}
    for start, end in zip(starts, ends):
        lines = [re.sub(r"^(==\d+==|.*?(?=runtime error))", "", start[0]).strip()]
        lines[0] = re.sub(r" \(pid=\d+\)$| at pc 0x.*", "", lines[0])
        at = re.search(r"on address (0x[0-9a-f]+)", lines[0])
        if at and tensors:
            lines[0] += f": {_guards.place_text(int(at[1], 16), *zip(*tensors))}"
        own = re.match(r".*?/([^/:]+):(\d+)", start[0])
        places = [f"{own[1]}:{own[2]}"] if own and own[1] in files else []
        for frame in _FRAME.finditer(said, start.start(), end):
            file = Path(frame[2]).name
            if file in files and "operator()" not in frame[1]:
                places.append(f"{file}:{frame[3]} in {frame[1].partition('(')[0]}")
        lines += [f"  {place}" for place in dict.fromkeys(places)][:_SHOWN]
        lines += [f"  {who[0]}"] if who and "Thread" not in lines[0] else []
        findings["\n".join(lines)] = None
    return list(findings)
