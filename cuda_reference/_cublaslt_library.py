"""The C functions of cublasLt for products, in the copy of the library that torch has loaded.

Nothing is linked, and no header is read. The names and numbers below are cublasLt's public ones.
"""

from __future__ import annotations

import ctypes
import functools
import os
import weakref
from collections.abc import Callable
from typing import Any

import torch

# cudaDataType_t
DATA_TYPE = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 14}
# cublasComputeType_t
COMPUTE_32F, COMPUTE_64F, COMPUTE_TF32 = 68, 70, 77
# cublasLtEpilogue_t: PLAIN, or a sum of the others. GELU with AUX also writes its argument.
PLAIN, RELU, BIAS, GELU, AUX = 1, 2, 4, 32, 128
# cublasLtMatmulDescAttributes_t
TRANSA, TRANSB, EPILOGUE, BIAS_POINTER, AUX_POINTER, AUX_LD = 3, 4, 7, 8, 11, 12
# cublasLtMatmulPreferenceAttributes_t
MAX_WORKSPACE, REDUCTIONS, ALIGNMENT = 1, 3, (5, 6, 7, 8)
# cublasLtReductionScheme_t: parts of a sum are added in the compute type, not in the result's.
IN_COMPUTE_TYPE = 2
INVALID_VALUE, NOT_SUPPORTED = 7, 15  # cublasStatus_t

_POINTER, _INT, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
_ARGUMENTS: dict[str, list[Any]] = {
    "cublasLtCreate": [_POINTER],
    "cublasLtMatmulDescCreate": [_POINTER, _INT, _INT],
    "cublasLtMatmulDescSetAttribute": [_POINTER, _INT, _POINTER, _SIZE],
    "cublasLtMatmulDescDestroy": [_POINTER],
    "cublasLtMatrixLayoutCreate": [
        *(_POINTER, _INT, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64)
    ],
    "cublasLtMatrixLayoutDestroy": [_POINTER],
    "cublasLtMatmulPreferenceCreate": [_POINTER],
    "cublasLtMatmulPreferenceSetAttribute": [_POINTER, _INT, _POINTER, _SIZE],
    "cublasLtMatmulPreferenceDestroy": [_POINTER],
    "cublasLtMatmulAlgoGetHeuristic": [*[_POINTER] * 7, _INT, _POINTER, _POINTER],
    "cublasLtMatmulAlgoCheck": [_POINTER] * 8,
    "cublasLtMatmul": [*[_POINTER] * 14, _SIZE, _POINTER],
}


class Candidate(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t: an algorithm, and the workspace that it needs."""

    _fields_ = [
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("status", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


class CublasLtError(RuntimeError):
    """A function of cublasLt returned a status.

    Attributes:
        status: the number.
    """

    def __init__(self, function: str, status: int, words: str) -> None:
        super().__init__(f"{function}: status {status} ({words})")
        self.status = status


class Library:
    """cublasLt.

    Args:
        functions: an object with the library's functions.
        ranges: an object with NVTX's range_push and range_pop.

    Attributes:
        matmul: cublasLtMatmul itself.
        push, pop: NVTX's functions.
    """

    def __init__(self, functions: Any, ranges: Any) -> None:
        self._functions = functions
        self.matmul: Callable[..., int] = functions.cublasLtMatmul
        self.push, self.pop = ranges.range_push, ranges.range_pop
        self._handles: dict[int | None, ctypes.c_void_p] = {}

    @property
    def version(self) -> int:
        """The library's version. An algorithm is valid for one version."""
        return int(self._functions.cublasLtGetVersion())

    def handle(self, device: int | None) -> ctypes.c_void_p:
        """The library's handle for a device, which must be the current one."""
        if device not in self._handles:
            handle = ctypes.c_void_p()
            self.call("cublasLtCreate", ctypes.byref(handle))
            self._handles[device] = handle
        return self._handles[device]

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function of the library.

        Raises:
            CublasLtError: the function returned an error.
        """
        status = getattr(self._functions, function)(*arguments)
        if status:
            raise CublasLtError(function, status, self.words(status))

    def words(self, status: int) -> str:
        """The meaning of a status."""
        words: bytes = self._functions.cublasLtGetStatusString(status)
        return words.decode()

    def made(self, kind: str, owner: Any, *arguments: Any) -> ctypes.c_void_p:
        """A new descriptor, layout or preference, which is destroyed with its owner."""
        made = ctypes.c_void_p()
        self.call(f"cublasLt{kind}Create", ctypes.byref(made), *arguments)
        destroy = getattr(self._functions, f"cublasLt{kind}Destroy")
        # Not at the end of the process: the driver may have been unloaded.
        weakref.finalize(owner, destroy, made).atexit = False
        return made

    def set(self, kind: str, of: ctypes.c_void_p, attribute: int, value: Any) -> None:
        """Set an attribute of a descriptor or preference to a ctypes number."""
        size = ctypes.sizeof(value)
        self.call(f"cublasLt{kind}SetAttribute", of, attribute, ctypes.byref(value), size)


def _soname() -> str:
    """The name of the library with which torch was linked."""
    major = (torch.version.cuda or "").partition(".")[0]
    if not major:
        raise RuntimeError("variant 'cublaslt' needs cublasLt, but this torch has no CUDA")
    return f"libcublasLt.so.{major}"


@functools.cache
def library() -> Library:
    """The library that torch has loaded.

    Raises:
        RuntimeError: torch has loaded none.
    """
    soname = _soname()
    try:
        functions = ctypes.CDLL(soname, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError as error:
        raise RuntimeError(
            f"variant 'cublaslt' needs {soname}, but this torch has not loaded it: {error}"
        ) from None
    for name, arguments in _ARGUMENTS.items():
        getattr(functions, name).argtypes = arguments
    functions.cublasLtGetStatusString.restype = ctypes.c_char_p
    functions.cublasLtGetVersion.restype = ctypes.c_size_t
    return Library(functions, torch.cuda.nvtx)
