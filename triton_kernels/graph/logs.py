"""TRITON_KERNELS_LOGS=fusion: every plan in the log as it is made, so explain is no second compile.

The logger is "triton_kernels.fusion". The variable, in the manner of TORCH_LOGS, prints it.
"""

from __future__ import annotations

import logging
import os
import sys

from triton_kernels.graph.planning import Plan

NAME = "triton_kernels.fusion"
VARIABLE = "TRITON_KERNELS_LOGS"


class _Printing(logging.StreamHandler):  # type: ignore[type-arg]
    """Prints where standard error is now."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


_printing = _Printing()
_printing.setFormatter(logging.Formatter("[%(name)s] %(message)s"))


def note(plan: Plan, by: str) -> None:
    """Log what became of a graph, and who asked."""
    logger = logging.getLogger(NAME)
    if "fusion" in os.environ.get(VARIABLE, "").replace(" ", "").split(","):
        logger.setLevel(logging.INFO)
        if _printing not in logger.handlers:
            logger.addHandler(_printing)
            logger.propagate = False
    if logger.isEnabledFor(logging.INFO):
        logger.info("%s: %d fused, %d left\n%s", by, len(plan.steps), len(plan.left), plan)
