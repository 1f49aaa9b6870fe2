"""The doctor's checks of the Python side: versions, the interpreter, settings, the import name.

Each topic is a function that yields findings. torch, triton and numpy are not imported at the top,
because they may be broken.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shlex
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

Grade = Literal["ok", "warning", "problem"]
ROOT = Path(__file__).resolve().parent.parent.parent
OWN_DISTRIBUTION = "triton-kernels-crosscheck"


@dataclass(frozen=True)
class Finding:
    """One line of the page. With a "problem", ``check`` cannot compare the two sides here."""

    name: str
    grade: Grade
    says: str
    remedy: str = ""


class Tried(NamedTuple):
    """Versions that were tried together; docs/FACTS.md has the runs."""

    triton: str
    numpy: str
    torch: str


TRIED = (
    Tried("3.6.0", "2.5.2", "2.11.0+cu130"),
    Tried("3.6.0", "2.4.6", "2.13.0"),
    Tried("3.6.0", "2.3.5", "2.13.0"),
    Tried("3.7.1", "2.4.6", "2.13.0"),
    Tried("3.8.0", "2.4.6", "2.13.0"),
    Tried("3.8.0", "2.4.6", "2.14.1"),
    Tried("3.9.0", "2.4.6", "2.13.0"),
    Tried("3.9.0", "2.4.6", "2.15.0"),
)

# Name → (a pattern of valid values, the remedy). No other line of the page checks these settings.
SETTINGS = {
    "TRITON_INTERPRET": (r"[01]?", "1 to interpret every kernel, or unset it"),
    "CROSSCHECK_THREAD_ORDER": ("(reverse)?", "reverse, or unset it"),
    "CROSSCHECK_BLOCK_ORDER": ("(forward|reverse)?", "reverse, or unset it"),
    "CROSSCHECK_MASKED_LOADS": ("(zero)?", "zero, or unset it"),
    "CROSSCHECK_SANITIZE": ("(address|thread|undefined)?", "set by --sanitize alone: unset it"),
}

# Name → the line of the page that checks this setting.
JUDGED_ABOVE = {
    "CUDA_REFERENCE_CACHE": "library cache",
    "CUDA_VISIBLE_DEVICES": "GPU",
    "CXX": "C++ compiler",
    "TRITON_CACHE_DIR": "Triton's cache",
}


# ---- Versions ---------------------------------------------------------------


def versions() -> Iterator[Finding]:
    """The versions of Python and the packages, and whether they were tried together."""
    python = platform.python_version()
    new_enough = sys.version_info >= (3, 11)
    yield (
        Finding("python", "ok", f"{python}, {sys.executable}")
        if new_enough
        else Finding(
            "python",
            "problem",
            f"{python} is too old",
            "use Python 3.11 or newer: make setup PYTHON=…",
        )
    )
    there = {}
    for name in ("torch", "triton", "numpy", "typer", "rich"):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch warns if numpy is missing
                module = importlib.import_module(name)
            there[name] = str(getattr(module, "__version__", "")) or importlib.metadata.version(
                name
            )
        except Exception as error:  # noqa: BLE001 - a broken package may raise anything
            yield Finding(
                name,
                "problem",
                f"cannot be imported: {type(error).__name__}: {error}",
                f"python -m pip install --force-reinstall {requirement(name)}",
            )
            continue
        yield Finding(name, "ok", there[name])
    if {"torch", "triton", "numpy"} <= set(there):
        yield _tried(there)
        if there["triton"].startswith("3.6.") and _minor(there["numpy"]) >= (2, 4):
            yield Finding(
                "known-bad pair",
                "warning",
                f"triton {there['triton']} with numpy {there['numpy']}: in Triton's own "
                "interpreter, loops with a run-time bound raise TypeError. "
                "triton_kernels.interpret() corrects that; outside of it such kernels fail",
                "run your own kernels inside triton_kernels.interpret(), or: "
                "python -m pip install 'numpy<2.4'",
            )


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version)[:2])


def requirement(package: str) -> str:
    """The package as a requirement, with the range of versions in this project's metadata. Only its
    name if this project is not installed."""
    try:
        required = importlib.metadata.requires(OWN_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        required = []
    return shlex.quote(next((r for r in required if re.match(rf"{package}\b", r)), package))


def _tried(there: dict[str, str]) -> Finding:
    """Whether these versions were tried together. Triton's full version counts, because this
    project patches its internals; of the others major.minor."""

    def alike(row: Tried) -> list[bool]:
        return [
            row.triton == there["triton"],
            _minor(row.torch) == _minor(there["torch"]),
            _minor(row.numpy) == _minor(there["numpy"]),
        ]

    nearest = max(TRIED, key=alike)
    if all(alike(nearest)):
        return Finding("tried together", "ok", "yes: a row of docs/FACTS.md, 'Versions tried'")
    wanted = " ".join(f"{n}=={v.split('+')[0]}" for n, v in nearest._asdict().items())
    return Finding(
        "tried together",
        "warning",
        "no: these versions of triton, numpy and torch were never run together",
        f"if `python -m compare check` fails, take some that were: python -m pip install {wanted}",
    )


def interpreter() -> Iterator[Finding]:
    """Run a small matrix product, whose loop has a run-time bound, in the corrected interpreter."""
    try:
        import torch

        import triton_kernels as tk

        with tk.interpret():
            right = tk.gemm_bias_act(torch.ones(2, 3), torch.ones(3, 2)).eq(3).all().item()
        says = "" if right else "a matrix product of ones is wrong"
    except Exception as error:  # noqa: BLE001 - any error is a finding
        says = f"{type(error).__name__}: {error}"
    if says:
        yield Finding(
            "interpreter",
            "problem",
            says,
            "fix the problems above, if any, or install versions that were tried: docs/FACTS.md",
        )
    else:
        yield Finding("interpreter", "ok", "a kernel with a loop ran, with the right result")


# ---- Settings and names -----------------------------------------------------


def settings() -> Iterator[Finding]:
    """The environment variables that this project reads and that are set."""
    for name, value in sorted(os.environ.items()):
        if name in SETTINGS:
            valid, remedy = SETTINGS[name]
            if not re.fullmatch(valid, value):
                yield Finding(name, "warning", f"{value!r} is not valid", remedy)
            elif name == "CROSSCHECK_SANITIZE" and value and not _sanitized(value):
                says = f"{value}, but this process has no sanitizer: host libraries will not load"
                remedy = f"unset {name}, and use python -m compare check --sanitize {value}"
                yield Finding(name, "problem", says, remedy)
            else:
                yield Finding(name, "ok", value or "set, but empty")
        elif name.startswith("CROSSCHECK_"):
            known = ", ".join(n for n in SETTINGS if n.startswith("CROSSCHECK_"))
            yield Finding(name, "warning", "nothing reads it", f"unset it; there are {known}")
        elif name == "CUDA_REFERENCE_LIBRARIES" and value:
            yield _prebuilt(name, value)
        elif name in JUDGED_ABOVE and value:
            yield Finding(name, "ok", f"{value} (see {JUDGED_ABOVE[name]} above)")
        elif name in ("CUDA_HOME", "CUDA_PATH") and value:
            there = Path(value, "include", "cuda_runtime_api.h").exists()
            says = value if there else f"{value} holds no CUDA toolkit"
            remedy = "" if there else f"unset {name}, or set it to the folder that holds bin/nvcc"
            yield Finding(name, "ok" if there else "warning", says, remedy)


def _prebuilt(name: str, value: str) -> Finding:
    """The libraries built ahead of time in the folder of this setting. If it is set, no others are
    used."""
    from cuda_reference import BuildError, _shipped

    served, refused = [], []
    targets: tuple[Literal["host", "cuda"], ...] = ("host", "cuda")
    for target in targets:
        try:
            _shipped.serves(target)
            served.append(target)
        except BuildError as error:
            refused.append(str(error))
    if served:
        return Finding(name, "ok", f"{value}: libraries for {' and '.join(served)}")
    says, _, remedy = refused[0].partition("; ")
    return Finding(name, "problem", says, remedy or f"unset {name}, or name a folder that is there")


def _sanitized(kind: str) -> bool:
    symbol = {"address": "__asan_init", "thread": "__tsan_init"}.get(kind)
    return symbol is None or hasattr(ctypes.CDLL(None), symbol)


def import_name() -> Iterator[Finding]:
    """Which ``triton_kernels`` the import finds, and who else provides one."""
    ours = ROOT / "triton_kernels"
    spec = importlib.util.find_spec("triton_kernels")
    got = Path(spec.origin).resolve().parent if spec and spec.origin else None
    owners = set(importlib.metadata.packages_distributions().get("triton_kernels", ()))
    strangers = sorted(owners - {OWN_DISTRIBUTION})
    copies = [Path(entry or ".", "triton_kernels").resolve() for entry in sys.path]
    others = [c for c in dict.fromkeys(copies) if c != ours and (c / "__init__.py").exists()]
    remedy = "use separate environments"
    if strangers:
        remedy = f"python -m pip uninstall {' '.join(strangers)}, or {remedy}"
    elif others:
        remedy = f"take {others[0].parent} off PYTHONPATH, or {remedy}"
    if got != ours:
        says = f"import triton_kernels gets {got}, not {ours}"
        yield Finding("triton_kernels", "problem", says, remedy)
    elif strangers or others:
        whose = ", ".join([*(f"the distribution {s}" for s in strangers), *map(str, others)])
        says = f"also provided by {whose}; here the import gets {got}, elsewhere it may not"
        yield Finding("triton_kernels", "warning", says, remedy)
    else:
        yield Finding("triton_kernels", "ok", f"{ours}, the only one")
