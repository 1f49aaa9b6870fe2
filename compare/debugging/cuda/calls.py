"""A call of a function made by load or load_inline, under the tools of the CUDA side. It takes the
place of an op's case in :mod:`compare.debugging.cuda.process`."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from compare import numerics
from compare.cases import CPU
from compare.checking import judging
from compare.copies import POISON, copies
from compare.debugging.cuda.telling import ORDERS, Teller, thread_order, told
from compare.debugging.drawing.errors import error_map
from compare.debugging.findings import regions
from compare.debugging.findings.placed import describe
from cuda_reference import _guards, _loading, _replay, _replayed
from cuda_reference._on_host import OnHost
from cuda_reference._torch_calls import Made
from cuda_reference._watch import UNWRITTEN, WRITTEN, Access, Memory, Watch

RESULT = "result"  # the name of a returned tensor; of several: result[0], …


def pack(
    launcher: OnHost,
    values: Sequence[Any],
    expected: Mapping[str, Tensor],
    limits: Mapping[str, Tensor],
    max_ulps: float,
    uninitialized: Sequence[str],
) -> bytes:
    """A call, pickled for the processes of the tools.

    Args:
        expected, limits: parameter or result → the right tensor, and its tolerance where max_ulps
            does not apply.
        uninitialized: parameters whose memory is uninitialised before the call.
    """
    own = copies(tuple(values), CPU)
    call = {
        "launcher": launcher.described(),
        "values": [None if isinstance(value, Tensor) else value for value in own],
        "groups": _replay.packed(launcher.given(own)),
        "places": [place for place, value in enumerate(own) if isinstance(value, Tensor)],
        "expected": {name: _plain(tensor) for name, tensor in expected.items()},
        "limits": dict(limits),
        "max_ulps": max_ulps,
        "uninitialized": list(uninitialized),
    }
    return pickle.dumps(call)


def _plain(tensor: Tensor) -> tuple[torch.dtype, torch.Size, Tensor]:
    """A tensor as dtype, shape and bytes. pickle does not take unsigned and 8-bit floating ones."""
    return tensor.dtype, tensor.shape, tensor.cpu().contiguous().view(-1).view(torch.uint8)


def _from_plain(dtype: torch.dtype, shape: torch.Size, raw: Tensor) -> Tensor:
    return raw.view(dtype).view(shape)


class Call(Teller):
    """A call, and the report to write to."""

    def __init__(self, described: dict[str, Any]) -> None:
        super().__init__(described)
        self.device = torch.device("cpu" if described["mode"] == "cuda-host" else "cuda")
        self._call = pickle.loads(Path(described["call"]).read_bytes())

    def launcher(self) -> OnHost:
        """A new launcher, with the library of the current step."""
        return _loading.again(self._call["launcher"])

    def values(self, launcher: OnHost) -> list[Any]:
        """The arguments in new memory; uninitialised ones hold poison."""
        values = list(self._call["values"])
        for number, tensor in _replayed.unpacked(self._call["groups"]).items():
            values[self._call["places"][number]] = tensor
        for each in launcher.given(values):
            if each.name in self.uninitialized and each.bytes:
                t = each.argument
                raw = torch.full((t.numel() * t.element_size(),), POISON, dtype=torch.uint8)
                t.copy_(raw.view(t.dtype).view(t.shape))
        return list(copies(tuple(values), self.device)) if self.device.type == "cuda" else values

    @property
    def uninitialized(self) -> list[str]:
        """Parameters whose memory is uninitialised before the call."""
        return list(self._call["uninitialized"])

    def expected(self, name: str) -> Tensor:
        """The right value of a parameter's tensor."""
        return _from_plain(*self._call["expected"][name])

    def wrong(self, results: Mapping[str, Tensor]) -> Iterator[tuple[str, judging.Comparison]]:
        """The wrong results, by name."""
        for name in self._call["expected"]:
            reference = self.expected(name)
            if name not in results:
                raise ValueError(f"the oracle has {name}, but the function returned no such tensor")
            result, limit = results[name].cpu(), self._call["limits"].get(name)
            if result.shape != reference.shape:
                raise ValueError(
                    f"{name} has shape {list(result.shape)}, the oracle's {list(reference.shape)}"
                )
            if limit is None:
                comparison = judging.by_ulps(result, reference, self._call["max_ulps"])
            else:
                comparison = judging.by_bound(result, reference, limit)
            if not bool(comparison.right.all()):
                yield name, comparison

    def describe_wrong(self, results: Mapping[str, Tensor]) -> dict[str, Any]:
        """The first wrong result, for the report."""
        for name, comparison in self.wrong(results):
            result, reference = results[name].cpu(), self.expected(name)
            wrong = ~comparison.right
            deviation = judging.deviation(result, reference, *comparison[:3])
            return {
                "problem": "wrong values",
                "name": name,
                "deviation": asdict(deviation),
                "pattern": regions.pattern(wrong.numpy(), name)._asdict(),
                "all_nan": result.dtype.is_floating_point and bool(result[wrong].isnan().all()),
                "shape": list(result.shape),
                "dtype": str(result.dtype).removeprefix("torch."),
                "map": error_map(result, reference, wrong.numpy(), deviation.index).to_dict(),
            }
        return {"problem": ""}


class _Guarded:
    """The arguments of a launch, between canaries and protected pages.

    Attributes:
        tensors: parameter → its tensor there; after the launch also the results.
        memories: of each mapping, to be watched.
    """

    def __init__(
        self, call: Call, launcher: OnHost, room: int = 0, watch: Watch | None = None
    ) -> None:
        self._call, self._launcher, self._watch = call, launcher, watch
        self._values = call.values(launcher)
        given = launcher.given(self._values)
        self._guards = _guards.Guards(given, room)
        self.memories = [Memory(_guards.buffer(m)) for m in self._guards.mappings]
        self.tensors: dict[str, Tensor] = {}
        for address, each in zip(self._guards.addresses, given):
            memory = next(m for m in self.memories if _holds(m.buffer, address, each.bytes))
            offset = (address - memory.buffer.data_ptr()) // each.tensor.element_size()
            placed = torch.empty(0, dtype=each.tensor.dtype)
            storage, like = memory.buffer.untyped_storage(), each.argument
            placed.set_(storage, offset, like.shape, like.stride())
            if each.bytes:
                new = each.name in call.uninitialized
                memory.mark(placed, UNWRITTEN if new else WRITTEN)
                call.tell("tensor", **describe(each.name, placed))
            self.tensors[each.name] = placed
        if watch is not None:
            for memory in self.memories:
                watch.add(memory)
        launcher.watch_also(self._made)

    def _made(self, made: Made) -> None:
        """Add a tensor that the function allocated."""
        assert made.guards is not None
        (memory,) = (Memory(_guards.buffer(mapping)) for mapping in made.guards.mappings)
        memory.mark_at(made.address, made.given.tensor, WRITTEN if made.written else UNWRITTEN)
        self.memories.append(memory)
        if self._watch is not None:
            self._watch.add(memory)
        _tell_made(self._call, made)

    def launch(self) -> str:
        """Where a write went beside the tensors; empty if nowhere.

        Raises:
            RuntimeError: the launch failed.
        """
        library = self._launcher.library("host")
        status = self._launcher.launch("host", self._values, self._guards.addresses)
        status = library.crosscheck_crashed() or status
        if status:
            raise self._launcher.failure(library, status, self._values)
        results = named_results(self._launcher.returned())
        self.tensors |= results
        for name, t in results.items():
            self._call.tell("result", **describe(name, t))
        damaged = self._guards.damaged()
        return (self._launcher.damaged() or "") if damaged is None else self._guards.text(damaged)


def _tell_made(call: Call, made: Made) -> None:
    like = torch.empty(made.given.tensor.shape, dtype=made.given.tensor.dtype, device="meta")
    call.tell("tensor", **{**describe(made.given.name, like), "address": made.address})


def named_results(returned: Sequence[Tensor | None]) -> dict[str, Tensor]:
    """The returned tensors by name; None entries are left out."""
    names = [RESULT] if len(returned) == 1 else [f"{RESULT}[{i}]" for i in range(len(returned))]
    return {name: t for name, t in zip(names, returned, strict=True) if t is not None}


def _holds(buffer: Tensor, address: int, size: int) -> bool:
    low = buffer.data_ptr()
    return low <= address and address + size <= low + buffer.numel()


def values(call: Call) -> None:
    """The unchanged call; on the host target in both thread orders."""
    launcher, outcomes = call.launcher(), []
    for order in ORDERS if call.device.type == "cpu" else ORDERS[:1]:
        beside = ""
        with thread_order(order):
            if call.device.type == "cpu":
                call.tell("launch")
                guarded, beside = _launched(call, launcher, lambda: _Guarded(call, launcher))
                results = guarded.tensors
            else:
                arguments = call.values(launcher)
                returned = named_results(launcher.on_gpu(arguments))
                torch.cuda.synchronize()
                results = {each.name: each.argument for each in launcher.given(arguments)}
                results |= returned
        outcomes.append({name: t.cpu().clone() for name, t in results.items()})
        described = call.describe_wrong(results)
        if beside:
            described["outside"] = True
        call.tell("values", order=order, **described)
    pairs = [(a, outcomes[-1][name]) for name, a in outcomes[0].items()]
    call.tell("orders", same=all(bool(numerics.same_bits(a, b).all()) for a, b in pairs))


def initcheck(call: Call) -> None:
    """The call with all accesses watched, in both thread orders. Finds the thread that stored the
    worst element and what that thread did."""
    launcher = call.launcher()
    watch, known = Watch(launcher.library("host")), set[Any]()
    for order in ORDERS:
        guarded, failure = _watched(call, launcher, watch, order)
        call.findings(watch, order, known)
        if failure is not None:
            raise failure
        for name, comparison in call.wrong(guarded.tensors):
            _locate(call, launcher, watch, order, guarded, name, comparison)
            return


def _watched(
    call: Call, launcher: OnHost, watch: Watch, order: str, follow: Access | None = None
) -> tuple[_Guarded, RuntimeError | None]:
    made: list[_Guarded] = []

    def guarded() -> _Guarded:
        watch.forget()
        call.tell("launch")
        made.append(_Guarded(call, launcher, _guards.ROOM, watch))
        if follow is not None:
            watch.follow(follow)
        return made[-1]

    with thread_order(order):
        try:
            _launched(call, launcher, guarded)
        except RuntimeError as error:
            return made[-1], error
    return made[-1], None


def _launched(call: Call, launcher: OnHost, make: Callable[[], _Guarded]) -> tuple[_Guarded, str]:
    """A launch, and what it wrote beside the tensors. It is repeated if it failed because a lane's
    value was undefined but unused."""
    guarded = make()
    try:
        return guarded, guarded.launch()
    except RuntimeError:
        if not launcher.lends_lanes(call.values(launcher)):
            raise
    guarded = make()
    return guarded, guarded.launch()


def _locate(
    call: Call,
    launcher: OnHost,
    watch: Watch,
    order: str,
    guarded: _Guarded,
    name: str,
    comparison: judging.Comparison,
) -> None:
    """Report who stored the worst element, and run again to follow that thread."""
    result, reference = guarded.tensors[name], call.expected(name)
    index = judging.deviation(result, reference, *comparison[:3]).index
    low = result.data_ptr()
    memory = next(m for m in guarded.memories if _holds(m.buffer, low, 1))
    writers = memory.of(memory.writer, result)[..., 0]
    never = int((writers[~comparison.right] == 0).sum())
    access = watch.access(int(writers[index]))
    stored = access and told(watch, access)
    beside = None if access else watch.access(_stored_near(writers, index))
    call.tell(
        "worst",
        order=order,
        name=name,
        index=index,
        never=never,
        stored=stored,
        beside=beside and told(watch, beside),
    )
    if access is not None:
        _watched(call, launcher, watch, order, access)
        call.followed(watch)


def _stored_near(writers: Tensor, index: Sequence[int]) -> int:
    """The number of the writer of the nearest stored element; 0 if nothing was stored."""
    stored = writers.nonzero()
    if not len(stored):
        return 0
    near = (stored - torch.tensor(list(index))).abs().sum(1).argmin()
    return int(writers[tuple(stored[near])])


def exact(call: Call) -> None:
    """One call with every tensor in memory of exactly its size."""
    launcher = call.launcher()
    arguments = call.values(launcher)
    call.tell("launch")
    for each in launcher.given(arguments):
        call.tell("tensor", **describe(each.name, each.argument))
    if call.device.type == "cuda":
        launcher.on_gpu(arguments)
        torch.cuda.synchronize()
    else:
        launcher.watch_also(lambda made: _tell_made(call, made))
        launcher.on_host(arguments, None)


def guarded(call: Call) -> None:
    """One call with every tensor in memory that a wild access may hit without harm."""
    launcher = call.launcher()
    call.tell("launch")
    _Guarded(call, launcher, _guards.ROOM).launch()
    launcher.library("host").crosscheck_say_shared_arrays()


STEPS = {
    "values": (values, ""),
    "initcheck": (initcheck, "watch"),
    "address": (exact, "address"),
    "undefined": (guarded, "undefined"),
    "thread": (guarded, "thread"),
    "gpu": (exact, ""),
}
