"""The sentences about the techniques, made from a kernel's times.

Since they are made from the times, they hold for any kernel and machine.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from compare.timing.engine import HOST_BOUND
from compare.timing.tables import number

ALIKE = 0.05, 0.5  # smaller differences, as a fraction plus microseconds, count as none
NEARER = 0.002  # the same for ratios


def sentences(samples: Mapping[str, list[float]], queued: float) -> dict[str, str]:
    """A sentence for each of ``tutorial.TECHNIQUES``.

    Args:
        samples: technique → its samples; those of a graph may be empty.
        queued: microseconds of the work that is queued before a call.
    """
    t = {key: float(np.median(times)) for key, times in samples.items() if times}
    kernel, launch = t["cold"], t["before"]
    says = {
        "first": _first(t["first"], t["later"]),
        "later": _waited(t["later"], kernel, "here the call before had left L2 as it was"),
        "neither": _launch_only(t["neither"], kernel),
        "before": _launch_only(launch, kernel),
        "after": _after(t["after"], t["both"], queued),
        "both": _waited(t["both"], kernel, "that cannot be, measure again"),
        "idle": _idle(t["idle"], kernel),
        "cold": _queued(kernel, launch, queued, t.get("graph")),
        "warm": _warm(t["warm"], kernel),
        "dirty": _dirty(t["dirty"], kernel),
        "sequential": _ratios(samples["sequential"]),
        "interleaved": _turns(samples["interleaved"], samples["sequential"]),
    }
    if "graph" not in t:
        says["graph"] = says["launch"] = "this call cannot be captured as a graph"
    else:
        says["graph"] = _graph(t["graph"], kernel)
        says["launch"] = f"{_more(t['launch'], launch)} launching the kernel by its call"
    return says


def _sign(a: float, b: float) -> int:
    """Whether a time is longer (1) or shorter (-1) than another, or about equal (0)."""
    share, more = ALIKE
    if abs(a - b) <= share * b + more:
        return 0
    return 1 if a > b else -1


def _more(a: float, b: float) -> str:
    """A comparison to precede the name of b: "3 µs more than", "as much as"."""
    sign = _sign(a, b)
    if sign == 0:
        return "as much as"
    return f"{number(abs(a - b))} µs {'more' if sign > 0 else 'less'} than"


def _first(first: float, later: float) -> str:
    if first > 1.5 * later:
        return f"{first / later:.0f} times a later call: what was compiled or loaded is in it"
    return "no more than a later call: nothing was left to compile or load"


def _launch_only(median: float, kernel: float) -> str:
    reason = "nothing waited for the kernel, the clock stopped when the launch was queued"
    if _sign(median, kernel) == 0:
        return f"the kernel's {number(kernel)} µs by coincidence: {reason}"
    return f"{_more(median, kernel)} the kernel takes: {reason}"


def _after(median: float, both: float, queued: float) -> str:
    work = f"{number(queued)} µs of work were queued before"
    if _sign(median, both) > 0:
        return f"{_more(median, both)} with both: {work}, and the clock waited for them, too"
    return f"{_more(median, both)} with both, but that depends on what is left of it: {work}"


def _waited(median: float, kernel: float, shorter: str) -> str:
    sign = _sign(median, kernel)
    if sign > 0:
        return (
            f"{_more(median, kernel)} the kernel takes: launching it and waking the host are in it"
        )
    if sign == 0:
        return "the kernel's time: beside it, launching and waking the host do not show"
    return f"{_more(median, kernel)} the kernel takes with an emptied cache: {shorter}"


def _idle(median: float, kernel: float) -> str:
    sign = _sign(median, kernel)
    if sign > 0:
        return (
            f"{_more(median, kernel)} behind other work: the first event happened at once, the "
            "kernel only when its launch arrived"
        )
    return f"{_more(median, kernel)} behind other work: launching does not show between the events"


def _queued(kernel: float, launch: float, queued: float, replay: float | None) -> str:
    factor, more = HOST_BOUND
    if replay is not None and kernel > factor * replay + more:
        return f"not the kernel's: as a graph it takes {number(replay)} µs, the rest is launching"
    if queued > launch:
        return (
            f"the kernel alone: its launch ({number(launch)} µs) was queued during "
            f"{number(queued)} µs of other work; this is what bench measures"
        )
    return f"launching ({number(launch)} µs) outlasts the {number(queued)} µs of other work: unsure"


def _warm(median: float, cold: float) -> str:
    sign = _sign(median, cold)
    if sign < 0:
        left = "the call before left in L2 what this one reads"
        return f"{cold / median:.2f} times as fast as with an emptied cache: {left}"
    if sign == 0:
        return "as with an emptied cache: what the call before left in L2 was of no use"
    return f"{_more(median, cold)} with an emptied cache: what the call before left was in the way"


def _dirty(median: float, cold: float) -> str:
    sign = _sign(median, cold)
    if sign > 0:
        return (
            f"{_more(median, cold)} after reading: the kernel paid for writing others' lines back"
        )
    return (
        f"{_more(median, cold)} after reading: writing others' lines back cost this kernel nothing"
    )


def _graph(replay: float, kernel: float) -> str:
    if _sign(replay, kernel) == 0:
        return "as the call between events: no launch was in that"
    return f"{_more(replay, kernel)} the call between events, by the same clock and cache"


def _off(ratios: list[float]) -> float:
    return max(abs(ratio - 1) for ratio in ratios)


def _ratios(ratios: list[float]) -> str:
    return f"off from 1 by up to {100 * _off(ratios):.1f} % in {len(ratios)} tries"


def _turns(turns: list[float], sequential: list[float]) -> str:
    ours, theirs = _off(turns), _off(sequential)
    if ours < theirs - NEARER:
        verdict = "nearer than one after the other: what drifted, drifted for both"
    elif ours <= theirs + NEARER:
        verdict = "as near as one after the other: little drifted meanwhile"
    else:
        verdict = "further off than one after the other: more samples would help"
    return f"{_ratios(turns)}: {verdict}"
