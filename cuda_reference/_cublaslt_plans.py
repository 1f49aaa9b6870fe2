"""A problem of cublasLt, with the descriptors and algorithms to compute it.

The library's matrices are column-major. A row-major matrix is its column-major transpose, so the
library computes outᵀ = bᵀ·aᵀ: its first operand is our b, and its m is our N. Its bias has one
number per row of outᵀ, which is one per column of ours.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cuda_reference import _cublaslt_library as lt
from cuda_reference import _launch

WORKSPACE = 32 << 20  # the largest workspace of an algorithm, in bytes
ALIGNED = 16  # the largest alignment given to the library: a kept call only knows so much
_KEPT = 1024  # the most plans that are kept

Pointers = tuple[int | None, int | None]


class Matrix(NamedTuple):
    """A matrix's layout: row-major, or column-major if ``transposed``; ``ld`` is the number of
    elements from one row or column to the next."""

    transposed: bool
    ld: int


class Problem(NamedTuple):
    """Everything on which an algorithm depends, except the GPU's model.

    Attributes:
        shape: M, N, K.
        dtypes: the dtype of a and b, and that of the other matrices.
        a, b, c, out: their layouts.
        epilogue, compute: the library's numbers.
        device: the device's index.
        aux: the layout of the epilogue's argument, if it is written, too.
        alignments: of b, a, c, out and bias, in bytes, at most 16; 16 for a missing one.
        workspace: the largest workspace, in bytes.
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
        """A text that is equal for all GPUs of a model."""
        return repr(tuple(self._replace(device=None)))


def matrix(t: Tensor) -> Matrix | None:
    """A matrix's layout; None if it is neither row-major nor column-major."""
    (rows, columns), (down, across) = t.shape, t.stride()
    if (columns <= 1 or across == 1) and (rows <= 1 or down >= columns):
        return Matrix(False, down if rows > 1 else max(columns, 1))
    if (rows <= 1 or down == 1) and (columns <= 1 or across >= rows):
        return Matrix(True, across if columns > 1 else max(rows, 1))
    return None


def alignment(t: Tensor | None) -> int:
    """The largest power of two, at most 16, that divides the address."""
    address = 0 if t is None else _launch.address(t)
    return min(address & -address or ALIGNED, ALIGNED)


class Plan:
    """The descriptors of a problem, and the algorithms that the library proposes, the best first.

    The addresses of the bias and of aux are part of a descriptor, so there is a lock around their
    change and the launch.

    Args:
        pointers: example addresses of a bias and of aux, aligned as all others will be; None if the
            epilogue has none.
        count: the largest number of algorithms.

    Raises:
        lt.CublasLtError: the library returned an error.
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
        """Set the addresses of the epilogue's bias and aux."""
        for attribute, pointer in zip((lt.BIAS_POINTER, lt.AUX_POINTER), pointers):
            if pointer is not None:
                self._set(attribute, ctypes.c_void_p(pointer))

    def _layout(self, lies: Matrix, rows: int, columns: int, dtype: int) -> ctypes.c_void_p:
        """The library's descriptor of a layout, which is column-major."""
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
        """A kept algorithm; None if the library refuses it for this problem."""
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
        """Launch out = act(alpha·(a@b) + beta·c + bias). Returns the library's status.

        Args:
            algorithm: one of the candidates, or a checked one.
            scalars: alpha and beta in the compute type.
            addresses: the addresses of a, b, c and out.
            pointers: the addresses of the bias and of aux.
            workspace: the address of the algorithm's workspace.
            stream: the stream.
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
    """The plan of a problem; plans are kept."""
    kept = _PLANS.get((problem, count))
    if kept is None:
        kept = Plan(library, problem, pointers, count)
        if len(_PLANS) >= _KEPT:
            _PLANS.clear()
        _PLANS[problem, count] = kept
    return kept
