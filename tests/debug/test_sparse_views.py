"""Shrinking a launch on views with gigabytes between their elements, in little memory."""

from __future__ import annotations

from pathlib import Path

import processes
import pytest

SCRIPT = """
import os, resource, sys, threading, time
import torch, triton, triton.language as tl
from compare import debug

LIMIT = 1 << 20  # KiB more than at the start

def resident():
    pages = int(open("/proc/self/statm").read().split()[1])
    return pages * resource.getpagesize() >> 10

def watch(start):
    while True:
        if resident() > start + LIMIT:
            os._exit(9)
        time.sleep(0.01)

@triton.jit
def triple(x_ptr, out_ptr, stride_m, N, BLOCK: tl.constexpr):
    m = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + m * stride_m + n, mask=n < N, other=0.0)
    tl.store(out_ptr + m * stride_m + n, tl.where(n == 5, 2 * x, 3 * x), mask=n < N)

STRIDE = 1 << 30  # 4 GiB of float32
torch.set_num_threads(1)
memory = torch.empty(2 * STRIDE + 64)
x, out = memory.as_strided((3, 8), (STRIDE, 1)), memory.as_strided((3, 8), (STRIDE, 1), 16)
x.copy_(torch.arange(1.0, 25.0).view(3, 8)), out.zero_()
threading.Thread(target=watch, args=(resident(),), daemon=True).start()
found = debug(triple, (3,), (x, out, STRIDE, 8), BLOCK=8, shrink=sys.argv[1],
              oracle=lambda x, out, *_: 3 * x)
print(found)
assert not found
assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < LIMIT, "the file's own process"
"""


def test_shrink_copies_no_gigabytes_between_elements(root: Path, tmp_path: Path) -> None:
    script, file = tmp_path / "sparse.py", tmp_path / "reproduction.py"
    script.write_text(SCRIPT)
    ran = processes.python(root, str(script), str(file))
    if "can't allocate memory" in ran.stderr:
        pytest.skip("this machine gives no process 8 GiB of addresses")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "worst out_ptr[2, 5]" in ran.stdout
    assert "24 of 24 not 0, integers → 1 of 24 not 0, integers" in ran.stdout
    assert "reproduces" in ran.stdout, ran.stdout
    assert "torch.empty(2147483" in file.read_text()
