"""Prove Triton kernels and their CUDA twins equal, and find the wrong one.

``python -m compare check`` does it for this repository's ops; :func:`cross_check` for yours,
:func:`check_fused` for a model that :func:`triton_kernels.fuse` rewrites.
``python -m compare debug`` and :func:`debug` look for what is wrong in a Triton kernel;
:func:`shrink` makes the failing launch small.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compare.debugging.findings.findings import Findings
    from compare.debugging.public import debug
    from compare.debugging.shrink.launches import shrink
    from compare.user_kernels.cross_checking import Report, cross_check
    from compare.user_kernels.fused import check_fused

__all__ = ["Findings", "Report", "check_fused", "cross_check", "debug", "shrink"]


def __getattr__(name: str) -> Any:
    """The exports load torch, so they wait until they are used: pytest imports this package for
    the plugin alone, and the doctor must start where torch is broken."""
    if name in __all__:
        from compare.debugging import public
        from compare.debugging.findings import findings
        from compare.debugging.shrink import launches
        from compare.user_kernels import cross_checking, fused

        homes: Any = {"Findings": findings, "check_fused": fused, "debug": public}
        homes["shrink"] = launches
        module = homes.get(name, cross_checking)
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
