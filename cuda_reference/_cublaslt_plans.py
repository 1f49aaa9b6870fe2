"""A problem of cublasLt, and what the library needs to solve it: descriptors and algorithms.

The library reads matrices by columns. A matrix by rows is its transpose by columns, so that it is
asked for outᵀ = bᵀ·aᵀ: its first operand is our b, its m our N, and its bias, one number a row, is
ours, one a column.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cuda_reference import _cublaslt_library as lt
from cuda_reference import _launch

WORKSPACE = 32 << 20  # bytes: the most that an algorithm may use
ALIGNED = 16  # bytes: no more is told, since a kept call knows no more of its next tensors
_KEPT = 1024  # plans

Pointers = tuple[int | None, int | None]


class Matrix(NamedTuple):
    """How a matrix lies: by rows, or transposed, by columns; ``ld`` elements from one to the
    next."""

    transposed: bool
    ld: int


class Problem(NamedTuple):
    """All that an algorithm depends on, but for the GPU's model.

    Attributes:
        shape: M, N, K.
        dtypes: of a and b, and of the rest.
        epilogue, compute: the library's numbers.
        device: its index.
        aux: how the epilogue's argument lies, which is written, too.
        alignments: of b, a, c, out and bias in bytes, 16 at most; 16 where there is none.
        workspace: the most bytes that it may use.
    """

    shape: tuple[int, int, int]
    dtypes: tuple[torch.dtype, torch.dtype]
    a: Matrix
    b: Matrix
    c: Matrix | None
    out: Matrix
    epilogue: int
    compute: int
    device: int | None
    alignments: tuple[int, ...]
    aux: Matrix | None = None
    workspace: int = WORKSPACE

    @property
    def key(self) -> str:
        """The same text for every GPU of a model."""
        return repr(tuple(self._replace(device=None)))


def matrix(t: Tensor) -> Matrix | None:
    """How a matrix lies; None if neither its rows nor its columns are vectors side by side."""
    (rows, columns), (down, across) = t.shape, t.stride()
    if (columns <= 1 or across == 1) and (rows <= 1 or down >= columns):
        return Matrix(False, down if rows > 1 else max(columns, 1))
    if (rows <= 1 or down == 1) and (columns <= 1 or across >= rows):
        return Matrix(True, across if columns > 1 else max(rows, 1))
    return None


def alignment(t: Tensor | None) -> int:
    """The largest power of two, 16 at most, of which the address is a multiple."""
    address = 0 if t is None else _launch.address(t)
    return min(address & -address or ALIGNED, ALIGNED)


class Plan:
    """The descriptors of a problem, and the algorithms that the library proposes, the best first.

    The addresses of the bias and of aux are part of a descriptor: whoever multiplies holds a lock.

    Args:
        pointers: the address of a bias and of an aux that lie as all will; None where the epilogue
            has none.
        count: of the algorithms, at most.

    Raises:
        lt.CublasLtError: the library refuses.
    """

    def __init__(
        self, library: lt.Library, problem: Problem, pointers: Pointers, count: int
    ) -> None:
        self.library, self.problem, self._pointers = library, problem, pointers
        self._handle, self._lock = library.handle(problem.device), threading.Lock()
        M, N, K = problem.shape
        operands, result = (lt.DATA_TYPE[dtype] for dtype in problem.dtypes)
        scale = lt.DATA_TYPE[torch.float64 if problem.compute == lt.COMPUTE_64F else torch.float32]
        self._product = library.made("MatmulDesc", self, problem.compute, scale)
        self._set(lt.TRANSA, ctypes.c_int32(problem.b.transposed))
        self._set(lt.TRANSB, ctypes.c_int32(problem.a.transposed))
        self._set(lt.EPILOGUE, ctypes.c_int32(problem.epilogue))
        if problem.aux is not None:
            self._set(lt.AUX_LD, ctypes.c_int64(problem.aux.ld))
        self._point(pointers)
        out = self._layout(problem.out, M, N, result)
        self._layouts = (
            self._layout(problem.b, K, N, operands),
            self._layout(problem.a, M, K, operands),
            out if problem.c is None else self._layout(problem.c, M, N, result),
            out,
        )
        self.candidates = self._proposed(count)

    def _set(self, attribute: int, value: Any) -> None:
        self.library.set("MatmulDesc", self._product, attribute, value)

    def _point(self, pointers: Pointers) -> None:
        """Tell the addresses that an epilogue has."""
        for attribute, pointer in zip((lt.BIAS_POINTER, lt.AUX_POINTER), pointers):
            if pointer is not None:
                self._set(attribute, ctypes.c_void_p(pointer))

    def _layout(self, lies: Matrix, rows: int, columns: int, dtype: int) -> ctypes.c_void_p:
        """By columns, as the library has it."""
        shape = (rows, columns) if lies.transposed else (columns, rows)
        return self.library.made("MatrixLayout", self, dtype, *shape, lies.ld)

    def _proposed(self, count: int) -> list[lt.Candidate]:
        preference = self.library.made("MatmulPreference", self)
        limits = [
            (lt.MAX_WORKSPACE, ctypes.c_size_t(self.problem.workspace)),
            (lt.REDUCTIONS, ctypes.c_uint32(lt.IN_COMPUTE_TYPE)),
            *zip(lt.ALIGNMENT, map(ctypes.c_uint32, self.problem.alignments)),
        ]
        for attribute, value in limits:
            self.library.set("MatmulPreference", preference, attribute, value)
        candidates, number = (lt.Candidate * count)(), ctypes.c_int()
        try:
            self.library.call(
                "cublasLtMatmulAlgoGetHeuristic",
                *(self._handle, self._product, *self._layouts, preference, count, candidates),
                ctypes.byref(number),
            )
        except lt.CublasLtError as error:
            if error.status not in (lt.NOT_SUPPORTED, lt.INVALID_VALUE):
                raise
            return []
        return [each for each in candidates[: number.value] if not each.status]

    def checked(self, algorithm: bytes) -> lt.Candidate | None:
        """An algorithm that was kept elsewhere; None if it does not do here."""
        candidate = lt.Candidate()
        ctypes.memmove(candidate.algorithm, algorithm, ctypes.sizeof(candidate.algorithm))
        result = lt.Candidate()
        told = (
            self._handle,
            self._product,
            *self._layouts,
            candidate.algorithm,
            ctypes.byref(result),
        )
        try:
            self.library.call("cublasLtMatmulAlgoCheck", *told)
        except lt.CublasLtError:
            return None
        candidate.workspace = result.workspace
        fits = not result.status and result.workspace <= self.problem.workspace
        return candidate if fits else None

    def multiply(
        self,
        algorithm: lt.Candidate,
        scalars: tuple[Any, Any],
        addresses: tuple[int | None, ...],
        pointers: Pointers,
        workspace: int | None,
        stream: Any,
    ) -> int:
        """Launch it: out = act(alpha·(a@b) + beta·c + bias); the library's status.

        Args:
            scalars: alpha and beta, as the compute type.
            addresses: of a, b, c and out.
            pointers: the address of the bias, and of aux.
        """
        a, b, c, out = addresses
        layout_b, layout_a, layout_c, layout_out = self._layouts
        alpha, beta = scalars
        with self._lock:
            if pointers != self._pointers:
                self._point(pointers)
                self._pointers = pointers
            return self.library.matmul(
                *(self._handle, self._product, ctypes.byref(alpha), b, layout_b, a, layout_a),
                *(ctypes.byref(beta), out if c is None else c, layout_c, out, layout_out),
                *(algorithm.algorithm, workspace, algorithm.workspace, stream),
            )


_PLANS: dict[tuple[Problem, int], Plan] = {}


def plan(library: lt.Library, problem: Problem, pointers: Pointers, count: int) -> Plan:
    """That of a problem, which is kept."""
    kept = _PLANS.get((problem, count))
    if kept is None:
        kept = Plan(library, problem, pointers, count)
        if len(_PLANS) >= _KEPT:
            _PLANS.clear()
        _PLANS[problem, count] = kept
    return kept
