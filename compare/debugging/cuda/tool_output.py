"""Parsers of sanitizers' output: ASan, UBSan and TSan on the CPU, compute-sanitizer on the GPU.

Output that cannot be parsed is never dropped: it becomes a report with the tool's text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from compare.debugging.cuda.reports import (
    Index,
    Memory,
    Report,
    SharedArray,
    Site,
    folded,
    short_name,
    site,
)
from cuda_reference._watch import Frame

RAW = 12  # lines of an unparsed report


def _raw(lines: list[str]) -> str:
    more = [f"… {len(lines) - RAW} more lines"] if len(lines) > RAW else []
    return "\n".join(line.rstrip()[:200] for line in [*lines[:RAW], *more])


def _three(text: str) -> Index:
    x, y, z = map(int, re.findall(r"\d+", text)[:3])
    return x, y, z


# ---- The sanitizers of g++ and clang++ ----

_FRAME = re.compile(r"\s*#\d+ (?:0x[0-9a-f]+ in )?(.*?) (/[^ ]*?):(\d+)(?::\d+)?(?: \(.*)?$")
_DYING = re.compile(r"in kernel .*, block (\(.*?\)) thread (\(.*?\))")
_SHARED = re.compile(r"shared array (\w+) at 0x([0-9a-f]+), (\d+) bytes of (\d+):(.*)")


def _frames(lines: list[str]) -> list[Frame]:
    """The first call stack in the lines."""
    frames: list[Frame] = []
    for line in lines:
        match = _FRAME.match(line)
        if match:
            frames.append(Frame(match[1], match[2], int(match[3])))
        elif frames and not line.strip().startswith("#"):
            break
    return frames


def _dying(text: str, memory: Memory) -> tuple[Index | None, Index | None]:
    """The thread in which a sanitizer ended the process, and the shared arrays, from the host
    target's last output."""
    for name, low, size, item, extents in _SHARED.findall(text):
        shape = tuple(map(int, extents.split()))
        memory.shared.append(SharedArray(name, int(low, 16), int(size), int(item), shape))
    match = _DYING.search(text)
    return (_three(match[1]), _three(match[2])) if match else (None, None)


def address(tool: str, text: str, memory: Memory) -> list[Report]:
    """Reports of AddressSanitizer, and of the alignment checks that come with it."""
    return undefined(tool, text, memory)


def _deadly(tool: str, text: str, memory: Memory) -> list[Report]:
    """The report that ended the process: of ASan, or of a signal that any sanitizer caught."""
    start = re.search(r"^.*ERROR: \w+Sanitizer:? (\S+).*$", text, re.M)
    if start is None:
        return []
    block, thread = _dying(text, memory)
    lines = text[start.start() :].splitlines()
    kind = start[1]
    at = re.search(r"on (?:unknown )?address 0x([0-9a-f]+)", start[0])
    access = re.search(r"^(READ|WRITE) of size (\d+)", "\n".join(lines[:4]), re.M)
    signal = re.search(r"caused by a (READ|WRITE) memory access", text)
    verb = (access or signal or ["", "ACCESS"])[1].lower()
    stack = _frames(lines[1:])
    if not stack:
        return [Report(tool, f"{kind}, which could not be read", raw=_raw(lines))]
    if at is None or kind in ("SEGV", "BUS"):
        what = f"crash ({kind}), {verb} at {'an unknown address' if at is None else '0x' + at[1]}"
        return [Report(tool, what, [site(verb, stack, block, thread)])]
    size = f" of {access[2]} bytes" if access else ""
    words = "out-of-bounds" if re.search("overflow|underflow|poison", kind) else kind
    what = f"{words} {verb}{size}: {memory.text(int(at[1], 16))}"
    return [Report(tool, what, [site(verb, stack, block, thread)])]


def undefined(tool: str, text: str, memory: Memory) -> list[Report]:
    """Reports of UndefinedBehaviorSanitizer."""
    block, thread = _dying(text, memory)
    lines = text.splitlines()
    reports = []
    for number, line in enumerate(lines):
        match = re.match(r"(/.*?):(\d+)(?::\d+)?: runtime error: (.*)", line)
        if match is None:
            if "runtime error: " in line:
                reports.append(Report(tool, "a report", raw=_raw(lines[number:])))
            continue
        stack = _frames(lines[number + 1 :]) or [Frame("", match[1], int(match[2]))]
        what = match[3]
        misaligned = re.match(
            r"\S+ .*?misaligned address 0x([0-9a-f]+) for type '(?:const )?(?:struct )?(.*?)', "
            r"which requires (\d+) byte",
            what,
        )
        if misaligned:
            where = memory.text(int(misaligned[1], 16))
            kind = f"misaligned access to {misaligned[2]}"
            what = f"{kind}: {where} is no multiple of {misaligned[3]} bytes"
        reports.append(Report(tool, what, [site("", stack, block, thread)]))
    return folded([*reports, *_deadly(tool, text, memory)])


def thread(tool: str, text: str, memory: Memory) -> list[Report]:
    """Reports of ThreadSanitizer; the host target names its threads after CUDA's."""
    reports = []
    _dying(text, memory)
    deadly = _deadly(tool, text, memory)
    for part in re.split(r"^={10,}$", text, flags=re.M):
        start = re.search(r"WARNING: ThreadSanitizer: (.*?) \(pid", part)
        if start is None:
            continue
        names = dict(re.findall(r"Thread (T\d+) '(.*?)'", part))
        sites, at = [], 0
        lines = part.splitlines()
        for number, line in enumerate(lines):
            access = re.match(
                r"  (Previous )?(atomic )?(write|read) of size \d+ at 0x([0-9a-f]+) by "
                r"(?:thread (T\d+)|main thread)",
                line,
                re.I,
            )
            if access:
                at = at or int(access[4], 16)
                who = re.findall(r"\(.*?\)", names.get(access[5] or "", ""))
                role = f"{'earlier ' if access[1] else ''}{access[2] or ''}{access[3]}".lower()
                stack = _frames(lines[number + 1 :])
                numbers = map(_three, who) if len(who) == 2 else (None, None)
                sites.append(site(role, stack, *numbers))
        if len(sites) < 2 or not all(s.line for s in sites):
            reports.append(Report(tool, start[1], sites, raw=_raw(lines[1:])))
            continue
        array = re.search(r"Location is global '(?:.*::)?(\w+)' of size \d+ at 0x([0-9a-f]+)", part)
        known = array is None or any(s.name == array[1] for s in memory.shared)
        where = memory.text(at)
        if array and not known:
            where = f"shared array {array[1]}, byte {at - int(array[2], 16)}"
        kinds = " and ".join(dict.fromkeys(s.role.removeprefix("earlier ") for s in sites))
        order = "no __syncthreads() between" if array else "nothing orders them"
        reports.append(Report(tool, f"{start[1]}, {kinds}: {where}; {order}", sites))
    return folded([*reports, *deadly])


# ---- compute-sanitizer ----

# "at KERNEL+0x90 in file.cu:13" or "at 0x270 in /path/file.cu:34:KERNEL"; the line may be missing
_AT = re.compile(r"(?:at |Device Frame: ?)(.*)")
_PLACE = re.compile(
    r"(?P<f>.*?)(?:\+0x[0-9a-f]+)? in (?P<file>[^ ]*?):(?P<line>\d+)(?::(?P<k>.*))?$"
)


def _gpu_frame(text: str) -> Frame | None:
    text = re.sub(r"\s*\[\d+ hazards?\]$", "", text.strip())
    match = _PLACE.match(text)
    if match:
        return Frame(match["k"] or match["f"], match["file"], int(match["line"]))
    named = re.match(r"(?:0x[0-9a-f]+ in )?(.*?)(?:\+0x[0-9a-f]+)?$", text)
    return Frame(named[1], "", 0) if named and named[1] else None


def _gpu_site(role: str, lines: list[str], block: Index | None, thread: Index | None) -> Site:
    stack = [f for line in lines if (m := _AT.match(line)) and (f := _gpu_frame(m[1]))]
    place = site(role, stack, block, thread)
    if not place.function and stack:  # no line of our sources: report the name at least
        place = place._replace(function=short_name(stack[-1].function))
    return place


_ECHOES = ("Program hit", "Error: process didn't terminate successfully")


def compute_sanitizer(tool: str, text: str, memory: Memory) -> list[Report]:
    """Reports of memcheck, racecheck, initcheck and synccheck."""
    reports = list(_gpu_reports(tool, text, memory))
    # After a failed launch all later calls fail, too; those reports are dropped.
    real = [r for r in reports if not r.what.startswith(_ECHOES)]
    return folded(real or reports)


def _gpu_reports(tool: str, text: str, memory: Memory) -> Iterator[Report]:
    marked = [line[10:].rstrip() for line in text.splitlines() if line.startswith("=========")]
    starts = [
        i
        for i, line in enumerate(marked)
        if re.match(r"\S", line.removeprefix(" ")) and not line.startswith("  ")
    ]
    for start, end in zip(starts, [*starts[1:], len(marked)]):
        head, body = marked[start].strip(), [line.strip() for line in marked[start + 1 : end]]
        if re.match(r"COMPUTE-SANITIZER|\w* ?SUMMARY|Target application|This tool is", head):
            continue
        reader = next((r for pattern, r in _READERS if re.search(pattern, head)), None)
        report = reader(tool, head, body, memory) if reader else None
        yield report or Report(tool, head, raw=_raw([line for line in body if line]))


def _who(body: list[str]) -> tuple[Index | None, Index | None]:
    for line in body:
        match = re.match(r"by thread (\(.*?\)) in block (\(.*?\))", line)
        if match:
            return _three(match[2]), _three(match[1])
    return None, None


def _gpu_address(body: list[str]) -> tuple[int, str] | None:
    for line in body:
        match = re.match(r"(?:Address|Access(?: to| at)?) (0x[0-9a-f]+)(.*)", line)
        if match:
            return int(match[1], 16), match[2].strip()
    return None


def _access(tool: str, head: str, body: list[str], memory: Memory) -> Report | None:
    match = re.search(r"(Invalid|Uninitialized) (\S+) (?:memory )?(\w+) of size (\d+)", head)
    at = _gpu_address(body)
    if match is None or at is None:
        return None
    space, verb = match[2].strip("_"), match[3]
    # Shared and local addresses are offsets in their own windows.
    where = memory.text(at[0]) if space == "global" else f"{space} memory at {at[0]:#x}"
    kind = "read of memory that nobody wrote" if match[1] == "Uninitialized" else f"invalid {verb}"
    if "out of bounds" in at[1]:
        kind = f"out-of-bounds {verb}"
    if "misaligned" in at[1]:
        kind = f"misaligned {verb}"
    place = _gpu_site(verb, body, *_who(body))
    return Report(tool, f"{kind} of {match[4]} bytes: {where}", [place])


def _race(tool: str, head: str, body: list[str], memory: Memory) -> Report | None:
    sites, count = [], 0
    for line in [head, *body]:
        match = re.search(r"(?:between|and) (Write|Read|Atomic) access (at .*)", line, re.I)
        if match is None:
            continue
        parts = re.split(r" and (?=(?:Write|Read|Atomic) access at)", match[2], flags=re.I)
        sites.append(_gpu_site(match[1].lower(), [parts[0]], None, None))
        for part in parts[1:]:
            verb, _, rest = part.partition(" access ")
            sites.append(_gpu_site(verb.lower(), [rest], None, None))
        hazards = re.search(r"\[(\d+) hazards?\]", line)
        count += int(hazards[1]) if hazards else 0
    if len(sites) < 2:
        return None
    kinds = " and ".join(dict.fromkeys(s.role for s in sites))
    return Report(tool, f"data race, {kinds}: shared memory", sites, max(1, count))


def _barrier(tool: str, head: str, body: list[str], memory: Memory) -> Report | None:
    place = _gpu_site("", body, *_who(body))
    detail = head.partition("error detected")[2].strip(" .")
    return Report(tool, f"barrier: {detail.lower() or 'wrong use'}", [place])


_Reader = Callable[[str, str, list[str], Memory], Report | None]
_READERS: list[tuple[str, _Reader]] = [
    (r"(Invalid|Uninitialized) \S+ (memory )?\w+ of size", _access),
    (r"Race reported between", _race),
    (r"Barrier error detected", _barrier),
]
