"""``compare models --time``: models on the GPU, with fused kernels and without."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from compare.checking.printing import date, environment
from compare.checking.progress import Bar
from compare.commands.options import write_json
from compare.models.processes import Raced, mean, race
from compare.models.timing import EAGER, INDUCTOR, OURS, Request
from compare.timing.engine import CONTROL
from compare.timing.tables import number


def run(requests: Sequence[Request], processes: int, jobs: int, json_file: Path | None) -> bool:
    """Time the models, print and write the figures. Whether all models were timed and are right."""
    models: Sequence[Raced] = ()
    done = 0

    def keep() -> None:
        if json_file:
            rows = [each.to_dict() for each in models]
            head = {"environment": environment(), "date": date(), "processes": processes}
            write_json(json_file, {**head, "rows": rows})

    def tick(so_far: Sequence[Raced], name: str) -> None:
        nonlocal done, models
        models = so_far
        keep()
        bar.describe(name)
        bar.update(done, len(requests) * processes)
        done += 1

    with Bar("compiling", "processes") as bar:
        try:
            models = race(requests, processes, jobs, tick)
        except KeyboardInterrupt:
            print("interrupted")
    keep()
    _print(models)
    whole = bool(models) and all(len(each.speeds.get(OURS, [])) == processes for each in models)
    return whole and not any(each.problems for each in models)


def _print(models: Sequence[Raced]) -> None:
    Console().print(table(models))
    for each in models:
        for problem in each.problems:
            print(f"{each.request.name}: {problem}")
    for provider, name in ((OURS, "fused"), (CONTROL, "torch.compile again")):
        speeds = [speed for each in models if (speed := each.speed(provider)) is not None]
        if len(speeds) > 1:
            print(
                f"{name}: {mean(speeds):.3f} of torch.compile's speed, {min(speeds):.3f} at least"
            )


def table(models: Sequence[Raced]) -> Table:
    """One line per model: microseconds, and speeds relative to torch.compile's."""
    step = any(each.request.training for each in models)
    what = "A training step" if step else "A forward pass"
    shown = Table(title=f"{what}, µs, and speeds relative to torch.compile's", title_justify="left")
    shown.add_column("model")
    for name in ("kernels", EAGER, INDUCTOR, OURS, "speed", "least, most", "control"):
        shown.add_column(name, justify="right")
    for each in models:
        times = [mean(each.microseconds.get(name, [])) for name in (EAGER, INDUCTOR, OURS)]
        ours, control = each.speeds.get(OURS, []), each.speed(CONTROL)
        shown.add_row(
            each.request.name,
            str(each.kernels),
            *(number(time) if time else "–" for time in times),
            f"{mean(ours):.3f}" if ours else "–",
            f"{min(ours):.3f}, {max(ours):.3f}" if ours else "–",
            f"{control:.3f}" if control else "–",
        )
    return shown
