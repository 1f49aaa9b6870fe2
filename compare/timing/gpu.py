"""The GPU as the engine needs it, and what it can do at most."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

CACHES = 4  # times the size of L2 that is read to empty it
REPEATS = 10  # of what measures a ceiling
COPIED = 1 << 30  # bytes, for the copy bandwidth
SPIN = 2_000_000  # cycles, about a millisecond: by which the spinning kernel is calibrated
PRODUCT = 8192  # M, N and K of the product that measures the matrix rate

# Dense rates of the vendor's datasheet, in FLOP/s and bytes/s: "NVIDIA H200 Tensor Core GPU", SXM.
DATASHEETS = {
    "NVIDIA H200": {
        "bytes": 4.8e12,
        "float16": 989e12,
        "bfloat16": 989e12,
        "float32": 989e12 / 3,  # see Ceilings.flops
        "tf32": 494e12,
    },
}


class Gpu:
    """The current CUDA device; an engine's Device."""

    def __init__(self) -> None:
        properties = torch.cuda.get_device_properties()
        size = max(CACHES * properties.L2_cache_size, 128 << 20)
        self._buffer = torch.ones(size // 4, device="cuda")
        self._cycles = 0.0  # of torch's spinning kernel a microsecond, once it is known

    def synchronize(self) -> None:
        """Wait for everything that was queued."""
        torch.cuda.synchronize()

    def empty_cache_lines(self, passes: int) -> None:
        """Read several times the size of L2; writing would leave dirty lines for others to pay."""
        for _ in range(passes):
            self._buffer.sum()

    def keep_busy(self, microseconds: float) -> None:
        """Spin on the GPU, touching no memory."""
        if not self._cycles:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(SPIN)
            start.record()
            torch.cuda._sleep(SPIN)
            end.record()
            torch.cuda.synchronize()
            self._cycles = SPIN / (1e3 * start.elapsed_time(end))
        torch.cuda._sleep(int(microseconds * self._cycles))

    def event(self) -> torch.cuda.Event:
        """Record an event."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def elapsed(self, start: Any, end: Any) -> float:
        """Microseconds between two events."""
        return float(start.elapsed_time(end)) * 1e3

    def graph(self, call: Callable[[], Any]) -> Callable[[], Any] | None:
        """The call as a CUDA graph, whose replay returns the result; None if it cannot be one.

        What a call launches on the default stream is not captured: torch warns of an empty graph,
        whose replay would be timed as nothing.
        """
        graph = torch.cuda.CUDAGraph()
        try:
            torch.cuda.synchronize()
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                call()
            torch.cuda.synchronize()
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                with torch.cuda.graph(graph, stream=side):
                    result = call()
            if any("CUDA Graph is empty" in str(each.message) for each in warned):
                return None
            graph.replay()
            torch.cuda.synchronize()
        except Exception:  # noqa: BLE001 - whatever prevents capture, there is no graph
            torch.cuda.synchronize()
            return None

        def replay() -> Any:
            graph.replay()
            return result

        return replay


class NoMemoryError(RuntimeError):
    """Others have so much of the GPU's memory that what measures it does not fit."""

    def __init__(self, asked: str) -> None:
        super().__init__(f"the GPU is {asked}; other processes may use it")


@dataclass(frozen=True)
class Ceilings:
    """What the device reached in this run: bytes/s of a copy, FLOP/s of torch's matrix product.

    The rate of a float32 product is taken as a third of float16's: float32 is had from three
    float16 products, and the plain FMA rate is no limit to those. That of "tf32" is half of it.
    """

    bandwidth: float
    rates: dict[str, float]
    name: str

    def flops(self, dtype: str) -> float | None:
        """FLOP/s of a dtype's matrix product; None where none was measured."""
        parts = {"float32": 3, "tf32": 2}.get(dtype)
        return self.rates["float16"] / parts if parts else self.rates.get(dtype)

    def limit(self, dtype: str, flops: int, moved: int) -> float:
        """Microseconds that so much work takes at least, by the measured ceilings."""
        rate = self.flops(dtype)
        return 1e6 * max(moved / self.bandwidth, flops / rate if rate else 0.0)

    def possible(self, dtype: str, flops: int, moved: int) -> float:
        """Microseconds below which a result is not believed: by the datasheet, where the device is
        known, else a tenth less than the measured limit."""
        sheet = DATASHEETS.get(self.name)
        if sheet is None:
            return 0.9 * self.limit(dtype, flops, moved)
        return 1e6 * max(moved / sheet["bytes"], flops / sheet[dtype] if dtype in sheet else 0.0)

    def to_dict(self) -> dict[str, Any]:
        """What the JSON file has of it, with the datasheet's figures where they are known."""
        return {**asdict(self), "datasheet": DATASHEETS.get(self.name)}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Ceilings:
        """The object that the JSON file tells of."""
        return cls(saved["bandwidth"], saved["rates"], saved["name"])


def ceilings() -> Ceilings:
    """Measure the device: a large copy, and a large product of random numbers a dtype."""
    source = torch.ones(COPIED // 4, device="cuda")
    target = torch.empty_like(source)
    bandwidth = 2 * COPIED / _seconds(lambda: target.copy_(source))
    rates = {}
    for dtype in (torch.float16, torch.bfloat16):
        a = torch.randn(PRODUCT, PRODUCT, device="cuda", dtype=dtype)
        b = torch.randn(PRODUCT, PRODUCT, device="cuda", dtype=dtype)
        seconds = _seconds(lambda: a @ b)  # noqa: B023 - called before the loop goes on
        rates[str(dtype).removeprefix("torch.")] = 2 * PRODUCT**3 / seconds
    return Ceilings(bandwidth, rates, torch.cuda.get_device_name())


def _seconds(call: Callable[[], Any]) -> float:
    """The best of several, for a ceiling is what can be reached."""
    times = []
    for _ in range(REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return min(times)
