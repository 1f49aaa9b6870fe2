"""What was measured of GPUs: constants of the choice of tiles, and speeds of kernels; what ships,
and what :func:`triton_kernels.tune` measured on this machine.

The latter lies in a file of this user, one for each model of GPU, in triton-kernels-crosscheck in
``$XDG_CACHE_HOME`` or ``~/.cache``, and wins over what ships. It holds for the GPU, the versions
and the kernels' sources that it names. One that holds for others, that is damaged, or that somebody
else could have written is left alone, with a warning.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import re
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton

from triton_kernels._gpu import Gpu


class Constants(NamedTuple):
    """What the choice of tiles rests on, besides what a GPU has. The figures are an H200's, and
    ship.

    Attributes:
        costs: the time of one tile of each row of gemm.choice.TMA_TILES, relative to the first's.
        long: K from which a row's tiles for long sums pay.
        wide: columns from which tiles of 64 keep a GPU with an H200's multiprocessors busy, where
            rows are few.
        large: results up to which small tiles through pointers are better there.
    """

    costs: tuple[float, ...] = (1.0, 0.53, 0.31, 0.2, 0.17)
    long: int = 3072
    wide: int = 96 * 64
    large: int = 1024 * 1024 * 2


SHIPPED = Constants()
SHIPPED_OF = "NVIDIA H200"


class Rates(NamedTuple):
    """What the times of products rest on, by which graphs take kernels: see gemm.rivals.

    Attributes:
        ours, theirs: seconds of a product that is next to nothing, here and in cuBLAS.
        further: seconds of every kernel after the first, but for what it moves.
        bandwidth: bytes/s that a pass over the memory reaches.
        flops: FLOP/s of the tensor cores, by what the largest of our tiles reach of them.
        library: what cuBLAS reaches of these.
    """

    ours: float
    theirs: float
    further: float
    bandwidth: float
    flops: float
    library: float


RATES = {
    SHIPPED_OF: Rates(5.3e-6, 5.3e-6, 2.8e-6, 4.3e12, 989e12, 0.84),
    "NVIDIA H100 80GB HBM3": Rates(7e-6, 7e-6, 2.9e-6, 3e12, 989e12, 0.84),
}

# Kernel → place among the entries of its op file → speed relative to eager's and to Inductor's.
Speeds = Mapping[str, Mapping[int, tuple[float, float]]]


class Measurement(NamedTuple):
    """What tune found; ``rates`` only where scores rest on them."""

    constants: Constants
    speeds: Speeds
    rates: Rates | None = None


def constants(gpu: Gpu) -> Constants:
    """What holds for a GPU."""
    measured = measurement(gpu)
    return SHIPPED if measured is None else measured.constants


def rates(gpu: Gpu) -> Rates | None:
    """What was measured of a GPU here, or ships for its model; None where neither is known."""
    measured = measurement(gpu)
    if measured is not None and measured.rates is not None:
        return measured.rates
    return RATES.get(gpu.name or SHIPPED_OF)


@functools.cache
def measurement(gpu: Gpu) -> Measurement | None:
    """What was measured on such a GPU on this machine; read once."""
    if not gpu.name:
        return None
    try:
        path = file(gpu)
    except RuntimeError:  # there is no home
        return None
    try:
        return _read(path, gpu)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        warnings.warn(
            f"what was measured of this GPU is not used, but what ships: {path}: {error}. "
            "triton_kernels.tune() measures again",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


def file(gpu: Gpu) -> Path:
    """Where a GPU's measurement is kept."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    model = re.sub(r"[^a-z0-9]+", "-", gpu.name.lower()).strip("-")
    return home / "triton-kernels-crosscheck" / f"tuned-{model}.json"


def save(gpu: Gpu, found: Measurement) -> Path:
    """Keep a measurement: whole or not at all, readable by this user alone.

    Raises:
        OSError: it cannot be written; what was there is there still.
    """
    path = file(gpu)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    content = {
        "holds_for": _holds_for(gpu),
        "constants": found.constants._asdict(),
        "speeds": {kernel: dict(speeds) for kernel, speeds in found.speeds.items()},
        "rates": None if found.rates is None else found.rates._asdict(),
    }
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # of mode 0600
    try:
        with open(handle, "w", encoding="utf-8") as new:
            json.dump(content, new, indent=2)
            new.flush()
            os.fsync(new.fileno())  # else a crash could leave the new name on an empty file
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    measurement.cache_clear()
    return path


def _holds_for(gpu: Gpu) -> dict[str, Any]:
    """Everything that figures depend on: GPU, versions, the kernels' sources."""
    return {
        **gpu._asdict(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "sources": _sources(),
    }


@functools.cache
def _sources() -> str:
    """A hash of the files that the kernels, their tiles and the entries of their speeds are in."""
    here, digest = Path(__file__).parent, hashlib.sha256()
    for path in sorted(p for p in here.rglob("*.py") if _counts(p.relative_to(here).parts)):
        digest.update(path.relative_to(here).as_posix().encode() + b"\n" + path.read_bytes())
    return digest.hexdigest()[:12]


def _counts(parts: tuple[str, ...]) -> bool:
    engine = "_elementwise.py", "_elementwise_kernels.py", "_scalars.py"
    return parts[0] in ("ops", "gemm", "activations.py", *engine)


def _read(path: Path, gpu: Gpu) -> Measurement:
    """Raises OSError or ValueError."""
    with path.open("rb") as opened:
        status = os.fstat(opened.fileno())
        if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
            raise ValueError("others could have written it")
        content = opened.read()
    try:
        stored = json.loads(content)
        held, now = stored["holds_for"], _holds_for(gpu)
        held = {name: held.get(name, "nothing") for name in now}
        other = [f"{name} {held[name]}, not {now[name]}" for name in now if held[name] != now[name]]
        if not other:
            constants, speeds = _constants(stored["constants"]), _speeds(stored["speeds"])
            return Measurement(constants, speeds, _rates(stored["rates"]))
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise ValueError(f"it is damaged ({error!r})") from error
    raise ValueError(f"it was measured for {', '.join(other)}")


def _constants(found: Mapping[str, Any]) -> Constants:
    costs = tuple(map(_positive, found["costs"]))
    if len(costs) != len(SHIPPED.costs):
        raise ValueError(f"{len(costs)} costs")
    sizes = {name: int(_positive(found[name])) for name in Constants._fields if name != "costs"}
    return Constants(costs, **sizes)


def _speeds(found: Mapping[str, Any]) -> Speeds:
    return {
        kernel: {
            int(place): (_positive(eager), _positive(inductor))
            for place, (eager, inductor) in speeds.items()
        }
        for kernel, speeds in found.items()
    }


def _rates(found: Mapping[str, Any] | None) -> Rates | None:
    if found is None:
        return None
    return Rates(*(_positive(found[name]) for name in Rates._fields))


def _positive(number: Any) -> float:
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise TypeError(f"{number!r} is no number")
    if not 0 < number < math.inf:
        raise ValueError(f"{number!r} is no positive number")
    return number
