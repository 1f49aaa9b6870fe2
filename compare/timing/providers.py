"""What is timed for an op: both sides with every variant, and what others offer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from compare.cases import Case
from compare.implementations import applies, implementations
from compare.specs import Spec
from compare.timing.engine import Candidate

OURS = {"triton-compiled": "triton", "cuda-gpu": "cuda"}  # mode → provider
PEERS = ("eager", "compile", "max-autotune", "cublaslt")


def names(spec: Spec, case: Case | None = None, wanted: Sequence[str] = ()) -> list[str]:
    """The providers that an op may have, or that take the case; of these, the wanted ones.

    A wanted name may be "ours" or "peers", too.
    """
    found = [name for name, _ in _ours(spec, case)]
    found += [name for name in PEERS if _offers(name, spec, case)]
    groups = {name: "peers" if name in PEERS else "ours" for name in found}
    return [name for name in found if not wanted or {name, groups[name]} & set(wanted)]


def candidates(spec: Spec, case: Case, wanted: Sequence[str] = ()) -> Iterator[Candidate]:
    """What :func:`names` names; each is called with the op's arguments."""
    functions = dict(_ours(spec, case))
    torch._dynamo.reset()  # or the limit of recompilations sends the ninth shape to eager
    for name in names(spec, case, wanted):
        yield Candidate(name, _call(functions.get(name) or _peer(name, spec)))


def _ours(spec: Spec, case: Case | None) -> Iterator[tuple[str, Callable[..., Tensor]]]:
    for way in implementations(spec, list(OURS)):
        if case is None or applies(way, spec, case):
            yield OURS[way.mode] + (f"/{way.variant}" if way.variant else ""), way.function


def _call(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        return function(*args, **kwargs)

    return call


def _offers(name: str, spec: Spec, case: Case | None) -> bool:
    if name == "cublaslt":
        return spec.fused is not None
    if name == "max-autotune":  # takes minutes: only where it is meant to be best
        return spec.bound is not None and (case is None or case.dtype == "bfloat16")
    return True


def _peer(name: str, spec: Spec) -> Callable[..., Tensor]:
    if name == "cublaslt" and spec.fused is not None:
        return spec.fused
    if name == "eager":
        return spec.eager
    mode = "max-autotune-no-cudagraphs" if name == "max-autotune" else None
    compiled: Callable[..., Tensor] = torch.compile(spec.eager, dynamic=False, mode=mode)
    return compiled
