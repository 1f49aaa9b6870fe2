"""What the processes of the CUDA side's tools tell, whatever they run: the lines of a report."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any

from compare import numerics
from cuda_reference._watch import Access, Watch

ORDERS = ("forward", "reverse")
FOLLOWED = 4096  # accesses of a followed thread that are told


class Teller:
    """A job that writes what is seen to a report.

    Attributes:
        steps: what it is to do.
    """

    def __init__(self, described: dict[str, Any]) -> None:
        self.steps: list[str] = described["steps"]
        self._file = open(described["report"], "a", encoding="utf-8")  # noqa: SIM115 - to the end

    def tell(self, event: str, **facts: Any) -> None:
        """Write one line of the report."""
        self._file.write(json.dumps(numerics.json_safe({"event": event, **facts})) + "\n")
        self._file.flush()

    def findings(self, watch: Watch, order: str, known: set[Any]) -> None:
        """Tell what was wrong in a watched run, less what is known."""
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
        """Tell what the followed thread did."""
        followed = list(watch.followed())[:FOLLOWED]
        watch.resolve(event.access for event in followed)
        for event in followed:
            facts = event._asdict()
            del facts["access"]
            self.tell("followed", stack=watch.stack(event.access), **facts)


def told(watch: Watch, access: Access) -> dict[str, Any]:
    """An access, for the report."""
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
