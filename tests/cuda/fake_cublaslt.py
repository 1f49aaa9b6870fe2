"""A library in cublasLt's place that multiplies on the CPU as the real one is documented to do, by
columns, and notes what it was called with."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import torch
from torch import Tensor

from cuda_reference import _cublaslt_library as lt

DTYPE = {code: dtype for dtype, code in lt.DATA_TYPE.items()}
_NUMBERS = itertools.count(1000)


def value(reference: Any) -> Any:
    """What is behind a byref, or a pointer itself."""
    return getattr(reference, "_obj", reference)


def address(pointer: Any) -> int:
    return pointer.value if isinstance(pointer, ctypes.c_void_p) else pointer


def columns(at: Any, layout: dict[str, int]) -> Tensor:
    """The matrix of a layout at an address, which it writes through."""
    rows, cols, ld, dtype = (layout[name] for name in ("rows", "cols", "ld", "dtype"))
    assert ld >= rows, layout
    size = DTYPE[dtype].itemsize
    memory = (ctypes.c_char * (((cols - 1) * ld + rows) * size)).from_address(address(at))
    return torch.frombuffer(memory, dtype=DTYPE[dtype]).as_strided((rows, cols), (1, ld))


class Fake:
    """cublasLt's functions; ``calls`` are those of cublasLtMatmul, in the words of its descriptors.

    Args:
        refused: statuses that functions return, by their names.
        proposed: the workspaces of the algorithms that it proposes.
        unfused: whether no algorithm has an epilogue.
    """

    def __init__(
        self,
        refused: dict[str, int] | None = None,
        proposed: tuple[int, ...] = (0,),
        unfused: bool = False,
    ) -> None:
        self.refused, self.proposed, self.unfused = refused or {}, proposed, unfused
        self.objects: dict[int, dict[Any, Any]] = {}
        self.calls: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self.ranges: list[str] = []
        self.depth = 0

    # ---- NVTX ----

    def range_push(self, words: str) -> None:
        self.ranges.append(words)
        self.depth += 1

    def range_pop(self) -> None:
        self.depth -= 1

    # ---- Descriptors ----

    def _new(self, where: Any, **told: Any) -> int:
        number = next(_NUMBERS)
        self.objects[number] = told
        value(where).value = number
        return 0

    def _set(self, of: Any, attribute: int, pointer: Any, size: int) -> int:
        given = value(pointer)
        assert ctypes.sizeof(given) == size
        self.objects[address(of)][attribute] = given.value
        return 0

    def _destroy(self, of: Any) -> int:
        del self.objects[address(of)]
        return 0

    def cublasLtCreate(self, where: Any) -> int:
        return self.refused.get("cublasLtCreate") or self._new(where)

    def cublasLtMatmulDescCreate(self, where: Any, compute: int, scale: int) -> int:
        return self._new(where, compute=compute, scale=scale)

    def cublasLtMatrixLayoutCreate(
        self, where: Any, dtype: int, rows: int, cols: int, ld: int
    ) -> int:
        return self._new(where, dtype=dtype, rows=rows, cols=cols, ld=ld)

    def cublasLtMatmulPreferenceCreate(self, where: Any) -> int:
        return self._new(where)

    def cublasLtMatmulDescSetAttribute(self, *told: Any) -> int:
        return self._set(*told)

    def cublasLtMatmulPreferenceSetAttribute(self, *told: Any) -> int:
        return self._set(*told)

    def cublasLtMatmulDescDestroy(self, of: Any) -> int:
        return self._destroy(of)

    def cublasLtMatrixLayoutDestroy(self, of: Any) -> int:
        return self._destroy(of)

    def cublasLtMatmulPreferenceDestroy(self, of: Any) -> int:
        return self._destroy(of)

    # ---- Products ----

    def cublasLtGetVersion(self) -> int:
        return 130101

    def cublasLtGetStatusString(self, status: int) -> bytes:
        return f"fake status {status}".encode()

    def cublasLtMatmulAlgoGetHeuristic(self, handle: Any, product: Any, *rest: Any) -> int:
        *layouts, preference, count, found, number = rest
        told = dict(self.objects[address(product)])
        told["layouts"] = [dict(self.objects[address(layout)]) for layout in layouts]
        told["preference"] = dict(self.objects[address(preference)])
        self.asked.append(told)
        if status := self.refused.get("cublasLtMatmulAlgoGetHeuristic"):
            return status
        if self.unfused and told[lt.EPILOGUE] != lt.PLAIN:
            return lt.NOT_SUPPORTED
        for i, workspace in enumerate(self.proposed[:count]):
            found[i].algorithm[0], found[i].workspace = 100 + i, workspace
        value(number).value = min(count, len(self.proposed))
        return 0

    def cublasLtMatmulAlgoCheck(self, *told: Any) -> int:
        algorithm, result = told[-2], value(told[-1])
        if not 0 <= algorithm[0] - 100 < len(self.proposed):
            return lt.INVALID_VALUE
        result.workspace = self.proposed[algorithm[0] - 100]
        return 0

    def cublasLtMatmul(self, handle: Any, product: Any, *rest: Any) -> int:
        alpha, b, b_is, a, a_is, beta, c, c_is, out, out_is, algorithm, at, size, _ = rest
        if status := self.refused.get("cublasLtMatmul"):
            return status
        told = self.objects[address(product)]
        first, second, added, result = (
            self.objects[address(x)] for x in (b_is, a_is, c_is, out_is)
        )
        self.calls.append(
            dict(told, algorithm=algorithm[0], workspace=(at, size))
            | {"layouts": [first, second, added, result]}
        )
        wide = DTYPE[told["scale"]]
        left, right = columns(b, first).to(wide), columns(a, second).to(wide)
        left = left.T if told[lt.TRANSA] else left
        right = right.T if told[lt.TRANSB] else right
        total = value(alpha).value * (left @ right)
        if value(beta).value:
            total += value(beta).value * columns(c, added).to(wide)
        epilogue = told[lt.EPILOGUE]
        if epilogue & lt.BIAS:
            row = {"rows": total.shape[0], "cols": 1, "ld": total.shape[0]}
            total += columns(told[lt.BIAS_POINTER], {**row, "dtype": result["dtype"]}).to(wide)
        if epilogue & lt.AUX:
            ld = told[lt.AUX_LD]
            assert ld % 8 == 0
            aux = {"rows": total.shape[0], "cols": total.shape[1], "ld": ld}
            columns(told[lt.AUX_POINTER], {**aux, "dtype": result["dtype"]}).copy_(total)
        if epilogue & lt.RELU:
            total = total.relu()
        if epilogue & lt.GELU:
            total = torch.nn.functional.gelu(total, approximate="tanh")
        columns(out, result).copy_(total)
        return 0
