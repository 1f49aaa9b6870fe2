"""The GPU as the engine's device, and its measured ceilings."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

CACHES = 4  # the buffer that empties L2 is so many times as large
REPEATS = 10  # measurements of each ceiling
COPIED = 1 << 30  # bytes, for the copy bandwidth
SPIN = 2_000_000  # cycles, about a millisecond, to calibrate the spinning kernel
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
        self._cycles = 0.0  # of torch's spinning kernel per microsecond, once measured

    def synchronize(self) -> None:
        """Wait for everything that was queued."""
        torch.cuda.synchronize()

    def empty_cache_lines(self, passes: int) -> None:
        """Read several times the size of L2. Writes would leave dirty lines for the next kernel."""
        for _ in range(passes):
            self._buffer.sum()

    def keep_busy(self, microseconds: float) -> None:
        """Spin on the GPU without touching memory."""
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
        """The call as a CUDA graph, whose replay returns the result; None if it cannot be captured.

        Launches on the default stream are not captured. torch warns of an empty graph; its replay
        would be timed as nothing.
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
        except Exception:  # noqa: BLE001 - whatever prevents the capture, there is no graph
            torch.cuda.synchronize()
            return None

        def replay() -> Any:
            graph.replay()
            return result

        return replay


class NoMemoryError(RuntimeError):
    """Other processes leave too little of the GPU's memory for the measurement."""

    def __init__(self, asked: str) -> None:
        super().__init__(f"the GPU is {asked}; other processes may use it")


@dataclass(frozen=True)
class Ceilings:
    """The rates that the device reached in this run: bytes/s of a copy, FLOP/s of torch's product.

    The rate of a float32 product is a third of float16's, because float32 can be computed by three
    float16 products, which the plain FMA rate does not limit. The rate of "tf32" is half of it.
    """

    bandwidth: float
    rates: dict[str, float]
    name: str

    def flops(self, dtype: str) -> float | None:
        """FLOP/s of a dtype's matrix product; None if not measured."""
        parts = {"float32": 3, "tf32": 2}.get(dtype)
        return self.rates["float16"] / parts if parts else self.rates.get(dtype)

    def limit(self, dtype: str, flops: int, moved: int) -> float:
        """The fewest microseconds for this work by the measured ceilings."""
        rate = self.flops(dtype)
        return 1e6 * max(moved / self.bandwidth, flops / rate if rate else 0.0)

    def possible(self, dtype: str, flops: int, moved: int) -> float:
        """The microseconds below which a time is not plausible: by the datasheet if the device has
        one, else 0.9 of the measured limit."""
        sheet = DATASHEETS.get(self.name)
        if sheet is None:
            return 0.9 * self.limit(dtype, flops, moved)
        return 1e6 * max(moved / sheet["bytes"], flops / sheet[dtype] if dtype in sheet else 0.0)

    def to_dict(self) -> dict[str, Any]:
        """The entry of the JSON file, with the datasheet's figures if there are any."""
        return {**asdict(self), "datasheet": DATASHEETS.get(self.name)}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Ceilings:
        """The object of an entry of the JSON file."""
        return cls(saved["bandwidth"], saved["rates"], saved["name"])


def ceilings() -> Ceilings:
    """Measure the device: a large copy, and a large product of random numbers per dtype."""
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
    """The fastest of several runs, since a ceiling is what can be reached."""
    times = []
    for _ in range(REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return min(times)
