"""Targets: specs of kernels from elsewhere. Every process can import one by ``module:spec``."""

from __future__ import annotations

import functools
import importlib
import os
import re
import sys
import traceback
from pathlib import Path

import torch

from compare.specs.spec import Spec
from cuda_reference._extension import LOADED

_ASKS = re.compile(r"compiled with CUDA|NVIDIA driver|CUDA GPUs are available|active drivers")


class TargetError(ValueError):
    """A target's name is malformed, or there is no such spec."""


@functools.cache
def target(name: str) -> Spec:
    """The spec that ``module:spec`` names; its name becomes the target's.

    Raises:
        TargetError: the module cannot be imported, or has no such spec.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise TargetError(f"{name}: write MODULE:SPEC, as in my_module:SPEC")
    if "/" in module or module.startswith("."):
        hint = ".".join(Path(module).with_suffix("").parts).strip(".")
        raise TargetError(f"{name}: a module is named, not a file: {hint}:{attribute}")
    if (here := os.getcwd()) not in sys.path:  # an installed command does not have it there
        sys.path.insert(0, here)
    try:
        imported = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        absent = missing and f"{module}.".startswith(f"{missing}.")  # not one of its imports
        hint = f"; run where it lies, or install it (this is {here})" if absent else ""
        if not torch.cuda.is_available() and _ASKS.search(str(error)):
            hint = (
                "; without a GPU import it inside triton_kernels.interpret(), which describes one"
            )
        raise TargetError(f"{name}: {words(error)}{hint}") from error
    spec = getattr(imported, attribute, None)
    if isinstance(spec, Spec):
        return spec.changed(name=name)
    specs = [key for key, value in vars(imported).items() if isinstance(value, Spec)]
    there = f"its specs: {', '.join(specs) or 'none'}"
    if hasattr(imported, attribute):
        raise TargetError(f"{name} is no compare.Spec but {type(spec).__name__}; {there}")
    raise TargetError(f"{name}: {module} has no {attribute!r}; {there}")


def module_file(name: str) -> Path:
    """The file of a target's module."""
    target(name)
    return Path(_file(name.partition(":")[0]))


CUDA = (".cu", ".cuh", ".cpp", ".h", ".hpp")


@functools.cache
def sources(name: str) -> tuple[Path, tuple[str, ...]]:
    """The folder from which a target's modules are imported, and the paths below it of the files
    that belong to the target: all of its package, or else its module and the CUDA sources beside
    it; and those that cuda_reference.load has loaded from there, with what lies in their folders.
    """
    target(name)
    top, _, _ = name.partition(":")[0].partition(".")
    root = Path(_file(top)).parent
    if Path(_file(top)).name == "__init__.py":
        root = root.parent
    alone = "site-packages" in root.parts  # which holds files of other projects
    belonging: dict[Path, None] = {}
    for each in [top] if alone else sorted({name.partition(".")[0] for name in sys.modules}):
        file = Path(_file(each)) if _file(each) else root
        if each in OURS or file == root or root not in file.parents:
            continue
        if file.name == "__init__.py":
            files = [path for path in file.parent.rglob("*") if path.is_file()]
            belonging.update(dict.fromkeys(p for p in files if "__pycache__" not in p.parts))
        elif file.parent == root:
            beside = [path for path in root.iterdir() if path.suffix in CUDA]
            belonging.update(dict.fromkeys((file, *beside)))
    for source in () if alone else _loaded():
        if root in source.parents:
            near = [source] if source.parent == root else source.parent.rglob("*")
            belonging.update((p, None) for p in near if p.suffix in CUDA and p.is_file())
    return root, tuple(sorted(path.relative_to(root).as_posix() for path in belonging))


def elsewhere(name: str) -> list[Path]:
    """The loaded CUDA sources that do not lie in the folder from which a target is imported."""
    root, _ = sources(name)
    return [each for each in _loaded() if root not in each.parents]


def _loaded() -> list[Path]:
    """The files of CUDA sources that cuda_reference.load has loaded, with their headers."""
    return sorted({file for each in LOADED for file in each._files()})


OURS = ("compare", "cuda_reference", "triton_kernels")


def _file(module: str) -> str:
    """The module's file; for a package without ``__init__.py`` the path which that would have."""
    imported = sys.modules.get(module)
    folders = list(getattr(imported, "__path__", ()))
    there = os.path.join(folders[0], "__init__.py") if folders else ""
    return getattr(imported, "__file__", None) or there


def words(error: BaseException) -> str:
    """An error with its place."""
    return f"{type(error).__name__}: {error}{place(error)}"


def place(error: BaseException) -> str:
    """`` (file:line)`` of the last line in the traceback that is neither Python's nor of torch,
    triton or these packages; "" if there is none."""
    others = tuple(str(Path(_file(name)).parent) + os.sep for name in (*OURS, "torch", "triton"))
    pythons = str(Path(os.__file__).parent) + os.sep

    def is_other(file: str) -> bool:
        of_python = file.startswith(pythons) and "site-packages" not in file
        return of_python or file.startswith((*others, "<frozen"))

    frames = traceback.extract_tb(error.__traceback__)
    lines = [f" ({f.filename}:{f.lineno})" for f in frames if not is_other(f.filename)]
    return lines[-1] if lines else ""
