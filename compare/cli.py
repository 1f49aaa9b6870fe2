"""The command line: ``python -m compare``, installed as ``kernel-compare``."""

from __future__ import annotations

import typer

from compare.commands.bench import bench
from compare.commands.check import check
from compare.commands.compile import compile_kernels
from compare.commands.debug import debug
from compare.commands.doctor import doctor
from compare.commands.models import models
from compare.commands.mutate import mutate
from compare.commands.profile import profile
from compare.commands.report import report
from compare.commands.timing import timing

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Prove Triton kernels and their CUDA twins equal, and find the wrong one.",
)
app.command()(check)
app.command()(bench)
app.command()(profile)
app.command()(timing)
app.command()(debug)
app.command(name="compile")(compile_kernels)
app.command()(models)
app.command()(mutate)
app.command()(doctor)
app.command()(report)
