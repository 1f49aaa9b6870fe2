"""Modules over the fused kernels, with the parameters and the state_dict of the torch modules they
stand for. LinearGELU and ReLUScale are there where their ops are."""

from triton_kernels import ops
from triton_kernels.nn.modules import MLP, LinearAct

__all__ = ["MLP", "LinearAct"]

if "linear_gelu" in ops.FUNCTIONS:
    from triton_kernels.nn.modules import LinearGELU

    __all__ += ["LinearGELU"]
if "relu_scale" in ops.FUNCTIONS:
    from triton_kernels.nn.modules import ReLUScale

    __all__ += ["ReLUScale"]
if "act_mul" in ops.FUNCTIONS:
    from triton_kernels.nn.gated import GatedMLP, linear_gated

    __all__ += ["GatedMLP", "linear_gated"]
