"""The lines of the reports that the processes of the CUDA side's tools write."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any

from compare import numerics
from cuda_reference._watch import Access, Watch

ORDERS = ("forward", "reverse")
FOLLOWED = 4096  # reported accesses of a followed thread


class Teller:
    """A job that writes a report.

    Attributes:
        steps: the names of its steps.
    """

    def __init__(self, described: dict[str, Any]) -> None:
        self.steps: list[str] = described["steps"]
        self._file = open(described["report"], "a", encoding="utf-8")  # noqa: SIM115 - to the end

    def tell(self, event: str, **facts: Any) -> None:
        """Write one line of the report."""
        self._file.write(json.dumps(numerics.json_safe({"event": event, **facts})) + "\n")
        self._file.flush()

    def findings(self, watch: Watch, order: str, known: set[Any]) -> None:
        """Write the findings of a watched run that are not in ``known``."""
        findings = list(watch.findings())
        watch.resolve(a for f in findings for a in (f.here, f.other) if a is not None)
        for finding in findings:
            key = (finding.kind, finding.write, tuple(watch.stack(finding.here)))
            if key not in known:
                known.add(key)
                facts = finding._asdict()
                facts["here"] = told(watch, finding.here)
                facts["other"] = finding.other and told(watch, finding.other)
                self.tell("finding", order=order, **facts)

    def followed(self, watch: Watch) -> None:
        """Write the accesses of the followed thread."""
        followed = list(watch.followed())[:FOLLOWED]
        watch.resolve(event.access for event in followed)
        for event in followed:
            facts = event._asdict()
            del facts["access"]
            self.tell("followed", stack=watch.stack(event.access), **facts)


def told(watch: Watch, access: Access) -> dict[str, Any]:
    """An access as written to the report."""
    stack = watch.stack(access)
    return {"block": access.block, "thread": access.thread, "stack": stack}


@contextlib.contextmanager
def thread_order(order: str) -> Iterator[None]:
    """Launches on the host target run their threads in this order."""
    before = os.environ.get("CROSSCHECK_THREAD_ORDER")
    os.environ["CROSSCHECK_THREAD_ORDER"] = order
    try:
        yield
    finally:
        if before is None:
            del os.environ["CROSSCHECK_THREAD_ORDER"]
        else:
            os.environ["CROSSCHECK_THREAD_ORDER"] = before
