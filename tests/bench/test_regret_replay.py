"""A candidate of bench --regret runs as it is: no call before it is replayed in its place."""

from __future__ import annotations

import torch

from compare.timing.configurations import forced
from triton_kernels import _known_calls
from triton_kernels.gemm import GPUS, Problem, choose


def test_nothing_is_replayed_in_a_forced_configuration() -> None:
    form = choose(Problem(64, 64, 64, torch.float16, torch.float16), GPUS["sm_90"])
    before = _known_calls.suspensions
    with forced(form):
        assert _known_calls.suspensions == before + 1
    assert _known_calls.suspensions == before
