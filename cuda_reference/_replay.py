"""A call of a launcher on CPU tensors once more, in a process of its own and under a tool.

The tool is one of the sanitizers of :mod:`cuda_reference._compilers`, or "watch":
:mod:`cuda_reference._watch`.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cuda_reference import _compilers, _guards, _watch
from cuda_reference._guards import Given

if TYPE_CHECKING:
    from cuda_reference._on_host import OnHost

KINDS = ("address", "thread", "undefined", "watch")
_CHILD = "from cuda_reference import _loading, _replay; _replay.main(_loading.again)"
_SHOWN = 4  # findings in an error
_OUTER = re.compile("__invoke|_M_invoke|_Function_handler|std::function|run_threads")
_WORDS = {
    "unwritten shared": "shared memory is read before it was written",
    "outside shared": "out-of-bounds",
    "outside": "out-of-bounds",
    "clash": "two threads write different values, nothing orders them",
    "read after write": "reads what another thread wrote, nothing orders them",
    "write after read": "overwrites what another thread read, nothing orders them",
}


# ---- In the process that calls ----


class Replay:
    """What a call under a tool led to.

    Attributes:
        findings: in words, of one or more lines each; empty if there was nothing to find.
        error: what the call raised, or how its process ended; None if it returned.
        result: what it returned.
    """

    def __init__(self, launcher: OnHost, values: Sequence[Any], kind: str) -> None:
        given = launcher.given(values)
        job = {
            "launcher": launcher.described(),
            "kind": kind,
            "values": [None if isinstance(value, Tensor) else value for value in values],
            "places": [place for place, value in enumerate(values) if isinstance(value, Tensor)],
            "groups": [_packed(group, given) for group in _guards.grouped(given)],
        }
        with tempfile.TemporaryDirectory() as folder:
            file, report = Path(folder) / "job", Path(folder) / "report"
            file.write_bytes(pickle.dumps(job))
            ran = subprocess.run(
                [sys.executable, "-c", _CHILD, str(file), str(report)],
                env=_environment(kind),
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
            )
            said = pickle.loads(report.read_bytes()) if report.exists() else {}
        self.error: str | None = said.get("error")
        self.findings: list[str] = said.get("findings", [])
        self._outside: int = said.get("outside", 0)  # the first of them
        self.result: Any = said.get("result")
        self._written: list[tuple[int, bytes]] = said.get("written", [])
        self._given = given
        if kind != "watch":
            self.findings += _sanitizers_words(ran.stdout + ran.stderr, launcher.sources, given)
        if not said and not self.findings:
            how = signal.Signals(-ran.returncode).name if ran.returncode < 0 else ran.returncode
            tail = "\n".join(ran.stderr.strip().splitlines()[-6:])
            self.error = f"the process under {kind} ended with {how}\n{tail}".rstrip()

    def copy_back(self) -> None:
        """What the call wrote, into the tensors that it was given."""
        for place, content in self._written:
            ctypes.memmove(self._given[place].tensor.data_ptr(), content, len(content))

    def outside(self) -> list[str]:
        """Accesses outside of tensors and shared arrays, of a watched call."""
        return self.findings[: min(self._outside, _SHOWN)]

    def text(self) -> str:
        """Findings and error in words."""
        more = len(self.findings) - _SHOWN
        parts = self.findings[:_SHOWN] + ([f"… {more} more"] if more > 0 else [])
        return "\n".join(parts + ([self.error] if self.error else []))


def _packed(group: _guards.Group, given: Sequence[Given]) -> dict[str, Any]:
    """A group as it goes to the other process; gaps between its tensors do not."""
    low = group.low - group.low % 64
    return {
        "size": group.high - low,
        "members": [
            {
                "place": place,
                "offset": given[place].tensor.data_ptr() - low if given[place].bytes else 0,
                "shape": tuple(given[place].tensor.shape),
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


def _sanitizers_words(said: str, files: Collection[str], given: Sequence[Given]) -> list[str]:
    """A sanitizer's reports: the line that says what, the places in the source, the thread."""
    heads = r"^.*(?:ERROR: AddressSanitizer|WARNING: ThreadSanitizer|runtime error): ?.*$"
    starts = list(re.finditer(heads, said, re.M))
    ends = [*(start.start() for start in starts[1:]), len(said)]
    who = re.search(r"^in kernel .*$", said, re.M)
    addresses = [int(at, 16) for at in re.findall(r"^a tensor at (0x[0-9a-f]+)$", said, re.M)]
    findings: dict[str, None] = {}
    for start, end in zip(starts, ends):
        lines = [re.sub(r"^(==\d+==|.*?(?=runtime error))", "", start[0]).strip()]
        lines[0] = re.sub(r" \(pid=\d+\)$| at pc 0x.*", "", lines[0])
        at = re.search(r"on address (0x[0-9a-f]+)", lines[0])
        if at and len(addresses) == len(given):
            lines[0] += f": {_guards.place_text(int(at[1], 16), addresses, given)}"
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


# ---- In the process of the call ----


def unpacked(groups: Iterable[dict[str, Any]]) -> dict[int, Tensor]:
    """Number → tensor; those of a group share memory that is just as large as they need."""
    made: dict[int, Tensor] = {}
    for group in groups:
        memory = torch.empty(group["size"], dtype=torch.uint8)
        for member in group["members"]:
            dtype, offset = member["dtype"], member["offset"]
            tensor = torch.empty(0, dtype=dtype)
            strides = torch.empty(member["shape"], device="meta").stride()
            storage = memory.untyped_storage()
            tensor.set_(storage, offset // dtype.itemsize, member["shape"], strides)
            ctypes.memmove(tensor.data_ptr(), member["content"], len(member["content"]))
            made[member["place"]] = tensor
    return made


def _run(job: dict[str, Any], again: Callable[[dict[str, Any]], OnHost]) -> dict[str, Any]:
    """The call, and what came of it."""
    launcher = again(job["launcher"])
    values = list(job["values"])
    for number, tensor in unpacked(job["groups"]).items():
        values[job["places"][number]] = tensor
    found: dict[str, Any] = {"findings": [], "error": None}
    if job["kind"] == "watch":
        found |= _watched(launcher, values)
    else:
        for each in launcher.given(values):
            print(f"a tensor at {each.tensor.data_ptr():#x}", flush=True)
        try:
            found["result"] = launcher.on_host(values, None)
        except RuntimeError as error:
            found["error"] = str(error)
    found["written"] = [
        (place, ctypes.string_at(each.tensor.data_ptr(), each.bytes))
        for place, each in enumerate(launcher.given(values))
        if each.written
    ]
    return found


def _watched(launcher: OnHost, values: Sequence[Any]) -> dict[str, Any]:
    given = launcher.given(values)
    library = launcher.library("host")
    watch, guards = _watch.Watch(library), _guards.Guards(given)
    watch.forget()
    everywhere = [guards]

    def also(new: _guards.Guards, written: bool) -> None:
        everywhere.append(new)
        _watch_guards(watch, new, _watch.WRITTEN if written else _watch.UNWRITTEN)

    _watch_guards(watch, guards, _watch.WRITTEN)
    launcher.watch_also(also)
    status = launcher.launch("host", values, guards.addresses)
    status = library.crosscheck_crashed() or status
    error = str(launcher.failure(library, status, values)) if status else None
    findings = list(watch.findings())
    watch.resolve(a for f in findings for a in (f.here, f.other) if a is not None)
    findings.sort(key=lambda finding: not finding.kind.startswith("outside"))
    outside = sum(finding.kind.startswith("outside") for finding in findings)
    addresses = [address for each in everywhere for address in each.addresses]
    tensors = [tensor for each in everywhere for tensor in each.given]
    where = partial(_guards.place_text, addresses=addresses, given=tensors)
    told = [_told(finding, watch, where, launcher) for finding in findings]
    guards.copy_back()
    result = None if status else launcher.result()
    return {"findings": told, "outside": outside, "error": error, "result": result}


def _watch_guards(watch: _watch.Watch, guards: _guards.Guards, state: int) -> None:
    """Watches the memory of guards, whose tensors are in that state."""
    memories = {mapping.low: _watch.Memory(_guards.buffer(mapping)) for mapping in guards.mappings}
    for address, each in zip(guards.addresses, guards.given):
        for low, memory in memories.items():
            if low <= address < low + memory.buffer.numel() and each.bytes:
                memory.state[address - low : address - low + each.bytes] = state
    for memory in memories.values():
        watch.add(memory)


def _told(
    finding: _watch.Finding, watch: _watch.Watch, place: Callable[[int], str], launcher: OnHost
) -> str:
    verb = "write" if finding.write else "read"
    where = place(finding.address)
    words = _WORDS[finding.kind]
    if finding.shared:
        name, index, extents = finding.shared
        where = name + "".join(f"[{i}]" for i in index)
        if finding.kind == "outside shared":
            where += f", outside of {name}{''.join(f'[{n}]' for n in extents)}"
    elif where.endswith("declared const") and finding.kind == "outside":
        words = "unexpected"
    if finding.kind in ("outside", "outside shared"):
        words = f"{words} {verb} of {finding.size} bytes"
    times = f" ({finding.times} times)" if finding.times > 1 else ""
    lines = [f"{words}: {where}{times}"]
    for role, access in ((verb, finding.here), ("the other", finding.other)):
        if access is not None:
            lines += _place(role, access, watch, launcher)
    return "\n".join(lines)


def _place(
    role: str, access: _watch.Access, watch: _watch.Watch, launcher: OnHost
) -> Iterator[str]:
    """Kernel, block, thread, and the line of the source."""
    stack = list(itertools.takewhile(lambda f: not _OUTER.search(f.function), watch.stack(access)))
    files = launcher.sources
    frames = [frame for frame in stack if Path(frame.file).name in files]
    while len(frames) > 1 and re.search(r"operator\(\)", frames[-1].function):
        frames.pop()  # LAUNCH's lambda
    who = f"block {access.block}, thread {access.thread}"
    if not frames:
        yield f"  {role} by {who}"
        return
    kernel = re.sub(r"^(?:\w+ )*(?=\w+[<(])|[<(].*", "", frames[-1].function)
    file = Path(frames[0].file).name
    code = files[file].splitlines()[frames[0].line - 1 : frames[0].line]
    yield f"  {role} by kernel {kernel}, {who}"
    yield f"    {file}:{frames[0].line}: {''.join(code).strip()}"


def main(again: Callable[[dict[str, Any]], OnHost]) -> None:
    """The whole of that process: a job's file, and one for the report.

    ``again`` makes what is to be called of its description.
    """
    job = pickle.loads(Path(sys.argv[1]).read_bytes())
    Path(sys.argv[2]).write_bytes(pickle.dumps(_run(job, again)))
