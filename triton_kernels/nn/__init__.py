"""Modules over the fused kernels. Parameters and state_dict are those of the torch modules they
replace. LinearGELU, ReLUScale and GatedMLP exist only where their ops do."""

import torch.fx

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
    torch.fx.wrap("linear_gated")  # torch.fx.symbolic_trace records the call
