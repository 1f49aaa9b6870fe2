"""Faults of values: undefined ones that matter, overflowing offsets, the first NaN or inf."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from compare.debugging.findings.hazards import Hazard, Sanitizer, Witness
from triton_kernels.interpreter import Argument, Origin, Reach, Shadows

_EMPTY = (
    torch.empty,
    torch.empty_like,
    torch.empty_strided,
    Tensor.new_empty,
    Tensor.new_empty_strided,
)


class Values(Sanitizer):
    """Keeps shadow values during the run, and reports their faults."""

    def __init__(self) -> None:
        self.shadows = Shadows()

    def hazards(self) -> list[Hazard]:
        return [_hazard(reach) for reach in self.shadows.reached]

    def made(self, address: int) -> Witness | None:
        """The operation that made the number at an address NaN or infinite, or None."""
        origin = self.shadows.origin(address)
        if origin is None:
            return None
        what = f"made {origin.result} by {_operation(origin)}"
        return Witness(what, origin.program, origin.place, lane=origin.lane)


class Allocations(TorchFunctionMode):
    """Memory returned by torch.empty counts as uninitialised until it is written."""

    def __init__(self, shadows: Shadows) -> None:
        super().__init__()
        self._shadows = shadows

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _EMPTY:
            if _is_memory(result):
                self._shadows.uninitialize(result)
            return result
        name = getattr(func, "__name__", "")
        changed = [args[0]] if args and (name == "__setitem__" or _in_place(name)) else []
        changed.append((kwargs or {}).get("out"))
        for each in changed:
            for tensor in each if isinstance(each, (tuple, list)) else [each]:
                if isinstance(tensor, Tensor) and _is_memory(tensor):
                    self._shadows.initialize(tensor)
        return result


def _is_memory(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.device.type == "cpu"


def _in_place(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__")


# ---- in words ----


def _hazard(reach: Reach) -> Hazard:
    origin = reach.origin
    where = _element(reach.argument, reach.address)
    name = reach.argument.name if reach.argument else ""
    last = Witness(_DID[reach.where], reach.program, reach.place, name, where, reach.lane)
    if origin.kind == "overflow":
        operation = Witness("computed", origin.program, origin.place, lane=origin.lane)
        last.what = _VERBS[reach.verb]
        return Hazard(f"{origin.dtype} overflow", _overflow(origin), (operation, last), reach.count)
    atomic = reach.where == "atomic" and reach.place == origin.place
    kind, did, source = _SOURCES[origin.kind]
    where = _element(origin.argument, origin.address)
    name = origin.argument.name if origin.argument else ""
    first = Witness(did, origin.program, origin.place, name, where, origin.lane)
    text = f"{_counted(reach)} {source}"
    return Hazard(kind, text, (last,) if atomic else (last, first), reach.count)


_SOURCES = {
    "masked": (
        "undefined value",
        "masked off, without other=,",
        "lanes that a load masked off, without other=",
    ),
    "unwritten": (
        "uninitialised memory",
        "loaded, which nobody had written,",
        "memory that nobody wrote",
    ),
}
_DID = {
    "store": "stored",
    "address": "addressed",
    "mask": "masked",
    "atomic": "updated",
    "assertion": "asserted",
    "branch": "decided on",
}
_VERBS = {"load": "loaded", "store": "stored", "atomic": "updated"}
_ACCESS = {"load": "load", "store": "store", "atomic": "atomic operation", "": "value"}


def _counted(reach: Reach) -> str:
    """What depends on a fault; the beginning of a sentence."""
    access = f"{'an' if reach.verb == 'atomic' else 'a'} {_ACCESS[reach.verb]}"
    one = reach.count == 1
    lanes = "one lane" if one else f"{reach.count} lanes"
    if reach.where in ("address", "mask"):
        return f"{lanes} of {access} {'takes its' if one else 'take their'} {reach.where} from"
    what = {
        "store": "one stored element" if one else f"{reach.count} stored elements",
        "atomic": f"{lanes} of {access}",
        "assertion": f"{lanes} of a device_assert",
        "branch": "what the kernel does next" + ("" if one else f", {reach.count} times,"),
    }[reach.where]
    return f"{what} {'depends' if one or reach.where == 'branch' else 'depend'} on"


def _element(argument: Argument | None, address: int | None) -> str:
    """An address as an element; it may lie outside of the tensor."""
    if argument is None or address is None:
        return ""
    tensor, at = argument.tensor, (address - argument.low) // argument.itemsize
    if tensor.dim() == 1 and tensor.stride(0) == 1 and at >= 0:
        return f"{argument.name}[{at}]"
    index = argument.coordinates(np.array(at)) if argument.low <= address < argument.high else None
    if index is None:
        return f"{argument.name} at element offset {at}"
    return f"{argument.name}[{', '.join(str(int(i)) for i in index)}]"


def _overflow(origin: Origin) -> str:
    x, y = origin.operands
    exact = _EXACT[origin.operation](x, y)
    bits = int(origin.dtype.lstrip("uint"))
    low = 0 if origin.dtype.startswith("u") else -(1 << bits - 1)
    wrapped = (exact - low) % (1 << bits) + low
    y = f"({y})" if y < 0 else y
    remedy = "cast one operand to int64 first" if bits < 64 else "such an offset has no 64 bits"
    return (
        f"{x} {origin.operation} {y} = {exact} does not fit {origin.dtype}, wraps to {wrapped} and "
        f"ends in an address: {remedy}"
    )


_EXACT: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "<<": lambda x, y: x << min(max(y, 0), 63),
}


def _operation(origin: Origin) -> str:
    """An operation with its operands, for example exp(89.2)."""
    shown = [f"{v:.6g}" if isinstance(v, float) else str(v) for v in origin.operands]
    if origin.operation == "cast" and shown:
        return f"casting {shown[0]} to {origin.dtype}"
    if not shown:
        return origin.operation
    if len(shown) == 2 and not origin.operation[0].isalpha():
        return f"{shown[0]} {origin.operation} {shown[1]}"
    return f"{origin.operation}({', '.join(shown)})"
