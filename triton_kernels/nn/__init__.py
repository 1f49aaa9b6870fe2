"""Modules over the fused kernels, with the parameters and the state_dict of the torch modules they
stand for."""

from triton_kernels.nn.modules import MLP, LinearAct, LinearGELU, ReLUScale

__all__ = ["MLP", "LinearAct", "LinearGELU", "ReLUScale"]
