"""Prove Triton kernels and their CUDA twins equal, and find the wrong one.

``python -m compare check`` does it for this repository's ops; :func:`cross_check` for yours.
"""

from compare.own import Report, cross_check

__all__ = ["Report", "cross_check"]
