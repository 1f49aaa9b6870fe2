"""The process of :mod:`cuda_reference._replay` in which a call is repeated."""

from __future__ import annotations

import ctypes
import itertools
import pickle
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cuda_reference import _guards, _replay, _watch
from cuda_reference._loading import again
from cuda_reference._on_host import OnHost
from cuda_reference._torch_calls import Made

_WORDS = {
    "unwritten shared": "shared memory is read before it was written",
    "outside shared": "out-of-bounds",
    "outside": "out-of-bounds",
    "clash": "two threads write different values, nothing orders them",
    "read after write": "reads what another thread wrote, nothing orders them",
    "write after read": "overwrites what another thread read, nothing orders them",
}


def _outer(frame: _watch.Frame) -> bool:
    """Whether a frame belongs to the code that runs kernels. If that code is inlined, frames of
    places in it have its name, too."""
    return frame.machinery and re.search("call_body|run_threads", frame.function) is not None


def unpacked(groups: Iterable[dict[str, Any]]) -> dict[int, Tensor]:
    """Index → tensor. The tensors of a group share memory of exactly the needed size."""
    made: dict[int, Tensor] = {}
    for group in groups:
        memory = torch.empty(group["size"], dtype=torch.uint8)
        for member in group["members"]:
            dtype, offset = member["dtype"], member["offset"]
            tensor = torch.empty(0, dtype=dtype)
            storage = memory.untyped_storage()
            tensor.set_(storage, offset // dtype.itemsize, member["shape"], member["strides"])
            ctypes.memmove(tensor.data_ptr(), member["content"], len(member["content"]))
            made[member["place"]] = tensor
    return made


def _run(job: dict[str, Any]) -> dict[str, Any]:
    """Run the call, and return its outcome."""
    launcher = again(job["launcher"])
    values = list(job["values"])
    for number, tensor in unpacked(job["groups"]).items():
        values[job["places"][number]] = tensor
    outcome: dict[str, Any] = {"findings": [], "error": None}
    if job["kind"] == "watch":
        outcome |= _watched(launcher, values)
    else:
        for each in launcher.given(values):
            _replay.say_where(each.tensor.data_ptr(), each)
        if job["kind"] == "address":
            launcher.watch_also(lambda made: _replay.say_where(made.address, made.given))
        try:
            outcome["result"] = launcher.on_host(values, None)
        except RuntimeError as error:
            outcome["error"] = str(error)
    outcome["written"] = [
        (place, ctypes.string_at(each.tensor.data_ptr(), each.bytes))
        for place, each in enumerate(launcher.given(values))
        if each.written
    ]
    return outcome


def _watched(launcher: OnHost, values: Sequence[Any]) -> dict[str, Any]:
    """The outcome of a call under the watching runtime. If the call failed because of a missing
    lane's value on which no result depends, it runs again with a lent value."""
    outcome = _watched_once(launcher, values)
    if outcome["error"] is None or not launcher.lends_lanes(values):
        return outcome
    try:
        return _watched_once(launcher, values)
    finally:
        launcher.library("host").crosscheck_lend_lanes(0)


def _watched_once(launcher: OnHost, values: Sequence[Any]) -> dict[str, Any]:
    given = launcher.given(values)
    library = launcher.library("host")
    watch, guards = _watch.Watch(library), _guards.Guards(given, _guards.ROOM)
    watch.forget()
    everywhere = [guards]

    def also(made: Made) -> None:
        assert made.guards is not None
        everywhere.append(made.guards)
        _watch_guards(watch, made.guards, _watch.WRITTEN if made.written else _watch.UNWRITTEN)

    _watch_guards(watch, guards, _watch.WRITTEN)
    launcher.watch_also(also)
    failed = launcher.failed(values, guards.addresses)
    if crashed := library.crosscheck_crashed():
        failed = launcher.failure(library, crashed, values)
    findings = list(watch.findings())
    watch.resolve(a for f in findings for a in (f.here, f.other) if a is not None)
    findings.sort(key=lambda finding: not finding.kind.startswith("outside"))
    outside = sum(finding.kind.startswith("outside") for finding in findings)
    addresses = [address for each in everywhere for address in each.addresses]
    tensors = [tensor for each in everywhere for tensor in each.given]
    where = partial(_guards.place_text, addresses=addresses, given=tensors)
    told = [_told(finding, watch, where, launcher) for finding in findings]
    if failed is None:  # a failed call may run again, with the original tensors
        guards.copy_back()
    result = None if failed else launcher.result()
    error = None if failed is None else str(failed)
    return {"findings": told, "outside": outside, "error": error, "result": result}


def _watch_guards(watch: _watch.Watch, guards: _guards.Guards, state: int) -> None:
    """Watch the memory of guards. Their tensors' bytes get the given state."""
    memories = {mapping.low: _watch.Memory(_guards.buffer(mapping)) for mapping in guards.mappings}
    for address, each in zip(guards.addresses, guards.given):
        for low, memory in memories.items():
            if low <= address < low + memory.buffer.numel() and each.bytes:
                memory.mark_at(address, each.argument, state)
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
    """Lines with kernel, block and thread, and with the line of the source."""
    stack = list(itertools.takewhile(lambda f: not _outer(f), watch.stack(access)))
    files = launcher.sources
    frames = [frame for frame in stack if Path(frame.file).name in files]
    while len(frames) > 1 and re.search(r"operator\(\)|call_body", frames[-1].function):
        frames.pop()  # LAUNCH's lambda
    who = f"block {access.block}, thread {access.thread}"
    if not frames:
        yield f"  {role} by {who}"
        return
    named = "" if "call_body" in frames[-1].function else frames[-1].function
    named = named.replace("(anonymous namespace)::", "")
    kernel = re.sub(r"^(?:\w+ )*(?=[\w:]+[<(])|[<(].*", "", named)
    file = Path(frames[0].file).name
    code = files[file].splitlines()[frames[0].line - 1 : frames[0].line]
    yield f"  {role} by {f'kernel {kernel}, ' if kernel else ''}{who}"
    yield f"    {file}:{frames[0].line}: {''.join(code).strip()}"


if __name__ == "__main__":
    Path(sys.argv[2]).write_bytes(pickle.dumps(_run(pickle.loads(Path(sys.argv[1]).read_bytes()))))
