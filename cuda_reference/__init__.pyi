# Written by .ci/stubs (make stubs); not to be edited.
from collections.abc import Callable
from torch import Tensor
from cuda_reference import ops as ops
from cuda_reference._activations import register_activation as register_activation
from cuda_reference._capabilities import capabilities as capabilities
from cuda_reference._compilers import BuildError as BuildError
from cuda_reference._loading import load as load
from cuda_reference._loading import load_inline as load_inline

OPS: tuple[str, ...]
def variants(op: str) -> dict[str, Callable[..., Tensor]]: ...

from cuda_reference.ops.act_backward import act_backward as act_backward
from cuda_reference.ops.act_mul import act_mul as act_mul
from cuda_reference.ops.act_mul import act_mul_backward as act_mul_backward
from cuda_reference.ops.add import add as add
from cuda_reference.ops.gemm_bias_act import gemm_bias_act as gemm_bias_act
from cuda_reference.ops.linear_act import linear_act as linear_act
from cuda_reference.ops.linear_act import linear_gelu as linear_gelu
def relu_scale(
    x: Tensor,
    scale: Tensor | int | float,
    *,
    out: Tensor | None = None,
    variant: str | None = None,
    explain: bool = False,
) -> Tensor:
    """relu(x)·scale: the CUDA twin of :func:`triton_kernels.relu_scale`; its variants are rungs."""
def relu_scale_add(
    x: Tensor,
    y: Tensor,
    scale: Tensor | int | float,
    *,
    out: Tensor | None = None,
    variant: str | None = None,
    explain: bool = False,
) -> Tensor:
    """fma(relu(x), scale, y): the CUDA twin of :func:`triton_kernels.relu_scale_add`; its variants are rungs."""
def relu_scale_backward(
    grad: Tensor,
    x: Tensor,
    scale: Tensor | int | float,
    *,
    out: Tensor | None = None,
    variant: str | None = None,
    explain: bool = False,
) -> Tensor:
    """0 where x <= 0, else grad·scale: the CUDA twin of :func:`triton_kernels.relu_scale_backward`; its variants are rungs."""
from cuda_reference.ops.square import square as square
from cuda_reference.ops.square import square_backward as square_backward
from cuda_reference.ops.sum_to import sum_to as sum_to

__all__ = [
    "BuildError",
    "act_backward",
    "act_mul",
    "act_mul_backward",
    "add",
    "capabilities",
    "gemm_bias_act",
    "linear_act",
    "linear_gelu",
    "load",
    "load_inline",
    "register_activation",
    "relu_scale",
    "relu_scale_add",
    "relu_scale_backward",
    "square",
    "square_backward",
    "sum_to",
    "variants",
]
