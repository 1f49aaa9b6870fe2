"""compare.debug_cuda: a launcher of load_inline, its arguments checked."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from compare.cases import CPU
from compare.checking import judging
from compare.checking.judging import Tolerance
from compare.copies import copies
from compare.debugging.cuda import calls, side
from compare.debugging.cuda.findings import CudaFindings
from compare.debugging.subjects import Oracle, takes_arguments
from cuda_reference._launcher import Launcher

TOOLS = {"cuda-host": side.HOST_TOOLS, "cuda-gpu": side.GPU_TOOLS}


def debug_cuda(
    function: Any,
    args: Sequence[Any],
    *,
    oracle: Oracle | None = None,
    max_ulps: float = 1.0,
    bound: Tolerance | None = None,
    uninitialized: Sequence[str] = (),
    tools: Sequence[str] = (),
) -> CudaFindings:
    r"""Run a CUDA kernel from a string under the tools of ``debug --side cuda``, and find out what
    is wrong: on the CPU, and on the GPU where there is one.

    On the CPU the threads of a block run forwards and backwards, and all accesses are watched: what
    is outside of a tensor or a shared array, read before it was written, or a race. The worst wrong
    element is laid to the thread that stored it, with all that this thread did. The sanitizers of
    the compiler run as well, and on the GPU those of compute-sanitizer.

    Args:
        function: a function that :func:`cuda_reference.load_inline` made.
        args: its arguments, with tensors on any device. Every run gets copies.
        oracle: returns what the tensors behind pointers that are not const should hold: one tensor,
            a tuple in the order of their parameters, or a dict by parameter name, which may leave
            some out. Takes nothing, or ``args``.
        max_ulps: the largest right distance to the oracle's result, rounded to the result's dtype;
            integers must be equal.
        bound: instead of max_ulps, the largest right \|result − oracle\| of each element: called
            with the oracle's result and ``args``.
        uninitialized: names of parameters whose memory holds nothing at the start, as that of
            outputs made by torch.empty: reading them before a store is found.
        tools: some of those that there are; by default all.

    Returns:
        :class:`CudaFindings`: true if nothing is wrong; print it.

    Raises:
        TypeError, ValueError: the arguments do not suit.
        RuntimeError: no tool can run here.

    Example:
        >>> module = load_inline(source, {"square": "const float* x, float* out, int n, "
        ...                                         "cudaStream_t stream"})
        >>> print(debug_cuda(module.square, (x, out, x.numel()), oracle=lambda x, out, n: x * x))
    """
    if not isinstance(function, Launcher):
        raise TypeError(
            "debug_cuda(): argument 'function' must be one that cuda_reference.load_inline made, "
            f"but got {type(function).__name__}"
        )
    values = function.checked(tuple(args))
    given = {each.name: each for each in function.given(values)}
    for name in uninitialized:
        if name not in given or not given[name].written:
            raise ValueError(f"debug_cuda(): uninitialized names {name!r}, which is never written")
    judging.check_max_ulps(max_ulps)
    if bound is not None and oracle is None:
        raise ValueError("debug_cuda(): a bound needs an oracle")
    written = {name: each.tensor for name, each in given.items() if each.written}
    expected = {} if oracle is None else _expected(oracle, tuple(values), written)
    limits = {}
    for name, reference in expected.items() if bound is not None else ():
        assert bound is not None
        limit = torch.as_tensor(bound(reference, *copies(tuple(values), CPU))).cpu().double()
        try:
            limits[name] = limit.expand(reference.shape).contiguous()
            judging.check_bound(limits[name], reference)
        except (RuntimeError, ValueError) as error:
            raise ValueError(f"debug_cuda(): argument 'bound', for {name}: {error}") from None
    wanted = _chosen(tools)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "call"
        packed = calls.pack(function, values, expected, limits, max_ulps, uninitialized)
        file.write_bytes(packed)
        mode = next(iter(wanted)) if len(wanted) == 1 else "cuda"
        return side.run({"call": str(file)}, f"{function.symbol}, {mode}", wanted)


def _expected(
    oracle: Oracle, values: tuple[Any, ...], written: dict[str, Tensor]
) -> dict[str, Tensor]:
    """What the oracle says, by parameter."""
    returned = oracle(*copies(values, CPU)) if takes_arguments(oracle) else oracle()
    if isinstance(returned, Tensor):
        returned = (returned,)
    if isinstance(returned, (tuple, list)) and len(returned) == len(written):
        returned = dict(zip(written, returned))
    if (
        not isinstance(returned, dict)
        or not set(returned) <= set(written)
        or not all(isinstance(t, Tensor) for t in returned.values())
    ):
        raise TypeError(
            "debug_cuda(): oracle() must return a tensor for each parameter that is not const "
            f"({', '.join(written) or 'there is none'}), or a dict of tensors by parameter name"
        )
    for name, reference in returned.items():
        if reference.shape != written[name].shape:
            raise ValueError(
                f"debug_cuda(): oracle() returned shape {list(reference.shape)} for {name}, which "
                f"has shape {list(written[name].shape)}"
            )
    return {name: t.detach().cpu() for name, t in returned.items()}


def _chosen(names: Sequence[str]) -> dict[str, list[str]]:
    """Mode → the tools to run."""
    missing = {mode: side.missing(mode) for mode in TOOLS}
    for name in names:
        if not any(name in tools for tools in TOOLS.values()):
            possible = ", ".join(dict.fromkeys(tool for tools in TOOLS.values() for tool in tools))
            raise ValueError(f"debug_cuda(): no tool {name!r}; there are {possible}")
    wanted = {
        mode: [t for t in tools if t not in missing[mode] and (not names or t in names)]
        for mode, tools in TOOLS.items()
    }
    wanted = {mode: tools for mode, tools in wanted.items() if tools}
    if not wanted:
        reasons = sorted({reason for each in missing.values() for reason in each.values()})
        raise RuntimeError(f"debug_cuda(): no tool can run here: {'; '.join(reasons)}")
    return wanted
