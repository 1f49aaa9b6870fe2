"""The builder's accesses with shadow values, for faults that begin in memory or reach it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl

from triton_kernels.interpreter.builder import MendedBuilder
from triton_kernels.interpreter.emulation import Array
from triton_kernels.interpreter.fault_sinks import Shadows
from triton_kernels.interpreter.handles import upstream
from triton_kernels.interpreter.origins import MASKED, UNWRITTEN
from triton_kernels.interpreter.shadows import (
    CLEAN,
    Shadow,
    chosen,
    give,
    joined,
    pruned,
    shadow_of,
)


class ShadowedAccesses(MendedBuilder):
    """The corrected builder, with shadows of what it loads and stores."""

    shadows: Shadows

    def set_grid_idx(self, x: int, y: int, z: int) -> None:
        super().set_grid_idx(x, y, z)
        self.shadows.log.begin((x, y, z))

    def _address(self, verb: str, ptrs: Any, mask: Any) -> tuple[Array, Any]:
        """Record faults of an access's pointers and mask; the active lanes, and the argument."""
        shape, argument = ptrs.data.shape, getattr(ptrs.dtype, "argument", None)
        active = np.broadcast_to(mask.data, shape)
        for layer in (shadow_of(ptrs).overflow, shadow_of(ptrs).undefined):
            self.shadows.reach("address", verb, layer, active, argument, ptrs.data)
        every = np.ones(shape, dtype=bool)
        self.shadows.reach("mask", verb, shadow_of(mask).undefined, every, argument, ptrs.data)
        return active, argument

    def create_masked_load(
        self, ptrs: Any, mask: Any, other: Any, *policy: Any, **named_policy: Any
    ) -> Any:
        if isinstance(mask, np.ndarray):
            mask = upstream.TensorHandle(mask, tl.int1)
        active, argument = self._address("load", ptrs, mask)
        out = super().create_masked_load(ptrs, mask, other, *policy, **named_policy)
        shadow = CLEAN if other is None else shadow_of(other)
        layers = [chosen(active, None, shadow.undefined), chosen(active, None, shadow.nonfinite)]
        log, dtype = self.shadows.log, out.dtype
        if other is None and not self.other_given and not active.all():
            pointers = {"argument": argument, "pointers": ptrs.data}
            layers[0] = log.add(MASKED, ~active, dtype, **pointers)
        if faults := self.shadows.loaded(ptrs.data, _width(ptrs)):
            undefined, nonfinite, unwritten = faults
            layers[0] = joined(layers[0], chosen(active, undefined, None))
            layers[1] = joined(layers[1], chosen(active, nonfinite, None))
            if (unwritten := unwritten & active).any():
                new = log.add(UNWRITTEN, unwritten, dtype, argument=argument, pointers=ptrs.data)
                layers[0] = joined(layers[0], new)
        return give(out, Shadow(layers[0], None, layers[1]))

    def create_masked_store(
        self, ptrs: Any, value: Any, mask: Any, *policy: Any, **named_policy: Any
    ) -> Any:
        if isinstance(mask, np.ndarray):
            mask = upstream.TensorHandle(mask, tl.int1)
        active, argument = self._address("store", ptrs, mask)
        shadow = shadow_of(value)
        self.shadows.reach("store", "store", shadow.undefined, active, argument, ptrs.data)
        out = super().create_masked_store(ptrs, value, mask, *policy, **named_policy)
        self._write(ptrs, active, argument, shadow)
        return out

    def _write(self, ptrs: Any, active: Array, argument: Any, shadow: Shadow) -> None:
        layers = (
            None if layer is None else np.broadcast_to(layer, active.shape)[active]
            for layer in shadow
        )
        owners = self.arguments if argument is None else (argument,)
        self.shadows.stored(owners, ptrs.data[active], _width(ptrs), Shadow(*layers))

    def create_atomic_rmw(
        self, rmw_op: Any, ptr: Any, val: Any, mask: Any, sem: Any, scope: Any
    ) -> Any:
        active, argument = self._address("atomic", ptr, mask)
        return self._atomic(
            ptr,
            (val,),
            active,
            argument,
            rmw_op.name != "XCHG",
            functools.partial(super().create_atomic_rmw, rmw_op, ptr, val, mask, sem, scope),
        )

    def create_atomic_cas(self, ptr: Any, cmp: Any, val: Any, sem: Any, scope: Any) -> Any:
        every = upstream.TensorHandle(np.ones(ptr.data.shape, dtype=bool), tl.int1)
        active, argument = self._address("atomic", ptr, every)
        return self._atomic(
            ptr,
            (cmp, val),
            active,
            argument,
            True,
            functools.partial(super().create_atomic_cas, ptr, cmp, val, sem, scope),
        )

    def _atomic(
        self,
        ptr: Any,
        operands: tuple[Any, ...],
        active: Array,
        argument: Any,
        reads: bool,
        run: Callable[[], Any],
    ) -> Any:
        before, faults = Shadow(), self.shadows.loaded(ptr.data, _width(ptr))
        if faults is not None:
            undefined, nonfinite, unwritten = faults
            if (unwritten := unwritten & active).any():
                dtype, pointers = ptr.get_element_ty(), ptr.data
                new = self.shadows.log.add(
                    UNWRITTEN, unwritten, dtype, argument=argument, pointers=pointers
                )
                undefined = np.where(undefined != 0, undefined, new)
            before = Shadow(pruned(undefined), None, pruned(nonfinite))
        for layer in (*(shadow_of(h).undefined for h in operands), before.undefined):
            if layer is not before.undefined or reads:
                self.shadows.reach("atomic", "atomic", layer, active, argument, ptr.data)
        out = run()
        after = shadow_of(operands[-1])
        if reads:
            after = Shadow(*(joined(x, y) for x, y in zip(after, before, strict=True)))
        self._write(ptr, active, argument, after)
        return give(out, before)

    # ---- other effects of a value ----

    def create_assert(self, condition: Any, message: Any) -> None:
        self.decides(condition, "assertion")
        super().create_assert(condition, message)

    def decides(self, handle: Any, where: str = "branch") -> None:
        """Record the faults of a value on which control flow depends."""
        every = np.ones(handle.data.shape, dtype=bool)
        self.shadows.reach(where, "", shadow_of(handle).undefined, every)


def _width(ptrs: Any) -> int:
    return max(1, ptrs.get_element_ty().primitive_bitwidth // 8)
