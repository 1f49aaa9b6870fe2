"""The specs of all ops, one file per op, and those of targets, by ``module:spec``.

``compare/ops/<op>.py`` has a list ``SPECS`` of :class:`compare.specs.spec.Spec` objects: that of
the op and those of its gradients that are ops. The files of an op share one name:
``triton_kernels/ops/<op>.py`` and ``cuda_reference/csrc/<op>.cu``. Files whose names start with
``_`` are skipped, as on the Triton side.
"""

from __future__ import annotations

import importlib
import pkgutil

from compare.ops._targets import (
    CUDA,
    TargetError,
    elsewhere,
    module_file,
    place,
    sources,
    target,
    words,
)
from compare.specs.spec import Spec

__all__ = [
    "CUDA",
    "SPECS",
    "TargetError",
    "elsewhere",
    "has_name",
    "module_file",
    "place",
    "sources",
    "spec_of",
    "words",
]


def _scanned() -> dict[str, Spec]:
    specs_by_name: dict[str, Spec] = {}
    names = (module.name for module in pkgutil.iter_modules(__path__))
    for stem in sorted(name for name in names if not name.startswith("_")):
        file = f"compare/ops/{stem}.py"
        try:
            specs = importlib.import_module(f"{__name__}.{stem}").SPECS
        except Exception as error:
            raise ImportError(f"{file}: {type(error).__name__}: {error}") from error
        for spec in specs:
            if spec.name in specs_by_name:
                raise ImportError(f"{file}: there is an op {spec.name!r} already")
            spec.stem = stem
            specs_by_name[spec.name] = spec
    in_families = sorted(specs_by_name.items(), key=lambda each: each[1].order)  # then by files
    return dict(in_families)


SPECS: dict[str, Spec] = _scanned()


def has_name(op: str) -> bool:
    """Whether a command can name it: it is an op or a target."""
    return ":" in op or op in SPECS


def spec_of(name: str) -> Spec:
    """The spec of an op, or of a target, ``module:spec``.

    Raises:
        KeyError: there is no such op.
        TargetError: there is no such target.
    """
    return target(name) if ":" in name else SPECS[name]
