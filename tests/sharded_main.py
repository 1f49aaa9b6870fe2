"""All checks of DTensors and sharded modules, in one process of several.

    torchrun --nproc-per-node 2 tests/sharded_main.py          CPU, interpreted
    torchrun --nproc-per-node 4 tests/sharded_main.py cuda     a GPU for each

The first failure ends all: a rank that goes on alone would wait for the others.
"""

from __future__ import annotations

import contextlib
import os
import sys
from datetime import timedelta

import sharded_fused
import sharded_modules
import sharded_ops
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import triton_kernels as tk


def main(device: str) -> None:
    """Run everything, or raise."""
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo", timeout=timedelta(seconds=60))
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    done = 0
    with tk.interpret() if device == "cpu" else contextlib.nullcontext():
        for check in (*sharded_modules.CHECKS, *sharded_fused.CHECKS):
            with told(check.__name__):
                check(mesh)
            done += 1
        for case in sharded_ops.CASES:
            with told(sharded_ops.describe(case)):
                sharded_ops.check(case, mesh)
            done += 1
    dist.barrier()
    if dist.get_rank() == 0:
        print(f"{done} checks passed on {mesh.size()} ranks", flush=True)
    dist.destroy_process_group()
    os._exit(0)  # gloo's threads live on; one that lets go of a tensor while Python ends aborts it


@contextlib.contextmanager
def told(what: str):
    """Errors that say which check they are of."""
    try:
        yield
    except Exception as error:
        error.add_note(f"rank {dist.get_rank()}: {what}")
        raise


if __name__ == "__main__":
    main(*sys.argv[1:] or ["cpu"])
