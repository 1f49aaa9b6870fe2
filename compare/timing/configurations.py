"""The configurations of matrix products: all of a case, and calls with one of them.

The chooser itself is asked what it chooses, for products of every size that are otherwise alike. So
nothing here knows its tables or its model.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from compare.cases import META, Case
from compare.specs import Spec
from compare.timing.engine import Candidate
from compare.timing.results import CANDIDATE, CHOSEN
from triton_kernels import _known_calls, _launch
from triton_kernels.gemm import Configuration, Gpu, Problem, choose, launch
from triton_kernels.gemm.choice import NEITHER, copyings, fastest, split
from triton_kernels.gemm.choice import candidates as competitors
from triton_kernels.gemm.kernels import gemm_bias_act_kernel
from triton_kernels.interpreter.cross_compile import compiling

NAME = "configurations"  # the provider's name for all of them
HOPPER = 90  # the capability assumed without a GPU
# Sizes for which the chooser is asked; powers of two alone would miss some tiles.
STEPS = tuple(2**k for k in range(5, 15))
SIDES = tuple(side for step in STEPS for side in (step, step * 5 // 4, step * 3 // 2))
ROWS = (1, 2, 4, 8, 16, *SIDES)


def candidates(spec: Spec, case: Case) -> Iterator[Candidate]:
    """The chosen configuration, then all others that the chooser may choose for such products."""
    problem = asked(spec, case)
    function = spec.called(case, spec.triton)
    for number, configuration in enumerate(configurations(problem, _gpu())):
        begin = CANDIDATE if number else CHOSEN
        yield Candidate(begin + label(configuration), _call(function, configuration))


def configurations(problem: Problem, gpu: Gpu) -> list[Configuration]:
    """The configuration chosen for a problem, then those chosen for other problems of these dtypes,
    each also with the splits of K and the copies that are possible for this problem."""
    forms = [choose(problem, gpu)]
    for form in _of_any_size(problem._replace(M=0, N=0, K=problem.K % 2), gpu):
        for copies in copyings(problem) if form.tma else [NEITHER]:
            whole = form._replace(copies=copies)
            forms += [whole, *split(whole, problem, gpu)]
    return list(dict.fromkeys(forms))


@functools.lru_cache(64)
def _of_any_size(problem: Problem, gpu: Gpu) -> tuple[Configuration, ...]:
    """Of every size, and those that compete for the largest, with a K that is odd or even as the
    problem's: odd rows are read in other tiles."""
    sizes = itertools.product(ROWS, SIDES, STEPS)
    asked = [problem._replace(M=M, N=N, K=K + problem.K) for M, N, K in sizes]
    chosen = [fastest(each, gpu)[0] for each in asked]
    competing = [form for form, *_ in competitors(asked[-1], gpu)]
    return tuple(dict.fromkeys(form.kind for form in chosen + competing))


class _Asked(Exception):
    """Ends a call when it asks the chooser."""


def asked(spec: Spec, case: Case) -> Problem:
    """The problem about which a call of the op asks the chooser; nothing is launched."""
    problems: list[Problem] = []

    def note(problem: Problem, gpu: Gpu) -> Configuration:
        problems.append(problem)
        raise _Asked

    args, kwargs = spec.inputs(case, META)
    with _choosing(note), compiling(_gpu().capability), contextlib.suppress(_Asked):
        spec.called(case, spec.triton)(*args, **kwargs)
    return problems[0]


def _gpu() -> Gpu:
    if torch.cuda.is_available():
        return _launch.gpu(gemm_bias_act_kernel, torch.device("cuda", torch.cuda.current_device()))
    with compiling(HOPPER):
        return _launch.gpu(gemm_bias_act_kernel, META)


def _call(
    function: Callable[..., Tensor], configuration: Configuration
) -> Callable[[tuple[Any, ...], dict[str, Any]], Tensor]:
    def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        with forced(configuration):
            return function(*args, **kwargs)

    return call


@contextlib.contextmanager
def forced(configuration: Configuration) -> Iterator[None]:
    """Matrix products use this configuration; one product per context.

    Raises:
        RuntimeError: the configuration does not fit, so the launch asks for another one.
    """
    questions = 0

    def always(problem: Problem, gpu: Gpu) -> Configuration:
        nonlocal questions
        questions += 1
        if questions > 1:
            raise RuntimeError("does not fit this GPU")
        return configuration

    with _choosing(always):
        yield


@contextlib.contextmanager
def _choosing(function: Callable[[Problem, Gpu], Configuration]) -> Iterator[None]:
    """Launches ask this function instead of the chooser, and replay nothing."""
    names = vars(launch)
    before = names["choose"]
    names["choose"] = function
    try:
        with _known_calls.suspended():
            yield
    finally:
        names["choose"] = before


def label(configuration: Configuration) -> str:
    """A configuration's fields in a few words; of two side by side those of both."""
    if rest := configuration.rest:
        first, second = label(configuration._replace(rest=None)), label(rest.form)
        return f"{first}, from {'column' if rest.across else 'row'} {rest.begin} on {second}"
    blocks, words = [], []
    for name, value in _fields(configuration):
        if name.startswith("BLOCK_"):
            blocks.append(str(value))
        elif name == "copies":
            words += [f"copying {operand}" for operand, copied in zip("ab", value) if copied]
        elif isinstance(value, bool):
            words += [name] if value else []
        else:
            words.append(f"{name.removeprefix('num_').lower()}={value}")
    return " ".join(["×".join(blocks), *words])


def _fields(named: Any) -> Iterator[tuple[str, Any]]:
    for name, value in named._asdict().items():
        if hasattr(value, "_asdict"):
            yield from _fields(value)
        elif value is not None:
            yield name, value
