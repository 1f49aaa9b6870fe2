"""A feed-forward block in a CUDA graph: one launch instead of one a kernel, and the same bits.

    python examples/cuda_graph.py

First the block alone, for inference, then a whole training step, forward and backward. A small
block spends its time on the host; that is what a graph saves. Without a GPU there is no graph: then
the block is interpreted and checked against torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

import triton_kernels as tk

Function = Callable[[], tuple[Tensor, ...]]


def main() -> None:
    """On a GPU capture, check and time; without one only check."""
    torch.manual_seed(0)
    if not torch.cuda.is_available():
        print("CUDA graphs need a GPU, and there is none: the block is interpreted, without one")
        with tk.interpret(), torch.no_grad():
            check_against_torch(tk.nn.MLP(32, 64, 32, dtype=torch.bfloat16))
        return
    block = tk.nn.MLP(1024, 4096, 1024, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(256, 1024, device="cuda", dtype=torch.bfloat16)
    grad = torch.randn_like(x)

    def inference() -> tuple[Tensor, ...]:
        with torch.no_grad():
            return (block(x),)

    def training() -> tuple[Tensor, ...]:
        out = block(x)
        return (out, *torch.autograd.grad(out, tuple(block.parameters()), grad))

    show("inference", inference, x)
    show("training step", training, x)


def check_against_torch(block: tk.nn.MLP) -> None:
    x = torch.randn(16, block.fc1.in_features, dtype=torch.bfloat16)
    hidden = functional.gelu(functional.linear(x, block.fc1.weight, block.fc1.bias))
    right = functional.linear(hidden, block.fc2.weight, block.fc2.bias)
    difference = (block(x) - right).abs().max().item()
    # Sums in another order may round to the neighbour, in the hidden features and in the result.
    allowed = 2 * torch.finfo(x.dtype).eps * right.abs().max().item()
    print(f"largest difference from torch: {difference:.2g}, allowed {allowed:.2g}")
    assert difference <= allowed


def show(name: str, function: Function, x: Tensor) -> None:
    """Capture it, compare on numbers that the capture did not see, and time both."""
    graph, captured = capture(function)
    x.copy_(torch.randn_like(x))  # a graph reads and writes the addresses it was captured with
    graph.replay()
    same = all(torch.equal(mine, right) for mine, right in zip(captured, function()))
    print(f"{name}: {'equal bit for bit' if same else 'WRONG'}")
    assert same
    (host, gpu), (graph_host, graph_gpu) = microseconds(function), microseconds(graph.replay)
    print(
        f"  without the graph: {host:6.1f} µs on the host, {gpu:6.1f} µs between calls on the GPU"
    )
    print(f"  with it:           {graph_host:6.1f} µs on the host, {graph_gpu:6.1f} µs on the GPU")
    assert graph_host < host


def capture(function: Function) -> tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...]]:
    """The graph, and the tensors that a replay fills."""
    # Kernels compile and libraries make their workspaces in a first call, which must not be
    # captured; on a stream of its own, as torch asks, so that the default stream holds no part.
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = function()
    return graph, results


def microseconds(call: Callable[[], object], calls: int = 50) -> tuple[float, float]:
    """A call's time on the host, which does not wait for the GPU, and on the GPU, which waits for
    the host where that is the slower one. For figures to quote: python -m compare bench --graph."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    call()
    torch.cuda.synchronize()
    start.record()
    began = time.perf_counter()
    for _ in range(calls):
        call()
    host = time.perf_counter() - began
    end.record()
    end.synchronize()
    return 1e6 * host / calls, 1e3 * start.elapsed_time(end) / calls


if __name__ == "__main__":
    main()
