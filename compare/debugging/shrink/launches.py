"""Shrinks a failing launch of a kernel from elsewhere: its sizes, through the function that makes
the launch, and its input values, one by one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from compare.cases import CPU
from compare.checking.progress import Bar
from compare.copies import tensors
from compare.debugging.findings.findings import Findings
from compare.debugging.shrink import shrinking, simpler_values
from compare.debugging.shrink.reproduction import check_output
from compare.debugging.shrink.shrinking import Move, Search, finished, simpler_dtypes, steps
from compare.debugging.shrink.shrunk import Shrunk
from compare.debugging.subjects import Kernel, Subject, subject_of, takes_arguments
from triton_kernels import interpreter

DOT = 16  # the smallest block of tl.dot that compiles
KNOWN = ("kernel", "grid", "args", "oracle", "max_ulps", "bound")


# ---- values ----


def shrink_kernel(
    call: dict[str, Any],
    sanitize: bool,
    output: Path | None,
    *,
    so_far: Shrunk | None = None,
) -> Findings:
    """The findings of a launch, given as keyword arguments of debug, with the simplest values that
    fail in the same way; its sizes stay.

    Raises:
        NothingToShrink: it does not fail.
        ValueError: ``output`` cannot be written.
    """
    if output is not None:
        check_output(output)
    oracle, first = call.get("oracle"), subject_of(**call)
    if oracle is not None and not takes_arguments(oracle):
        Search[Any](None, lambda _: first, sanitize)  # raises unless it fails
        note = (
            "the values stay: oracle() takes no arguments, so it cannot judge others; with "
            "oracle=lambda x_ptr, …: it could"
        )
        so_far = so_far or Shrunk(0, first.title, first.title)
        return finished(first, replace(so_far, notes=(note,)), sanitize, output)
    try:
        return _with_simpler_values(call, first, sanitize, output, so_far)
    except KeyboardInterrupt:
        if so_far is None:
            raise
        stopped = replace(so_far, stopped="Ctrl-C")
        return finished(first, stopped, sanitize, output)


def _with_simpler_values(
    call: dict[str, Any],
    first: Kernel,
    sanitize: bool,
    output: Path | None,
    so_far: Shrunk | None,
) -> Findings:
    roles = simpler_values.Roles()
    given = tuple(call["args"]), {k: v for k, v in call.items() if k not in KNOWN}
    held = _watched(first, roles)
    read, written = simpler_values.inputs(held, roles)
    originals = dict(enumerate(t.detach().cpu() for t in tensors(given)))
    values = {place: originals[place].clone() for place in dict.fromkeys([*read, *written])}

    def subject(state: dict[int, Tensor]) -> Subject:
        args, constexprs = simpler_values.replaced(given, state)
        rest = {k: v for k, v in call.items() if k in KNOWN and k != "args"}
        return subject_of(**rest, args=args, **constexprs)

    search = Search(values, subject, sanitize)
    search.runs += so_far.runs if so_far else 0

    def work(bar: Bar) -> None:
        bar.describe("shrinking the values")

        def attempt(state: dict[int, Tensor]) -> bool:
            bar.update(search.runs, shrinking.RUNS)
            return search.fails(simpler_values.digest(state), state, lambda: subject(state))

        simpler_values.simplify(values, written, attempt)

    if so_far is None or not so_far.stopped:
        search.until_stopped(work)
    told = [simpler_values.describe(v, written) for v in (values, search.best)]
    if so_far is None:
        shrunk = Shrunk(search.runs, f"input values: {told[0]}", f"input values: {told[1]}")
    else:
        note = f"input values: {' → '.join(dict.fromkeys(told))}"
        shrunk = replace(so_far, runs=search.runs, notes=(note,) if read else ())
    shrunk.stopped = shrunk.stopped or search.stopped
    return finished(subject(search.best), shrunk, sanitize, output)


def _watched(subject: Kernel, roles: simpler_values.Roles) -> list[Tensor]:
    """Run once; the tensors of that run."""
    state = subject.prepare(CPU)
    try:
        with interpreter.interpreting(roles):
            subject.launch(state)
    except Exception:  # noqa: BLE001 - the failure to shrink
        pass
    return list(tensors(state))


# ---- sizes ----


def shrink(
    make: Callable[..., Mapping[str, Any]],
    sizes: Mapping[str, Any],
    *,
    output: str | Path | None = None,
    sanitize: bool = True,
) -> Findings:
    """Find the smallest sizes and simplest values with which a kernel still fails, and write a file
    that reproduces it.

    Args:
        make: called with ``sizes`` as keyword arguments; returns a dict of arguments of
            :func:`compare.debug`: kernel, grid and args, optionally oracle, max_ulps and bound, and
            the constexprs. torch's random numbers are the same in every call.
        sizes: sizes that fail. Integers shrink towards 1. Powers of two that are passed on as
            constexprs of the same name, such as block sizes, stay powers of two. A torch.dtype
            becomes float32 if that fails, too. Other values stay.
        output: the file to write; by default its text is in ``findings.reproduction.text``.
        sanitize: whether hazards are failures, too.

    Returns:
        The :class:`Findings` of the smallest failing launch, with ``shrunk`` and ``reproduction``.
        Ctrl-C ends the search and keeps the smallest launch so far.

    Raises:
        TypeError: ``make`` does not return this dict; or as :func:`compare.debug`.
        ValueError: nothing fails, or ``output`` cannot be written.

    Example:
        >>> def make(n, BLOCK):
        ...     x, out = torch.randn(n), torch.zeros(n)
        ...     return dict(kernel=square, grid=(triton.cdiv(n, BLOCK),), args=(x, out, n),
        ...                 oracle=lambda x, out, n: x * x, BLOCK=BLOCK)
        >>> print(shrink(make, {"n": 1000, "BLOCK": 256}, output="square_fails.py"))
    """
    if not callable(make) or not isinstance(sizes, Mapping):
        raise TypeError(
            "shrink(): needs a function, and a dict of the sizes that it is called with"
        )
    file = None if output is None else Path(output)
    if file is not None:
        check_output(file)
    call = _made(make, sizes)
    blocks = {
        name
        for name, n in sizes.items()
        if type(n) is int and n > 0 and n & (n - 1) == 0 and call.get(name) == n
    }
    least = DOT if _multiplies(call["kernel"]) else 1
    search = Search(dict(sizes), lambda state: subject_of(**_made(make, state)), sanitize)
    moves = _size_moves(blocks, least)
    search.until_stopped(lambda bar: search.descend(moves, bar, _listed))
    so_far = Shrunk(search.runs, _listed(dict(sizes)), _listed(search.best), stopped=search.stopped)
    return shrink_kernel(_made(make, search.best), sanitize, file, so_far=so_far)


def _made(make: Callable[..., Mapping[str, Any]], sizes: Mapping[str, Any]) -> dict[str, Any]:
    """The launch with these sizes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        call = make(**sizes)
    if not isinstance(call, Mapping) or not {"kernel", "grid", "args"} <= set(call):
        got = f"a dict of {', '.join(call)}" if isinstance(call, Mapping) else type(call).__name__
        raise TypeError(
            "shrink(): make() must return a dict of the arguments of compare.debug, kernel, grid "
            f"and args among them, but returned {got}"
        )
    return dict(call)


def _listed(sizes: Mapping[str, Any]) -> str:
    return " ".join(f"{k}={str(v).removeprefix('torch.')}" for k, v in sizes.items())


def _multiplies(kernel: Any) -> bool:
    """Whether a kernel uses tl.dot, according to its source."""
    while hasattr(kernel, "fn"):
        kernel = kernel.fn
    try:
        return "dot" in inspect.getsource(kernel)
    except (OSError, TypeError):
        return False


def _size_moves(blocks: set[str], least: int) -> list[Move[dict[str, Any]]]:
    def numbers(state: dict[str, Any]) -> Iterator[dict[str, Any]]:
        plain = {k: n for k, n in state.items() if type(n) is int and k not in blocks}
        for name in sorted(plain, key=lambda k: -plain[k]):
            for n in steps(plain[name]):
                yield {**state, name: n}

    def halves(state: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for name in blocks:
            n = least
            while n < state[name]:
                yield {**state, name: n}
                n *= 2

    def dtypes(state: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for name, dtype in state.items():
            if isinstance(dtype, torch.dtype):
                for simple in simpler_dtypes(str(dtype).removeprefix("torch.")):
                    yield {**state, name: getattr(torch, simple)}

    return [numbers, halves, dtypes]
