"""The ops, one file each; import their functions from :mod:`triton_kernels`.

All files are imported in the order of their names, when the package is. The functions in a file's
``__all__`` become functions of :mod:`triton_kernels`. A file may also define

- ``VARIANTS``: op → name of a variant → callable with the op's signature,
- ``GRAPH``: a :class:`triton_kernels._fusion.Fusion`, for fuse and torch.compile.

A file whose name starts with ``_`` is a part of an op: ``_sum_to_tiles.py`` belongs to
``sum_to.py``. No other table names the ops.
"""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor

from triton_kernels._fusion import Fusion

_FOLDER = Path(__file__).resolve().parent


def _modules() -> Iterator[ModuleType]:
    """Import the op files.

    Raises:
        ImportError: one of them cannot be imported; the text names it.
    """
    for path in sorted(_FOLDER.glob("[!_]*.py")):
        try:
            yield importlib.import_module(f"{__name__}.{path.stem}")
        except Exception as error:
            words = f"{_blamed(error, path)}: {type(error).__name__}: {error}"
            raise ImportError(words) from error


def _blamed(error: Exception, path: Path) -> Path:
    """The op file that failed while ``path`` was imported. Op files import each other, so it is the
    last op file in the traceback."""
    frames = [Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append(Path(error.filename))
    files = [f for f in frames if f.parent == _FOLDER and f.name != "__init__.py"]
    return files[-1] if files else path


FUNCTIONS: dict[str, Callable[..., Any]] = {}
VARIANTS: dict[str, dict[str, Callable[..., Tensor]]] = {}
FUSIONS: list[Fusion] = []


def _collect() -> None:
    """Fill the tables from the op files.

    Raises:
        ImportError: a file has no ``__all__``, or exports a name that another file exports.
    """
    owners: dict[str, str] = {}
    for module in _modules():
        file = str(module.__file__)
        if not hasattr(module, "__all__"):
            raise ImportError(f"{file} has no __all__: the functions that triton_kernels gets")
        for name in module.__all__:
            if name in owners:
                raise ImportError(f"{owners[name]} and {file} both export {name!r}")
            if not hasattr(module, name):
                raise ImportError(f"{file} has {name!r} in __all__, but no such function")
            owners[name] = file
            FUNCTIONS[name] = getattr(module, name)
        VARIANTS.update(getattr(module, "VARIANTS", {}))
        if hasattr(module, "GRAPH"):
            FUSIONS.append(module.GRAPH)


_collect()
