"""Prove Triton kernels and their CUDA twins equal, and find the wrong one.

``python -m compare check`` does it for this repository's ops; :func:`cross_check` for yours.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compare.own import Report, cross_check

__all__ = ["Report", "cross_check"]


def __getattr__(name: str) -> Any:
    """The exports, imported on first use: the doctor must start where torch is broken."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from compare import own

    return getattr(own, name)
