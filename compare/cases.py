"""Test cases: coordinates from which the same tensors are made every time.

A case is op × dtype × shape × layout × values × seed × options. ``str(case)`` reads well in a
table; :meth:`Case.command` is the command line that runs the case again.
"""

from __future__ import annotations

import math
import mmap
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from compare import numerics

Level = Literal["quick", "standard", "full"]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("uint8", "int8", "int16", "int32", "int64")
DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in FLOATS + INTEGERS}

# Other names of these dtypes in Triton, torch and numpy.
_ALIASES = {
    **dict.fromkeys(("f16", "fp16", "half"), "float16"),
    "bf16": "bfloat16",
    **dict.fromkeys(("f32", "fp32", "single", "float"), "float32"),
    **dict.fromkeys(("f64", "fp64", "double"), "float64"),
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{"u8": "uint8", "short": "int16", "long": "int64"},
}


def dtype_name(dtype: str | torch.dtype) -> str:
    """A dtype's name in cases: "float16" for ``torch.float16``, "np.float16", "f16", "fp16" and
    "half". Unknown names are returned unchanged."""
    name = str(dtype).removeprefix("torch.").removeprefix("np.").removeprefix("numpy.")
    return _ALIASES.get(name, name)


@dataclass(frozen=True)
class Case:
    """The coordinates of one test case of an op."""

    op: str
    dtype: str
    shape: tuple[int, ...]
    layout: str = "contiguous"
    values: str = "normal"
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape)) or "0-d"
        options = "".join(f" {k}={v}" for k, v in self.options.items())
        return (
            f"{self.op} {self.dtype} {shape} {self.layout} {self.values}{options} seed={self.seed}"
        )

    def command(self, impl: str, verb: str = "check") -> str:
        """The command line that checks (or ``verb``) this case on one implementation."""
        words = ["python", "-m", "compare", verb, *self.words, "--dtype", self.dtype]
        words += ["--shape", ",".join(map(str, self.shape)) or "scalar"]
        words += ["--layout", self.layout, "--values", self.values, "--seed", str(self.seed)]
        for key, value in self.options.items():
            words += ["--arg", f"{key}={value}"]
        return shlex.join([*words, "--impl", impl])

    @property
    def words(self) -> list[str]:
        """The op or the target, as words of a command line."""
        return ["--target", self.op] if ":" in self.op else [self.op]

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def out_layout(self) -> str:
        """The layout of the result: option ``out``, or else the case's layout."""
        layout = str(self.options.get("out", self.layout))
        return "contiguous" if layout == "inplace" else layout

    @property
    def lying(self) -> set[str]:
        """The layouts of its tensors."""
        others = {str(self.options.get(name, self.layout)) for name in ("y", "saved")}
        return {self.layout, self.out_layout} | others

    def generator(self) -> torch.Generator:
        """The source of this case's random numbers, always on the CPU."""
        return torch.Generator().manual_seed(self.seed)


def tensors_of(arguments: Arguments) -> list[Tensor]:
    """The tensors among a call's arguments."""
    args, kwargs = arguments
    return [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]


def narrowed(t: Any, shape: Sequence[int], along: int, start: int, size: int) -> Any:
    """A slice of an operand that broadcasts to ``shape``; numbers are returned unchanged."""
    d = along - len(shape)
    if not isinstance(t, Tensor) or t.dim() < -d or t.shape[d] != shape[d]:
        return t
    return t.narrow(d, start, size)


Sized = tuple[str, int, Case]  # a sweep's name, the size, and its case

CPU, META = torch.device("cpu"), torch.device("meta")
LONGEST = (1 << 24) + 7  # at most so many random numbers per tensor; a longer tensor repeats them


def random_values(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    kind: str,
    generator: torch.Generator,
    device: torch.device = CPU,
) -> Tensor:
    """A contiguous tensor with the same numbers on every device.

    Kinds: "normal" draws from N(0, 1), for integers from all values of the dtype; "special" adds
    NaN, inf, −0, subnormals and the extremes to numbers of every magnitude; "every" is all bit
    patterns of an 8- or 16-bit dtype in order, "shuffled" in random order; "integers" are small;
    "0x…" is one bit pattern; for "ties:float16" see :func:`ties`. On the meta device no numbers are
    drawn.
    """
    n = math.prod(shape)
    few = min(n, LONGEST)
    times = -(-n // max(1, few))
    if device.type == "meta":
        return torch.empty(times * few, dtype=dtype, device=device)[:n].reshape(shape)
    drawn = _draw(few, dtype, kind, generator).to(device)
    return drawn.repeat(times)[:n].reshape(shape)


def _draw(n: int, dtype: torch.dtype, kind: str, generator: torch.Generator) -> Tensor:
    if kind.startswith("0x"):
        width = numerics.BITS[dtype.itemsize]
        pattern = int(kind, 16)
        signed = (
            pattern - (1 << 8 * dtype.itemsize) if pattern >> (8 * dtype.itemsize - 1) else pattern
        )
        return torch.full((n,), signed, dtype=torch.int64).to(width).view(dtype)
    if kind in ("every", "shuffled"):
        count = 1 << 8 * dtype.itemsize
        order = torch.randperm(count, generator=generator) if kind == "shuffled" else None
        walk = torch.arange(count) if order is None else order
        walk = walk.repeat(-(-n // count))[:n]
        return walk.to(numerics.BITS[dtype.itemsize]).view(dtype)
    if kind.startswith("ties:"):
        return _near_ties(n, dtype, DTYPES[kind.removeprefix("ties:")], generator)
    if kind == "integers":
        return torch.randint(0 if dtype == torch.uint8 else -4, 5, (n,), generator=generator).to(
            dtype
        )
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        drawn = torch.randint(info.min, info.max, (n,), dtype=dtype, generator=generator)
        if kind == "special" and n:
            at = torch.randint(n, (max(1, n // 4),), generator=generator)
            extremes = torch.tensor([info.min, info.max, 0, 1], dtype=dtype)
            _put(drawn, at, extremes[torch.randint(4, at.shape, generator=generator)])
        return drawn
    if kind == "normal":
        wide = torch.randn(n, generator=generator, dtype=torch.float64)
        return wide.to(dtype)
    if kind == "special":
        width = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
        info = torch.iinfo(width)
        drawn = torch.randint(info.min, info.max, (n,), dtype=width, generator=generator)
        drawn = drawn.view(dtype)  # random bits: every magnitude, NaN and inf among them
        finite = torch.finfo(dtype)
        chosen = [math.nan, math.inf, -math.inf, 0.0, -0.0, finite.max, -finite.max, finite.tiny]
        chosen += [-finite.tiny, finite.tiny * finite.eps, -finite.tiny / 2, 1.0, -1.0, finite.eps]
        table = torch.tensor(chosen, dtype=torch.float64).to(dtype)
        if n:
            at = torch.randint(n, (max(1, n // 2),), generator=generator)
            _put(drawn, at, table[torch.randint(len(chosen), at.shape, generator=generator)])
        return drawn
    raise ValueError(f"unknown kind of values: {kind!r}")


def _put(t: Tensor, at: Tensor, values: Tensor) -> None:
    """t[at] = values. The last value for a place wins; torch's threads would not keep this
    order."""
    width = numerics.BITS[t.dtype.itemsize]
    t.view(width).numpy()[at.numpy()] = values.view(width).numpy()


def ties(*dtypes: torch.dtype) -> list[str]:
    """The kinds of values for operands of these dtypes. If one is a 16-bit floating dtype, the
    others get numbers so close to the midpoint of two of its neighbours that float32 holds only the
    midpoint. Rounding to float32 first, as torch promotes, makes them ties."""
    narrow = [name for name in FLOATS if DTYPES[name] in dtypes and DTYPES[name].itemsize == 2]
    return [
        "normal" if not narrow or DTYPES[narrow[0]] == d else f"ties:{narrow[0]}" for d in dtypes
    ]


def _near_ties(
    n: int, dtype: torch.dtype, narrow: torch.dtype, generator: torch.Generator
) -> Tensor:
    """Midpoints of neighbours in ``narrow``, moved slightly towards the odd one, which rounding a
    tie to even would not choose."""
    scale = 1.0 if dtype.is_floating_point else 2.0**27
    low = (scale * (1 + torch.rand(n, generator=generator))).to(narrow)
    odd = low.view(torch.int16) & 1
    high = (low.view(torch.int16) + 1).view(narrow)
    nudge = 2.0**-40 if dtype.is_floating_point else 1.0
    return ((low.double() + high.double()) / 2 + nudge * (1 - 2 * odd)).to(dtype)


LAYOUTS = ("contiguous", "misaligned", "transposed", "strided", "padded", "expanded", "reversed")
# Layouts of models, for benchmarks. For kernels they are strides like others.
OF_MODELS = ("chunk", "channels_last")
DISTANT = ("distant", "distant_transposed")  # gigabytes; on the CPU only touched pages take memory


def poison_of(dtype: torch.dtype) -> float | int:
    """The content of memory that must not be read, and of outputs before they are written."""
    if dtype.is_floating_point or dtype.is_complex:
        return math.nan
    return 1 if dtype == torch.bool else torch.iinfo(dtype).max // 3


def arrange(t: Tensor, layout: str) -> Tensor:
    """A tensor equal to ``t`` in the given layout, with poison in the gaps.

    "misaligned" starts one element past a 16-byte boundary, "half-aligned" 8 bytes past it;
    "transposed" has its last two dimensions swapped in memory, "reversed" all; "strided" is every
    second element of a larger tensor; "padded" has rows with a gap of 3 elements, "chunk" with a
    gap as long as the row; "channels_last" has its third-last dimension innermost; "expanded"
    repeats its first row with stride 0, "expanded_columns" its first column. "distant" has rows so
    far apart that the last offset exceeds 32 bits, "distant_transposed" columns. A tensor with too
    few dimensions for a layout stays contiguous.
    """

    def fresh(*shape: int) -> Tensor:
        return torch.full(shape, poison_of(t.dtype), dtype=t.dtype, device=t.device)

    if layout in ("misaligned", "half-aligned"):
        start = 1 if layout == "misaligned" else max(1, 8 // t.element_size())
        moved = fresh(t.numel() + start)[start:].view(t.shape)
    elif layout == "transposed" and t.dim() >= 2:
        moved = fresh(*t.shape[:-2], t.shape[-1], t.shape[-2]).transpose(-1, -2)
    elif layout == "reversed" and t.dim() >= 2:
        moved = fresh(*reversed(t.shape)).permute(*reversed(range(t.dim())))
    elif layout == "strided" and t.dim() >= 1:
        moved = fresh(*t.shape[:-1], 2 * t.shape[-1])[..., ::2]
    elif layout == "padded" and t.dim() >= 1:
        moved = fresh(*t.shape[:-1], t.shape[-1] + 3)[..., : t.shape[-1]]
    elif layout == "chunk" and t.dim() >= 1:
        moved = fresh(*t.shape[:-1], 2 * t.shape[-1])[..., : t.shape[-1]]
    elif layout == "channels_last" and t.dim() >= 3:
        moved = fresh(*t.shape[:-3], *t.shape[-2:], t.shape[-3]).movedim(-1, -3)
    elif layout == "expanded" and t.dim() >= 2 and t.shape[0]:
        return t[:1].expand(t.shape)
    elif layout == "expanded_columns" and t.dim() >= 1 and t.shape[-1]:
        moved = fresh(*t.shape)
        return moved[..., :1].copy_(t[..., :1]).expand(t.shape)
    elif distant := _distant(t.shape, t.dtype, t.device, layout):
        moved = distant.tensor
    else:
        return t
    moved.copy_(t)
    return moved


GUARD = 1024  # elements before and after an output; a multiple of every vector width


class _Distant(NamedTuple):
    """A tensor with rows so far apart that the last row's offset exceeds 2³¹ elements. There is as
    much memory before the first row, and room for more rows after the last: an offset cut to 32
    bits, or off by one, stays in the buffer. On the CPU, where it is free, so does a tile's end.

    Attributes:
        tensor: the tensor.
        buffer: the whole memory.
        around: every row with GUARD elements before and after it; the rest is unknown.
    """

    tensor: Tensor
    buffer: Tensor
    around: Tensor


def _distant(
    shape: Sequence[int], dtype: torch.dtype, device: torch.device, layout: str | Tensor
) -> _Distant | None:
    """A poisoned tensor of that shape. None for other layouts, or without rows."""
    if isinstance(layout, Tensor) or layout not in DISTANT:
        return None
    transposed = layout == "distant_transposed"
    if transposed:
        shape = (*shape[:-2], *shape[:-3:-1])
    if len(shape) < 1 + transposed or shape[0] < 2 or not math.prod(shape):
        return None
    count, row = shape[0], math.prod(shape[1:])
    apart = max(-(-(2**31) // (count - 1)), row + 2 * GUARD)
    apart += -apart % 16  # only the distance shall be special
    start = 2**31 + GUARD
    more = 64 if device.type == "cpu" else 1
    buffer = untouched(start + (count + more - 1) * apart + row + GUARD, dtype, device)
    around = buffer.as_strided((count, row + 2 * GUARD), (apart, 1), start - GUARD)
    around.fill_(poison_of(dtype))
    inner = torch.empty(tuple(shape[1:]), device="meta").stride()
    tensor = buffer.as_strided(tuple(shape), (apart, *inner), start)
    return _Distant(tensor.transpose(-1, -2) if transposed else tensor, buffer, around)


def untouched(numel: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Uninitialised memory. On the CPU it is zero and takes no memory until it is written. It may
    exceed the system's memory, which torch.empty would refuse."""
    if device.type != "cpu":
        return torch.empty(numel, dtype=dtype, device=device)
    size = numel * dtype.itemsize
    lazily = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Linux's value; Python has it from 3.13 on
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | lazily)
    except OSError as error:
        raise torch.OutOfMemoryError(f"no {size} bytes of addresses: {error}") from None
    return torch.frombuffer(memory, dtype=dtype)


WATCHED = 1 << 26  # bytes up to which an input's memory is compared before and after a run


def held(t: Tensor, device: torch.device) -> int:
    """Bytes that a tensor like this one, possibly on the meta device, takes on a device. Of distant
    rows the CPU holds only touched pages."""
    size = t.untyped_storage().nbytes()
    rows = t.shape[max(range(t.dim()), key=t.stride)] if t.dim() else 1
    touched = (t.numel() + 2 * GUARD * rows) * t.element_size()
    distant = size > 2**31 * t.element_size() and touched < size // 16
    return touched if distant and device.type == "cpu" else size


class Guarded:
    """A poisoned output in memory that must not change. Its layout is given by name, or by another
    tensor of its shape.

    Attributes:
        out, buffer: the output, and the whole memory.
        gaps: whether there is memory between the output's elements to check.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        layout: str | Tensor,
    ) -> None:
        self._distant = _distant(shape, dtype, device, layout)
        self.gaps = False
        if self._distant is not None:
            self.out, self.buffer, _ = self._distant
            return
        if isinstance(layout, Tensor):
            template = layout
        else:
            template = torch.empty(shape, dtype=dtype, device="meta")
            if layout not in ("expanded", "expanded_columns"):  # an output cannot overlap itself
                template = arrange(template, layout)
        last = sum((n - 1) * s for n, s in zip(shape, template.stride()))
        extent = last + 1 if template.numel() else 0
        start = GUARD + template.storage_offset()
        self.gaps = extent > template.numel()
        self.buffer = torch.full(
            (start + extent + GUARD,), poison_of(dtype), dtype=dtype, device=device
        )
        self.out = self.buffer.as_strided(shape, template.stride(), start)

    def intact(self) -> bool:
        """Whether no write went outside the output."""
        if self._distant is not None:
            around = self._distant.around
            around = torch.cat((around[:, :GUARD], around[:, -GUARD:])).flatten()
            inside = torch.zeros_like(around, dtype=torch.bool)
        elif not self.gaps:
            start = self.out.storage_offset()
            around = torch.cat((self.buffer[:start], self.buffer[start + self.out.numel() :]))
            inside = torch.zeros_like(around, dtype=torch.bool)
        else:
            around = self.buffer
            inside = torch.zeros_like(around, dtype=torch.bool)
            lying = self.out.shape, self.out.stride(), self.out.storage_offset()
            inside.as_strided(*lying).fill_(True)
        poison = numerics.bits(torch.full_like(around[:1], poison_of(around.dtype)))
        return all(
            bool((own | (numerics.bits(part) == poison)).all())
            for _, (part, own) in numerics.by_rows(around, inside)
        )
