"""compile_report: the machine code of a kernel from elsewhere, without a GPU."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console

from compare.cases import CPU
from compare.checking.without_gpu import WithoutGpu
from compare.compiling import cross_compile, loaded, tables
from compare.compiling.cross_compile import ASM, Kernel, Row
from compare.compiling.machine_code import SHARED_LIMIT
from compare.copies import tensors
from triton_kernels.interpreter.cross_compile import Launch, compiling


class CompileReport:
    """The result of :func:`compile_report`: true if everything compiles, spills nothing and fits
    into shared memory, and of an autotuned kernel at least one configuration; printable.

    Attributes:
        kernels: one entry per kernel, configuration and architecture, in the table's order: name,
            config, figures (registers, spills, stack, shared, loads, stores, tensor) or the
            compiler's error, and asm, the requested text.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = list(rows)
        both = [kernel for row in rows for kernel in (row.triton, row.cuda)]
        self.kernels: list[Kernel] = [kernel for kernel in both if kernel is not None]

    def __bool__(self) -> bool:
        return bool(self._rows) and all(
            reason for row in self._rows for _, _, reason in row.problems()
        )

    def __str__(self) -> str:
        out = Console(file=io.StringIO(), width=120)
        sides = [s for s in ("triton", "cuda") if any(getattr(row, s) for row in self._rows)]
        for arch in dict.fromkeys(row.arch for row in self._rows):
            out.print(tables.table(arch, [row for row in self._rows if row.arch == arch], sides))
        for row in self._rows:
            for side, problem, reason in row.problems():
                words = f"{row.label}: {problem}" + (f"; accepted: {reason}" if reason else "")
                out.print(f"{row.arch} {side} {words}", markup=False, soft_wrap=True)
        assert isinstance(out.file, io.StringIO)
        return out.file.getvalue().rstrip()

    def to_json(self) -> str:
        """All figures as JSON text, like the rows of ``compile --json``."""
        return json.dumps([row.to_dict() for row in self._rows])


def compile_report(
    kernel: Any,
    args: Sequence[Any] = (),
    *,
    archs: str | Sequence[str] = ("sm_90",),
    asm: str | None = None,
    **constexprs: Any,
) -> CompileReport:
    """Compile a kernel for GPUs that need not be present, and read its machine code.

    Args:
        kernel: a ``@triton.jit`` kernel; if it is autotuned, all its configurations are compiled.
            Or a function made by :func:`cuda_reference.load` or load_inline, which needs nvcc. Or a
            function that launches Triton kernels or, if it launches none, calls CUDA functions.
        args: of the kernel or function. Tensors may be on any device; only their dtype, shape,
            strides and alignment matter. A CUDA function needs none.
        archs: GPU architectures, or one: "sm_80", "sm_90", …
        asm: also keep this text of every kernel: "ttir", "ttgir", "llir", "ptx" or "sass"; for CUDA
            functions only "sass".
        constexprs: the kernel's constants, num_warps, num_stages; a function's keyword arguments.

    Returns:
        A :class:`CompileReport`.

    Raises:
        TypeError, ValueError: the arguments are not as above.
        BuildError: there is no nvcc, or a CUDA source does not compile.

    Example:
        >>> report = compile_report(softmax_kernel, (x, out, 5, 5, 5), BLOCK_N=8, asm="ptx")
        >>> print(report, report.kernels[0].asm)
    """
    archs = [archs] if isinstance(archs, str) else archs
    for arch in archs:
        if arch not in SHARED_LIMIT:
            listed = ", ".join(SHARED_LIMIT)
            raise ValueError(f"compile_report(): no architecture {arch!r}; there are {listed}")
    if asm is not None and asm not in ASM:
        raise ValueError(f"compile_report(): asm must be one of {', '.join(ASM)}, not {asm!r}")
    if hasattr(kernel, "machine_code"):
        rows = list(_of_cuda([kernel], archs, asm))
    elif callable(kernel) or hasattr(kernel, "run"):
        with loaded.noted() as calls:
            rows = [r for a in archs for r in _of_triton(kernel, args, constexprs, a, asm or "")]
        rows = rows or list(_of_cuda(calls, archs, asm))
        if not rows:
            none = "launched no Triton kernel, and called none of cuda_reference.load's"
            raise ValueError(f"compile_report(): the function {none}")
    else:
        kind = type(kernel).__name__
        raise TypeError(f"compile_report(): argument 'kernel' must be a kernel, but got {kind}")
    return CompileReport(rows)


def _of_cuda(functions: Sequence[Any], archs: Sequence[str], asm: str | None) -> Iterator[Row]:
    if functions and asm not in (None, "sass"):
        raise ValueError(f"compile_report(): nvcc's machine code has no {asm}, only sass")
    for arch, function in itertools.product(archs, functions):
        for cubin in function.machine_code(arch):
            for made in cross_compile.of_cubin(cubin, arch, asm or ""):
                yield Row(arch, "", "–", made.name, None, made)


def _of_triton(
    kernel: Any, args: Sequence[Any], named: dict[str, Any], arch: str, asm: str
) -> Iterator[Row]:
    launches = _launches(kernel, args, named, int(arch.removeprefix("sm_")))
    first = next(tensors(tuple(args)), None)
    dtype = "–" if first is None else str(first.dtype).removeprefix("torch.")
    for launch, made in zip(launches, cross_compile.measured(launches, arch, asm)):
        yield Row(arch, "", dtype, cross_compile.own_label(launch), made)


def _launches(
    kernel: Any, args: Sequence[Any], named: dict[str, Any], capability: int
) -> list[Launch]:
    """The compiled launches of the kernel, or of the function."""
    with compiling(capability) as launches:
        if hasattr(kernel, "run") and hasattr(kernel, "__getitem__"):
            kernel[(1,)](*args, **named)
        else:
            function: Callable[..., Any] = kernel
            first = next(tensors(tuple(args)), None)
            with WithoutGpu(CPU if first is None else first.device):
                function(*args, **named)
        return list(launches)
