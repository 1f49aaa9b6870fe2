"""Scores on GPUs that nobody measured: estimated, conservatively, and said to be."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import triton_kernels as tk
from triton_kernels import _launch, _measured
from triton_kernels._fusion import Problem
from triton_kernels._gpu import GPUS, Gpu, peaks
from triton_kernels._measured import SHIPPED, Measurement
from triton_kernels.graph import capabilities

CPU = torch.device("cpu")
PRODUCTS = ("linear_act", "linear_gelu", "gemm_bias_act")
ELEMENTWISE = ("add", "square", "relu_scale", "relu_scale_add")
OTHERS = [arch for arch in GPUS if arch != "sm_90"]


@pytest.fixture
def on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cpu: torch.device
) -> Iterator[Callable[[Gpu], None]]:
    """Interpreted, as on a GPU."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def take(gpu: Gpu) -> None:
        monkeypatch.setattr(_launch, "gpu", lambda kernel, device: gpu)

    yield take
    _measured.measurement.cache_clear()
    capabilities.entries.cache_clear()


def judged(kernel: str, *sizes: int | None, **words: Any) -> capabilities.Verdict:
    given = {"dtype": torch.bfloat16, "device": CPU, "other": "eager", "act": "gelu", **words}
    names = dict(zip("MNK", sizes))
    return capabilities.judge(Problem(kernel=kernel, **given, **names), capabilities.MIN_SCORE)


@pytest.mark.parametrize("arch", OTHERS)
def test_products_are_estimated_and_the_rest_is_as_shipped(
    arch: str, on: Callable[[Gpu], None]
) -> None:
    on(GPUS[arch])
    for kernel in PRODUCTS:
        verdict = judged(kernel, 4096, 4096, 64)
        assert verdict.score is not None
        assert (verdict.refusal, verdict.source) == ("", "estimated")
        assert 1.01 < verdict.score <= 0.8 * 3
    for kernel in ELEMENTWISE:
        for entry, source in capabilities.entries(kernel, GPUS[arch]):
            assert (entry.eager, source) == (capabilities.ENTRIES[kernel][0].eager, "shipped")


def test_an_estimate_is_the_roofline(on: Callable[[Gpu], None]) -> None:
    """An A100: a product of 440 µs at 312 TFLOP/s, and 43 µs at 1.56 TB/s that gelu takes."""
    on(GPUS["sm_80"])
    verdict = judged("linear_gelu", 4096, 4096, 4096)
    assert verdict.score == pytest.approx(0.8 * (1 + 43.02 / 440.5), rel=1e-3)
    says = "linear_gelu: 0.88 of eager's speed estimated for bfloat16, below min_score 1.01"
    assert verdict.refusal == says
    for sizes in ((None, 4096, 64), (None, None, None)):  # unknown: nothing is saved
        assert judged("linear_gelu", *sizes).score == 0.8
    for act in ("none", None):
        assert judged("linear_act", 4096, 4096, 64, act=act).score == 0.8
    weak = GPUS["sm_80"]._replace(multiprocessors=54)
    on(weak)
    assert judged("linear_gelu", 4096, 4096, 4096).score == pytest.approx(0.84, abs=0.002)


def test_estimates_are_careful(on: Callable[[Gpu], None]) -> None:
    """float32, whose products are slow here, is never taken, nor is a long sum."""
    sizes = (16, 333, 1024, 8192)
    for gpu in (GPUS[arch] for arch in OTHERS):
        on(gpu)
        for M, N, other in itertools.product(sizes, sizes, ("eager", "inductor")):
            for K in (16, 256, 4096):
                single = judged("linear_gelu", M, N, K, dtype=torch.float32, other=other)
                assert single.refusal
                assert single.score is not None
                assert single.score < 0.9
            assert judged("linear_act", M, N, 8 * max(M, N), other=other, act="relu").refusal
        assert judged("linear_act", 64, 64, 64, dtype=torch.float64).score == 0.0


def test_a_plan_says_that_a_score_is_estimated(on: Callable[[Gpu], None]) -> None:
    on(GPUS["sm_89"])
    layer = torch.nn.Linear(8, 64).bfloat16()
    x = torch.randn(64, 8).bfloat16()
    (plan,) = tk.explain(lambda t: F.gelu(layer(t)), x).plans
    (step,) = plan.steps
    assert step.estimated
    assert str(step).endswith(f"score {step.score:.2f}, estimated")
    assert step.score == pytest.approx(0.8 * 2.6)
    deep = torch.nn.Linear(512, 64).bfloat16()
    (plan,) = tk.explain(lambda t: F.gelu(deep(t)), torch.randn(64, 512).bfloat16()).plans
    assert not plan.steps
    assert "of eager's speed estimated for bfloat16" in str(plan)
    on(GPUS["sm_90"])
    (plan,) = tk.explain(lambda t: F.gelu(layer(t)), x).plans
    assert "estimated" not in str(plan)


def test_what_was_measured_wins_and_the_rest_is_estimated(on: Callable[[Gpu], None]) -> None:
    card = GPUS["sm_86"]._replace(name="Some Card")
    on(card)
    assert judged("linear_act", 4096, 4096, 4096).source == "estimated"
    place = 1  # 16 bits, aligned or not
    _measured.save(card, Measurement(SHIPPED, {"linear_act": {place: (1.3, 0.9)}}))
    capabilities.entries.cache_clear()
    sources = [each.source for each in capabilities.entries("linear_act", card)]
    assert sources == ["measured here" if i == place else "estimated" for i in range(len(sources))]
    filled = next(n for n in (4096, 3584, 3072, 2560) if _filled(n, card))
    assert judged("linear_act", filled, filled, 4096) == (1.3, "", "measured here")
    assert judged("linear_act", 333, 4097, 4095).source == "estimated"
    assert judged("linear_gelu", filled, filled, 4096).source == "estimated"


def _filled(n: int, gpu: Gpu) -> bool:
    waves = n * n / (128 * 256 * gpu.multiprocessors)
    return n * n > 2048**2 and waves / -(-waves // 1) >= 0.8


def test_capabilities_print_what_is_estimated(
    on: Callable[[Gpu], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    on(GPUS["sm_80"]._replace(name="NVIDIA A100-SXM4-40GB"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    lines = str(tk.capabilities()).splitlines()
    assert lines[0].startswith("NVIDIA A100-SXM4-40GB: compute capability 8.0, 108 multiproc")
    assert lines[1] == "choice of a product's tiles, shipped (of an NVIDIA H200):"
    assert "  up to 2097152 results: small tiles" in lines
    for line in lines:
        kernel = line.split()[0]
        if kernel in PRODUCTS:
            assert line.endswith("  estimated, more by what the epilogue saves")
        if kernel in ELEMENTWISE:
            assert line.endswith("  shipped (of an NVIDIA H200)")


@pytest.mark.parametrize(
    ("told", "right"),
    [
        ({"memory_clock_rate": 10_501_000, "memory_bus_width": 384}, 1.008e12),
        ({"memory_clock_rate": 10_501_000}, 0.0),
        ({}, 0.0),
    ],
)
def test_bandwidth_is_the_drivers(
    told: dict[str, int], right: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GeForce RTX 4090, by a driver that tells, and one that does not."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(**told))
    assert _launch.bandwidth(torch.device("cuda", 0)) == pytest.approx(right, rel=1e-3)
    assert _launch.bandwidth(CPU) == 0


def test_peaks_go_by_architecture_and_multiprocessors() -> None:
    assert peaks(GPUS["sm_80"]) == (312e12, 1.56e12)
    assert peaks(Gpu(87, 41, 166912)) == (pytest.approx(71e12 / 2), 0.94e12)
    assert peaks(GPUS["sm_89"], 5e11).bandwidth == 5e11
    assert set(GPUS) == set(tk._gpu._PEAKS)
