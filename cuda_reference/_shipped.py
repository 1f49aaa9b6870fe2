"""Libraries built ahead of time, for machines without a compiler.

``python -m cuda_reference build`` fills a folder. It has a library for every source and target,
named by the hash of its content, and a record such as square-cuda.json, which names the library and
describes what it was built from. If ``CUDA_REFERENCE_LIBRARIES`` names the folder, it is used
strictly: a library that is missing, stale or for another machine is an error. Without the variable
the folder _prebuilt inside this package is used, for example that of a wheel; libraries that do not
fit are built as usual.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cuda_reference import _storage
from cuda_reference._compilers import (
    ARCHITECTURE,
    CSRC,
    BuildError,
    Target,
    _sanitizer,
    portable_hash,
)

PACKAGED = Path(__file__).resolve().parent / "_prebuilt"


@dataclass(frozen=True)
class Record:
    """The record of a library: what it was built from, and for which machine."""

    library: str
    size: int
    sha256: str
    sources: str
    architectures: list[str]  # as in TORCH_CUDA_ARCH_LIST; empty for the host target
    machine: str
    compiler: str  # only information: libraries of all compilers are valid


# ---- Making -----------------------------------------------------------------


def keep(
    stem: str,
    target: Target,
    library: Path,
    architectures: Sequence[str],
    compiler: str,
    folder: Path,
) -> Path:
    """Put a built library and its record into ``folder``, replacing an older one."""
    with _storage.workspace(folder) as work:
        kept = _storage.keep(
            library,
            _record_file(stem, target, folder),
            f"{stem}-{target}",
            work,
            sources=portable_hash(CSRC / f"{stem}.cu", target),
            architectures=list(architectures),
            machine=platform.machine(),
            compiler=compiler,
        )
    for older in folder.glob(f"{stem}-{target}-*.so"):
        if older != kept:
            older.unlink(missing_ok=True)
    return kept


# ---- Finding ----------------------------------------------------------------


def libraries(stems: Sequence[str], target: Target) -> tuple[dict[str, Path], list[str]]:
    """Stem → prebuilt library, and the reasons why others in the package's folder do not fit.

    Raises:
        BuildError: CUDA_REFERENCE_LIBRARIES is set, and the library of a stem does not fit.
    """
    folder = _chosen_folder(target)
    if folder is not None:
        return {stem: find(stem, target, folder) for stem in stems}, []
    ready, misfits = {}, []
    for stem in stems:
        if not _is_sanitized(target) and _record_file(stem, target, PACKAGED).is_file():
            try:
                ready[stem] = find(stem, target, PACKAGED)
            except BuildError as error:
                misfits.append(str(error))
    return ready, misfits


def serves(target: Target) -> bool:
    """Whether no compiler is needed for ``target``, because there are prebuilt libraries.

    Raises:
        BuildError: CUDA_REFERENCE_LIBRARIES is set and has no library for the target, or one that
            does not fit.
    """
    stems = sorted(source.stem for source in CSRC.glob("*.cu"))
    folder = _chosen_folder(target)
    if folder is None:
        return len(libraries(stems, target)[0]) == len(stems)
    present = [stem for stem in stems if _record_file(stem, target, folder).is_file()]
    libraries(present or stems, target)
    return True


def find(stem: str, target: Target, folder: Path) -> Path:
    """The library for ``target`` in ``folder``.

    Raises:
        BuildError: there is none, or it is damaged, stale or for another machine.
    """
    file = _record_file(stem, target, folder)
    if not file.is_file():
        text = f"{folder} has no library of {stem}.cu for the {target} target"
        raise _misfit(text, stem, target, folder)
    try:
        library, about = _storage.find(file)
        record = Record(**about)
    except (OSError, ValueError, TypeError) as error:
        raise _misfit(f"{file} is of no use ({error})", stem, target, folder) from None
    architectures = record.architectures
    if record.sources != portable_hash(CSRC / f"{stem}.cu", target):
        problem = "is stale: its sources or flags have changed since it was built"
    elif record.machine != platform.machine():
        problem = f"was built for {record.machine}, and this machine is {platform.machine()}"
    elif target == "cuda" and (device := _capability()) and not covers(architectures, *device):
        architectures = [*architectures, "{}.{}".format(*device)]
        problem = (
            f"was built for GPU architectures {', '.join(record.architectures)}, "
            "and this GPU is {}.{}".format(*device)
        )
    else:
        return library
    raise _misfit(f"{library} {problem}", stem, target, folder, architectures)


def covers(architectures: Sequence[str], major: int, minor: int) -> bool:
    """Whether a GPU of compute capability major.minor can run code built for these."""
    for architecture in architectures:
        match = ARCHITECTURE.fullmatch(architecture)
        if not match:
            continue
        built, suffix, ptx = (int(match[1]), int(match[2])), match[3], match[4]
        if suffix == "a":  # runs on this architecture only, even as PTX
            fits = built == (major, minor)
        elif ptx and not suffix:
            fits = built <= (major, minor)
        else:
            fits = built[0] == major and built[1] <= minor
        if fits:
            return True
    return False


def _chosen_folder(target: Target) -> Path | None:
    chosen = os.environ.get("CUDA_REFERENCE_LIBRARIES")
    if not chosen or _is_sanitized(target):
        return None
    folder = Path(chosen).expanduser().absolute()
    if not folder.is_dir():
        raise BuildError(f"CUDA_REFERENCE_LIBRARIES is {chosen!r}, which is no folder")
    return folder


def _is_sanitized(target: Target) -> bool:
    """Whether a sanitizer is set. Sanitized libraries are never shipped."""
    return target == "host" and _sanitizer() is not None


def _record_file(stem: str, target: Target, folder: Path) -> Path:
    return folder / f"{stem}-{target}.json"


def _capability() -> tuple[int, int] | None:
    """The current GPU's capability; None without a GPU, as on a build machine."""
    import torch

    return torch.cuda.get_device_capability() if torch.cuda.is_available() else None


def _misfit(
    problem: str, stem: str, target: Target, folder: Path, architectures: Sequence[str] = ()
) -> BuildError:
    """The error for a library that cannot be used, with the command that builds a valid one."""
    command = f"python -m cuda_reference build {stem} --target {target} --out {folder}"
    if target == "cuda":
        numbers = [name.removesuffix("+PTX") for name in architectures] or ["80", "90"]
        command += f" --arch {','.join(dict.fromkeys(numbers))}"
    rest = "" if folder == PACKAGED else "; or unset CUDA_REFERENCE_LIBRARIES to compile here"
    return BuildError(f"{problem}; where a compiler is, run: {command}{rest}")
