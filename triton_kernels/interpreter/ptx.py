"""Inline PTX of elementwise operations, on numpy arrays: all lanes take each instruction at once.

A register holds 64 bits a lane. What is approximate on a GPU is accurate here.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from triton_kernels.interpreter import emulation
from triton_kernels.interpreter.emulation import Array

Registers = dict[str, Array]

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_STATEMENT = re.compile(r"(?:@(!?)(%?\w+)\s+)?(?P<name>[\w.]+)\s*(?P<rest>.*)", re.S)
_OPERAND = re.compile(r"\{[^}]*\}|[^,\s]+")
_ELEMENTARY = {
    **{"ex2": "exp2", "lg2": "log2", "sin": "sin", "cos": "cos", "tanh": "tanh"},
    **{"sqrt": "sqrt", "rsqrt": "rsqrt"},
}
_ONE: dict[str, Callable[..., Array]] = {"abs": np.abs, "neg": np.negative, "not": np.invert}
_TWO: dict[str, Callable[..., Array]] = {
    **{"add": np.add, "sub": np.subtract, "mul": np.multiply},
    **{"min": np.fmin, "max": np.fmax, "shl": np.left_shift, "shr": np.right_shift},
    **{"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor},
}
# False for NaN. Those of _OPPOSITES are true for it: they are the opposites of others.
_COMPARISONS: dict[str, Callable[..., Array]] = {
    **{"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal},
    **{"eq": np.equal, "ne": lambda x, y: (x < y) | (x > y)},
    **{"lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal},
    "num": lambda x, y: (x == x) & (y == y),
}
_OPPOSITES = {
    **{"ltu": "ge", "leu": "gt", "gtu": "le", "geu": "lt", "equ": "ne", "neu": "eq"},
    "nan": "num",
}
_WHOLE: dict[str, Callable[..., Array]] = {
    **{"rzi": np.trunc, "rni": np.rint, "rmi": np.floor, "rpi": np.ceil},
}
_SPECIAL: dict[str, Callable[[], int]] = {
    **{"%globaltimer": time.time_ns, "%smid": lambda: 0, "%nsmid": lambda: 1},
}
# Modifiers that change nothing here: flushing, approximation, rounding to nearest, low halves.
_PLAIN = {"approx", "ftz", "full", "rn", "lo"}


class Unknown(Exception):
    """An instruction that is not emulated; the text is the instruction."""


def run(asm: str, outputs: int, inputs: Sequence[Array], lanes: int) -> list[Array]:
    """The bits of the output registers, as uint64.

    Args:
        outputs: how many there are: $0, $1 and so on.
        inputs: the bits of the input registers, which are numbered after them.

    Raises:
        Unknown: an instruction is not emulated.
    """
    registers = {f"${outputs + i}": each.astype(np.uint64) for i, each in enumerate(inputs)}
    registers |= {f"${i}": np.zeros(lanes, np.uint64) for i in range(outputs)}
    with np.errstate(all="ignore"):
        for statement in statements(asm):
            if not statement.startswith(".reg"):
                _step(statement, registers, lanes)
    return [registers[f"${i}"] for i in range(outputs)]


def statements(asm: str) -> Iterator[str]:
    """The statements without the braces of blocks; those of vectors are part of a statement."""
    words = ""
    for character in _COMMENT.sub(" ", asm):
        if character == ";":
            yield words.strip()
            words = ""
        elif character not in "{}" or words.strip():
            words += character
    if words.strip():
        yield words.strip()


def _step(statement: str, registers: Registers, lanes: int) -> None:
    match = _STATEMENT.fullmatch(statement)
    if match is None:
        raise Unknown(statement)
    if match[3].split(".")[0] in ("bar", "barrier", "fence", "membar", "griddepcontrol"):
        return  # a program's threads run together, and launches one after the other
    operands = _OPERAND.findall(match[4])
    taken = np.ones(lanes, dtype=bool)
    try:
        result = _result(match[3].split("."), operands[1:], registers)
        if match[2]:
            taken = (registers[match[2]] != 0) ^ bool(match[1])
    except (KeyError, IndexError, ValueError):
        raise Unknown(statement) from None
    parts = {operands[0]: result}
    if operands[0].startswith("{"):  # mov.b32 {low, high}, both;
        names = _OPERAND.findall(operands[0][1:-1])
        width = _width(match[3].rpartition(".")[2]) // len(names)
        parts = {
            name: result >> np.uint64(i * width) & np.uint64(2**width - 1)
            for i, name in enumerate(names)
        }
    for name, bits in parts.items():
        old = registers.get(name, np.zeros(lanes, np.uint64))
        registers[name] = np.where(taken, np.broadcast_to(bits, (lanes,)), old)


def _result(name: list[str], sources: list[str], registers: Registers) -> Array:
    """The bits that an instruction computes."""
    kind, modifiers, of = name[0], [m for m in name[1:-1] if m not in _PLAIN], name[-1]

    def read(i: int, type_: str = of) -> Array:
        return _read(sources[i], type_, registers)

    if kind == "setp" and len(modifiers) == 1:
        opposite = _OPPOSITES.get(modifiers[0], "")
        compared = _COMPARISONS[opposite or modifiers[0]](read(0), read(1))
        return (compared ^ bool(opposite)).astype(np.uint64)
    if kind == "selp":
        return _bits(np.where(read(2, "b64") != 0, read(0), read(1)))
    if kind == "cvt" and len(modifiers) <= 2:
        return _converted(modifiers, of, [_read(each, of, registers) for each in sources])
    if kind == "mul" and modifiers in (["hi"], ["wide"]) and _width(of) <= 32:
        product = _bits(np.asarray(read(0).astype("i8") * read(1).astype("i8")))
        return product >> np.uint64(_width(of)) if modifiers == ["hi"] else product
    if modifiers or of == "bf16" or (kind, of) == ("not", "pred"):
        raise KeyError(kind)
    if kind == "mov":
        return _bits(read(0))
    if kind in _ELEMENTARY:
        return _bits(emulation.elementary(_ELEMENTARY[kind], np.atleast_1d(read(0))))
    if kind in _ONE:
        return _bits(_ONE[kind](read(0)))
    if kind == "rcp":
        return _bits(read(0).dtype.type(1) / read(0))
    if kind in ("fma", "mad"):
        if read(0).dtype.kind == "f":
            operands = np.broadcast_arrays(read(0), read(1), read(2))
            return _bits(np.asarray(emulation.fma(*operands)))
        return _bits(read(0) * read(1) + read(2))
    if kind == "div" and read(0).dtype.kind == "f":
        return _bits(read(0) / read(1))
    if kind in ("shl", "shr"):
        return _shifted(kind, read(0), _read(sources[1], "u32", registers))
    return _bits(_TWO[kind](read(0), read(1)))


def _shifted(kind: str, value: Array, by: Array) -> Array:
    """A shift; by the width or more, all bits leave, as they do not in C."""
    width = 8 * value.dtype.itemsize
    inside = np.minimum(by, width - 1).astype(value.dtype)
    out = _TWO[kind](value, inside)
    if kind == "shl" or value.dtype.kind == "u":
        out = np.where(by < width, out, value.dtype.type(0))
    return _bits(out)


def _converted(modifiers: list[str], of: str, sources: list[Array]) -> Array:
    """cvt, whose last two words are the types of the result and of the operands."""
    *rounding, to = modifiers
    if len(sources) == 2 and to in ("f16x2", "bf16x2"):  # the first is the upper half
        halves = [_converted([to[:-2]], of, [each]) for each in sources]
        return halves[0] << np.uint64(16) | halves[1]
    (value,) = sources
    if to == "bf16":
        return np.asarray(emulation.to_bf16(value)).astype(np.uint64)
    wanted = _DTYPES[to]
    if wanted.kind in "iu" and value.dtype.kind == "f":
        whole = _WHOLE[rounding[0]](np.nan_to_num(value.astype(np.float64), nan=0.0))
        limits = np.iinfo(wanted)
        large = whole >= float(limits.max)  # which for 64 bits is one more
        inside = np.where(large, 0.0, np.maximum(whole, float(limits.min)))
        return _bits(np.where(large, wanted.type(limits.max), inside.astype(wanted)))
    if rounding:
        raise KeyError(rounding[0])
    return _bits(value.astype(wanted))


# ---- Registers ----

_DTYPES = {
    f"{kind}{width}": np.dtype(f"{letter}{width // 8}")
    for kind, letter in (("b", "u"), ("u", "u"), ("s", "i"), ("f", "f"))
    for width in (8, 16, 32, 64)
    if (kind, width) != ("f", 8)
} | {"pred": np.dtype("u8"), "bf16": np.dtype("u2")}


def _width(type_: str) -> int:
    return 8 * _DTYPES[type_].itemsize


def _read(operand: str, type_: str, registers: Registers) -> Array:
    """An operand's values: of a register, a vector of registers, or a number."""
    dtype = _DTYPES[type_]
    if operand.startswith("{"):
        names = _OPERAND.findall(operand[1:-1])
        width = _width(type_) // len(names)
        whole = sum(
            (registers[name] & np.uint64(2**width - 1)) << np.uint64(i * width)
            for i, name in enumerate(names)
        )
        return _typed(np.asarray(whole), dtype)
    if operand in registers:
        values = _typed(registers[operand], dtype)
        return np.asarray(emulation.decoded(values, "bf16")) if type_ == "bf16" else values
    if operand in _SPECIAL:
        return _typed(np.array([_SPECIAL[operand]()], np.uint64), dtype)
    if operand[:2].lower() in ("0f", "0d"):  # the bits of a float
        return np.array([int(operand[2:], 16)], f"u{dtype.itemsize}").view(dtype)
    number = float(operand) if dtype.kind == "f" else int(operand.rstrip("U"), 0)
    if dtype.kind == "f":
        return np.array([number], dtype)
    return _typed(np.array([int(number) & (2**64 - 1)], np.uint64), dtype)


def _typed(bits: Array, dtype: np.dtype) -> Array:  # type: ignore[type-arg]
    return bits.astype(f"u{dtype.itemsize}").view(dtype)


def _bits(values: Array) -> Array:
    values = np.ascontiguousarray(values)
    return values.view(f"u{values.dtype.itemsize}").astype(np.uint64)


# ---- Tensors in registers ----


def registers_of(dtype: np.dtype, pack: int) -> int:  # type: ignore[type-arg]
    """How many registers hold ``pack`` elements; narrow ones share registers of 32 bits."""
    return -(-pack // max(1, 4 // dtype.itemsize))


def packed(data: Array, pack: int) -> list[Array]:
    """A tile's elements as the bits of registers; ``pack`` elements are one call's."""
    flat = np.ascontiguousarray(data).reshape(-1)
    flat = np.resize(flat, -(-flat.size // pack) * pack)
    bits, width = _bits(flat).reshape(-1, pack), 8 * flat.dtype.itemsize
    share = max(1, 32 // width)
    out = []
    for start in range(0, pack, share):
        columns = bits[:, start : start + share].T
        shifted = (column << np.uint64(i * width) for i, column in enumerate(columns))
        out.append(np.asarray(sum(shifted, np.zeros(len(bits), np.uint64))))
    return out


def unpacked(
    registers: Sequence[Array],
    dtype: np.dtype,  # type: ignore[type-arg]
    pack: int,
    shape: tuple[int, ...],
) -> Array:
    """The tile whose elements the registers hold."""
    width = 8 * dtype.itemsize
    share = max(1, 32 // width)
    columns = [registers[i // share] >> np.uint64(i % share * width) for i in range(pack)]
    bits = np.stack(columns, axis=1).reshape(-1)[: int(np.prod(shape))]
    if dtype.kind == "b":
        return (bits & np.uint64(1)).astype(bool).reshape(shape)
    return _typed(bits, dtype).reshape(shape)
