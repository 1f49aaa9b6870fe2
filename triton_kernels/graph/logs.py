"""Logs every plan when it is made, so that no second compile with explain is needed.

The logger is "triton_kernels.fusion". TRITON_KERNELS_LOGS=fusion prints it, similar to TORCH_LOGS.
"""

from __future__ import annotations

import logging
import os
import sys

from triton_kernels.graph.planning import Plan

NAME = "triton_kernels.fusion"
VARIABLE = "TRITON_KERNELS_LOGS"


class _Printing(logging.StreamHandler):  # type: ignore[type-arg]
    """Prints to the current sys.stderr, which may be replaced after this handler was made."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


_printing = _Printing()
_printing.setFormatter(logging.Formatter("[%(name)s] %(message)s"))


def note(plan: Plan, by: str) -> None:
    """Log a plan, and the function that made it."""
    logger = logging.getLogger(NAME)
    if "fusion" in os.environ.get(VARIABLE, "").replace(" ", "").split(","):
        logger.setLevel(logging.INFO)
        if _printing not in logger.handlers:
            logger.addHandler(_printing)
            logger.propagate = False
    if logger.isEnabledFor(logging.INFO):
        logger.info("%s: %d fused, %d left\n%s", by, len(plan.steps), len(plan.left), plan)
