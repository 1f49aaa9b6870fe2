"""Inputs of the matrix products, and how a case calls them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from compare import cases
from compare.case_options import COUNT, choice
from compare.cases import Case
from triton_kernels import _launch

# Option operands: the layouts of a and b as in a layer's forward pass (x by rows, the transposed
# weight by columns), in dgrad (both by rows) and in wgrad (a by columns, b by rows).
OPERANDS = {
    "forward": ("contiguous", "transposed"),
    "dgrad": ("contiguous", "contiguous"),
    "wgrad": ("transposed", "contiguous"),
}
# Options of a case that say how Triton's side is called; they are no arguments of the op.
# multiprocessors: launches are cut for a GPU with that many. With few of them a program has several
# tiles of a small problem.
# training: "out" or "pre": the result of a training step to judge; the step writes both.
HOW = {"multiprocessors": COUNT, "training": choice("out", "pre")}
NEAR = ("contiguous", "misaligned", "transposed", "padded", "strided", "functional")
OUTLIER = 64.0  # much larger than the rest; its square fits into float16
WIDE = 512  # columns of "f16x3" for which one program asks at once whether one is not finite
FAR = 2**24  # rows or columns; the last ones are past 32-bit offsets, in each step of K, too
LAYOUTS = (*NEAR, "half-aligned", "expanded", *cases.DISTANT)
VALUES = ("normal", "special", "lattice", "lattice-wide", "tf32", "scaled", "every", "integers")


def lattice(
    M: int, N: int, K: int, dtype: torch.dtype, g: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Integer matrices whose every partial sum is exact in 24 bits, in any order.

    The second half of K cancels the first except for one term per column. Partial sums exceed 2¹²,
    where a 16-bit accumulator loses units, but every dtype holds the result.
    """
    half = K // 2
    a, b = torch.zeros(M, K), torch.zeros(K, N)
    # Large enough to exceed 2¹² in half of K, small enough for bfloat16 and for 24 bits.
    top = min(100, max(2, math.isqrt(4 * 2**13 // max(1, half)) + 1))
    a[:, :half] = torch.randint(1, top + 1, (M, half), generator=g).float()
    b[:half] = torch.randint(1, top + 1, (half, N), generator=g).float()
    a[:, half : 2 * half] = a[:, :half]
    b[half : 2 * half] = -b[:half]
    if half and N:
        at = torch.randint(half, (N,), generator=g)
        b[half + at, torch.arange(N)] += torch.randint(0, 2, (N,), generator=g).float() * 2 - 1
    return a.to(dtype), b.to(dtype)


def lattice_wide(
    M: int, N: int, K: int, dtype: torch.dtype, g: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Lattice operands of 13 bits for float32, which tf32 would truncate."""

    def odd(*shape: int) -> Tensor:
        return torch.randint(2**11, 2**12, shape, generator=g).float() * 2 + 1

    def small(*shape: int) -> Tensor:
        return torch.randint(-2, 3, shape, generator=g).float()

    even_k = torch.arange(K) % 2 == 0
    a = torch.where(even_k, odd(M, K), small(M, K))
    b = torch.where(even_k[:, None], small(K, N), odd(K, N))
    return a.to(dtype), b.to(dtype)


def below_tf32(
    M: int, N: int, K: int, dtype: torch.dtype, g: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Positive numbers just below one of tf32's. Rounding hardly changes them; truncation changes
    all of them by nearly 2⁻¹⁰, in one direction."""

    def draw(*shape: int) -> Tensor:
        return 1 + (torch.randint(0, 8, shape, generator=g) + 0.95) * 2.0**-10

    return draw(M, K).to(dtype), draw(K, N).to(dtype)


def scaled(M: int, N: int, K: int, dtype: torch.dtype, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows of a and columns of b with magnitudes from 2⁻⁴⁰ to 2⁴⁰, far from their neighbours'.

    The last row is just below 2⁻¹¹¹, the largest row to which "f16x3" applies its maximal scale.
    The first row is near 2¹²⁰, and so is 1 / the first column: a scale alone would overflow.
    """

    def powers(count: int) -> Tensor:
        return 2.0 ** (torch.arange(count) * 37 % 81 - 40).double()

    a = torch.randn((M, K), generator=g).double() * powers(M)[:, None]
    b = torch.randn((K, N), generator=g).double() * powers(N)
    a[:1] *= 2.0**160
    b[:, :1] *= 2.0**-80
    a[-1:] = 2.0**-111 * (1 - 2.0**-24)
    return a.to(dtype), b.to(dtype)


def matrices(case: Case, g: torch.Generator, device: torch.device) -> tuple[Tensor, Tensor]:
    """The operands on the CPU, or without numbers on the meta device."""
    M, N, K = case.shape
    if device.type == "meta":
        a, b = (torch.empty(s, dtype=case.torch_dtype, device=device) for s in ((M, K), (K, N)))
        return a, b
    crafted = {"lattice": lattice, "lattice-wide": lattice_wide, "tf32": below_tf32}
    crafted["scaled"] = scaled
    if case.values in crafted:
        return crafted[case.values](M, N, K, case.torch_dtype, g)
    kind = "integers" if case.values == "integers" else "normal"
    a = cases.random_values((M, K), case.torch_dtype, kind, g)
    b = cases.random_values((K, N), case.torch_dtype, kind, g)
    if case.values == "special" and a.numel() and b.numel():
        # One special value each in a few rows and columns, of a at both ends of K; the others stay
        # finite. Of many columns they are the last ones.
        special = (math.nan, math.inf, -math.inf, -0.0, torch.finfo(a.dtype).tiny / 4)
        for i, value in enumerate(special):
            a[i % M, (i if i % 2 else -1 - i) % K] = value
            b[(i + 1) % K, -2 - 2 * i if N > WIDE else (2 * i) % N] = value
        if min(M, N, K) > 2 * len(special):  # a finite row and column with an outlier at the end
            a[-1, -1], b[-1, -1] = OUTLIER, -OUTLIER
        if max(M, N) > FAR:
            a[-1, -2] = a[-2, -1] = b[-1, -2] = b[-2, -1] = math.nan
    return a, b


def addend(case: Case, shape: tuple[int, ...], g: torch.Generator, device: torch.device) -> Tensor:
    """bias or c, on the CPU or the meta device. With K = 0 they are the whole pre-activation: they
    then cover the range where activations bend, or are special if the case is (also with K = 1)."""
    dtype, alone = case.torch_dtype, case.shape[2] == 0
    if device.type == "meta":
        return torch.empty(shape, dtype=dtype, device=device)
    if case.values.startswith("lattice"):
        return torch.randint(-8, 9, shape, generator=g).to(dtype)
    if case.values in ("integers", "every") or (case.shape[2] <= 1 and case.values == "special"):
        drawn = cases.random_values(shape, dtype, case.values, g)
        # The float64 bound must be finite where the value is, and so must a sum of several terms in
        # the tensors' dtype.
        most = 2.0**1000 if alone else 2.0**100
        enormous = drawn.isfinite() & (drawn.double().abs() > most)
        return torch.where(enormous, drawn * 2.0**-64, drawn)
    drawn = cases.random_values(shape, dtype, "normal", g) * (3 if alone else 1)
    if case.values == "special" and dtype != torch.float16:
        drawn.view(-1)[-2:-1] = 2.0**40  # more than float16 holds, where the product is finite
    return drawn


def lying(case: Case) -> tuple[str, str]:
    """The layouts of a and b [K, N]."""
    return OPERANDS.get(case.options.get("operands", ""), (case.layout, case.layout))


def arguments_of(case: Case) -> dict[str, Any]:
    """The options without those of launches and layouts; training stays, for the oracle."""
    others = ("multiprocessors", "operands", "out")
    return {name: value for name, value in case.options.items() if name not in others}


def called(case: Case, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function as the case calls it."""
    if case.options.get("training"):
        function = _training_step(function)
    if case.options.get("multiprocessors"):
        function = cut_for(case.options["multiprocessors"], function)
    return function


def cut_for(number: int, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function, with launches cut for that many multiprocessors."""

    def cut(*args: Any, **kwargs: Any) -> Tensor:
        with _launch.multiprocessors(number):
            return function(*args, **kwargs)

    return cut


def _training_step(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """One result of a call that autograd records: the returned one, or the pre-activation saved for
    the backward pass."""

    def step(a: Tensor, *args: Any, training: str, **kwargs: Any) -> Tensor:
        out = function(a.detach().requires_grad_(), *args, **kwargs)
        result: Tensor = out.grad_fn.saved_tensors[0] if training == "pre" else out  # type: ignore[union-attr]
        return result.detach()

    return step
