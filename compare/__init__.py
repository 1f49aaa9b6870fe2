"""Prove Triton kernels and their CUDA twins equal, and find the wrong one.

``python -m compare check`` checks the ops of this repository, :func:`cross_check` your own
functions, :func:`check_fused` a model that :func:`triton_kernels.fuse` rewrites.
``python -m compare debug`` and :func:`debug` find faults in a Triton kernel, :func:`debug_cuda` in
a CUDA kernel; :func:`shrink` makes a failing launch small. A :class:`Spec`, or one of the families
:class:`Elementwise`, :class:`Sum`, :class:`Product` and :class:`Function`, describes an op. With a
spec of your own, every command takes your kernels by ``--target module:spec``, and so do
:func:`check` and :func:`bench`. :func:`profile` and :func:`compile_report` take any function;
:func:`annotate` names calls in profiles.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compare.debugging.cuda.findings import CudaFindings
    from compare.debugging.cuda.public import debug_cuda
    from compare.debugging.findings.findings import Findings
    from compare.debugging.public import debug
    from compare.debugging.shrink.launches import shrink
    from compare.specs import Elementwise, Function, Product, Spec, Sum
    from compare.specs.registered import activation_specs
    from compare.user_kernels.benchmarking import Benchmark, bench
    from compare.user_kernels.checking import CheckReport, check
    from compare.user_kernels.compile_report import CompileReport, compile_report
    from compare.user_kernels.cross_checking import Report, cross_check
    from compare.user_kernels.fused import check_fused
    from compare.user_kernels.profiling import CallProfile, annotate, profile

__all__ = [
    "Benchmark",
    "CallProfile",
    "CheckReport",
    "CompileReport",
    "CudaFindings",
    "Elementwise",
    "Findings",
    "Function",
    "Product",
    "Report",
    "Spec",
    "Sum",
    "activation_specs",
    "annotate",
    "bench",
    "check",
    "check_fused",
    "compile_report",
    "cross_check",
    "debug",
    "debug_cuda",
    "profile",
    "shrink",
]

_HOMES = {
    "CudaFindings": "debugging.cuda.findings",
    "Findings": "debugging.findings.findings",
    "debug": "debugging.public",
    "debug_cuda": "debugging.cuda.public",
    "shrink": "debugging.shrink.launches",
    **dict.fromkeys(("Elementwise", "Function", "Product", "Spec", "Sum"), "specs"),
    **dict.fromkeys(("Benchmark", "bench"), "user_kernels.benchmarking"),
    **dict.fromkeys(("CheckReport", "check"), "user_kernels.checking"),
    **dict.fromkeys(("CompileReport", "compile_report"), "user_kernels.compile_report"),
    **dict.fromkeys(("CallProfile", "annotate", "profile"), "user_kernels.profiling"),
    **dict.fromkeys(("Report", "cross_check"), "user_kernels.cross_checking"),
    "activation_specs": "specs.registered",
    "check_fused": "user_kernels.fused",
}


def __getattr__(name: str) -> Any:
    """Load an export when it is used, because exports load torch: pytest imports this package only
    for its plugin, and the doctor must start where torch is broken."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"compare.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
