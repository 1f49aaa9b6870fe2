"""Comparison of the compiled with the interpreted kernel, if there is a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from compare.checking import hints, running
from compare.checking.progress import Bar
from compare.debugging.compiled import bisection
from compare.debugging.findings.findings import Findings, beside_the_bound
from compare.debugging.subjects import Result, Subject


def bring_in(
    subject: Subject, findings: Findings, results: list[Result], bisect: bool | None
) -> None:
    """Run the compiled kernel, if there is a GPU, and add what differs to the findings."""
    if bisection.impossible(subject) or findings.partial:
        return
    if findings.failure is not None:
        findings.compiled = "not run: after such an error it could break the GPU's context"
        return
    if not results:
        return
    here = torch.cat([~r.comparison.right.cpu().flatten() for r in results])
    try:
        runs = bisection.compiled(subject)
    except Exception as error:  # noqa: BLE001 - any error of the kernel is a finding
        if asked := running.memory_asked(error):
            findings.compiled = f"not run: {asked}"
            return
        known = hints.hint(error)
        findings.compiled = running.brief(error) + (f"; {known}" if known else "")
        findings.compiled_right = False
    else:
        there = torch.cat([~r.comparison.right.cpu().flatten() for r in runs])
        worse = next((r.less_accurate for r in runs if r.less_accurate), None)
        findings.compiled_right = not bool(there.any() or worse)
        findings.compiled = _against(here, there)
        if worse:
            findings.less_accurate["compiled"] = worse
            findings.compiled = beside_the_bound(worse)
        if bool((there & ~here).any()):
            wrong = next(r for r in runs if not bool(r.comparison.right.all()))
            d = wrong.deviation()
            worst = f"{wrong.name}[{', '.join(map(str, d.index))}]"
            findings.compiled += f"; worst {worst}: got {d.got}, expected {d.expected}"
    differ = findings.compiled_right is bool(here.any())
    # A bisection judges elements, which are right here: only the mean accuracy differs.
    differ = differ and "compiled" not in findings.less_accurate
    if bisect or (bisect is None and differ):
        with Bar(f"compiling {subject.title} in several ways"):
            findings.bisection = bisection.bisect(subject, results)


def _against(here: Tensor, there: Tensor) -> str:
    """A sentence about the elements that are wrong interpreted and compiled."""
    wrong, same = int(there.sum()), int((here & there).sum())
    if not wrong:
        return "right" + (": suspect the interpreter's emulation" if here.any() else "")
    if bool((here == there).all()):
        return f"the same {wrong} elements wrong" if wrong > 1 else "the same element wrong"
    text = f"{wrong} of {there.numel()} elements wrong"
    if same:
        return f"{text}, {same} of them the same"
    return text + (", none of them the same" if here.any() else ": suspect compiler or precision")
