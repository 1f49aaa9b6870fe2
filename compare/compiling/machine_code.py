"""The figures of a cubin: registers, stack, shared memory, and counts of instructions.

They are read with NVIDIA's binary tools from the Triton wheel. No GPU is needed.
"""

from __future__ import annotations

import bisect
import re
import struct
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from triton_kernels.gemm import GPUS
from triton_kernels.interpreter.cross_compile import tool

# Bytes of shared memory that one block can have: the largest value of
# cudaFuncAttributeMaxDynamicSharedMemorySize.
SHARED_LIMIT = {arch: gpu.shared_memory for arch, gpu in GPUS.items()}
# For these architectures Triton compiles with architecture-specific features.
_SASS_OF = {"sm_90": "SM90a", "sm_100": "SM100a", "sm_120": "SM120a"}

# Global memory: plain, generic, asynchronous to shared memory (cp.async), bulk (TMA).
_LOADS = ("LDG", "LD", "LDGSTS")
_STORES = ("STG", "ST")
_BULK_LOADS = ("UTMALDG", "UBLKCP")
_BULK_STORES = ("UTMASTG",)
_TENSOR = re.compile(r"U?[A-Z]*(?:MMA)$")


@dataclass(frozen=True)
class Figures:
    """Figures of one kernel's machine code.

    Attributes:
        registers: registers per thread.
        spills: bytes per thread that are spilled to local memory.
        stack: bytes of a thread's stack frame: spills, and arrays that are indexed at run time.
        shared: bytes of shared memory per block: all for Triton's kernels, the static part for
            nvcc's.
        loads, stores: width of a global access in bits → number of instructions; "bulk" is TMA.
        tensor: tensor-core instruction (HMMA, HGMMA, UTCHMMA, …) → number of instructions.
    """

    registers: int
    spills: int
    stack: int
    shared: int
    loads: dict[str, int] = field(default_factory=dict)
    stores: dict[str, int] = field(default_factory=dict)
    tensor: dict[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


def of_triton(launches: Sequence[tuple[bytes, int]], arch: str) -> list[Figures]:
    """The figures of Triton's cubins; each is given with the shared memory of its launch."""
    codes = _disassemble([cubin for cubin, _ in launches], arch)
    figures = []
    for (cubin, shared), code in zip(launches, codes):
        ((name, opcodes),) = code.items()
        registers, stack = _resources(cubin)[name]
        # Triton keeps no arrays in local memory, so the stack frame holds only spills. Triton's own
        # n_spills is this number in 4-byte words, but needs a loaded kernel.
        touched = any(opcode.split(".")[0] in ("STL", "LDL") for opcode in opcodes)
        figures.append(_figures(registers, stack if touched else 0, stack, shared, opcodes))
    return figures


def of_cuda(cubin: bytes, account: str, arch: str) -> dict[str, Figures]:
    """Kernel → figures for a cubin of nvcc. ``account`` is the output of ptxas -v.

    Shared memory is the static part; the dynamic part is chosen by the launch.
    """
    # The stack frame may hold arrays that are indexed at run time; ptxas reports spills separately.
    said = {
        name: (max(int(stored), int(loaded)), int(shared or 0))
        for name, stored, loaded, shared in re.findall(
            r"Function properties for (\S+)\n"
            r".*? (\d+) bytes spill stores, (\d+) bytes spill loads\n"
            r".*?Used \d+ registers(?:.*? (\d+) bytes smem)?",
            account,
        )
    }
    resources = _resources(cubin)
    (codes,) = _disassemble([cubin], arch)
    figures = {}
    for name, opcodes in codes.items():
        registers, stack = resources[name]
        spills, shared = said[name]
        figures[readable(name)] = _figures(registers, spills, stack, shared, opcodes)
    return figures


def _figures(
    registers: int, spills: int, stack: int, shared: int, opcodes: Counter[str]
) -> Figures:
    loads: Counter[str] = Counter()
    stores: Counter[str] = Counter()
    tensor: Counter[str] = Counter()
    for opcode, count in opcodes.items():
        name, *modifiers = opcode.split(".")
        if name in _LOADS or name in _STORES:
            (loads if name in _LOADS else stores)[_width(modifiers)] += count
        elif name in _BULK_LOADS or name in _BULK_STORES:
            (loads if name in _BULK_LOADS else stores)["bulk"] += count
        elif _TENSOR.match(name):
            tensor[name] += count
    return Figures(registers, spills, stack, shared, dict(loads), dict(stores), dict(tensor))


def _width(modifiers: list[str]) -> str:
    """The bits per thread of an access such as LDG.E.128.CONSTANT; 32 without a modifier."""
    for modifier in modifiers:
        if match := re.fullmatch(r"[US]?(8|16|64|128|256)", modifier):
            return match[1]
    return "32"


def sass(cubin: bytes) -> dict[str, str]:
    """The instructions of each kernel of a cubin, as NVIDIA's disassembler writes them."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = _run("cuobjdump", "-sass", file.name)
    _, *parts = re.split(r"^\s*Function : (\S+)\n", text, flags=re.M)
    return {readable(name): code for name, code in zip(parts[::2], parts[1::2])}


# ---- NVIDIA's tools ----


def _run(name: str, *arguments: str) -> str:
    command = [str(tool(name)), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(f"{name} failed: {(ran.stderr or ran.stdout).strip()}")
    return ran.stdout


def _resources(cubin: bytes) -> dict[str, tuple[int, int]]:
    """Kernel → registers and stack. The tool's SHARED is not used: from sm_90 on it includes a
    kilobyte that the system reserves, which does not count towards the limit."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = _run("cuobjdump", "-res-usage", file.name)
    matches = re.findall(r"Function (\S+):\s+REG:(\d+) STACK:(\d+)", text)
    return {name: (int(registers), int(stack)) for name, registers, stack in matches}


def _disassemble(cubins: Sequence[bytes], arch: str) -> list[dict[str, Counter[str]]]:
    """For each cubin: kernel → counts of its opcodes, with their modifiers.

    The disassembler runs once for all, because it starts more slowly than it reads a hundred
    kernels. It takes one file of bare instructions, so the code sections are concatenated.
    """
    counts: list[dict[str, Counter[str]]] = []
    starts: list[int] = []
    counters: list[Counter[str]] = []
    code = b""
    for cubin in cubins:
        counts.append({})
        for name, section in _code_sections(cubin):
            counts[-1][name] = Counter()
            starts.append(len(code))
            counters.append(counts[-1][name])
            code += section
    if not code:
        return counts
    machine = _SASS_OF.get(arch, arch.upper().replace("_", ""))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "code"
        file.write_bytes(code)
        text = _run("nvdisasm", "--binary", machine, "--no-dataflow", str(file))
    line = re.compile(r"^\s*/\*([0-9a-f]+)\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", re.M)
    for address, opcode in line.findall(text):
        counters[bisect.bisect(starts, int(address, 16)) - 1][opcode] += 1
    return counts


def _code_sections(cubin: bytes) -> Iterator[tuple[str, bytes]]:
    """(kernel, instructions): the sections .text.<kernel> of a 64-bit ELF file."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", cubin, table + i * size) for i in range(count)]
    names = sections[names_at][4]
    for name_at, _, _, _, offset, length in sections:
        start = names + name_at
        name = cubin[start : cubin.index(b"\0", start)].decode()
        if name.startswith(".text."):
            yield name.removeprefix(".text."), cubin[offset : offset + length]


# ---- names ----

# As csrc writes them; u64 is unsigned long long.
_BUILTIN = {"f": "float", "d": "double", "y": "u64", "j": "unsigned", "i": "int"} | {
    **{"h": "unsigned char", "a": "signed char", "c": "char", "s": "short", "t": "unsigned short"},
    **{"l": "long", "m": "unsigned long", "x": "long long", "b": "bool"},
}


def readable(symbol: str) -> str:
    """A mangled kernel name as in the source: pack_kernel<ActMul<Gelu>, __half, float4, 8>.

    It reads plain names and templates over built-in types, integers, booleans and such templates,
    with or without namespaces. Any other symbol is returned unchanged. There is no demangler to
    call: neither Triton's wheel nor nvcc's has NVIDIA's.
    """
    if not re.match(r"_ZN?\d", symbol):
        return symbol
    try:
        return _Mangled(symbol).name()
    except (IndexError, ValueError):
        return symbol


_SEEN = r"S(\d?)_"  # S_ is the first name seen, S0_ the next


class _Mangled:
    """Reads a mangled symbol from its beginning. Names already read can be referred to."""

    def __init__(self, symbol: str) -> None:
        self._rest, self._seen = symbol.removeprefix("_Z"), list[str]()

    def name(self) -> str:
        """Read <name>, or N<names>E for a name in namespaces."""
        if not self._rest.startswith("N"):
            return self._plain("")
        self._rest, scope = self._rest[1:], ""
        if match := re.match(_SEEN, self._rest):
            scope, self._rest = self._named_before(match) + "::", self._rest[match.end() :]
        while self._rest[0] != "E":
            scope = self._plain(scope) + "::"
        self._rest = self._rest[1:]
        return scope.removesuffix("::")

    def _plain(self, scope: str) -> str:
        """Read <length><name>, followed by I<arguments>E if it is a template."""
        if not (match := re.match(r"L?(\d+)", self._rest)):
            raise ValueError(f"no name: {self._rest}")
        end = match.end() + int(match[1])
        name, self._rest = self._rest[match.end() : end], self._rest[end:]
        name = scope + ("(anonymous)" if name.startswith("_GLOBAL__N_") else name)
        self._seen.append(name)
        if not self._rest.startswith("I"):
            return name
        self._rest, arguments = self._rest[1:], []
        while self._rest[0] != "E":
            arguments.append(self._argument())
        self._rest = self._rest[1:]
        self._seen.append(f"{name}<{', '.join(arguments)}>")
        return self._seen[-1]

    def _argument(self) -> str:
        if match := re.match(r"L([ib])(\d+)E", self._rest):
            value = match[2] if match[1] == "i" else ("false", "true")[int(match[2])]
        elif match := re.match(_SEEN, self._rest):
            value = self._named_before(match)
        elif match := re.match("|".join(_BUILTIN), self._rest):
            value = _BUILTIN[match[0]]
        else:
            return self.name()
        self._rest = self._rest[match.end() :]
        return value

    def _named_before(self, match: re.Match[str]) -> str:
        return self._seen[int(match[1]) + 1 if match[1] else 0]
