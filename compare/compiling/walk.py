"""Matrix products drawn at random, to reach every configuration on each architecture.

A short list of shapes does not reach every configuration of :func:`triton_kernels.gemm.choose`.
Thousands of random products do. Of the products with equal configuration and kind of kernel, the
first one is compiled.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from triton_kernels import _launch
from triton_kernels.activations import ACTIVATIONS
from triton_kernels.gemm import GPUS, Problem, choose
from triton_kernels.gemm.arguments import Gemm
from triton_kernels.gemm.gluon import availability
from triton_kernels.gemm.launch import launch, lying
from triton_kernels.interpreter.cross_compile import Launch, compiling

COUNT = 10_000
OP = "gemm_bias_act"  # the op that launches the products
SAMPLE = 8  # distinct products per architecture without --full
LAYOUTS = ("rows", "columns", "odd rows")  # of a and b; "odd rows" are not aligned to vectors


class Product(NamedTuple):
    """A product with its epilogue. ``a`` and ``b`` are layouts; c is part of the problem."""

    problem: Problem
    act: str
    bias: bool
    pre: bool
    a: str
    b: str

    def label(self, arch: str) -> str:
        """A short label: the configuration on this architecture and the epilogue."""
        configuration = choose(self.problem, GPUS[arch])
        m, n, k, _, warps, stages = configuration.tiles
        cluster = configuration.cluster
        words = [f"{m}×{n}×{k} w{warps} s{stages}", self.act]
        words[:0] = ["gluon"] if configuration.gluon else []
        words += [name for name in ("bias", "pre") if getattr(self, name)]
        words += [f"clusters of {math.prod(cluster)}"] if any(cluster) else []
        words += ["split"] if configuration.SPLIT > 1 else []
        words += [f"{self.problem.c} c"] if self.problem.c else []
        if self.problem.out_dtype != self.problem.dtype:
            words.append(f"→ {name(self.problem.out_dtype)}")
        return " ".join(words)

    @property
    def dtype(self) -> str:
        """The dtype's name in cases, with the precision if that is not ieee."""
        precision = self.problem.precision
        return name(self.problem.dtype) + ("" if precision == "ieee" else f"/{precision}")


@functools.cache
def products(count: int = COUNT, seed: int = 0) -> tuple[Product, ...]:
    """Random products. Sizes are log-uniform; N and K are multiples of 64, 8 or 1. All dtypes,
    precisions and epilogues occur."""
    g = random.Random(seed)

    def size(low: int, high: int) -> int:
        return round(math.exp(g.uniform(math.log(low), math.log(high))))

    def draw() -> Product:
        M, N, K = size(1, 16384), size(64, 16384), size(64, 16384)
        step = g.choice((64, 64, 8, 1))
        N, K = -(-N // step) * step, -(-K // step) * step
        dtypes = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
        dtype = g.choice((torch.float16, torch.bfloat16, *dtypes))
        out_dtype = dtype if g.random() < 0.8 else g.choice(dtypes)
        precision = g.choice(("ieee", "tf32", "tf32x3")) if dtype == torch.float32 else "ieee"
        c = "" if g.random() < 0.5 else g.choice(("even", "even" if N % 8 else "odd"))
        problem = Problem(M, N, K, dtype, out_dtype, precision, c)
        bias, pre = g.random() < 0.5, g.random() < 0.2
        layouts = g.choice(LAYOUTS), g.choice(LAYOUTS)
        a = {"rows": (K, 1), "columns": (1, M), "odd rows": (K + 1, 1)}[layouts[0]]
        b = {"rows": (N, 1), "columns": (1, K), "odd rows": (N + 1, 1)}[layouts[1]]
        problem = lying(problem, a, b)
        return Product(problem, g.choice(tuple(ACTIVATIONS)), bias, pre, *layouts)

    return tuple(draw() for _ in range(count))


@functools.cache
def distinct(arch: str) -> tuple[Product, ...]:
    """One product for each combination of configuration, dtypes, precision, c and pre-activation.
    Products that the Gluon kernel takes occur with that kernel, too."""
    gpu = GPUS[arch]
    first_of: dict[object, Product] = {}
    for product in products():
        for problem in (product.problem, product.problem._replace(kernels="gluon")):
            each = product._replace(problem=problem)
            configuration = choose(problem, gpu)
            if configuration.gluon or problem.kernels == "tl":
                # The number of splits is no constant of the kernel; only whether it splits is.
                kind = configuration.kind._replace(SPLIT=min(2, configuration.SPLIT))
                first_of.setdefault((kind, problem.of_any_size(), product.pre), each)
    return tuple(first_of.values())


def sample(arch: str, count: int = SAMPLE) -> tuple[Product, ...]:
    """Some of the distinct products, always the same ones."""
    return tuple(random.Random(arch).sample(distinct(arch), count))


def compiled(products: Sequence[Product], arch: str) -> list[Launch]:
    """The compiled launches of the products, in their order, without those that copy operands; of
    two side by side the first."""
    gpu, own = GPUS[arch], []
    with compiling(gpu.capability) as launches, _launch.multiprocessors(gpu.multiprocessors):
        for product in products:
            _call(product)
            own.append(launches[-2 if choose(product.problem, gpu).rest else -1])
    return own


def _call(product: Product) -> None:
    """Launch the product on meta tensors."""
    M, N, K, dtype, out_dtype, precision, c, kernels, *_ = product.problem

    def matrix(rows: int, columns: int, layout: str = "rows", dtype: torch.dtype = dtype) -> Tensor:
        if layout == "columns":
            return torch.empty(columns, rows, dtype=dtype, device="meta").t()
        pitch = columns + (layout.startswith("odd"))
        return torch.empty(rows, pitch, dtype=dtype, device="meta")[:, :columns]

    addend = None
    if c:
        # odd: a row stride that is no multiple of 16 elements; even: one row for all.
        addend = matrix(M, N + 1)[:, :N] if c == "odd" else matrix(1, N).expand(M, N)
    with availability.only(kernels):
        launch(
            Gemm(
                OP,
                matrix(M, K, product.a),
                matrix(K, N, product.b),
                matrix(1, N)[0] if product.bias else None,
                addend,
                matrix(M, N, dtype=out_dtype),
                product.act,
                1.0,
                1.0 if c else 0.0,
                precision,
                matrix(M, N, dtype=out_dtype) if product.pre else None,
            )
        )


def name(dtype: torch.dtype) -> str:
    """The dtype's name in cases."""
    return str(dtype).removeprefix("torch.")
