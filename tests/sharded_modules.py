"""Sharded modules, as they are trained: what test_distributed.py has each rank run, beside the ops.

Each check gets the mesh of all ranks, and compares with the same module on one device.
"""

from __future__ import annotations

import copy

import pytest
import torch
from sharded_ops import S0, S1, P, R, assert_same, integers, share
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import triton_kernels as tk
from triton_kernels.nn import LinearAct, LinearGELU

WIDTH, HIDDEN, BATCH, SEQUENCE = 6, 8, 4, 4


def mlp(mesh: DeviceMesh, act: str = "none") -> nn.Sequential:
    """The same on every rank."""
    torch.manual_seed(0)
    layers = nn.Sequential(LinearGELU(WIDTH, HIDDEN), LinearAct(HIDDEN, WIDTH, act=act))
    return layers.to(mesh.device_type, torch.float64)


def batch(mesh: DeviceMesh, size: int = BATCH) -> Tensor:
    return integers((size, SEQUENCE, WIDTH), torch.float64, mesh, 7) / 4


def assert_same_gradients(sharded: nn.Module, whole: nn.Module) -> None:
    for (name, part), right in zip(sharded.named_parameters(), whole.parameters(), strict=True):
        assert isinstance(part.grad, DTensor), name
        assert right.grad is not None
        assert_same(part.grad.full_tensor(), right.grad, exact=False)


# ---- checks ----


def compiled_first(mesh: DeviceMesh) -> None:
    """torch.compile, before any call told DTensor the rules."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        return tk.square(tk.add(x, y))

    whole = [integers((4, 6), torch.float64, mesh, seed) for seed in (0, 1)]
    x, y = (distribute_tensor(t, mesh, [S0]).requires_grad_() for t in whole)
    result = torch.compile(function, fullgraph=True, backend="aot_eager")(x, y)
    assert result.placements == (S0,)
    result.full_tensor().sum().backward()
    assert_same(result.full_tensor(), (whole[0] + whole[1]) ** 2, exact=True)
    assert_same(x.grad.full_tensor(), 2 * (whole[0] + whole[1]), exact=True)


def tensor_parallel(mesh: DeviceMesh) -> None:
    """Column-parallel, then row-parallel: one all-reduce forward, one backward."""
    for act in ("none", "relu", "silu"):
        whole = mlp(mesh, act)
        plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
        sharded = parallelize_module(copy.deepcopy(whole), mesh, plan)
        right, x = batch(mesh).requires_grad_(), batch(mesh).requires_grad_()
        expected = whole(right)
        with CommDebugMode() as forward:
            result = sharded(x)
        assert_same(result, expected, exact=False)
        grad = integers(expected.shape, torch.float64, mesh, 8)
        expected.backward(grad)
        with CommDebugMode() as backward:
            result.backward(grad)
        assert forward.get_total_counts() == backward.get_total_counts() == 1, act
        assert_same(x.grad, right.grad, exact=False)
        assert_same_gradients(sharded, whole)


def sequence_parallel(mesh: DeviceMesh) -> None:
    """Activations sharded along the sequence between the blocks."""
    whole = mlp(mesh)
    plan = {
        "0": ColwiseParallel(input_layouts=S1),
        "1": RowwiseParallel(output_layouts=S1, use_local_output=False),
    }
    sharded = parallelize_module(copy.deepcopy(whole), mesh, plan)
    x = batch(mesh)
    expected, result = whole(x), sharded(distribute_tensor(x, mesh, [S1]))
    assert result.placements == (S1,)
    assert_same(result.full_tensor(), expected, exact=False)
    expected.sum().backward()
    result.full_tensor().sum().backward()
    assert_same_gradients(sharded, whole)


def two_dimensions(mesh: DeviceMesh) -> None:
    """Batch and columns sharded, each along a dimension of the mesh."""
    grid = init_device_mesh(mesh.device_type, (mesh.size() // 2, 2))
    whole = [integers(shape, torch.float64, mesh, i) for i, shape in enumerate([(4, 6), (8, 6)])]
    x = distribute_tensor(whole[0], grid, [S0, R]).requires_grad_()
    weight = distribute_tensor(whole[1], grid, [R, S0]).requires_grad_()
    out = tk.gemm_bias_act(x, weight.t(), act="relu")
    assert out.placements == (S0, S1)
    for t in whole:
        t.requires_grad_()
    expected = torch.relu(whole[0] @ whole[1].t())
    assert_same(out.full_tensor(), expected, exact=True)
    expected.sum().backward()
    out.full_tensor().sum().backward()
    assert x.grad.placements == (S0, P)
    assert weight.grad.placements == (P, S0)
    assert_same(x.grad.full_tensor(), whole[0].grad, exact=True)
    assert_same(weight.grad.full_tensor(), whole[1].grad, exact=True)


def fsdp(mesh: DeviceMesh) -> None:
    """FSDP2: parameters gathered for a layer, gradients averaged over the ranks' batches."""
    whole = mlp(mesh)
    sharded = copy.deepcopy(whole)
    for layer in sharded:
        fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    x = batch(mesh, mesh.size())
    result = sharded(x[mesh.get_local_rank()])
    expected = whole(x)
    assert_same(result, expected[mesh.get_local_rank()], exact=False)
    result.sum().backward()
    (expected.sum() / mesh.size()).backward()
    assert_same_gradients(sharded, whole)


def fsdp_of_tensor_parallel(mesh: DeviceMesh) -> None:
    """Both, on a mesh of two dimensions."""
    replicas = mesh.size() // 2
    grid = init_device_mesh(mesh.device_type, (replicas, 2), mesh_dim_names=("data", "tensor"))
    whole = mlp(mesh, "relu")
    plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
    sharded = parallelize_module(copy.deepcopy(whole), grid["tensor"], plan)
    fully_shard(sharded, mesh=grid["data"])
    x = batch(mesh, replicas)
    mine = grid["data"].get_local_rank()
    result, expected = sharded(x[mine]), whole(x)
    assert_same(result, expected[mine], exact=False)
    result.sum().backward()
    (expected.sum() / replicas).backward()
    assert_same_gradients(sharded, whole)


def refusals(mesh: DeviceMesh) -> None:
    """One clear error for each misuse."""
    t = integers((4, 6), torch.float64, mesh, 0)
    x = share(t, S0, mesh)
    with pytest.raises(RuntimeError, match=r"mixed torch\.Tensor and DTensor"):
        tk.add(x, t)
    with pytest.raises(NotImplementedError, match=r"triton_kernels\.add_out"):
        tk.add(x, x, out=x)
    with pytest.raises(RuntimeError, match="do not broadcast"):
        tk.add(x, share(t.t(), S0, mesh))
    with pytest.raises(RuntimeError, match="must be matrices"):
        tk.gemm_bias_act(x, x)


CHECKS = [
    compiled_first,
    tensor_parallel,
    sequence_parallel,
    two_dimensions,
    fsdp,
    fsdp_of_tensor_parallel,
    refusals,
]
