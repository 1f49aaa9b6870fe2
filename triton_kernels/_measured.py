"""Measured figures of GPUs: constants of the choice of tiles, rates, and speeds of kernels.

Some ship with this package. :func:`triton_kernels.tune` measures them on this machine and keeps
them in a file per user and model of GPU, in ``$XDG_CACHE_HOME/triton-kernels-crosscheck`` or
``~/.cache/triton-kernels-crosscheck``. The file is used instead of the shipped figures. It names
the GPU, the versions and the kernels' sources for which it is valid. A file that is for others, is
damaged, or could have been written by another user is ignored with a warning.
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
    """The measured constants of the choice of tiles. The defaults are an H200's, and ship.

    Attributes:
        costs: the time of a tile of each row of gemm.choice.TMA_TILES, relative to the first's.
        long: the smallest K for which a row's tiles for long sums are faster.
        large: the largest number of results for which small tiles through pointers are faster on
            a GPU with an H200's number of multiprocessors.
    """

    costs: tuple[float, ...] = (1.0, 0.53, 0.31, 0.2, 0.17)
    long: int = 3072
    large: int = 1024 * 1024 * 2


SHIPPED = Constants()
SHIPPED_OF = "NVIDIA H200"


class Rates(NamedTuple):
    """The rates behind the expected times of products, by which graphs choose kernels; see
    gemm.rivals.

    Attributes:
        ours, theirs: seconds of a tiny product, in our kernels and in cuBLAS.
        further: seconds of every kernel after the first, without the time for its data.
        bandwidth: bytes/s of a pass over memory.
        flops: FLOP/s of the tensor cores, inferred from the rate of our largest tiles.
        library: the fraction of ``flops`` that cuBLAS reaches.
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

# Kernel → index of an entry of its op file → speed relative to eager's and to Inductor's.
Speeds = Mapping[str, Mapping[int, tuple[float, float]]]


class Measurement(NamedTuple):
    """The figures that tune measured; ``rates`` only on GPUs where scores depend on them."""

    constants: Constants
    speeds: Speeds
    rates: Rates | None = None


def constants(gpu: Gpu) -> Constants:
    """The constants in use for a GPU: measured on this machine, or else the shipped ones."""
    measured = measurement(gpu)
    return SHIPPED if measured is None else measured.constants


def rates(gpu: Gpu) -> Rates | None:
    """The rates measured on this machine, or else those shipped for the GPU's model, or None."""
    measured = measurement(gpu)
    if measured is not None and measured.rates is not None:
        return measured.rates
    return RATES.get(gpu.name or SHIPPED_OF)


@functools.cache
def measurement(gpu: Gpu) -> Measurement | None:
    """The measurement of such a GPU on this machine, or None; the file is read once."""
    if not gpu.name:
        return None
    try:
        path = file(gpu)
    except RuntimeError:  # there is no home directory
        return None
    try:
        return _read(path, gpu)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        warnings.warn(
            f"the measurement of this GPU is not used, but the shipped figures: {path}: {error}. "
            "triton_kernels.tune() measures again",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


def file(gpu: Gpu) -> Path:
    """The path of the file with a GPU's measurement."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    model = re.sub(r"[^a-z0-9]+", "-", gpu.name.lower()).strip("-")
    return home / "triton-kernels-crosscheck" / f"tuned-{model}.json"


def save(gpu: Gpu, found: Measurement) -> Path:
    """Write a measurement to its file in one step, readable by this user only.

    Raises:
        OSError: it cannot be written; a former file is unchanged.
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
            os.fsync(new.fileno())  # otherwise a crash could leave an empty file of that name
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    measurement.cache_clear()
    return path


def _holds_for(gpu: Gpu) -> dict[str, Any]:
    """Everything on which the figures depend: GPU, versions, the kernels' sources."""
    return {
        **gpu._asdict(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "sources": _sources(),
    }


@functools.cache
def _sources() -> str:
    """A hash of the files with the kernels, their tiles and the entries of their speeds."""
    here, digest = Path(__file__).parent, hashlib.sha256()
    for path in sorted(p for p in here.rglob("*.py") if _counts(p.relative_to(here).parts)):
        digest.update(path.relative_to(here).as_posix().encode() + b"\n" + path.read_bytes())
    return digest.hexdigest()[:12]


def _counts(parts: tuple[str, ...]) -> bool:
    engine = "_elementwise.py", "_elementwise_kernels.py", "_scalars.py"
    return parts[0] in ("ops", "gemm", "activations.py", *engine)


def _read(path: Path, gpu: Gpu) -> Measurement:
    """The measurement in a file.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is damaged, is for other versions, or others could have written it.
    """
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
