"""Detection of programs that wait for others: with one program at a time some would never end."""

from __future__ import annotations

import ctypes
from typing import Any

from compare.debugging.findings import regions
from triton_kernels.interpreter import Access, Observer, Program

PATIENCE = 2_000  # repeated accesses that find nothing new
FEW = 16  # lanes of an atomic that is checked for changing memory; a larger one always counts


class WaitsForever(RuntimeError):
    """A program waits for a change that cannot happen while it runs: of ``touched``, which begins
    at ``address``."""

    def __init__(self, touched: str, address: int | None, volatile: bool) -> None:
        self.touched, self.address = touched, address
        what = f"{touched} stays as it is. What the program waits for"
        if volatile:
            what = f"volatile loads wait for a program that stores to {touched}, which"
        super().__init__(
            f"{what} is done by none, or by one that runs later: programs run one after another "
            "here, and a GPU need not run them at the same time either"
        )


class SpinGuard(Observer):
    """Ends a program that waits forever.

    A waiting program repeats accesses that change nothing. So a store, an atomic that changes
    memory, and an access that is new since then restart the count.
    """

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._seen: set[tuple[Any, ...]] = set()  # places and addresses
        self._repeated: dict[tuple[Any, ...], int] = {}
        self._atomic: list[tuple[int, bytes]] = []  # address and content before the last one

    def wants(self, program: Program) -> bool:
        self._forget()
        return True

    def access(self, access: Access) -> None:
        if any(_bytes(at, len(before)) != before for at, before in self._atomic):
            self._forget()
        active = access.pointers[access.mask]
        atomic = access.verb == "atomic"
        if access.verb == "store" or (atomic and active.size > FEW):
            self._forget()
            return
        width = access.values.dtype.itemsize
        self._atomic = [(int(at), _bytes(int(at), width)) for at in active if atomic]
        key = (access.place, *map(int, active[[0, -1]] if active.size else (0, 0)))
        if key not in self._seen:
            self._seen.add(key)
            self._repeated = {}
        self._repeated[key] = self._repeated.get(key, 0) + 1
        if self._repeated[key] > PATIENCE:
            address = int(active[0]) if active.size else None
            raise WaitsForever(_touched(access), address, access.semantics == "volatile")


def _bytes(address: int, width: int) -> bytes:
    return ctypes.string_at(address, width)


def _touched(access: Access) -> str:
    if access.argument is None:
        return "memory"
    region = regions.touched(access.argument, access.pointers, access.mask)
    return region.of(access.argument.name)
