# Written by .ci/stubs (make stubs); not to be edited.
from collections.abc import Callable
from torch import Tensor
from triton_kernels import nn as nn
from triton_kernels import ops as ops
from triton_kernels._launch import interpret as interpret
from triton_kernels._version import __version__ as __version__
from triton_kernels.graph import explain as explain
from triton_kernels.graph import fuse as fuse
from triton_kernels.graph import replace_modules as replace_modules
from triton_kernels.graph import restore_modules as restore_modules
from triton_kernels.own_activations import register_activation as register_activation
from triton_kernels.tuning import capabilities as capabilities
from triton_kernels.tuning import tune as tune

OPS: tuple[str, ...]
def variants(op: str) -> dict[str, Callable[..., Tensor]]: ...

from triton_kernels.ops.act_backward import act_backward as act_backward
from triton_kernels.ops.act_mul import act_mul as act_mul
from triton_kernels.ops.act_mul import act_mul_backward as act_mul_backward
from triton_kernels.ops.add import add as add
from triton_kernels.ops.gemm_bias_act import gemm_bias_act as gemm_bias_act
from triton_kernels.ops.linear_act import linear_act as linear_act
from triton_kernels.ops.linear_act import linear_gelu as linear_gelu
from triton_kernels.ops.relu_scale import relu_scale as relu_scale
from triton_kernels.ops.relu_scale import relu_scale_add as relu_scale_add
from triton_kernels.ops.relu_scale import relu_scale_backward as relu_scale_backward
from triton_kernels.ops.square import square as square
from triton_kernels.ops.square import square_backward as square_backward
from triton_kernels.ops.sum_to import sum_to as sum_to

__all__ = [
    "__version__",
    "act_backward",
    "act_mul",
    "act_mul_backward",
    "add",
    "capabilities",
    "explain",
    "fuse",
    "gemm_bias_act",
    "interpret",
    "linear_act",
    "linear_gelu",
    "nn",
    "register_activation",
    "relu_scale",
    "relu_scale_add",
    "relu_scale_backward",
    "replace_modules",
    "restore_modules",
    "square",
    "square_backward",
    "sum_to",
    "tune",
    "variants",
]
