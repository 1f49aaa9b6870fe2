"""The self-test: checks all private assumptions about Triton, and runs a small kernel."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import torch
import triton
import triton.language as tl

from triton_kernels.interpreter.assumptions import missing_names
from triton_kernels.interpreter.builder import MendedBuilder
from triton_kernels.interpreter.fault_sinks import Shadows
from triton_kernels.interpreter.handles import upstream
from triton_kernels.interpreter.observers import Observer
from triton_kernels.interpreter.patching import interpreting
from triton_kernels.interpreter.shadowing import ELEMENTWISE, MOVES, NEWER

# Methods that only our builder has, or that it adds if the base lacks them.
_OPTIONAL = {"get_bf16", "logical_and", "logical_or", "logical_not"}
_OPTIONAL |= {"loop_indices", "loop_range", "create_descriptor_reduce"}
_OPTIONAL |= {"follow", "follow_reduction", "follow_move", "follow_selection", "decides"}
_OPTIONAL |= {"create_grid_dependency_wait", "create_grid_dependency_launch_dependents"}


class _Watch(Observer):
    """An observer that wants shadow values."""

    def __init__(self) -> None:
        self.shadows = Shadows()


def _positional(function: Any) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in _signature(function) if p.kind in kinds]


@triton.jit
def _probe(x_ptr, y_ptr, out_ptr, n, alpha, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0)
    tl.device_assert(tl.sum(mask.to(tl.int32)) > 0, "a program without work")
    tl.store(out_ptr + offsets, tl.fma(x, alpha.to(x.dtype), y), mask=mask)


@triton.jit
def _probe_shadows(x_ptr, out_ptr, n, big, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    offsets = tl.arange(0, BLOCK)
    wrapped = (offsets * big) * 16  # 0 again at lane 1, and unused beyond
    x = tl.load(x_ptr + tl.where(offsets < 2, wrapped, offsets), mask=offsets < n)
    both = tl.join(x, x)
    left, right = tl.split(tl.reshape(tl.reshape(both, (2 * BLOCK,)), (BLOCK, 2)))
    y = tl.where(offsets < 2, 0.0, (left * right).to(tl.float32))
    tl.store(out_ptr + offsets, y.to(out_ptr.dtype.element_ty))


def _run_probe() -> str:
    """Runs a small bfloat16 kernel. Returns what is wrong with it, or ""."""
    x = torch.tensor([1.0, 257.0, -3.0, 2.0**-133, 5.0], dtype=torch.bfloat16)
    y = torch.tensor([2.0**-8, 1.0, 0.5, 0.0, float("nan")], dtype=torch.bfloat16)
    want = (x.double() * 3.0 + y.double()).to(torch.bfloat16)
    out = torch.zeros_like(x)
    with interpreting():
        _probe[(2,)](x, y, out, 5, 3.0, BLOCK=4)
        if not torch.equal(out.nan_to_num(), want.nan_to_num()):
            return f"a bfloat16 kernel gives {out.tolist()} instead of {want.tolist()}"
        try:
            _probe[(2,)](x, y, out[:4], 5, 3.0, BLOCK=4)
        except IndexError as error:
            if "out_ptr" not in str(error):
                return "an out-of-bounds store was not laid to its argument"
        else:
            return "an out-of-bounds store was not found"
        watch = _Watch()
        with interpreting(watch):
            _probe_shadows[(1,)](x, out, 3, 2**28, BLOCK=4)
    faults = [(reach.where, reach.origin.kind, reach.count) for reach in watch.shadows.reached]
    if faults != [("address", "overflow", 1), ("store", "masked", 1)]:
        return f"shadow values find {faults} in a kernel with two faults"
    return ""


def self_test() -> list[str]:
    """One sentence per private assumption that does not hold; empty if all do."""
    broken = list(missing_names())
    if broken:
        return broken
    for name, ours in vars(MendedBuilder).items():
        if not callable(ours) or name.startswith("_") or name in _OPTIONAL:
            continue
        theirs = getattr(upstream.InterpreterBuilder, name, None)
        if theirs is None and name in NEWER:
            continue  # ours alone has it
        if theirs is None:
            broken.append(f"InterpreterBuilder.{name} is gone: its mend is never called")
            continue
        variadic = any(p.kind is p.VAR_POSITIONAL for p in _signature(ours))
        wanted, have = _positional(ours), _positional(theirs)
        if len(have) != len(wanted) and not (variadic and len(have) >= len(wanted)):
            broken.append(f"InterpreterBuilder.{name} takes {have}, not {wanted}")
    for name in (*ELEMENTWISE, *MOVES):
        if name not in NEWER and not hasattr(upstream.InterpreterBuilder, name):
            broken.append(f"InterpreterBuilder.{name} is gone: shadow values end there")
    options = {field.name for field in dataclasses.fields(upstream.InterpreterOptions)}
    for name in ("debug", "sanitize_overflow", "allowed_dot_input_precisions"):
        if name not in options:
            broken.append(f"InterpreterOptions.{name} is gone")
    for name in ("_sum_combine", "_elementwise_max", "_elementwise_min"):
        if not hasattr(tl.standard, name):
            broken.append(f"triton.language.standard.{name} is gone: reductions run slowly")
    if not broken:
        try:
            problem = _run_probe()
        except Exception as error:  # noqa: BLE001 (any error is the result)
            problem = f"a small kernel fails with {error!r}"
        broken += [problem] if problem else []
    return broken


def _signature(function: Any) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())
