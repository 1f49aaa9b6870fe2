"""One case, interpreted and compiled in several ways: is precision, compiler or logic at fault?"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from compare import numerics
from compare.checking import running
from compare.debugging.subjects import Result, Subject
from triton_kernels.interpreter import recompile

CHANGES = ("precision", "fusion", "stages", "warps", "unoptimised")  # the most telling first


@dataclass
class Run:
    """The case, run in one way.

    Attributes:
        key: "interpreted", "compiled", "again" or one of CHANGES.
        name: the way, in words.
        wrong: the wrong elements of all outputs, concatenated; None if it did not run.
        ulps: the worst distance to the oracle.
        differ: how many elements have other bits than in the compiled run; None if one did not run.
        error: why it did not run; else empty.
    """

    key: str
    name: str
    wrong: Tensor | None = field(default=None, repr=False)
    ulps: float = 0.0
    differ: int | None = None
    error: str = ""

    @property
    def right(self) -> bool:
        """Whether it ran and no element is wrong."""
        return self.wrong is not None and not bool(self.wrong.any())

    def cells(self) -> list[str]:
        """The cells of its row in the table."""
        if self.wrong is None:
            return [self.name, "–", "–", self.error.splitlines()[0]]
        count = f"{int(self.wrong.sum())} of {self.wrong.numel()}"
        same = "–" if self.differ is None else "yes" if not self.differ else f"{self.differ} differ"
        return [self.name, count, f"{self.ulps:.3g}", "" if self.key == "compiled" else same]


@dataclass
class Bisection:
    """The runs, and their common verdict."""

    runs: list[Run]

    @property
    def verdict(self) -> str:
        """One sentence: precision, compiler, logic, emulation, …"""
        return verdict({run.key: run for run in self.runs})

    def lines(self) -> list[str]:
        """The table, and the verdict under it."""
        rows = [["run", "wrong", "worst ulp", "bits as compiled"], *(r.cells() for r in self.runs)]
        wide = [max(len(row[i]) for row in rows) for i in range(3)]
        table = [
            f"  {row[0].ljust(wide[0])}  {row[1].rjust(wide[1])}  {row[2].rjust(wide[2])}  {row[3]}"
            for row in rows
        ]
        return [*(line.rstrip() for line in table), self.verdict]

    def to_dict(self) -> dict[str, Any]:
        """The entry of the JSON file."""
        runs = [
            {
                "run": run.key,
                "name": run.name,
                "wrong": None if run.wrong is None else int(run.wrong.sum()),
                "worst_ulps": run.ulps,
                "bits_differ": run.differ,
                "error": run.error,
            }
            for run in self.runs
        ]
        return {"verdict": self.verdict, "runs": runs}


# ---- the verdict ----

CURES = {
    "fusion": "compiler: the difference vanishes {name}: it fuses a multiplication and an addition "
    "that are rounded one by one elsewhere",
    "stages": "compiler: the difference vanishes with {name}: software pipelining",
    "warps": "compiler or a race within a block: the difference vanishes with {name}",
    "unoptimised": "compiler: the difference vanishes {name}: ptxas",
}


def verdict(runs: dict[str, Run]) -> str:
    """The verdict of the runs, in a sentence."""
    here, there = runs["interpreted"], runs["compiled"]
    changes = [runs[key] for key in CHANGES if key in runs]
    cures = [run for run in changes if run.right]
    if there.error:
        text = "compiler: the kernel does not run compiled"
        return f"{text}; it does {_listed(cures)}" if cures else text
    if (again := runs.get("again")) and not _same(there, again):
        return (
            "order: two compiled runs are wrong in different elements: a race, or memory that "
            "nobody wrote"
        )
    if there.right:
        if not here.right:
            return "emulation: only the interpreter differs; or the kernel relies on an order"
        worse = [run for run in changes if run.wrong is not None and not run.right]
        text = "no difference: right interpreted and compiled"
        return f"{text}; wrong {_listed(worse)}" if worse else text
    if not cures:
        if here.right:
            return (
                "compiler, or a race that the interpreter's order hides: right interpreted, wrong "
                "in every compiled row"
            )
        same = all(_same(here, run) for run in runs.values())
        return "logic: wrong in every row" + (", in the same elements" if same else "")
    first, *others = cures
    if first.key == "precision":
        text = f"precision: right {_phrase(first)}, wrong as written"
    elif not here.right:
        text = f"rounding, not the compiler alone: right only {_listed(cures)}"
        return text
    else:
        text = CURES[first.key].format(name=first.name)
    return text + (f"; also {_listed(others)}" if others else "")


def _same(one: Run, other: Run) -> bool:
    """Whether the same elements are wrong; a failed run counts as the same."""
    return one.wrong is None or other.wrong is None or torch.equal(one.wrong, other.wrong)


def _phrase(run: Run) -> str:
    return run.name if run.name.startswith("with") else f"with {run.name}"


def _listed(runs: list[Run]) -> str:
    return ", ".join(_phrase(run) for run in runs)


# ---- the runs ----


def impossible(subject: Subject) -> str | None:
    """Why a subject cannot run compiled here; None if it can."""
    if not torch.cuda.is_available():
        return "it compares with compiled kernels, which need a GPU, and there is no CUDA device"
    if not subject.compilable():
        return "the kernel was made under TRITON_INTERPRET=1 and can only be interpreted"
    return None


def compiled(subject: Subject) -> list[Result]:
    """The subject's results on the GPU with the current settings."""
    state = subject.prepare(torch.device("cuda"))
    subject.launch(state)
    torch.cuda.synchronize()
    return subject.judge(state, None)


def bisect(subject: Subject, interpreted: list[Result]) -> Bisection:
    """Run the subject on the GPU in every way, and compare the results."""
    plain, base, seen = _run("compiled", "compiled", subject, None)
    runs = [_against("interpreted", "interpreted", interpreted, base), plain]
    for key, name, settings in [("again", "compiled, again", {}), *_changes(seen)]:
        if running.gpu_is_lost():
            runs.append(Run(key, name, error="not run: an error before broke the GPU's context"))
            continue
        try:
            run, _, compilation = _run(key, name, subject, base, **settings)
        except KeyboardInterrupt:
            runs.append(Run(key, name, error="interrupted"))
            break
        if key == "precision":
            if not compilation.precisions:
                continue  # there is no tl.dot of float32
            given = sorted(compilation.precisions)
            others = sorted({_other(each) for each in given})
            run.name = f"input precision {'/'.join(others)} for {'/'.join(given)}"
        runs.append(run)
    return Bisection(runs)


def _changes(seen: recompile.Seen) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The other ways to compile: key, name, settings."""
    fused = recompile.fuses()
    word = "without" if fused else "with"
    yield "fusion", f"{word} FMA contraction", {"change": lambda _: {"enable_fp_fusion": not fused}}
    yield "precision", "other input precision", {"precision": _other}
    stages = sorted({options["num_stages"] for options in seen.options})
    if stages and stages != [1]:
        name = f"num_stages=1 for {'/'.join(map(str, stages))}"
        yield "stages", name, {"change": lambda _: {"num_stages": 1}}
    warps = sorted({options["num_warps"] for options in seen.options})
    if warps:
        others = "/".join(str(_other_warps(w)) for w in warps)
        name = f"num_warps={others} for {'/'.join(map(str, warps))}"
        yield "warps", name, {"change": lambda o: {"num_warps": _other_warps(o["num_warps"])}}
    yield "unoptimised", "without ptxas's optimisation", {"optimise": False}


def _other(precision: str) -> str:
    return "tf32" if precision == "ieee" else "ieee"


def _other_warps(warps: int) -> int:
    return 2 * warps if warps < 8 else warps // 2


Ran = tuple[Run, list[Result] | None, recompile.Seen]


def _run(key: str, name: str, subject: Subject, base: list[Result] | None, **settings: Any) -> Ran:
    seen = recompile.Seen()
    try:
        with contextlib.ExitStack() as stack:
            seen = stack.enter_context(recompile.recompiling(**settings))
            results = compiled(subject)
    except Exception as error:  # noqa: BLE001 - any error of compiler or kernel is a finding
        return Run(key, name, error=running.brief(error)), None, seen
    return _against(key, name, results, base), results, seen


def _against(key: str, name: str, results: list[Result], base: list[Result] | None) -> Run:
    wrong = torch.cat([~r.comparison.right.cpu().flatten() for r in results])
    ulps = 0.0
    for r in results:
        distance = numerics.ulps(r.tensor.cpu(), r.reference.cpu().to(r.tensor.dtype))
        ulps = max(ulps, float(distance.max()) if distance.numel() else 0.0)
    differ = None
    if base is not None:
        pairs = zip(results, base, strict=True)
        equal = [numerics.same_bits(a.tensor.cpu(), b.tensor.cpu()) for a, b in pairs]
        differ = sum(int((~each).sum()) for each in equal)
    return Run(key, name, wrong, ulps, differ)
