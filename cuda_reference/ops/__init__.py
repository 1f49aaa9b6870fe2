"""The ops of the CUDA side; import their functions from :mod:`cuda_reference`.

Every csrc/<op>.cu holds one or more ops. The functions come from <op>.py in this folder, if it has
``__all__``; its ``VARIANTS`` holds the names of their variants. Otherwise they are made from the
launchers in the .cu (_signatures.py), and <op>.py may hold ``GRADIENTS``: op → the gradients that
:class:`cuda_reference._registered.Registered` takes. All files are loaded at import, in the order
of their names; no other table names the ops.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cuda_reference import _elementwise, _signatures
from cuda_reference._compilers import CSRC
from cuda_reference._registered import Gradients

_FOLDER = Path(__file__).resolve().parent

FUNCTIONS: dict[str, Callable[..., Any]] = {}
VARIANTS: dict[str, Any] = {}  # op → names of variants; for all but products with their dtypes


def _functions(source: Path) -> dict[str, Callable[..., Any]]:
    """The functions of one .cu by name; also fills in VARIANTS.

    Raises:
        ImportError: its host file cannot be imported, or a launcher's signature is incomplete.
    """
    host = _FOLDER / f"{source.stem}.py"
    if not host.is_file():
        return _declared(source, {})
    try:
        module = importlib.import_module(f"{__name__}.{source.stem}")
        if not hasattr(module, "__all__"):
            if not hasattr(module, "GRADIENTS"):
                raise AttributeError("it has neither __all__ nor GRADIENTS")
            return _declared(source, module.GRADIENTS)
        VARIANTS.update(getattr(module, "VARIANTS", {}))
        return {name: getattr(module, name) for name in module.__all__}
    except Exception as error:
        raise ImportError(f"{host}: {type(error).__name__}: {error}") from error


def _declared(source: Path, gradients: Mapping[str, Gradients]) -> dict[str, Callable[..., Any]]:
    """The functions that the launchers of a .cu declare."""
    signatures = _signatures.signatures(source)
    VARIANTS.update({each.op: _elementwise.variants_of(each) for each in signatures})
    return {
        each.op: _elementwise.function(source.stem, each, gradients.get(each.op))
        for each in signatures
    }


def _collect() -> None:
    """Fill the tables.

    Raises:
        ImportError: as :func:`_functions`; two files export one name; a host file has no .cu.
    """
    owners: dict[str, Path] = {}
    sources = sorted(CSRC.glob("*.cu"))
    for source in sources:
        for name, function in _functions(source).items():
            if name in owners:
                raise ImportError(f"{owners[name]} and {source} both export {name!r}")
            owners[name] = source
            FUNCTIONS[name] = function
    stems = {source.stem for source in sources}
    for host in sorted(_FOLDER.glob("[!_]*.py")):
        if host.stem not in stems:
            raise ImportError(f"{host} has no {CSRC / host.stem}.cu")


_collect()
