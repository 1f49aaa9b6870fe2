"""The findings of debug on the CUDA side, and their text."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from compare import numerics
from compare.debugging.cuda import slices
from compare.debugging.cuda.reports import Index, Memory, Report, Site, site, who_text
from compare.debugging.drawing import page
from compare.debugging.findings import regions
from compare.debugging.findings.traces import WIDTH
from cuda_reference._watch import Frame
from triton_kernels.interpreter import Argument

SHOWN = 5  # reports printed in full; the rest in a line each
ACTIONS = 14  # lines about what a thread did
BEHIND = 32  # lines on which those depend


@dataclass
class WrongResult:
    """A result that differs from the oracle's, with threads in one order."""

    order: str
    problem: str
    deviation: dict[str, Any] = field(default_factory=dict)
    pattern: dict[str, str] = field(default_factory=dict)
    all_nan: bool = False
    shape: list[int] = field(default_factory=list)
    dtype: str = ""
    outside: bool = False
    name: str = "out"
    map: dict[str, Any] = field(default_factory=dict)  # of compare.debugging.drawing.errors

    def lines(self) -> list[str]:
        """The finding as lines of text."""
        if not self.deviation:
            return [f"values: {self.problem}"]
        d, nan = self.deviation, "; all NaN" if self.all_nan else ""
        index = ", ".join(map(str, d["index"]))
        error, bound, ulps = (float(d[name]) for name in ("error", "bound", "ulps"))
        by = f"|error| {error:.3g} against a bound of {bound:.3g}"
        if error == ulps < np.inf:
            by = f"{bound:.3g} allowed"
        lines = [
            f"{self.name} {self.dtype} {tuple(self.shape)}: {d['wrong']} of {d['total']} elements "
            f"wrong: {self.pattern['text']}{nan}",
            f"  worst {self.name}[{index}]: got {d['got']}, expected {d['expected']}",
            f"  {ulps:.3g} ulp, {by}",
        ]
        if self.outside:
            lines.append(f"  memory outside of {self.name} was written, too")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """The entry of the JSON file."""
        return {name: value for name, value in asdict(self).items() if name != "map"}


@dataclass
class Action:
    """The accesses of the followed thread from one line, to one tensor or shared array."""

    verb: str
    region: str
    count: int
    site: Site
    argument: Argument | None = None
    elements: np.ndarray | None = None


@dataclass
class Step:
    """The findings of one tool.

    Attributes:
        tool: its name.
        missing: why it did not run; empty if it did.
        reports: its reports.
        wrong: wrong results, one per thread order.
        same_in_both_orders: whether the results were the same; None if one order ran.
        output, worst: the tensor and the element whose writer was searched; None if nothing is
            wrong.
        stored: the element's writer; None if nothing stored it.
        never: how many of the wrong elements nothing stored.
        beside: if nothing stored the worst element, the writer of the nearest stored one.
        actions: what that writer did.
    """

    tool: str
    missing: str = ""
    reports: list[Report] = field(default_factory=list)
    wrong: list[WrongResult] = field(default_factory=list)
    same_in_both_orders: bool | None = None
    output: str = "out"
    worst: Index | None = None
    stored: Site | None = None
    never: int = 0
    beside: Site | None = None
    actions: list[Action] = field(default_factory=list)

    @property
    def outcome(self) -> str:
        """The outcome in a word or two."""
        if self.missing:
            return "not run"
        if self.wrong:
            return "wrong"
        return f"{len(self.reports)} found" if self.reports else "ok"

    def forgive_equal_writes(self, initcheck: Step) -> None:
        """Drop ThreadSanitizer's conflicts of two writes that initcheck has seen, too, and found to
        be of one value: threads of a warp often all store what they have computed together."""
        if initcheck.missing or any(not report.sites for report in initcheck.reports):
            return  # it did not see the whole run
        seen = {(s.file, s.line) for report in initcheck.reports for s in report.sites}

        def equal(report: Report) -> bool:
            writes = len(report.sites) == 2 and all(s.role.endswith("write") for s in report.sites)
            return writes and not seen & {(s.file, s.line) for s in report.sites}

        self.reports = [report for report in self.reports if not equal(report)]

    def follow(self, events: Iterable[dict[str, Any]], memory: Memory) -> None:
        """Group a thread's accesses by line and tensor, in the order of the first ones."""
        groups: dict[Any, list[dict[str, Any]]] = {}
        for event in events:
            place = site("", [Frame(*frame) for frame in event["stack"]])
            argument = None if event["shared"] else memory.argument(event["address"])
            name = event["shared"][0] if event["shared"] else getattr(argument, "name", "")
            groups.setdefault((event["write"], name, place, argument), []).append(event)
        for (write, name, place, argument), group in groups.items():
            elements = None
            if argument is None:
                region = _shared_region(name, [tuple(e["shared"][1]) for e in group if e["shared"]])
            else:
                addresses = np.array([e["address"] for e in group], dtype=np.uint64)
                elements = argument.elements(addresses)
                if argument.outside(addresses, 1).any():
                    region = f"{name}, beside it too"
                else:
                    all_on = np.ones(len(addresses), dtype=bool)
                    region = regions.touched(argument, addresses, all_on).of(name)
            verb = "store" if write else "load"
            self.actions.append(Action(verb, region, len(group), place, argument, elements))


def _shared_region(name: str, touched: list[Index]) -> str:
    """The touched elements of a shared array: a_tile[3][0:16]."""
    parts = []
    for along in zip(*touched):
        different = np.unique(np.array(along))
        progression = regions.progression(different)
        parts.append(
            regions.written(progression) if progression else f"{different[0]}…{different[-1]}"
        )
    return name + "".join(f"[{part}]" for part in parts)


@dataclass
class CudaFindings:
    """The findings of all tools: true if nothing is wrong; printable; with :meth:`to_json` and
    :meth:`to_html`.

    Attributes:
        subject: the case and implementation.
        steps: (mode, the findings of one tool).
        partial: whether Ctrl-C ended it early.
    """

    subject: str
    steps: list[tuple[str, Step]] = field(default_factory=list)
    partial: bool = False

    def add(self, mode: str, step: Step) -> None:
        """Add the findings of a tool."""
        self.steps.append((mode, step))
        host = {each.tool: each for which, each in self.steps if which == "cuda-host"}
        if {"initcheck", "thread"} <= host.keys():
            host["thread"].forgive_equal_writes(host["initcheck"])

    def __bool__(self) -> bool:
        return not self.partial and not any(s.reports or s.wrong for _, s in self.steps)

    @property
    def verdict(self) -> str:
        """The verdict in one or two words."""
        if any(step.reports or step.wrong for _, step in self.steps):
            return "WRONG"
        return "interrupted" if self.partial else "nothing wrong found"

    def __str__(self) -> str:
        lines = [f"{self.subject}: {self.verdict}"]
        for mode in dict.fromkeys(mode for mode, _ in self.steps):
            lines += self.values(mode)
        shown, brief = _in_full(self.reports())
        for report in shown:
            lines += report.lines()
        for report in brief:
            where = f", {report.sites[0].lines()[0]}" if report.sites else ""
            lines.append(f"{report.tool}: {report.what}{where}")
        lines += self._actions()
        lines += self._behind()
        lines.append(self._ran())
        for mode, step in self.steps:
            if step.missing:
                lines.append(f"not run: {mode.removeprefix('cuda-')} {step.tool}: {step.missing}")
        return "\n".join(part for line in lines for part in _wrapped(line))

    def values(self, mode: str) -> list[str]:
        """What is wrong with the results, and which thread stored the worst element."""
        steps = {step.tool: step for each, step in self.steps if each == mode}
        values = steps.get("values")
        if values is None or not values.wrong:
            return []
        first = values.wrong[0]
        lines = first.lines()
        if mode == "cuda-host":
            if len(values.wrong) == 1:
                other = "reverse" if first.order == "forward" else "forward"
                lines.append(
                    f"  with the threads in {other} order it is right: their order matters"
                )
            elif values.same_in_both_orders is False:
                lines.append("  with the threads in reverse order other values are wrong")
        watched = steps.get("initcheck")
        if watched is None or watched.worst is None:
            return lines
        index = ", ".join(map(str, watched.worst))
        if watched.never:
            lines.append(f"  never stored by any thread: {watched.never} of them")
        if watched.stored is not None:
            lines.append(f"  {watched.output}[{index}] stored by {_who(watched.stored)}")
            place = watched.stored._replace(block=None, thread=None)
            lines += [f"    {line}" for line in place.lines()]
        elif watched.beside is not None:
            lines.append(f"  the nearest one stored, by {_who(watched.beside)}")
            place = watched.beside._replace(block=None, thread=None)
            lines += [f"    {line}" for line in place.lines()]
        elif not watched.never:
            lines.append(f"  {watched.output}[{index}] was stored by no thread")
        return lines

    def _actions(self) -> list[str]:
        """The accesses of the thread that stored the worst element, if results are wrong."""
        step = self.thread()
        if step is None or step.stored is None:
            return []
        shown = step.actions[:ACTIONS]
        head = f"{_who(step.stored)} did, by line:"
        wide = min(36, max(len(action.region) for action in shown))
        lines = [head]
        for action in shown:
            times = f"{action.count}×"
            code = f":{action.site.line} {action.site.code}"
            text = f"  {action.verb:5} {action.region:{wide}} {times:>6}  {code}"
            lines.append(text if len(text) <= WIDTH else text[: WIDTH - 1] + "…")
        left = len(step.actions) - len(shown)
        return [*lines, f"  … {left} more"] if left else lines

    def _behind(self) -> list[str]:
        """The lines of the kernel on which the printed lines depend."""
        step, told = self.thread(), list[Site]()
        if step is not None and step.stored is not None:
            told = [step.stored, *(action.site for action in step.actions[:ACTIONS])]
        told += [each.beside for _, each in self.steps if each.beside is not None]
        told += [each for report in _in_full(self.reports())[0] for each in report.sites]
        file = next((each.file for each in told if each.file), "")
        told = [each for each in told if each.file == file]
        calls = [line for each in told for line in each.calls]
        lines = slices.behind(file, [each.line for each in told], BEHIND, calls)
        cut = [f"  :{line} {code}" for line, code in lines]
        cut = [text if len(text) <= WIDTH else text[: WIDTH - 1] + "…" for text in cut]
        return ["what these lines depend on:", *cut] if cut else []

    def _ran(self) -> str:
        parts = []
        for mode in dict.fromkeys(mode for mode, _ in self.steps):
            done = [f"{s.tool} {s.outcome}" for m, s in self.steps if m == mode and not s.missing]
            if done:
                device = "CPU" if mode == "cuda-host" else "GPU"
                parts.append(f"on the {device}: {', '.join(done)}")
        return "\n".join(parts) or "nothing ran to its end"

    def to_dict(self) -> dict[str, Any]:
        """The whole findings as a dict."""
        return {
            "passed": bool(self),
            "subject": self.subject,
            "verdict": self.verdict,
            "partial": self.partial,
            "steps": [
                {
                    "mode": mode,
                    "tool": step.tool,
                    "outcome": step.outcome,
                    "not_run": step.missing,
                    "reports": [report.to_dict() for report in step.reports],
                    "wrong": [wrong.to_dict() for wrong in step.wrong],
                    "same_in_both_orders": step.same_in_both_orders,
                    "worst": step.worst,
                    "never_stored": step.never,
                    "stored_by": step.stored
                    and {**step.stored._asdict(), "code": step.stored.code},
                    "thread": [
                        {
                            **{k: getattr(a, k) for k in ("verb", "region", "count")},
                            **a.site._asdict(),
                            "code": a.site.code,
                        }
                        for a in step.actions
                    ],
                }
                for mode, step in self.steps
            ],
        }

    def thread(self) -> Step | None:
        """The findings of the tool that followed the worst element's thread; None if none did."""
        if not any(step.wrong for _, step in self.steps):
            return None
        return next((s for _, s in self.steps if s.actions and s.stored is not None), None)

    def reports(self) -> list[Report]:
        """The reports of all tools; those that name a line come first."""
        reports = [report for _, step in self.steps for report in step.reports]
        return sorted(reports, key=lambda report: not report.sites)

    def to_html(self) -> str:
        """One HTML file with pictures, which needs no network.

        Raises:
            RuntimeError: Jinja2 is missing; the extra `report` installs it.
        """
        return page.cuda_html(self)

    def to_json(self) -> str:
        """The value of to_dict as JSON text."""
        return json.dumps(numerics.json_safe(self.to_dict()), indent=1)


def _who(place: Site) -> str:
    return who_text(place.block, place.thread)


def _in_full(reports: Iterable[Report]) -> tuple[list[Report], list[Report]]:
    """The reports to print in full, and the rest. Another report about a conflict of the same lines
    belongs to the rest, whichever tool made it."""
    shown: list[Report] = []
    brief: list[Report] = []
    conflicts = set()
    for report in reports:
        lines = frozenset((s.file, s.line) for s in report.sites)
        told = len(report.sites) > 1 and lines in conflicts
        (brief if told or len(shown) == SHOWN else shown).append(report)
        if len(report.sites) > 1:
            conflicts.add(lines)
    return shown, brief


def _wrapped(line: str) -> list[str]:
    if line.lstrip().startswith("| "):
        return [line[:WIDTH]]
    if line.startswith("  :") or (line.startswith("  ") and "×" in line):
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(line, WIDTH, subsequent_indent=indent + "    ") or [""]
