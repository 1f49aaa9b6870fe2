"""Rewrites whole models to the fused kernels: fuse, replace_modules, a backend of torch.compile.

All three use one matcher (matching.py) and one judge of what kernels can compute and how fast
(capabilities.py). The patterns are in the op files.
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
