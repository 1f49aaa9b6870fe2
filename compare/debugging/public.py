"""compare.debug: debugging of any Triton kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from compare.checking.judging import Tolerance
from compare.debugging.compiled import bisection
from compare.debugging.findings.findings import Findings
from compare.debugging.investigation import investigate
from compare.debugging.shrink import launches
from compare.debugging.shrink.shrinking import NothingToShrink
from compare.debugging.stepping import sessions
from compare.debugging.subjects import Oracle, subject_of


def debug(
    kernel: Any,
    grid: Any,
    args: Sequence[Any],
    *,
    oracle: Oracle | None = None,
    max_ulps: float = 1.0,
    bound: Tolerance | None = None,
    program: Sequence[int] | None = None,
    sanitize: bool = True,
    uninitialized: Sequence[str] = (),
    memory: Mapping[str, Tensor] | Sequence[Tensor] = (),
    pdb: bool = False,
    breakpoints: Sequence[str] = (),
    bisect: bool | None = None,
    shrink: bool | str | Path = False,
    **constexprs: Any,
) -> Findings:
    r"""Run ``kernel[grid](*args, **constexprs)`` in the interpreter and find out what is wrong.

    The findings name the program and line that stored the worst wrong element. That program then
    runs again, alone and traced. An error in the kernel is a finding, too. With a GPU the compiled
    kernel is compared as well.

    Args:
        kernel: any ``@triton.jit`` function, bare or with heuristics or autotune.
        grid: a tuple of sizes, or a function of the arguments that returns one.
        args: the positional arguments, with tensors on any device. Kernels get copies.
        oracle: returns the right values of the tensors that the kernel stores to: one tensor, a
            tuple in the order of their parameters, or a dict by parameter name, which may leave out
            tensors with any content, such as locks. It takes nothing or, so that values can be
            shrunk, ``args``.
        max_ulps: the tolerance around the oracle's result, rounded to the result's dtype; integers
            must be equal.
        bound: instead of max_ulps, makes the tolerance \|result − oracle\| of each element from the
            oracle's result and ``args``.
        program: the program to run again, instead of the one that stored the worst element.
        sanitize: whether to look for hazards, too: faults that may leave the result right.
        uninitialized: names of parameters whose memory is uninitialised before the launch, such as
            outputs made by torch.empty. A read before a store is then a hazard.
        memory: tensors that the kernel reaches through addresses, for example through a table of
            pointers: by name, or in order as memory[0], memory[1], … The kernel gets copies of them
            and their addresses, and the oracle's dict may name them.
        pdb: open Python's debugger only at that program's first line and at errors of the kernel.
        breakpoints: open it at these lines of that program: "kernels.py:104".
        bisect: run the case interpreted and compiled in several ways, to tell precision, compiler
            and logic apart; needs a GPU and an oracle. By default only if interpreted and compiled
            results differ in being right.
        shrink: whether to look for simpler input values with the same failure, and to write a file
            that reproduces it; or the file's name. :func:`compare.shrink` shrinks sizes, too.
        constexprs: keyword arguments of the launch, including ``num_warps`` and the like.

    Returns:
        :class:`Findings`: true if nothing is wrong; printable.

    Raises:
        TypeError: ``kernel`` is no Triton kernel, ``args`` no sequence, a tensor has no
            strided memory, the launch lacks an argument, or the oracle returns no tensors.
        ValueError: the oracle's tensors do not fit those that were stored, ``program`` is not in
            the grid, ``uninitialized`` names no tensor, there is a ``bound`` or ``bisect`` and no
            ``oracle``, ``max_ulps`` or the bound is negative or not finite, a breakpoint is at no
            line of a kernel, or the file of ``shrink`` cannot be written.
        RuntimeError: ``bisect`` where nothing can run compiled.

    Example:
        >>> print(debug(kernel, (4,), (x, out, 1000), oracle=lambda: x * x, BLOCK=256))
    """
    subject = subject_of(
        kernel, grid, args, oracle, max_ulps, bound, uninitialized, memory, **constexprs
    )
    if bisect and oracle is None:
        raise ValueError("debug(): bisect needs an oracle")
    if bisect and (reason := bisection.impossible(subject)):
        raise RuntimeError(f"debug(): bisect=True: {reason}")
    try:
        session = sessions.session(pdb, breakpoints)
    except ValueError as error:
        raise ValueError(f"debug(): breakpoint {error}") from None
    if not shrink:
        return investigate(subject, program, sanitize=sanitize, session=session, bisect=bisect)
    for name, given in (
        ("program", program),
        ("a debugger", session),
        ("bisect", bisect),
        ("memory", memory),
    ):
        if given:
            raise ValueError(f"debug(): {name} and shrink exclude each other")
    call = {"kernel": kernel, "grid": grid, "args": args, "oracle": oracle}
    call |= {"max_ulps": max_ulps, "bound": bound, "uninitialized": uninitialized, **constexprs}
    file = None if shrink is True else Path(shrink)
    try:
        return launches.shrink_kernel(call, sanitize, file)
    except NothingToShrink as reason:
        findings = investigate(subject, sanitize=sanitize)
        findings.notes.append(str(reason))
        return findings
