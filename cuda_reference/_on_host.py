"""Calls on CPU tensors: they run on guarded copies, and are repeated under a tool after a fault."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from cuda_reference import _compilers, _guards, _launch, _replay


def _same_bits(one: Tensor, other: Tensor) -> bool:
    alike = one.shape == other.shape and one.dtype == other.dtype
    flat = (each.contiguous().view(-1).view(torch.uint8) for each in (one, other))
    return alike and torch.equal(*flat)


class OnHost:
    """The base class of such calls: a launcher of load_inline, a call of an extension's function.

    Attributes:
        symbol: the function's name.
        name: its source's name.
        says_const: whether its parameters show which tensors it writes.
        tensors: the number of tensors that it returns; -1 for a list of tensors.
    """

    symbol: str
    name: str
    says_const = True
    tensors = 0

    @property
    def sources(self) -> Mapping[str, str]:
        """Name of a source file → its text."""
        raise NotImplementedError

    def machine_code(self, arch: str) -> list[tuple[bytes, str]]:
        """The cubins of its sources for an architecture ("sm_90"), each with ptxas's report.

        Raises:
            BuildError: there is no nvcc, or a source does not compile.
        """
        raise NotImplementedError

    def described(self) -> dict[str, Any]:
        """A picklable description, from which another process can make the same call."""
        raise NotImplementedError

    def given(self, values: Sequence[Any]) -> list[_guards.Given]:
        """The tensors among the arguments."""
        raise NotImplementedError

    def library(self, target: _compilers.Target) -> ctypes.CDLL:
        """The library built from the source."""
        raise NotImplementedError

    def launch(
        self,
        target: _compilers.Target,
        values: Sequence[Any],
        addresses: Sequence[int],
        stream: int | None = None,
    ) -> int:
        """Run the function, with addresses for the tensors. Returns a status, 0 for success."""
        raise NotImplementedError

    def watch_also(self, memory: Any) -> None:
        """Let the call pass each tensor that it makes to ``memory``, with its guards."""

    def damaged(self) -> str | None:
        """A description of a write outside tensors that the call made, or None."""
        return None

    def returned(self) -> list[Tensor | None]:
        """The tensors that the last call returned, in the call's own memory; None for an element of
        a list that is None."""
        return []

    def on_gpu(self, values: Sequence[Any]) -> list[Tensor | None]:
        """Call it with CUDA tensors. Returns the tensors that it returned."""
        raise NotImplementedError

    def result(self) -> Any:
        """The result of the last call, without memory of the call's own."""
        return None

    def shapes(self, values: Sequence[Any]) -> str:
        """The tensors' names and shapes as text."""
        return ", ".join(f"{each.name} {list(each.argument.shape)}" for each in self.given(values))

    def failure(self, library: ctypes.CDLL, status: int, values: Sequence[Any]) -> RuntimeError:
        """The error for a launch that failed."""
        return _launch.failure(library, status, self.symbol, self.shapes(values))

    def on_host(self, values: Sequence[Any], sanitize: str | None) -> Any:
        """Call it with CPU tensors: guarded, or under a sanitizer."""
        given = self.given(values)
        for each in given:
            _launch.address(each.tensor)
        if self.says_const:
            _launch.count_up([each.tensor for each in given if each.written])
        sanitize = sanitize or _replay.asked()
        recorder = _replay.recorder()
        if recorder is not None:
            recorder.begin(self, values)
        result = self._guarded(values) if sanitize is None else self._sanitized(values, sanitize)
        if recorder is not None:
            recorder.end(result)
        return result

    def _guarded(self, values: Sequence[Any]) -> Any:
        given = self.given(values)
        library = self.library("host")
        if _compilers._sanitizer() == "address":  # it checks accesses to the tensors themselves
            return self._unguarded(values)
        guards = _guards.Guards(given)
        try:
            status = self.launch("host", values, guards.addresses)
        except RuntimeError:  # the function itself raises it for a failed launch
            if self.lends_lanes(values):
                return self._with_lent_lanes(values)
            raise
        crashed = library.crosscheck_crashed()
        damaged = guards.damaged()
        beside = self.damaged() if damaged is None else guards.text(damaged)
        if crashed:
            text = str(self.failure(library, crashed, values))
            raise RuntimeError(f"{text}\n{self._looked_into(values)}")
        if beside is not None:
            raise RuntimeError(
                f"{self.symbol}() on {self.shapes(values)}: wrote {beside}\n"
                f"{self._looked_into(values)}"
            )
        if status:
            error = self.failure(library, status, values)
            if self.lends_lanes(values):
                return self._with_lent_lanes(values)
            raise error
        if not self.says_const:
            _launch.count_up(guards.changed())
        guards.copy_back()
        return self.result()

    def _unguarded(self, values: Sequence[Any]) -> Any:
        """Run on the tensors' own memory. If a shuffle needs a lent lane's value, restore the
        tensors and run again."""
        given = self.given(values)
        addresses = [each.tensor.data_ptr() for each in given]
        written = [(at, each.bytes) for at, each in zip(addresses, given) if each.written]
        before = [ctypes.string_at(at, size) for at, size in written]
        error = self.failed(values, addresses)
        if error is not None:
            for (at, size), were in zip(written, before):
                ctypes.memmove(at, were, size)
            if not self.lends_lanes(values):
                raise error
            try:
                error = self.failed(values, addresses)
            finally:
                self.library("host").crosscheck_lend_lanes(0)
        if error is not None:
            raise error
        return self.result()

    def failed(self, values: Sequence[Any], addresses: Sequence[int]) -> RuntimeError | None:
        """Launch. Returns the error of a failed launch, which the function may have raised itself,
        or None."""
        try:
            status = self.launch("host", values, addresses)
        except RuntimeError as error:
            return error
        return self.failure(self.library("host"), status, values) if status else None

    def _with_lent_lanes(self, values: Sequence[Any]) -> Any:
        try:
            return self._guarded(values)
        finally:
            self.library("host").crosscheck_lend_lanes(0)

    def lends_lanes(self, values: Sequence[Any]) -> bool:
        """Whether the last launch failed because of a shuffle from a missing lane, and no result
        depends on that lane's value: two different values give equal results. If so, later launches
        get one of these values."""
        library, left = self.library("host"), []
        if not library.crosscheck_lacked_lane():
            return False
        for which in (1, 2):
            library.crosscheck_lend_lanes(which)
            guards = _guards.Guards(self.given(values))
            try:
                if self.launch("host", values, guards.addresses):
                    break
            except RuntimeError:
                break
            held = [_guards.buffer(mapping).clone() for mapping in guards.mappings]
            left.append([*held, *(each.clone() for each in self.returned() if each is not None)])
        same = len(left) == 2 and all(map(_same_bits, *left))
        library.crosscheck_lend_lanes(int(same))
        return same

    def _looked_into(self, values: Sequence[Any]) -> str:
        """A description of the same call's faults under the watching runtime. The tensors have not
        been changed."""
        try:
            replay = _replay.Replay(self, values, "watch")
        except (_compilers.BuildError, OSError) as error:
            return f"it could not be repeated to see where: {error}"
        again = "repeated under the watching runtime, it did not do that again"
        return "\n".join(replay.outside()) or f"{again}: {replay.error or 'it went well'}"

    def _sanitized(self, values: Sequence[Any], kind: str) -> Any:
        replay = _replay.Replay(self, values, kind)
        if text := replay.text():
            raise RuntimeError(f"{self.symbol}() on {self.shapes(values)}: {text}")
        replay.copy_back()
        return replay.result
