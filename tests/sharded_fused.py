"""fuse and FSDP: what test_distributed.py has each rank run, beside the sharded modules."""

from __future__ import annotations

import copy

import torch
from sharded_modules import BATCH, HIDDEN, WIDTH, assert_same_gradients, batch
from sharded_ops import assert_same, integers
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import triton_kernels as tk


def network(mesh: DeviceMesh) -> nn.Sequential:
    """The same on every rank."""
    torch.manual_seed(0)
    blocks = [
        nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH))
        for _ in range(2)
    ]
    return nn.Sequential(*blocks).to(mesh.device_type, torch.float64)


def train(sharded: nn.Module, whole: nn.Module, mesh: DeviceMesh) -> None:
    """Two steps, each rank on its rows, as one device on all rows."""
    rank, size = mesh.get_rank(), mesh.size()
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.01) for module in (sharded, whole)]
    for _ in range(2):
        x = batch(mesh, BATCH * size)
        grad = integers(x.shape, torch.float64, mesh, 8)
        expected = whole(x)
        rows = slice(rank * BATCH, (rank + 1) * BATCH)
        result = sharded(x[rows])
        assert_same(result, expected[rows], exact=False)
        expected.backward(grad / size)  # FSDP takes the mean over the ranks
        result.backward(grad[rows])
        assert_same_gradients(sharded, whole)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def fsdp_then_fuse(mesh: DeviceMesh) -> None:
    """FSDP gathers parameters in hooks, of the root, too."""
    whole = network(mesh)
    sharded = copy.deepcopy(whole)
    for block in sharded:
        fully_shard(block, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    train(tk.fuse(sharded, min_score=0), whole, mesh)


def fuse_then_fsdp(mesh: DeviceMesh) -> None:
    whole = network(mesh)
    fused = tk.fuse(copy.deepcopy(whole), min_score=0)
    fully_shard(fused, mesh=mesh)
    train(fused, whole, mesh)
    assert [step.kernel for step in fused.plan.steps] == ["linear_gelu"] * 2, fused.plan


def fused_blocks_in_fsdp(mesh: DeviceMesh) -> None:
    whole = network(mesh)
    blocks = [tk.fuse(copy.deepcopy(block), min_score=0) for block in whole]
    for block in blocks:
        fully_shard(block, mesh=mesh)
    sharded = nn.Sequential(*blocks)
    fully_shard(sharded, mesh=mesh)
    train(sharded, whole, mesh)
    for block in blocks:
        assert [step.kernel for step in block.plan.steps] == ["linear_gelu"], block.plan


CHECKS = (fsdp_then_fuse, fuse_then_fsdp, fused_blocks_in_fsdp)
