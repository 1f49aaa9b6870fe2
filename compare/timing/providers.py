"""The providers that are timed for an op: both sides, their variants, and other libraries."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from compare.cases import Case
from compare.checking.implementations import applies, implementations
from compare.specs import Spec
from compare.timing import third_party
from compare.timing.engine import CONTROL, Candidate

OURS = {"triton-compiled": "triton", "cuda-gpu": "cuda"}  # mode → provider
AUTO = "cuda/auto"  # timed where the CUDA side has rungs; its plain kernel is "cuda"
PEERS = ("eager", "compile", "max-autotune", "cublaslt", *third_party.PEERS)
OUR_SIDES = ("triton", "cuda", CONTROL)  # no peer's name begins with one
# Shapes with a quarter to half a minute of autotuning each on an H200.
LONG_TO_TUNE = ((333, 4097, 1023), (512, 4096, 1024), (1024,) * 3, (2048,) * 3)


def is_peer(name: str) -> bool:
    """Whether a provider is a peer, not a side, a variant or a configuration of ours."""
    return re.split("[/ ]", name)[0] not in OUR_SIDES


def names(
    spec: Spec,
    case: Case | None = None,
    wanted: Sequence[str] = (),
    full: bool = False,
    sweep: bool = False,
) -> list[str]:
    """The providers of an op, or those that take the case; of these, the wanted ones.

    A wanted name may also be "ours" or "peers". ``full`` includes slow providers; in a ``sweep``
    slow ones run only if they are wanted by name.
    """
    rungs = {f"cuda/{rung}" for rung in spec.rungs()}
    providers = [name for name, _ in _ours(spec, case)]
    providers += [name for name in PEERS if name not in spec.peers and _offers(name, spec, case)]
    providers += spec.peers

    def chosen(name: str) -> bool:
        if name in wanted:
            return True
        alone = name in rungs and "ours" not in wanted and not full
        if case is not None and alone:  # "auto" takes the best of the rungs
            return False
        if case is not None and _slow(name, spec, case, full, sweep):
            return False
        if name == "compile" and case is not None and spec.compiled_alike(case):
            return False
        return not wanted or ("peers" if is_peer(name) else "ours") in wanted

    return [name for name in providers if chosen(name)]


def candidates(spec: Spec, case: Case, wanted: Sequence[str] = ()) -> Iterator[Candidate]:
    """The candidates of :func:`names`; each is called with the op's arguments."""
    functions = dict(_ours(spec, case))
    torch._dynamo.reset()  # else, past the recompilation limit, the ninth shape runs in eager
    for name in names(spec, case, wanted):
        yield Candidate(name, _call(spec.called(case, functions.get(name) or _peer(name, spec))))


def in_tf32(case: Case) -> bool:
    """Whether the case's products are in tf32."""
    return bool(case.options.get("precision") == "tf32")


@contextlib.contextmanager
def torchs_precision(case: Case) -> Iterator[None]:
    """torch's float32 products use tf32 if the case's do, else float32, so that peers do the same
    work."""
    high = {False: "highest", True: "high"}
    before: str = torch.backends.cuda.matmul.fp32_precision
    torch.set_float32_matmul_precision(high[in_tf32(case)])
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(high[before == "tf32"])


def _ours(spec: Spec, case: Case | None) -> Iterator[tuple[str, Callable[..., Tensor]]]:
    for implementation in implementations(spec, list(OURS)):
        if implementation.variant in spec.pinned():
            continue  # the default is one of them; --regret times the others
        if case is None or applies(implementation, spec, case):
            yield (
                OURS[implementation.mode]
                + (f"/{implementation.variant}" if implementation.variant else ""),
                implementation.function,
            )
    if spec.has_auto:
        yield AUTO, functools.partial(spec.cuda, variant="auto")


def _call(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        return function(*args, **kwargs)

    return call


def _offers(name: str, spec: Spec, case: Case | None) -> bool:
    if spec.own:
        return spec.has_eager and name in ("eager", "compile")
    if name in third_party.PEERS:
        return third_party.offers(name, spec.name, case) and _usual(spec, case)
    if name == "cublaslt":
        return spec.fused is not None and (case is None or spec.fuses(case))
    return name != "max-autotune" or spec.fused is not None


def _usual(spec: Spec, case: Case | None) -> bool:
    """Whether the case has the options of the timed cases, with which other packages are called."""
    if case is None:
        return True
    timed = next(iter(spec.timed(case.dtype, spec.default_options)))
    return dict(case.options) == dict(timed.options)


def _slow(name: str, spec: Spec, case: Case, full: bool, sweep: bool) -> bool:
    """Whether a provider takes too much time to run without being requested."""
    if name == "max-autotune":  # takes minutes: only for cases for which it is made
        slow = sweep or case.dtype != "bfloat16" or case.shape in LONG_TO_TUNE
        return slow and not full
    plain = name.startswith("cuda") and name.partition("/")[2] not in spec.library()
    return sweep and spec.bounded and not spec.own and plain  # slow products


def _peer(name: str, spec: Spec) -> Callable[..., Tensor]:
    if name in spec.peers:
        return spec.peers[name]
    if name in third_party.PEERS:
        return third_party.function(name, spec.name)
    if name == "cublaslt" and spec.fused is not None:
        return spec.fused
    if name == "eager":
        return spec.eager
    options: dict[str, Any] = {}
    if name == "max-autotune":
        options = torch._inductor.list_mode_options("max-autotune-no-cudagraphs")
        options["autotune_num_choices_displayed"] = 0  # no table for every product
    compiled: Callable[..., Tensor] = torch.compile(spec.eager, dynamic=False, options=options)
    return compiled
