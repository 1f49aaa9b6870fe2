"""Rewriting whole models to the fused kernels: fuse, replace_modules, a backend of torch.compile.

One matcher (matching.py) and one judge of what the kernels can do and gain (capabilities.py) serve
all three. What there is to match stands in the op files.
"""

from triton_kernels.graph.compiling import Explanation, backend, explain, register
from triton_kernels.graph.fusing import Fused, fuse
from triton_kernels.graph.planning import Left, Plan, Step
from triton_kernels.graph.replacing import Replacement, replace_modules, restore_modules

__all__ = [
    "Explanation",
    "Fused",
    "Left",
    "Plan",
    "Replacement",
    "Step",
    "backend",
    "explain",
    "fuse",
    "register",
    "replace_modules",
    "restore_modules",
]
