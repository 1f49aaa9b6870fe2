"""``python -m compare debug OP --side cuda``: one case under the tools of the CUDA side."""

from __future__ import annotations

from pathlib import Path

import typer

from compare.cases import DISTANT, Case
from compare.checking.implementations import BUILD_TARGETS
from compare.commands.options import check_writable, listed
from compare.debugging.cuda import side as cuda_side
from compare.pages import rendering


def check_drawable(file: Path | None) -> None:
    """Refuse a page that could not be written at the end."""
    check_writable(file, "--html")
    try:
        rendering.check_packages(*["jinja2"] if file else [])
    except rendering.PackageMissing as error:
        raise typer.BadParameter(f"--html {error}") from None


def debug_cuda(
    case: Case,
    impl: str | None,
    variant: str | None,
    tools: list[str] | None,
    json_file: Path | None,
    html_file: Path | None,
) -> int:
    """Run the tools on one case and print their findings. Returns the exit status."""
    if distant := sorted(case.lying & set(DISTANT)):
        raise typer.BadParameter(
            f"{distant[0]} tensors have more bytes than the CUDA side's tools keep a state of"
        )
    wanted = _chosen((impl or "cuda").partition("/")[0], listed(tools))
    findings = cuda_side.investigate(case, variant, wanted)
    if tools and all(step.missing for _, step in findings.steps) and not findings.partial:
        reasons = {f"--tool {step.tool}: {step.missing}" for _, step in findings.steps}
        raise typer.BadParameter("; ".join(sorted(reasons)))
    typer.echo(str(findings))
    if json_file:
        json_file.write_text(findings.to_json() + "\n")
    if html_file:
        html_file.write_text(findings.to_html(), encoding="utf-8")
    return 0 if findings else 1


def _chosen(mode: str, names: list[str]) -> dict[str, list[str]]:
    """Mode → the tools to run: the given ones, or all that exist."""
    modes = list(BUILD_TARGETS) if mode == "cuda" else [mode]
    every = {"cuda-host": cuda_side.HOST_TOOLS, "cuda-gpu": cuda_side.GPU_TOOLS}
    missing = {each: cuda_side.missing(each) for each in modes}
    here = {each: [t for t in every[each] if t not in missing[each]] for each in modes}
    there_is = ", ".join(dict.fromkeys(tool for tools in here.values() for tool in tools))
    for name in names:
        if not any(name in every[each] for each in modes):
            possible = dict.fromkeys(tool for each in modes for tool in every[each])
            raise typer.BadParameter(f"--tool {name}: one of {', '.join(possible)}")
        if not any(name in tools for tools in here.values()):
            why = next(missing[each][name] for each in modes if name in missing[each])
            raise typer.BadParameter(f"--tool {name}: {why}; here there is {there_is or 'none'}")
    if not any(here.values()):
        reasons = {reason for each in missing.values() for reason in each.values()}
        raise typer.BadParameter(f"--side cuda: no tool can run here: {'; '.join(sorted(reasons))}")
    chosen = {
        each: [tool for tool in tools if not names or tool in names] for each, tools in here.items()
    }
    return {each: tools for each, tools in chosen.items() if tools}
