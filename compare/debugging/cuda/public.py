"""compare.debug_cuda: debugging of a function made by load or load_inline."""

from __future__ import annotations

import re
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
from cuda_reference._extension import Function
from cuda_reference._launcher import Launcher
from cuda_reference._on_host import OnHost

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
    r"""Run your own CUDA kernel under the tools of ``debug --side cuda`` and find its faults, on
    the CPU and, if there is one, on the GPU.

    On the CPU the threads of a block run in forward and in reverse order, and all accesses are
    watched for those outside of a tensor or shared array, reads before a write, and races. The
    findings name the thread that stored the worst wrong element, and all accesses of that thread.
    The compiler's sanitizers run as well, and on the GPU those of compute-sanitizer.

    Args:
        function: a function made by :func:`cuda_reference.load` or
            :func:`cuda_reference.load_inline`.
        args: its arguments, with tensors on any device. Every run gets copies.
        oracle: returns the right results: one tensor, a tuple, or a dict by name, which may leave
            some out. Results are the returned tensors ("result", or "result[0]", "result[1]", … for
            several) if there are any. Otherwise they are the written tensors: those behind pointers
            that are not const, by parameter; for torch::Tensor parameters the last ones, as many as
            the oracle returns. In a tuple None accepts anything. The oracle takes no arguments, or
            ``args``.
        max_ulps: the tolerance around the oracle's result, rounded to the result's dtype; integers
            must be equal.
        bound: instead of max_ulps, makes the tolerance \|result − oracle\| of each element from the
            oracle's result and ``args``.
        uninitialized: names of parameters whose memory is uninitialised before the call, such as
            outputs made by torch.empty. A read before a store is then found.
        tools: some of the available tools; by default all.

    Returns:
        :class:`CudaFindings`: true if nothing is wrong; printable.

    Raises:
        TypeError, ValueError: wrong arguments.
        RuntimeError: no tool can run here.

    Example:
        >>> module = load_inline(source, {"square": "const float* x, float* out, int n, "
        ...                                         "cudaStream_t stream"})
        >>> print(debug_cuda(module.square, (x, out, x.numel()), oracle=lambda x, out, n: x * x))
    """
    if isinstance(function, Launcher):
        call: OnHost = function
        values = function.checked(tuple(args))
    elif isinstance(function, Function):
        call, values = function.prepared(tuple(args), {})
    else:
        raise TypeError(
            "debug_cuda(): argument 'function' must be one that cuda_reference.load or "
            f"load_inline made, but got {type(function).__name__}"
        )
    given = {each.name: each for each in call.given(values)}
    for name in uninitialized:
        if name not in given or not given[name].written:
            raise ValueError(f"debug_cuda(): uninitialized names {name!r}, which is never written")
    judging.check_max_ulps(max_ulps)
    if bound is not None and oracle is None:
        raise ValueError("debug_cuda(): a bound needs an oracle")
    written = {name: each.argument for name, each in given.items() if each.written}
    expected = {} if oracle is None else _expected(oracle, call, tuple(args), written)
    limits = {}
    for name, reference in expected.items() if bound is not None else ():
        assert bound is not None
        limit = torch.as_tensor(bound(reference, *copies(tuple(args), CPU))).cpu().double()
        try:
            limits[name] = limit.expand(reference.shape).contiguous()
            judging.check_bound(limits[name], reference)
        except (RuntimeError, ValueError) as error:
            raise ValueError(f"debug_cuda(): argument 'bound', for {name}: {error}") from None
    wanted = _chosen(tools)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "call"
        packed = calls.pack(call, values, expected, limits, max_ulps, uninitialized)
        file.write_bytes(packed)
        mode = next(iter(wanted)) if len(wanted) == 1 else "cuda"
        return side.run({"call": str(file)}, f"{call.symbol}, {mode}", wanted)


def _expected(
    oracle: Oracle, call: OnHost, args: tuple[Any, ...], written: dict[str, Tensor]
) -> dict[str, Tensor]:
    """The oracle's tensors, by parameter or result."""
    returned = oracle(*copies(args, CPU)) if takes_arguments(oracle) else oracle()
    if isinstance(returned, Tensor):
        returned = (returned,)
    if isinstance(returned, (tuple, list)):
        names = _results(call, len(returned), list(written))
        pairs = dict(zip(names, returned)) if len(names) == len(returned) else None
        returned = pairs and {name: t for name, t in pairs.items() if t is not None}
    if (
        not isinstance(returned, dict)
        or not all(name in written or _is_result(name, call) for name in returned)
        or not all(isinstance(t, Tensor) for t in returned.values())
    ):
        possible = "parameter that is not const" if call.says_const else "result or parameter"
        names = [*_results(call, 1, [])[: call.tensors], *written]
        raise TypeError(
            f"debug_cuda(): oracle() must return a tensor for each {possible} "
            f"({', '.join(names) or 'there is none'}), or a dict of tensors by these names"
        )
    for name, reference in returned.items():
        if name in written and reference.shape != written[name].shape:
            raise ValueError(
                f"debug_cuda(): oracle() returned shape {list(reference.shape)} for {name}, which "
                f"has shape {list(written[name].shape)}"
            )
    return {name: t.detach().cpu() for name, t in returned.items()}


def _results(call: OnHost, count: int, written: list[str]) -> list[str]:
    """The names of ``count`` tensors that an oracle returns in order."""
    if call.tensors == 1 or (call.tensors < 0 and count == 1):
        return [calls.RESULT]
    if call.tensors:
        number = count if call.tensors < 0 else call.tensors
        return [f"{calls.RESULT}[{i}]" for i in range(number)]
    return written if call.says_const else written[len(written) - count :]


def _is_result(name: str, call: OnHost) -> bool:
    return bool(call.tensors) and re.fullmatch(rf"{calls.RESULT}(\[\d+\])?", name) is not None


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
