"""A child process that runs one case of the CUDA side, or one call of a launcher, under some tools,
and writes a report.

``python -m compare.debugging.cuda.process JOB``, with a job as JSON. The report has one JSON object
per line. Each finding is written at once, because a tool may end the process.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from compare import cases, numerics
from compare.cases import GUARD, Arguments, Case, Guarded
from compare.checking import running
from compare.checking.implementations import Implementation
from compare.copies import copies, tensors
from compare.debugging.cuda import calls
from compare.debugging.cuda.telling import ORDERS, Teller, thread_order, told
from compare.debugging.drawing.errors import error_map
from compare.debugging.findings import regions
from compare.debugging.findings.placed import describe
from compare.ops import spec_of
from compare.specs import Spec
from cuda_reference import BuildError, _build, _replay
from cuda_reference._watch import UNWRITTEN, WRITTEN, Access, Memory, Watch

MARGIN = 4096  # bytes around a watched input


class Job(Teller):
    """A case on one implementation, and the report to write to."""

    def __init__(self, described: dict[str, Any]) -> None:
        case = described["case"]
        self.spec: Spec = spec_of(case["op"])
        self.case = Case(**{**case, "shape": tuple(case["shape"])})
        mode, variant = described["mode"], described["variant"]
        function = self.spec.function("cuda", variant)
        self.implementation = Implementation(mode, variant, function)
        super().__init__(described)

    def named(self, arguments: Arguments) -> dict[str, Tensor]:
        """The tensors among the arguments, by parameter; for kernels from elsewhere by position."""
        if self.spec.own:
            args, kwargs = arguments
            return {f"argument {i}": t for i, t in enumerate(tensors([*args, *kwargs.values()]))}
        bound = inspect.signature(self.spec.cuda).bind(*arguments[0], **arguments[1]).arguments
        return {name: t for name, value in bound.items() for t in tensors(value)}


# ---- Wrong values ----


class Verdict:
    """A result compared with the oracle's."""

    def __init__(self, job: Job, arguments: Arguments, result: Tensor, reference: Tensor) -> None:
        self.result = result
        self.described: dict[str, Any] = {"problem": ""}
        self.index: tuple[int, ...] | None = None
        self.wrong: Tensor | None = None
        outcome = running.judge(
            job.spec, job.case, job.implementation, arguments, result, reference
        )
        if outcome.mismatch is None:
            return
        self.described["problem"] = outcome.mismatch.problem
        if outcome.mismatch.deviation is None:
            return
        comparison = running.compare(
            job.spec, job.case, job.implementation.name, arguments, result, reference
        )
        self.wrong = ~comparison.right.cpu()
        self.index = outcome.mismatch.deviation.index
        floating = result.dtype.is_floating_point
        self.described |= {
            "deviation": asdict(outcome.mismatch.deviation),
            "pattern": regions.pattern(self.wrong.numpy(), "out")._asdict(),
            "all_nan": floating and bool(result.cpu()[self.wrong].isnan().all()),
            "shape": list(result.shape),
            "dtype": str(result.dtype).removeprefix("torch."),
            "map": error_map(result, reference, self.wrong.numpy(), self.index).to_dict(),
        }


def values(job: Job) -> None:
    """The case as check runs it; on the host target in both thread orders."""
    arguments = job.spec.inputs(job.case, job.implementation.device)
    reference = job.spec.oracle(*arguments[0], **arguments[1])
    verdicts = []
    for order in ORDERS if job.implementation.device.type == "cpu" else ORDERS[:1]:
        with thread_order(order):
            result, guards = running.call(
                job.spec, job.case, job.implementation, arguments, reference
            )
        if job.implementation.device.type == "cuda":
            torch.cuda.synchronize()
        verdict = Verdict(job, arguments, result.clone(), reference)
        if not all(guarded.intact() for guarded in guards):
            verdict.described["outside"] = True
        verdicts.append(verdict)
        job.tell("values", order=order, **verdict.described)
    same = numerics.same_bits(verdicts[0].result, verdicts[-1].result)
    job.tell("orders", same=bool(same.all()))


# ---- Watched ----


class _Told(list[Guarded]):
    """Guards of outputs, which are reported when they are made."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.job = job

    def append(self, guarded: Guarded) -> None:
        super().append(guarded)
        self.job.tell("tensor", **describe("out", guarded.out))


class _Watched(_Told):
    """The same guards, which are also watched. ``memory`` belongs to the last one."""

    def __init__(self, job: Job, watch: Watch) -> None:
        super().__init__(job)
        self._watch = watch

    def append(self, guarded: Guarded) -> None:
        super().append(guarded)
        self.memory = Memory(guarded.buffer.view(torch.uint8))
        in_place = self.job.case.layout == "inplace"
        self.memory.mark(guarded.out, WRITTEN if in_place else UNWRITTEN)
        self._watch.add(self.memory)


def initcheck(job: Job) -> None:
    """The case with all accesses watched, in both thread orders. Finds the thread that stored the
    worst element and what that thread did."""
    watch = Watch(_build.library(job.spec.stem, "host"))
    known: set[Any] = set()
    for order in ORDERS:
        verdict, guards = _watched(job, watch, order)
        job.findings(watch, order, known)
        if verdict.index is not None:
            _locate(job, watch, order, verdict, guards)
            return


def _watched(
    job: Job, watch: Watch, order: str, follow: Access | None = None
) -> tuple[Verdict, _Watched]:
    watch.forget()
    job.tell("launch")
    arguments = copies(job.spec.inputs(job.case), cases.CPU, MARGIN)
    reference = job.spec.oracle(*arguments[0], **arguments[1])
    memories: dict[int, Memory] = {}
    for name, t in job.named(arguments).items():
        storage = t.untyped_storage()
        if storage.data_ptr() not in memories:
            whole = torch.empty(0, dtype=torch.uint8)
            whole.set_(storage, 0, (storage.nbytes(),), (1,))
            memories[storage.data_ptr()] = Memory(whole)
        memories[storage.data_ptr()].mark(t, WRITTEN)
        job.tell("tensor", **describe(name, t))
    for memory in memories.values():
        watch.add(memory)
    if follow is not None:
        watch.follow(follow)
    guards = _Watched(job, watch)
    with thread_order(order):
        result, _ = running.call(
            job.spec, job.case, job.implementation, arguments, reference, guards=guards
        )
    return Verdict(job, arguments, result, reference), guards


def _locate(job: Job, watch: Watch, order: str, verdict: Verdict, guards: _Watched) -> None:
    """Report who stored the worst element, and run again to follow that thread."""
    assert verdict.index is not None
    assert verdict.wrong is not None
    memory, result = guards.memory, verdict.result
    writers = memory.of(memory.writer, result)[..., 0]
    never = int((writers[verdict.wrong] == 0).sum())
    access = watch.access(int(writers[verdict.index]))
    stored = access and told(watch, access)
    job.tell("worst", order=order, index=verdict.index, never=never, stored=stored)
    if access is None:
        return
    _watched(job, watch, order, access)
    job.followed(watch)


# ---- Under a sanitizer ----


class _Allocations(TorchFunctionMode):
    """Reports the memory that an op allocates for its result."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job = job

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in (torch.empty, torch.empty_like, torch.empty_strided, Tensor.new_empty):
            self._job.tell("tensor", **describe("out", result))
        return result


def exact(job: Job) -> None:
    """One run of the case with every tensor in memory of exactly its size, so that the tool finds
    an access beside it. Results are not read: reading unwritten memory would be another finding.
    """
    device, case = job.implementation.device, job.case
    inputs = job.spec.inputs(case)
    args, kwargs = copies(inputs, device)
    if case.layout == "inplace":
        kwargs = {**kwargs, "out": args[0]}
    elif case.layout != "functional" and job.spec.takes_out:
        reference = job.spec.oracle(*inputs[0], **inputs[1])  # on the CPU: launches nothing
        dtype = job.spec.out_dtype(case) if job.spec.bounded else reference.dtype
        like = Guarded(tuple(reference.shape), dtype, torch.device("meta"), case.out_layout)
        memory = torch.empty(like.buffer.numel() - 2 * GUARD, dtype=dtype, device=device)
        start = like.out.storage_offset() - GUARD
        kwargs = {**kwargs, "out": memory.as_strided(like.out.shape, like.out.stride(), start)}
    job.tell("launch")
    for name, t in job.named((args, kwargs)).items():
        job.tell("tensor", **describe(name, t))
    with _Allocations(job):
        job.implementation(*args, **kwargs)
    if device.type == "cuda":
        torch.cuda.synchronize()


def guarded(job: Job) -> None:
    """One run of the case with every tensor in memory that a wild access may hit without harm."""
    arguments = copies(job.spec.inputs(job.case), cases.CPU, MARGIN)
    reference = job.spec.oracle(*arguments[0], **arguments[1])
    job.tell("launch")
    for name, t in job.named(arguments).items():
        job.tell("tensor", **describe(name, t))
    running.call(job.spec, job.case, job.implementation, arguments, reference, guards=_Told(job))
    _build.library(job.spec.stem, "host").crosscheck_say_shared_arrays()


STEPS = {
    "values": (values, ""),
    "initcheck": (initcheck, "watch"),
    "address": (exact, "address"),
    "undefined": (guarded, "undefined"),
    "thread": (guarded, "thread"),
    "gpu": (exact, ""),
}


# ---- Kernels from elsewhere ----


def _under(kind: str) -> Callable[[Job], None]:
    """One run of the case in which every call of a loaded CUDA function is under a tool. The tool
    reports by an error."""

    def step(job: Job) -> None:
        args, kwargs = job.spec.inputs(job.case)
        job.tell("launch")
        with _replay.under(kind):
            job.implementation(*args, **kwargs)

    return step


OWN_STEPS = {
    "values": (values, ""),
    "initcheck": (_under("watch"), ""),
    **{kind: (_under(kind), "") for kind in ("address", "undefined", "thread")},
    "gpu": (exact, ""),
}


def run(job: Teller, known: Mapping[str, tuple[Callable[[Any], None], str]] = STEPS) -> None:
    """Run the job's steps in order, each with the sanitizer that its libraries need."""
    for name in job.steps:
        step, kind = known[name]
        os.environ["CROSSCHECK_SANITIZE"] = kind
        _build._load.cache_clear()
        job.tell("begin", step=name)
        try:
            step(job)
        except BuildError as error:
            job.tell("error", step=name, build=True, text=str(error))
        except Exception as error:  # noqa: BLE001 - any error of a kernel under test is a finding
            job.tell("error", step=name, build=False, text=running.brief(error))
        job.tell("end", step=name)


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    if "call" in asked:
        run(calls.Call(asked), calls.STEPS)
    else:
        of_case = Job(asked)
        run(of_case, OWN_STEPS if of_case.spec.own else STEPS)
