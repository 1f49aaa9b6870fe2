"""A Hugging Face model, faster in three lines: compile it, check the result, time it on a GPU.

    python examples/hugging_face.py

BERT by its configuration, with random weights: nothing is downloaded. On a GPU in bfloat16 at its
real size, beside torch.compile; on the CPU a tiny one, interpreted. It needs the extra ``models``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from transformers import BertConfig, BertModel

import triton_kernels as tk
from compare import check_fused

TINY = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 100}


def main() -> None:
    """Compile, check, time."""
    on_gpu = torch.cuda.is_available()
    device, batch, length = ("cuda", 32, 512) if on_gpu else ("cpu", 2, 8)
    config = BertConfig(**({} if on_gpu else {**TINY, "num_attention_heads": 4}))
    model = BertModel(config).eval().to(device, torch.bfloat16)
    tokens = torch.randint(0, config.vocab_size, (batch, length), device=device)

    # The three lines are these: what is fused, and by what the rest is compiled.
    options = {"rest": "inductor"} if on_gpu else {"rest": "eager", "min_score": 0}
    with contextlib.nullcontext() if on_gpu else tk.interpret(), torch.no_grad():
        faster = torch.compile(model, backend="triton_kernels", options=options)
        result = faster(tokens).last_hidden_state

        difference = (result - model(tokens).last_hidden_state).abs().max().item()
        print("largest difference from torch:", difference)
        score = options.get("min_score", 1.01)
        print(tk.explain(model, (tokens,), min_score=score))
        report = check_fused(model, [(tokens[:2],)], min_score=score)
        assert report, report
        print("fused against float64:", report.verdict)
        if on_gpu:
            for name, call in (("torch.compile", torch.compile(model)), ("triton_kernels", faster)):
                print(f"{name}: {milliseconds(call, tokens):.2f} ms")


def milliseconds(call: Callable[..., Any], *args: Any, calls: int = 20) -> float:
    """GPU time of a call, the mean of several. For figures to quote: python -m compare bench."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(3):
        call(*args)
    start.record()
    for _ in range(calls):
        call(*args)
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / calls


if __name__ == "__main__":
    main()
