"""check: what ``python -m compare check`` does, for any spec, importable or not."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import get_args

import torch
from rich.console import Console

from compare import numerics
from compare.cases import Level, dtype_name
from compare.checking import printing
from compare.checking.budgets import Budget
from compare.checking.implementations import MODES, implementations, unavailable
from compare.checking.scheduling import InProcess
from compare.specs import Spec


class CheckReport:
    """The result of :func:`check`: true if all is right; printable; with :meth:`to_json`.

    Attributes:
        rows: per dtype: what ran, the worst errors and the mismatches.
    """

    def __init__(self, report: printing.Report, text: str) -> None:
        self.rows = report.rows
        self._report, self._text = report, text

    def __bool__(self) -> bool:
        return self._report.passed

    def __str__(self) -> str:
        return self._text

    def to_json(self) -> str:
        """The whole result as JSON text, as ``check --json`` writes it."""
        return json.dumps(numerics.json_safe(self._report.to_dict()))


def check(
    spec: Spec, *, level: Level = "standard", dtypes: Sequence[str | torch.dtype] = ()
) -> CheckReport:
    """Run both sides of a spec on all its cases, against the oracle and each other.

    Everything runs in this process. ``python -m compare check --target module:spec`` uses other
    processes, which a kernel may crash or hang.

    Args:
        spec: a :class:`compare.Function`, :class:`compare.Elementwise`, or any other spec.
        level: "quick", "standard" or "full": how many cases.
        dtypes: only these of the spec's dtypes.

    Returns:
        A :class:`CheckReport`.

    Raises:
        TypeError, ValueError: ``spec`` is no spec, or lacks one of the dtypes; an unknown level.
        OracleError: the spec's oracle raises, or does not return a tensor to compare with.
        BuildError: a CUDA source does not compile.

    Example:
        >>> report = check(compare.Function("sin", triton=f, oracle=torch.sin, shapes=[(1000,)]))
        >>> assert report, report
    """
    if not isinstance(spec, Spec):
        kind = type(spec).__name__
        raise TypeError(f"check(): argument 'spec' must be a compare.Spec, but got {kind}")
    if level not in get_args(Level):
        raise ValueError(f"check(): no level {level!r}; there are {', '.join(get_args(Level))}")
    names = [dtype_name(dtype) for dtype in dtypes] or list(spec.dtypes)
    if unknown := [name for name in names if name not in spec.dtypes]:
        has = ", ".join(spec.dtypes)
        raise ValueError(f"check(): {spec.name} has no dtype {unknown[0]!r}; it has {has}")
    reasons = unavailable()
    able = implementations(spec, [mode for mode in MODES if mode not in reasons])
    out = Console(file=io.StringIO(), width=120)
    report = printing.run(
        [(spec, dtype, list(spec.cases(dtype, level))) for dtype in names],
        {spec.name: able},
        reasons,
        [],
        every_input=False,
        limit=True,
        require_all=False,
        budget=Budget.here(None, 1),
        runner=InProcess(),
        console=out,
    )
    assert isinstance(out.file, io.StringIO)
    return CheckReport(report, out.file.getvalue().rstrip())
