"""A tensor-parallel MLP, y = gelu(x @ up.T + b) @ down.T + c, against the same on one device.

    torchrun --nproc-per-node 2 examples/tensor_parallel.py

The first layer is sharded by columns, the second by rows: each rank computes its part of the hidden
features, and one all-reduce adds the parts of the result. On GPUs: NCCL, bfloat16, times; without:
gloo, Triton's interpreter, small shapes. The exit status is 1 if a result or gradient is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import triton_kernels as tk

COMMAND = "torchrun --nproc-per-node 2 examples/tensor_parallel.py"
# Bound of a difference, in units in the last place of the tensor's largest element: the parts of
# the ranks are rounded one by one, and added in another order.
ULPS = 8


@dataclass(frozen=True)
class Sizes:
    tokens: int
    width: int
    hidden: int
    dtype: torch.dtype


SIZES = {
    "cpu": Sizes(tokens=8, width=16, hidden=32, dtype=torch.float32),
    "cuda": Sizes(tokens=8192, width=4096, hidden=16384, dtype=torch.bfloat16),
}


def main() -> None:
    """Compare, time, and say whether all is right."""
    device = arguments().device
    if "LOCAL_RANK" not in os.environ:
        sys.exit(f"start it by: {COMMAND}")
    with mesh_of_all_ranks(device) as mesh, interpreter(device):
        sizes = SIZES[device]
        whole, sharded = models(mesh, sizes)
        x = torch.randn(sizes.tokens, sizes.width, device=device, dtype=sizes.dtype)
        grad = torch.randn_like(x)
        differences = compare(step(whole, x, grad), step(sharded, x, grad))
        wrong = report(differences, mesh)
        if device == "cuda":
            one, all_of_them = (
                milliseconds(lambda m=m: step(m, x, grad)) for m in (whole, sharded)
            )
            say(mesh, f"a step: {one:.2f} ms on one GPU, {all_of_them:.2f} ms on {mesh.size()}")
    leave(int(wrong))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    enough = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    parser.add_argument("--device", choices=SIZES, default="cuda" if enough else "cpu")
    return parser.parse_args()


@contextlib.contextmanager
def mesh_of_all_ranks(device: str) -> Iterator[DeviceMesh]:
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    try:
        yield init_device_mesh(device, (dist.get_world_size(),))
    finally:
        dist.destroy_process_group()


def leave(status: int) -> NoReturn:
    """End this process, but not by Python's own way out.

    gloo's threads outlive the group. One that lets go of a tensor while Python ends aborts it.
    """
    sys.stdout.flush()
    os._exit(status)


def interpreter(device: str) -> contextlib.AbstractContextManager[None]:
    return tk.interpret() if device == "cpu" else contextlib.nullcontext()


def models(mesh: DeviceMesh, sizes: Sizes) -> tuple[nn.Module, nn.Module]:
    """The same MLP twice: on this device, and on all."""
    torch.manual_seed(0)
    options = {"device": mesh.device_type, "dtype": sizes.dtype}
    whole = tk.nn.MLP(sizes.width, sizes.hidden, sizes.width, **options)
    plan = {"fc1": ColwiseParallel(), "fc2": RowwiseParallel()}
    return whole, parallelize_module(copy.deepcopy(whole), mesh, plan)


def step(model: nn.Module, x: Tensor, grad: Tensor) -> dict[str, Tensor]:
    """Forward and backward: the result and all gradients by name."""
    x = x.detach().requires_grad_()
    model.zero_grad()
    y = model(x)
    y.backward(grad)
    found = {"y": y.detach(), "grad of x": x.grad}
    return found | {f"grad of {name}": p.grad for name, p in model.named_parameters()}


def compare(
    expected: dict[str, Tensor], found: dict[str, Tensor]
) -> dict[str, tuple[float, float]]:
    """The largest difference of each tensor, and its bound."""
    differences = {}
    for name, right in expected.items():
        t = found[name]
        t = t.full_tensor() if isinstance(t, DTensor) else t
        bound = ULPS * torch.finfo(right.dtype).eps * right.abs().max()
        differences[name] = (t - right).abs().max().item(), bound.item()
    return differences


def report(differences: dict[str, tuple[float, float]], mesh: DeviceMesh) -> bool:
    """Print them and the verdict: whether anything is wrong on any rank."""
    for name, (largest, bound) in differences.items():
        say(mesh, f"{name:20} largest difference {largest:.2e}, bound {bound:.2e}")
    here = any(not largest <= bound for largest, bound in differences.values())  # NaN is wrong
    wrong = torch.tensor(float(here), device=mesh.device_type)
    dist.all_reduce(wrong, dist.ReduceOp.MAX)
    verdict = "WRONG" if wrong else f"{mesh.size()} ranks compute what one does"
    say(mesh, verdict)
    return bool(wrong)


def milliseconds(function: Callable[[], object], times: int = 20) -> float:
    """The median, after as many calls to warm up as a kernel needs to compile."""
    for _ in range(3):
        function()
    dist.barrier()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(times)]
    for begin, end in events:
        begin.record()
        function()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in events)


def say(mesh: DeviceMesh, text: str) -> None:
    if mesh.get_rank() == 0:
        print(text)


if __name__ == "__main__":
    main()
