"""How many functions of the kernels of xlite-dev/LeetCUDA run right on the CPU, files untouched.

    python3 tests/cuda/found_kernels.py CHECKOUT/kernels [FOLDER …]

Each function that the folder's sources export is called on random tensors and compared with torch.
It exits with 1 if one fails that is not among those that need a library without a form for the CPU.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cuda_reference import load

Check = Callable[[Any, str], "str | None"]
EPS = {torch.float32: 1e-5, torch.float16: 4e-3}


def dtype_of(name: str) -> torch.dtype:
    return torch.float16 if "_f16" in name else torch.float32


def far(result: Tensor, reference: Tensor, times: float = 1) -> str | None:
    """What is wrong, in words."""
    error = (result.double() - reference).abs()
    right = error <= times * EPS[result.dtype] * (1 + reference.abs())
    wrong = int((~right).sum())
    return f"{wrong} of {right.numel()} wrong, by up to {float(error.max()):.3g}" if wrong else None


def into(reference: Callable[[Tensor], Tensor], times: float = 1, *numbers: float) -> Check:
    """f(x, y, numbers…)"""

    def check(module: Any, name: str) -> str | None:
        x = torch.randn(32, 256).to(dtype_of(name))
        y = torch.zeros_like(x)
        getattr(module, name)(x, y, *numbers)
        return far(y, reference(x.double()), times)

    return check


def add(module: Any, name: str) -> str | None:
    a, b = torch.randn(2, 32, 256).to(dtype_of(name))
    c = torch.zeros_like(a)
    getattr(module, name)(a, b, c)
    return far(c, a.double() + b)


def total(module: Any, name: str) -> str | None:
    of, _, accumulator = name.removeprefix("block_all_reduce_sum_").rpartition("_")
    if of.startswith("i8"):
        x = torch.randint(-128, 127, (16, 512), dtype=torch.int8)
    else:
        dtypes = {"bf16": torch.bfloat16, "fp8_e4m3": torch.float8_e4m3fn}
        dtypes |= {"fp8_e5m2": torch.float8_e5m2, "f16": torch.float16, "f32": torch.float32}
        x = torch.randn(16, 512).to(next(t for start, t in dtypes.items() if of.startswith(start)))
    eps = {"i32": 0.0, "f32": 1e-5, "f16": 1e-3, "bf16": 8e-3}[accumulator]
    if of.startswith("bf16x"):
        eps = 8e-3  # pairs are added in bfloat16
    result, reference = float(getattr(module, name)(x)), float(x.double().sum())
    wrong = abs(result - reference) > eps * float(x.double().abs().sum())
    return f"{result} instead of {reference}" if wrong else None


def rope(x: Tensor) -> Tensor:
    rows, columns = x.shape
    frequencies = 10000.0 ** (-torch.arange(0, columns, 2).double() / columns)
    angles = torch.outer(torch.arange(rows).double(), frequencies)
    turned = torch.view_as_complex(x.view(rows, -1, 2)) * torch.polar(angles**0, angles)
    return torch.view_as_real(turned).flatten(1)


def transpose(module: Any, name: str) -> str | None:
    x = torch.randn(64 if "diagonal" in name else 128, 64)
    y = torch.zeros(x.shape[::-1])
    getattr(module, name)(x, y)
    return far(y, x.double().t())


def times_vector(module: Any, name: str) -> str | None:
    a, x = torch.randn(64, 16 if "k16" in name else 128), torch.randn(128, 1)
    a, x = (t.to(dtype_of(name)) for t in (a, x[: a.shape[1]].clone()))
    y = torch.zeros(64, 1, dtype=a.dtype)
    getattr(module, name)(a, x, y)
    return far(y, a.double() @ x.double(), 10)


def product(module: Any, name: str) -> str | None:
    a, b, c = torch.randn(128, 64), torch.randn(64, 256), torch.zeros(128, 256)
    getattr(module, name)(a, b, c, *((2, False, 1) if "stages" in name else ()))
    return far(c, a.double() @ b.double(), 2000 if "wmma" in name else 5)  # tf32


def histogram(module: Any, name: str) -> str | None:
    x = torch.randint(0, 10, (2048,), dtype=torch.int32)
    counts = getattr(module, name)(x).long()
    return None if torch.equal(counts, x.bincount(minlength=len(counts))) else "wrong counts"


def rms_norm(x: Tensor) -> Tensor:
    return x / (x.square().mean(1, keepdim=True) + 1e-5).sqrt()


FOLDERS: dict[str, tuple[str, Check]] = {
    "elementwise": ("elementwise", add),
    "relu": ("relu", into(F.relu)),
    "sigmoid": ("sigmoid", into(torch.sigmoid)),
    "gelu": ("gelu", into(lambda x: F.gelu(x, approximate="tanh"))),
    "elu": ("elu", into(F.elu)),
    "swish": ("swish", into(F.silu)),
    "hardswish": ("hardswish", into(F.hardswish)),
    "hardshrink": ("hardshrink", into(F.hardshrink)),
    "reduce": ("block_all_reduce", total),
    "softmax": ("softmax", into(lambda x: x.softmax(1))),
    "layer-norm": ("layer_norm", into(lambda x: F.layer_norm(x, x.shape[1:]), 5, 1.0, 0.0)),
    "rms-norm": ("rms_norm", into(rms_norm, 5, 1.0)),
    "rope": ("rope", into(rope, 10)),
    "mat-transpose": ("mat_transpose mat_transpose_cute", transpose),
    "sgemv": ("sgemv", times_vector),
    "hgemv": ("hgemv hgemv_cute", times_vector),
    "sgemm": ("sgemm sgemm_async sgemm_wmma_tf32_stage sgemm_cublas", product),
    "histogram": ("histogram", histogram),
}


def main(kernels: Path, *folders: str) -> int:
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    counts = {"right": 0, "wrong": 0, "left out": 0}
    for folder in folders or FOLDERS:
        names, check = FOLDERS[folder]
        files = [str(kernels / folder / f"{name}.cu") for name in names.split()]
        module = load(names.split()[0], files)
        for name in module._exported:
            try:
                problem = check(module, name)
            except RuntimeError as error:
                problem = str(error)
            kind = "right" if problem is None else "left out" if "left out" in problem else "wrong"
            counts[kind] += 1
            if problem is not None:
                print(f"{folder}/{name}: {problem}")
    print(", ".join(f"{count} {kind}" for kind, count in counts.items()))
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
