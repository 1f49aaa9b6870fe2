"""The feed-forward block of a transformer: swap its layers, check the result, time it on a GPU.

    python examples/transformer_ffn.py

On a GPU in bfloat16 with 8192 tokens of 4096 features; on the CPU a tiny block, interpreted.
"""

from __future__ import annotations

import contextlib
import copy

import torch
from torch import nn

import triton_kernels as tk
from compare import check_fused


def main() -> None:
    """Swap, check, time."""
    on_gpu = torch.cuda.is_available()
    device, tokens, features = ("cuda", 8192, 4096) if on_gpu else ("cpu", 16, 32)
    ffn = nn.Sequential(
        nn.Linear(features, 4 * features), nn.GELU("tanh"), nn.Linear(4 * features, features)
    ).to(device, torch.bfloat16)
    x = torch.randn(tokens, features, device=device, dtype=torch.bfloat16)
    with contextlib.nullcontext() if on_gpu else tk.interpret(), torch.no_grad():
        swapped = copy.deepcopy(ffn)
        print(tk.replace_modules(swapped))
        report = check_fused(ffn, [(x[:512],)], min_score=1.01)
        assert report, report
        print("fused against float64:", report.verdict)
        print("largest difference from torch:", (swapped(x) - ffn(x)).abs().max().item())
        if on_gpu:
            for name, module in (("torch", ffn), ("swapped", swapped)):
                print(f"{name}: {microseconds(module, x):.0f} µs")


def microseconds(module: nn.Module, x: torch.Tensor, calls: int = 20) -> float:
    """GPU time of a call, the mean of several. For figures to quote: python -m compare bench."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(3):
        module(x)
    start.record()
    for _ in range(calls):
        module(x)
    end.record()
    end.synchronize()
    return 1000 * start.elapsed_time(end) / calls


if __name__ == "__main__":
    main()
