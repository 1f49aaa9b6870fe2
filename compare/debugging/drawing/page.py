"""The findings as one page; nothing runs again for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compare.debugging.drawing import errors
from compare.debugging.drawing.accesses import LineAccess, by_line
from compare.debugging.drawing.errors import ErrorMap
from compare.debugging.drawing.grids import grid
from compare.debugging.drawing.planes import Plane, everything
from compare.debugging.findings.statements import statement
from compare.debugging.findings.traces import Event, Tile, source_line
from compare.pages import rendering
from triton_kernels.interpreter import Place

if TYPE_CHECKING:
    from compare.debugging.cuda.findings import Action, CudaFindings
    from compare.debugging.findings.findings import Findings, WrongValues
    from compare.debugging.findings.steps import Step

HERE = Path(__file__).parent


def html(findings: Findings) -> str:
    """The page of a Triton kernel's findings."""
    trace, failure = findings.trace, findings.failure
    lines = by_line(trace.events if trace else [], failure.access if failure else None)
    heading, steps, place = findings.lane_history()
    told = [(heading, steps), *((each.heading, each.steps) for each in findings.earlier())]
    return _render(
        subject=findings.subject,
        verdict=findings.verdict,
        passed=bool(findings),
        failure=failure.lines() if failure else [],
        outputs=[_output(wrong, lines) for wrong in findings.wrong],
        programs=_programs(findings),
        hazards=findings.hazard_lines(),
        notes=findings.notes,
        who=_capital(trace.heading) if trace else "",
        ended=trace.ended if trace else "",
        lines=[_line(line, findings) for line in lines],
        ways=[
            {"heading": _capital(heading), "rows": _way(steps, place, lines)}
            for heading, steps in told
            if steps
        ],
        untraced=""
        if trace
        else "No program ran again, so no loads and stores are drawn: --program "
        "X,Y,Z, or program=(x, y, z), asks for one.",
        printed=str(findings),
    )


def cuda_html(findings: CudaFindings) -> str:
    """The page of a CUDA kernel's findings."""
    outputs = []
    for mode in dict.fromkeys(mode for mode, _ in findings.steps):
        wrong = [w for each, step in findings.steps if each == mode for w in step.wrong]
        if not wrong:
            continue
        first, *told = findings.values(mode)
        told = [line.removeprefix("  ") for line in told]
        where = "on the CPU" if mode == "cuda-host" else "on the GPU"
        map_ = ErrorMap.of(wrong[0].map) if wrong[0].map else None
        outputs.append({"title": f"{first} ({where})", "told": told, **_drawn(wrong[0].name, map_)})
    step = findings.thread()
    stored = step.stored if step else None
    who = f"Block {stored.block}, thread {stored.thread}" if stored else ""
    lines = [_action(a, f"access{n}") for n, a in enumerate(step.actions if step else [], 1)]
    return _render(
        subject=findings.subject,
        verdict=findings.verdict,
        passed=bool(findings),
        failure=[],
        outputs=outputs,
        programs=None,
        hazards=[report.lines() for report in findings.reports()],
        notes=[],
        who=who,
        ended="",
        lines=[line.context() for line in lines],
        ways=[],
        untraced="",
        printed=str(findings),
    )


def _render(**context: Any) -> str:
    own = (HERE / "debug.css").read_text(encoding="utf-8")
    used = {part: set(_used(context[part])) for part in ("outputs", "lines")}
    used["outputs"] |= {"mark"} if context["programs"] else set()
    return rendering.render(HERE / "debug.html.j2", own_style=own, used=used, **context)


def _used(parts: list[dict[str, Any]]) -> Iterator[str]:
    """The looks and marks that pictures use, which a key may explain."""
    for drawn in (drawn for part in parts for _, drawn in part["figures"]):
        for cell in drawn["cells"]:
            yield "wrong4" if cell["look"].startswith("wrong") else cell["look"]
        yield from (name for name in ("mark", "outline") if drawn[name])


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


# ---- outputs ----


def _output(wrong: WrongValues, lines: list[LineAccess]) -> dict[str, Any]:
    """A wrong output: its text and its pictures."""
    first, *told = wrong.lines()
    told = [line.removeprefix("  ") for line in told]
    drawn = wrong.drawn
    tile = None
    if drawn is not None:
        tiles = [t for line in lines if line.what != "load" for t in line.tiles]
        stored = [drawn.touched(t.argument, t.elements)[t.mask] for t in tiles]
        at = np.concatenate([np.zeros(0, dtype=np.int64), *stored])
        tile = at[at >= 0]
    return {
        "title": first,
        "told": told,
        **_drawn(wrong.output, drawn.map if drawn else None, tile),
    }


def _drawn(name: str, found: ErrorMap | None, tile: np.ndarray | None = None) -> dict[str, Any]:
    """The pictures of an output, and the numbers around its worst element."""
    if found is None:
        return {"figures": [], "numbers": None}
    figures = [errors.zoomed(name, found, tile), errors.overview(name, found, tile)]
    drawn = [(figure.label, figure.drawn()) for figure in figures if figure is not None]
    return {"figures": drawn, "numbers": errors.numbers(found)}


def _programs(findings: Findings) -> dict[str, Any] | None:
    """The launch's programs: those that stored wrong elements, and the one that ran again."""
    if not findings.wrong or not findings.wrong[0].programs:
        return None
    wrong = findings.wrong[0]
    used = max((axis + 1 for axis, size in enumerate(wrong.grid) if size > 1), default=0)
    if not used:
        return None
    plane = Plane(tuple(wrong.grid[:used]))
    window = everything(plane)
    at = [np.ravel_multi_index(program[:used], plane.shape) for program in wrong.programs]
    looks = np.full(window.cells, "rest", dtype=object)
    looks[window.counts(plane, np.array(at)) > 0] = "wrong4"
    mark = None
    if findings.trace is not None and findings.trace.grid == wrong.grid:
        ran = np.array([np.ravel_multi_index(findings.trace.program[:used], plane.shape)])
        row, column, _ = window.bins(plane, ran)
        mark = int(row[0]), int(column[0])
    shown = grid(f"the programs of {wrong.grid}", plane, window, looks, mark=mark)
    return {"label": shown.label, "figure": shown.drawn()}


# ---- lines ----


def _line(line: LineAccess, findings: Findings) -> dict[str, Any]:
    """A line's loads or stores, with the lane at fault if it was this line's."""
    failure, worst = findings.failure, findings.wrong[0] if findings.wrong else None
    lane = None
    if failure is not None and line.failed:
        lane = failure.lane
    elif worst is not None:
        h = worst.history
        store, at = (h.last, h.lane) if h.last else (h.masked, h.masked_lane)
        ran = findings.trace.program if findings.trace else None
        if store and line.what == store.verb and store.place == line.place and store.program == ran:
            lane = at
    at_fault = failure or worst
    loaded = at_fault.loaded.get((line.place, line.tensor)) if at_fault else None
    return line.context(worst.drawn if worst else None, lane, loaded)


def _action(action: Action, anchor: str) -> LineAccess:
    """The accesses of a CUDA thread from one line."""
    site, argument = action.site, action.argument
    place = Place(site.file, site.line, site.function) if site.file else None
    line = LineAccess(action.verb, argument.name if argument else "", place, anchor)
    line.code, line.region = site.code, action.region
    on = np.ones(1, dtype=bool)
    for number in range(action.count):
        event = Event(action.verb, line.tensor, None, (), 1, 1, None, None, 0, place)
        if argument is not None and action.elements is not None:
            event.tile = Tile(argument, action.elements[number : number + 1], on)
        line.events.append(event)
    return line


def _way(steps: list[Step], store: Place | None, lines: list[LineAccess]) -> list[dict[str, Any]]:
    """The steps by which a value was made; steps of one statement are merged."""
    anchors = {_key(line.place): line.anchor for line in lines if line.place}
    rows: list[dict[str, Any]] = []
    for step in steps:
        key = _key(step.place)
        if not rows or rows[-1]["key"] != key:
            own = store is None or step.place.file != store.file
            file = os.path.basename(step.place.file) if own else ""
            row = {"key": key, "where": f"{file}:{step.place.line}", "values": []}
            row |= {"code": source_line(step.place), "anchor": anchors.get(key, "")}
            rows.append(row)
        if text := str(step):
            rows[-1]["values"].append(text)
    return rows


def _key(place: Place) -> tuple[str, int]:
    executed = statement(place)
    return place.file, executed.first if executed else place.line
