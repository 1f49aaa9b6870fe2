"""Reports of the tools of the CUDA side: places, threads, and addresses as tensor elements."""

from __future__ import annotations

import linecache
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from compare.debugging.findings.traces import WIDTH
from cuda_reference._compilers import CSRC
from cuda_reference._watch import Frame, unraveled
from triton_kernels.interpreter import Argument

Index = tuple[int, ...]
LONGEST = WIDTH - 4  # characters of a place together with its code


# ---- Memory ----


class SharedArray(NamedTuple):
    """A shared array of a block; ``item`` is the size of an element in bytes."""

    name: str
    low: int
    bytes: int
    item: int
    extents: Index


@dataclass
class Memory:
    """The tensors of a launch and its shared arrays, to explain addresses."""

    tensors: list[Argument] = field(default_factory=list)
    shared: list[SharedArray] = field(default_factory=list)

    def name_result(self, result: Argument) -> None:
        """Name a tensor that the function allocated, now that it is known to be a result. An
        argument that is returned keeps its name."""
        for at, known in enumerate(self.tensors):
            if known.low == result.low and known.name.startswith("the result of"):
                self.tensors[at] = result

    def argument(self, address: int, slack: int = 4096) -> Argument | None:
        """The tensor at an address, or the nearest one within ``slack`` bytes."""

        def distance(a: Argument) -> int:
            return _distance(address, a.low, a.high - a.low)

        near = min(self.tensors, key=distance, default=None)
        return near if near is not None and distance(near) <= slack else None

    def text(self, address: int) -> str:
        """An address in words: x[3, 5], tile[0][4], or its position beside a tensor."""
        array = min(self.shared, key=lambda a: _distance(address, a.low, a.bytes), default=None)
        if array is not None and _distance(address, array.low, array.bytes) <= 1024:
            element = (address - array.low) // max(1, array.item)
            return shared_text(array.name, unraveled(element, array.extents), array.extents)
        argument = self.argument(address)
        if argument is None:
            return f"at {address:#x}, which is near no tensor"
        if argument.low <= address < argument.high:
            at = argument.coordinates(argument.elements(_addresses(address)))
            if at is not None and not argument.outside(_addresses(address), 1).any():
                return f"{argument.name}[{', '.join(str(int(i[0])) for i in at)}]"
        return argument.describe(address)


def _distance(address: int, low: int, size: int) -> int:
    """The distance of an address from a range of memory; 0 inside."""
    return max(low - address, address - (low + size - 1), 0)


def _addresses(*each: int) -> Any:
    return torch.tensor(each, dtype=torch.int64).numpy()


def shared_text(name: str, index: Sequence[int], extents: Sequence[int] = ()) -> str:
    """An element of a shared array as in the source; if it is outside, with the array's size."""
    text = name + "".join(f"[{i}]" for i in index)
    if extents and not 0 <= index[0] < extents[0]:
        text += f", outside of {name}{''.join(f'[{n}]' for n in extents)}"
    return text


# ---- Places ----


class Site(NamedTuple):
    """The place of an action in a kernel.

    Attributes:
        role: the action: "read", "write", …, or empty.
        function, file, line: of the kernel, or of a function in its file that it called. A file of
            csrc is given as a path in csrc if it is known there.
        inner: the helper that it called for the action, with its own file and line; else empty.
        block, thread: None if the tool does not report them.
        calls: the lines of that file that led there, innermost first.
    """

    role: str
    function: str
    file: str
    line: int
    inner: str = ""
    block: Index | None = None
    thread: Index | None = None
    calls: tuple[int, ...] = ()

    @property
    def code(self) -> str:
        """The line of the source; empty if it cannot be read."""
        return linecache.getline(self.file, self.line).strip() if self.file else ""

    def lines(self) -> list[str]:
        """The report as lines of text."""
        path = os.path.relpath(self.file) if self.file else "an unknown line"
        if path.startswith(".."):
            path = Path(self.file).name if _is_inline(self.file) else self.file
        place = f"{path}:{self.line}" if self.line else path
        named = f" in {self.function}" if self.function else ""
        code = f": {self.code}" if self.code else ""
        line = f"{self.role + ' ' if self.role else ''}{place}{named}{code}"
        lines = [line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"]
        who = f"by {who_text(self.block, self.thread)}" if self.thread is not None else ""
        inner = f"inside {self.inner}" if self.inner else ""
        if who or inner:
            lines.append("  " + ", ".join(part for part in (who, inner) if part))
        return lines


def who_text(block: Index | None, thread: Index | None) -> str:
    """A thread of a launch, in words."""
    return f"block {block} thread {thread}"


def site(
    role: str, stack: Iterable[Frame], block: Index | None = None, thread: Index | None = None
) -> Site:
    """The place of an access from its call stack, innermost first: the line in the kernel's file,
    and the helper in another file that made the access."""
    frames = []
    for frame in stack:
        if re.search(r"call_body|run_threads", frame.function):
            if frame.machinery:
                break
            frame = frame._replace(function="")  # keep the innermost of inlined functions
        if frame.line and _source(frame.file):
            frames.append(frame)
    while len(frames) > 1 and (
        frames[-1].machinery or re.search(r"^$|(^|::)operator\(\)", frames[-1].function)
    ):
        frames.pop()  # the lambda of a launch
    if not frames:
        return Site(role, "", "", 0, "", block, thread)
    kernel, first = frames[-1], frames[0]
    # Functions in the kernel's file belong to the author; those in other files are helpers.
    own = next(frame for frame in frames if frame.file == kernel.file)
    name, inner = short_name(kernel.function), ""
    if own is not kernel and own.function:
        name = f"{short_name(own.function)} in {name}"
    if first is not own and not first.machinery:  # for example within atomicAdd
        called = f"{short_name(first.function)} at " if first.function else ""
        inner = f"{called}{Path(first.file).name}:{first.line}"
    file = _source(kernel.file)
    calls = [f.line for f in frames[frames.index(own) + 1 :] if f.file == kernel.file]
    return Site(role, name, file, own.line, inner, block, thread, tuple(calls))


_HEADERS = re.compile(
    r"/usr/(include|lib)|-packages/(torch|nvidia)/|/cuda[-\d.]*/(targets/[^/]+/)?include/"
)


def _source(file: str) -> str:
    """The readable path of a kernel's source; empty for a library's source."""
    ours = Path(file).parts[-3:-1] == ("cuda_reference", "csrc")  # perhaps of another checkout
    if not ours and Path(file).is_absolute() and Path(file).is_file():
        return "" if _HEADERS.search(file) and not _is_inline(file) else file
    return _sources().get(Path(file).name, "")


def _is_inline(file: str) -> bool:
    """Whether it is a source of load_inline in its cache."""
    return len(parts := Path(file).parts) > 4 and parts[-4] == "inline" and parts[-2] == "source"


def _sources() -> dict[str, str]:
    """Files of csrc by name: a cached library may have been built elsewhere from equal sources."""
    return {path.name: str(path) for path in CSRC.iterdir() if path.is_file()}


def short_name(function: str) -> str:
    """A function's name without return type and parameters: f<float>."""
    function = function.replace("(anonymous namespace)::", "")
    depth, start = 0, 0
    for at, c in enumerate(function):
        depth += {"<": 1, ">": -1}.get(c, 0)
        if depth == 0 and c == " ":
            start = at + 1
        if depth == 0 and c == "(" and at > start:
            return function[start:at]
    return function[start:]


# ---- Reports ----


@dataclass
class Report:
    """One report of a tool.

    Attributes:
        tool: its name.
        what: the fault and the memory concerned, in words.
        sites: the place; for a conflict both places.
        count: how many reports were merged into this one.
        raw: the tool's output, trimmed, if it could not be parsed.
    """

    tool: str
    what: str
    sites: list[Site] = field(default_factory=list)
    count: int = 1
    raw: str = ""

    def lines(self) -> list[str]:
        """The report as lines of text."""
        times = f" ({self.count} times)" if self.count > 1 else ""
        lines = [f"{self.tool}: {self.what}{times}"]
        for each in self.sites:
            lines += [f"  {line}" for line in each.lines()]
        lines += [f"  | {line}" for line in self.raw.splitlines()]
        return lines

    def to_dict(self) -> dict[str, Any]:
        """The entry of the JSON file."""
        sites = [{**s._asdict(), "code": s.code} for s in self.sites]
        return {**asdict(replace(self, sites=[])), "sites": sites}


def folded(reports: Iterable[Report]) -> list[Report]:
    """Merge reports of one tool about the same lines and kind into the first, with their number.
    Each line of a report is kept once."""
    reports_by_key: dict[Any, Report] = {}
    for report in reports:
        # An unrolled loop reads at many addresses of one line.
        report.sites = list(dict.fromkeys(report.sites))
        places = tuple((s.role, s.file, s.line) for s in report.sites)
        key = (report.tool, places or report.what, re.sub(r"[:,].*", "", report.what))
        if key in reports_by_key:
            reports_by_key[key].count += report.count
        else:
            reports_by_key[key] = report
    return list(reports_by_key.values())
