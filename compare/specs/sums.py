"""The spec class of sums, for which any order of additions is right."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from compare.cases import DTYPES, FLOATS, META, Case, Level
from compare.specs.elementwise import ELEMENT
from compare.specs.functions import Function, Shape
from compare.specs.product_bounds import U_DOUBLE, growth

# Empty, one element, partial blocks both ways, long sums and many of them.
SHAPES: list[Shape] = [(0, 3), (3, 0), (1, 1), (7, 13), (33, 129), (3, 4099), (70, 3)]
ALL_EXACT = 2**24  # float32 holds every integer up to it


def any_order(
    reference: Tensor, magnitude: Tensor, roundings: int, compute: torch.dtype, dtype: torch.dtype
) -> Tensor:
    """The tolerance of sums: E + u_out·(|ref| + E) + η_out, with E = ((1 + u)ʳ − 1)·Σ|terms|. The
    compute type rounds each term r = ``roundings`` times; the result is rounded to ``dtype``.
    ``magnitude`` is Σ|terms|. The oracle's float64 roundings are added.

    For few roundings that is γ_r. It stays finite where γ_r does not, from 2²⁴ in float32 on.
    """
    tiny, out = torch.finfo(compute), torch.finfo(dtype)
    grown = growth(roundings, tiny.eps / 2) + growth(roundings, U_DOUBLE)
    error = grown * magnitude + tiny.tiny * tiny.eps
    return error + out.eps / 2 * (reference.abs() + error) + out.tiny * out.eps / 2


# The kernels of the second pass of the CUDA side's best rung. Parts have one dimension, so that the
# last one is compiled and never launched.
SECOND = {
    "second by rows": "rows_kernel<float, 1, false>",
    "second by columns": "columns_kernel<Addends<float, true>, 1>",
    "second by columns in two dimensions": "columns_kernel<Addends<float, false>, 1>",
}


def pack_of(dtype: str, variant: str | None) -> int:
    """The elements of a rung's loads."""
    return 1 if variant == "lanes" else 16 // DTYPES[dtype].itemsize


def columns_kernel(source: str, dtype: str, variant: str | None) -> str:
    """The kernel of a rung that adds columns. ``source`` is the name of its template with {}."""
    return f"columns_kernel<{source.format(ELEMENT[dtype])}, {pack_of(dtype, variant)}>"


def row_kernels(dtype: str, variant: str | None) -> dict[str, str]:
    """The kernels of a rung that add rows."""
    element, size = ELEMENT[dtype], pack_of(dtype, variant)
    kernels = {"by rows": f"rows_kernel<{element}, {size}, false>"}
    if size > 1:
        kernels["by even rows"] = f"rows_kernel<{element}, {size}, true>"
        kernels["by short rows"] = f"short_rows_kernel<{element}, {size}>"
        kernels["by rows that are staged"] = f"staged_rows_kernel<{element}>"
    return kernels


class Sum(Function):
    r"""A function that adds up terms along dimensions of a tensor: sums, means, sums of squares,
    dot products of rows.

    The oracle is factor·Σ terms in float64. The bound holds for additions in any order, in float32,
    or in float64 if a tensor is float64. Sums of integers are not rounded, so bits must agree.

    Args:
        name, summary: as in :class:`Spec`; triton, cuda and peers are among the others.
        terms: makes the terms from the function's tensors and numbers: ``lambda x, y: x * y``. By
            default the elements of one tensor.
        dim: the summed dimensions, counted from either end; all by default.
        keepdim: whether the result keeps them with size 1.
        factor: factor of the sum, or a function of the number of terms that makes it:
            ``lambda n: 1 / n`` for a mean.
        roundings: the number of roundings of a term before it is added, each relative to the term:
            1 for a product of two tensors, 3 for a squared difference.
        shapes: of the cases.
        values: "special" is for float16 only, whose largest numbers do not overflow a sum.
        eager: the function in torch; ``terms`` and ``sum`` by default.
        others: as in :class:`Function`, without oracle, bound and max_ulps.
    """

    def __init__(
        self,
        name: str,
        summary: str = "",
        *,
        terms: Callable[..., Tensor] | None = None,
        dim: int | Sequence[int] | None = None,
        keepdim: bool = False,
        factor: float | Callable[[int], float] = 1.0,
        roundings: int = 1,
        shapes: Sequence[Shape] = SHAPES,
        values: Sequence[str] = ("normal", "special", "integers"),
        eager: Callable[..., Tensor] | None = None,
        **others: Any,
    ) -> None:
        self._terms = terms or _same
        self._dim: tuple[int, ...] | None = None
        if dim is not None:
            self._dim = (dim,) if isinstance(dim, int) else tuple(dim)
        self._keepdim, self._factor = keepdim, factor
        self._roundings = roundings if terms else 0
        super().__init__(
            name,
            summary,
            oracle=self._sum,
            bound=self._bound_of_sums,
            shapes=shapes,
            values=values,
            eager=eager or self._eager_sum,
            **others,
        )
        for dtype in self.dtypes:
            if dtype not in FLOATS:
                known = ", ".join(FLOATS)
                raise ValueError(f"{self._call}: argument 'dtypes': sums are of {known}")

    # ---- what is right ----

    def _sum(self, *tensors: Tensor, **numbers: Any) -> Tensor:
        terms = self._terms(*(t.double() for t in tensors), **numbers)
        return self._added(terms) * self._scale(terms)

    def _bound_of_sums(self, reference: Tensor, *tensors: Tensor, **numbers: Any) -> Tensor:
        terms = self._terms(*(t.double() for t in tensors), **numbers)
        magnitude = self._added(terms.abs()) * abs(self._scale(terms))
        double = any(t.dtype == torch.float64 for t in tensors)
        scaled = 0 if self._factor == 1 else 2  # the factor itself, and the product
        roundings = self._count(terms) + self._roundings + scaled
        compute = torch.float64 if double else torch.float32
        dtype = self._out_dtypes[""] or tensors[0].dtype
        return any_order(reference, magnitude, roundings, compute, dtype)

    def _added(self, terms: Tensor) -> Tensor:
        return terms.sum(self._dim, keepdim=self._keepdim)

    def _count(self, terms: Tensor) -> int:
        """The number of terms per result."""
        dims = range(terms.dim()) if self._dim is None else self._dim
        return math.prod(terms.shape[d] for d in dims)

    def _scale(self, terms: Tensor) -> float:
        if not callable(self._factor):
            return self._factor
        try:
            return self._factor(self._count(terms))
        except ZeroDivisionError:  # the mean of an empty sum
            return math.nan

    def exact(self, case: Case) -> bool:
        """Whether no sum of the case is rounded: the terms of integers are integers, all sums are
        small enough for float32, and the factor is a power of two."""
        if case.values != "integers":
            return False
        tensors, numbers = self.inputs(case, META)
        terms = self._terms(*tensors, **numbers)
        scale = abs(self._scale(terms))
        integers = torch.arange(-4, 5, dtype=torch.float64)  # the values in cases
        every = torch.cartesian_prod(*[integers] * len(tensors)).reshape(-1, len(tensors))
        possible = self._terms(*every.unbind(1), **numbers)
        whole = bool((possible == possible.round()).all())
        largest = float(possible.abs().max()) * self._count(terms)
        return whole and largest <= ALL_EXACT and math.frexp(scale)[0] == 0.5

    # ---- where it is probed, and what it costs ----

    def cases(self, dtype: str, level: Level) -> Iterator[Case]:
        """The cases of any function; special values only where they do not overflow."""
        every = super().cases(dtype, level)
        return (c for c in every if c.values != "special" or dtype == "float16")

    def work(self, case: Case, dtype: torch.dtype, read: int, written: int) -> int:
        """The bytes of tensors, terms and their absolute values in float64."""
        return 24 * read + 80 * written

    def cost(self, case: Case) -> tuple[int, int]:
        """The given cost; by default one addition and ``roundings`` operations per term."""
        flops, moved = super().cost(case)
        if flops:
            return flops, moved
        tensors, numbers = self.inputs(case, META)
        terms = self._terms(*tensors, **numbers)
        return (1 + self._roundings) * terms.numel(), moved

    def _eager_sum(self, *tensors: Tensor, **numbers: Any) -> Tensor:
        terms = self._terms(*tensors, **numbers)
        return self._added(terms) * self._scale(terms)


def _same(x: Tensor) -> Tensor:
    return x
