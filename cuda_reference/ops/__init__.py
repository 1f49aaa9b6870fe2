"""The ops of the CUDA side; import their functions from :mod:`cuda_reference`.

Every csrc/<op>.cu is an op, or several. A file <op>.py here, where there is one, has the functions:
what it has in ``__all__``, and in ``VARIANTS`` the names of their variants. Where there is none, or
one without ``__all__``, the launchers in the .cu say what is to be known (_signatures.py); such a
file has ``GRADIENTS``, op → what :class:`cuda_reference._registered.Registered` takes. All of them
are loaded at import, in the order of their names; no table elsewhere names the ops.
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
VARIANTS: dict[str, Any] = {}  # op → names; with the dtypes of each, but for products


def _functions(source: Path) -> dict[str, Callable[..., Any]]:
    """Those of one .cu by name; the variants are noted.

    Raises:
        ImportError: its host file cannot be imported, or its launchers say too little.
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
