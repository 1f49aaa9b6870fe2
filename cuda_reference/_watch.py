"""Records reads and writes on the host target: the Python side of csrc/cuda_on_cpu_watch.h.

A library built under ``CROSSCHECK_SANITIZE=watch`` records every access of a kernel to shared
arrays and to watched memories. Nothing needs to be preloaded.
"""

from __future__ import annotations

import ctypes
import functools
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cuda_reference import _compilers

NO_ELEMENT, WRITTEN, UNWRITTEN = 0, 1, 2  # the states of a byte
KINDS = (
    "unwritten shared",
    "outside shared",
    "unwritten",
    "outside",
    "clash",
    "read after write",
    "write after read",
)
_Three = ctypes.c_uint32 * 3


class _CAccess(ctypes.Structure):
    _fields_ = [
        ("frames", ctypes.c_uint64 * 6),
        ("block", _Three),
        ("thread", _Three),
        ("launch", ctypes.c_uint32),
        ("epoch", ctypes.c_uint32),
        ("turn", ctypes.c_uint32),
        ("warp", ctypes.c_uint32),
        ("atomic", ctypes.c_uint32),
    ]


class _CMemory(ctypes.Structure):
    _fields_ = [
        ("low", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("state", ctypes.c_void_p),
        ("writer", ctypes.c_void_p),
        ("reader", ctypes.c_void_p),
    ]


class _CFinding(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("write", ctypes.c_uint32),
        ("here", ctypes.c_uint32),
        ("other", ctypes.c_uint32),
        ("count", ctypes.c_uint64),
        ("address", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("offset", ctypes.c_uint64),
        ("item", ctypes.c_uint64),
        ("extents", ctypes.c_uint64 * 4),
        ("rank", ctypes.c_uint32),
    ]


class _CFollowed(ctypes.Structure):
    _fields_ = [
        ("address", ctypes.c_uint64),
        ("access", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("write", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("offset", ctypes.c_uint64),
        ("item", ctypes.c_uint64),
        ("extents", ctypes.c_uint64 * 4),
        ("rank", ctypes.c_uint32),
    ]


class Memory:
    """Watched memory: all bytes of ``buffer``, some of which belong to elements of tensors.

    Attributes:
        buffer: a one-dimensional uint8 tensor.
        state: for every byte NO_ELEMENT, WRITTEN or UNWRITTEN.
        writer, reader: for every byte the number of the last access, 0 for none.
    """

    def __init__(self, buffer: Tensor) -> None:
        self.buffer = buffer
        self.state = torch.zeros(buffer.numel(), dtype=torch.uint8)  # NO_ELEMENT
        self.writer = torch.zeros(buffer.numel(), dtype=torch.int32)
        self.reader = torch.zeros(buffer.numel(), dtype=torch.int32)

    def mark(self, tensor: Tensor, state: int) -> None:
        """Set the state of the bytes of a tensor's elements; the tensor must be in the buffer."""
        self.of(self.state, tensor).fill_(state)

    def mark_at(self, address: int, like: Tensor, state: int) -> None:
        """The same for a tensor at ``address`` with the layout and dtype of ``like``."""
        self._of(self.state, address, like).fill_(state)

    def of(self, each: Tensor, tensor: Tensor) -> Tensor:
        """The part of ``state``, ``writer`` or ``reader`` for a tensor's elements, with the
        tensor's shape and one more dimension for the bytes of an element."""
        return self._of(each, tensor.data_ptr(), tensor)

    def _of(self, each: Tensor, address: int, like: Tensor) -> Tensor:
        width = like.element_size()
        strides = [st * width for st in like.stride()]
        offset = address - self.buffer.data_ptr()
        return each.as_strided((*like.shape, width), (*strides, 1), offset)


class Access(NamedTuple):
    """An access: its call stack, innermost first, its block and thread, and the number of the
    launch, from 0."""

    frames: tuple[int, ...]
    block: tuple[int, ...]
    thread: tuple[int, ...]
    launch: int


class Finding(NamedTuple):
    """A fault of an access.

    Attributes:
        kind: one of KINDS.
        write, size, address: of the access.
        shared: for a shared array its name, the element's index, and its extents; else None.
        times: how often it occurred.
        here: the access.
        other: the access with which it conflicts, or None.
    """

    kind: str
    write: bool
    size: int
    address: int
    shared: tuple[str, tuple[int, ...], tuple[int, ...]] | None
    times: int
    here: Access
    other: Access | None


class Followed(NamedTuple):
    """An access of the followed thread."""

    write: bool
    size: int
    address: int
    shared: tuple[str, tuple[int, ...], tuple[int, ...]] | None
    access: Access


class Frame(NamedTuple):
    """A place in the sources: function (from the debug information), file and line."""

    function: str
    file: str
    line: int

    @property
    def machinery(self) -> bool:
        """Whether it is in the code that runs kernels on the CPU, not in a kernel."""
        return Path(self.file).name.startswith("cuda_on_cpu")


class Watch:
    """The records of one library that was built for watching."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._kept: list[Memory] = []
        self._symbols: dict[int, list[Frame]] = {}
        results = {"access": _CAccess, "finding": _CFinding, "followed": _CFollowed}
        for name, result in results.items():
            getter = getattr(library, f"crosscheck_{name}")
            getter.restype, getter.argtypes = ctypes.POINTER(result), [ctypes.c_uint]
        # A handle of dlopen points to a link_map, whose first member is the load address.
        self._base = ctypes.cast(library._handle, ctypes.POINTER(ctypes.c_size_t))[0]

    def forget(self) -> None:
        """Forget all memories and records."""
        self._library.crosscheck_forget()
        self._kept.clear()

    def add(self, memory: Memory) -> None:
        """Watch one more memory.

        Raises:
            ValueError: the largest number of memories is reached.
        """
        arrays = (each.data_ptr() for each in (memory.state, memory.writer, memory.reader))
        described = _CMemory(memory.buffer.data_ptr(), memory.buffer.numel(), *arrays)
        if self._library.crosscheck_watch(ctypes.byref(described)):
            raise ValueError(f"no more than {len(self._kept)} memories can be watched")
        self._kept.append(memory)

    def follow(self, access: Access) -> None:
        """From now on, record all accesses of this access's thread."""
        numbers = (access.launch, *access.block, *access.thread)
        self._library.crosscheck_follow((ctypes.c_uint * 7)(*numbers))

    def access(self, number: int) -> Access | None:
        """The access with this number; None for 0."""
        if not number:
            return None
        access = self._library.crosscheck_access(number)[0]
        frames = tuple(frame - self._base for frame in access.frames if frame)
        return Access(frames, tuple(access.block), tuple(access.thread), access.launch)

    def findings(self) -> Iterator[Finding]:
        """The faults; each kind and place once."""
        number = 0
        while finding := self._library.crosscheck_finding(number):
            f, number = finding[0], number + 1
            here = self.access(f.here)
            assert here is not None
            yield Finding(
                KINDS[f.kind],
                bool(f.write),
                f.size,
                f.address,
                _shared(f),
                f.count,
                here,
                self.access(f.other),
            )

    def followed(self) -> Iterator[Followed]:
        """The accesses of the followed thread, in order."""
        number = 0
        while step := self._library.crosscheck_followed(number):
            f, number = step[0], number + 1
            access = self.access(f.access)
            assert access is not None
            yield Followed(bool(f.write), f.size, f.address, _shared(f), access)

    def resolve(self, accesses: Iterable[Access]) -> None:
        """Find the places of many accesses at once, because addr2line starts slowly."""
        new = {frame for access in accesses for frame in access.frames} - set(self._symbols)
        if new:
            self._symbols.update(_symbols(self._library._name, sorted(new)))

    def stack(self, access: Access) -> list[Frame]:
        """The call stack of an access in the sources, innermost first, including inlined functions;
        empty without addr2line."""
        self.resolve([access])
        return [f for frame in access.frames for f in self._symbols[frame]]


def _shared(f: Any) -> tuple[str, tuple[int, ...], tuple[int, ...]] | None:
    if not f.name:
        return None
    offset = ctypes.c_int64(f.offset).value
    extents = tuple(f.extents[: f.rank])
    return f.name.decode(), unraveled(offset // max(1, f.item), extents), extents


def unraveled(element: int, extents: Sequence[int]) -> tuple[int, ...]:
    """An element's index in an array. Outside of it the first index exceeds its extent."""
    index = []
    for extent in reversed(extents[1:]):
        element, last = divmod(element, extent)
        index.append(last)
    return (element, *reversed(index)) if extents else ()


def _symbols(library: str, addresses: Sequence[int]) -> dict[int, list[Frame]]:
    """The functions at return addresses in a library, the innermost inlined one first."""
    frames: dict[int, list[Frame]] = {address: [] for address in addresses}
    program = _addr2line()
    if program is None:
        return frames
    # The call instruction is before its return address.
    asked = {hex(address - 1): address for address in addresses if address > 0}
    command = [program, "-a", "-f", "-C", "-i", "-e", library, *asked]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    lines, at = iter(ran.stdout.splitlines()), 0
    for line in lines:
        if re.fullmatch("0x[0-9a-f]+", line):
            at = asked[hex(int(line, 16))]
            continue
        file, _, number = next(lines, "").partition(" (")[0].rpartition(":")
        frames[at].append(Frame(line, file, int(number) if number.isdigit() else 0))
    return frames


@functools.cache
def _addr2line() -> str | None:
    """The path of the compiler's addr2line, or of another one; None without any."""
    query = [*_compilers._host_compiler(), "-print-prog-name=addr2line"]
    ran = subprocess.run(query, capture_output=True, text=True, check=False)
    return shutil.which(ran.stdout.strip() or "addr2line") or shutil.which("addr2line")
