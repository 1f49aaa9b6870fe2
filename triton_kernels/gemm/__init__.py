"""The matrix products: kernels, configurations, the choice between them, launches.

>>> from triton_kernels import gemm
>>> product = gemm.Problem(4096, 4096, 4096, torch.bfloat16, torch.bfloat16)
>>> gemm.choose(product, gemm.GPUS["sm_120"])  # or any Gpu
"""

from triton_kernels._gpu import GPUS, Gpu
from triton_kernels.gemm.choice import choose
from triton_kernels.gemm.configurations import Configuration, Problem, Tiles

__all__ = ["GPUS", "Configuration", "Gpu", "Problem", "Tiles", "choose"]
