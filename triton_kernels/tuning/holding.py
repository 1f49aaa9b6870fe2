"""The figures in use for a GPU: the constants of the choice of tiles, the speeds of kernels, and
the source of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from triton_kernels import _elementwise_kernels, _launch, _measured
from triton_kernels._fusion import Entry
from triton_kernels._gpu import H200, Gpu
from triton_kernels._measured import SHIPPED_OF, Constants, Rates
from triton_kernels.gemm import rivals
from triton_kernels.gemm.choice import TMA_CAPABILITY, TMA_TILES
from triton_kernels.gemm.gluon import availability
from triton_kernels.graph.capabilities import (
    ENTRIES,
    ESTIMATED,
    MEASURED,
    SHIPPED,
    entries,
    rates_of,
)


class Speed(NamedTuple):
    """A kernel's speed under an entry's conditions; ``source`` as in ``Capabilities``."""

    kernel: str
    entry: Entry
    source: str


@dataclass(frozen=True)
class Capabilities:
    """The result of :func:`capabilities`. It prints as a table.

    Attributes:
        gpu: the GPU described.
        constants: the constants of the choice of tiles.
        source: their source: "measured here" or "shipped".
        gluon: the reason why products do not run in the Gluon kernel, or "" if they may.
        rates: the figures behind the expected times of 16-bit products, which decide in fuse and
            torch.compile; None on GPUs where the speeds decide.
        speeds: of every kernel that fuse and torch.compile may take, in the order in which they
            are tried; their source may also be "estimated".
    """

    gpu: Gpu
    constants: Constants
    source: str
    gluon: str
    rates: Rates | None
    rates_source: str
    speeds: tuple[Speed, ...]

    def __str__(self) -> str:
        capability = f"{self.gpu.capability // 10}.{self.gpu.capability % 10}"
        head = (
            f"{self.gpu.name or f'no GPU: as on an {SHIPPED_OF}'}: compute capability {capability},"
            f" {self.gpu.multiprocessors} multiprocessors, {self.gpu.shared_memory // 1024} kB of "
            "shared memory a block"
        )
        speeds = [
            (each.kernel, _conditions(each.entry), self._figures(each)) for each in self.speeds
        ]
        first, second = (max((len(row[i]) for row in speeds), default=0) for i in (0, 1))
        lines = [f"  {k:{first}}  {c:{second}}  {figures}" for k, c, figures in speeds]
        title = "speed relative to eager's, and to Inductor's where that compiles the rest:"
        return "\n".join([head, *self._constants(), *self._rates(), title, *lines])

    __repr__ = __str__

    def _constants(self) -> list[str]:
        """Lines with the constants that this GPU's choices use."""
        gluon = f"  products in Gluon: {self.gluon or 'where that is expected to be faster'}"
        lines = [f"choice of a product's tiles, {_source(self.source)}:", gluon]
        if self.gpu.capability < TMA_CAPABILITY:
            return [*lines, f"  up to {self.constants.large} results: small tiles"]
        tiles = [f"{row.tiles.BLOCK_M}×{row.tiles.BLOCK_N}" for row in TMA_TILES]
        pairs = zip(tiles, self.constants.costs)
        costs = ", ".join(f"{name} {cost:g}" for name, cost in pairs)
        long = f"  from K = {self.constants.long} on: tiles for long sums"
        return [*lines, long, f"  cost of a tile: {costs}"]

    def _rates(self) -> list[str]:
        if self.rates is None:
            return []
        rates, source = self.rates, self.rates_source
        if source == SHIPPED:
            source = f"{SHIPPED} (of an {self.gpu.name or SHIPPED_OF})"
        ours, theirs, further = (f"{1e6 * each:.3g} µs" for each in rates[:3])
        return [
            f"times of 16-bit products, {source}:",
            f"  the least: ours {ours}, cuBLAS's {theirs}; each further kernel {further}",
            f"  memory {rates.bandwidth / 1e9:.0f} GB/s, tensor cores {rates.flops / 1e12:.0f} "
            f"TFLOP/s, of which cuBLAS reaches {rates.library:.2f}",
        ]

    def _figures(self, speed: Speed) -> str:
        if speed.entry.timed and self.rates is not None:
            return "by the times, of each size"
        figures = f"{speed.entry.eager:.2f}  {speed.entry.inductor:.2f}"
        if speed.source == ESTIMATED:
            return f"{figures}  {ESTIMATED}, more by what the epilogue saves"
        return f"{figures}  {_source(speed.source)}"


def capabilities(device: torch.device | int | None = None) -> Capabilities:
    """The figures that the choice of tiles, fuse and torch.compile use on a GPU.

    Args:
        device: a CUDA device or its number; by default the current one. Without a GPU, or inside
            ``with triton_kernels.interpret():``, the figures are those for interpreted kernels.

    Returns:
        An object that prints each figure with its source: measured here, by
        :func:`triton_kernels.tune`; shipped, measured on the named GPU; or estimated.

    Raises:
        ValueError: there are GPUs, but not this one.
    """
    if torch.cuda.is_available():
        device = cuda_device(device)
        gpu = _launch.gpu(_elementwise_kernels.flat_kernel, device)
    else:
        device, gpu = torch.device("meta"), H200
    measured = _measured.measurement(gpu) is not None
    speeds = [Speed(kernel, *each) for kernel in sorted(ENTRIES) for each in entries(kernel, gpu)]
    source = MEASURED if measured else SHIPPED
    gluon = availability.unavailable(gpu, device)
    rates, origin = rates_of(gpu, device) if gpu.capability == rivals.CAPABILITY else (None, "")
    constants = _measured.constants(gpu)
    return Capabilities(gpu, constants, source, gluon, rates, origin, tuple(speeds))


def cuda_device(device: torch.device | int | None) -> torch.device:
    """The device with its number.

    Raises:
        ValueError: there is no such CUDA device.
    """
    number = device.index if isinstance(device, torch.device) else device
    if number is None:
        number = torch.cuda.current_device()
    cpu = isinstance(device, torch.device) and device.type != "cuda"
    if cpu or not 0 <= number < torch.cuda.device_count():
        raise ValueError(f"no CUDA device {device}; there are {torch.cuda.device_count()}")
    return torch.device("cuda", number)


def _source(source: str) -> str:
    return f"{SHIPPED} (of an {SHIPPED_OF})" if source == SHIPPED else source


def _conditions(entry: Entry) -> str:
    """The conditions of an entry: dtypes, activations, alignment, rows."""
    words = [str(dtype).removeprefix("torch.") for dtype in entry.dtypes]
    if entry.acts:
        words.append(f"with {' or '.join(entry.acts)}")
    if entry.aligned is not None:
        words.append("aligned" if entry.aligned else "not aligned")
    if entry.rows:
        words.append(f"M ≥ {entry.rows}")
    return ", ".join(words)
