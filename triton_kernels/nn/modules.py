"""LinearAct, LinearGELU, ReLUScale, MLP.

Shapes and dtypes are those of the functions that they call; leading dimensions are arbitrary.
"""

from __future__ import annotations

import functools
from typing import Any, Self

import torch
import torch.fx
from torch import Tensor
from torch.nn.modules.module import register_module_module_registration_hook

from triton_kernels import _arguments, _precision, activations, ops
from triton_kernels._sharded_linear import is_distributed, sharded_linear
from triton_kernels.activations import GELU_APPROXIMATIONS
from triton_kernels.nn.rows import activated_linear, gemm_bias_act_of_rows, multiplies_itself

# triton_kernels.nn does not export a module whose op is absent; LinearAct needs no op of its own.
# torch.fx.symbolic_trace records calls of wrapped functions.
torch.fx.wrap("gemm_bias_act_of_rows")
if "linear_gelu" in ops.FUNCTIONS:
    from triton_kernels.ops.linear_act import linear_act, linear_gelu

    torch.fx.wrap("linear_act")
    torch.fx.wrap("linear_gelu")
if "relu_scale" in ops.FUNCTIONS:
    from triton_kernels.ops.relu_scale import relu_scale

    torch.fx.wrap("relu_scale")


class _FusedLinear(torch.nn.Linear):
    """The common part of LinearAct and LinearGELU: both can share the parameters of a layer, and
    refuse adapters that expect the result of a plain product."""

    act = "gelu"
    precision: str | None = None  # for modules pickled before the argument existed

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _watch_for_adapters()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        _watch_for_adapters()

    @classmethod
    def sharing(cls, linear: torch.nn.Linear, **options: Any) -> Self:
        """A layer with the same Parameter objects as ``linear``, and its training flag."""
        shape = linear.in_features, linear.out_features
        layer = cls(*shape, bias=linear.bias is not None, device="meta", **options)
        layer.weight, layer.bias = linear.weight, linear.bias
        return layer.train(linear.training)

    def _said(self) -> str:
        return "" if self.precision is None else f", precision={self.precision!r}"


def _look_at(*registered: Any) -> None:
    """See what is registered as ``base_layer``. torch.compile's tracer comes here, too, when torch
    registers a module while it compiles, as in compiled autograd. It would fail on the half-made
    module, but does not look at what is behind the name."""
    if registered[1] == "base_layer":
        _refuse_adapter(*registered)


def _refuse_adapter(parent: torch.nn.Module, name: str, child: Any) -> None:
    """Refuse a fused layer as ``base_layer``: peft's adapters call their layer so."""
    if isinstance(child, _FusedLinear) and child.act != "none":
        raise TypeError(
            f"{type(parent).__name__} cannot adapt a {type(child).__name__}: that computes its "
            "activation, too, and the adapter would be added after it. Adapt torch.nn.Linear and "
            "call triton_kernels.fuse on the adapted model; of a model that replace_modules "
            "changed call restore_modules first"
        )


@functools.cache
def _watch_for_adapters() -> None:
    """Install the refusal at the first fused layer. A hook is needed: a module does not know its
    parent."""
    register_module_module_registration_hook(_look_at)


class LinearAct(_FusedLinear):
    """act(x @ weight.T + bias): torch.nn.Linear and an activation in one kernel.

    Class, parameters, initialisation and state_dict are those of torch.nn.Linear. An adapter (LoRA)
    must not wrap this layer, since it adds to the result of a plain product; peft's are refused.
    A weight of a tensor subclass that keeps other tensors, as quantised ones do, multiplies by
    torch.nn.functional.linear, and the activation follows in a kernel of its own.

    Args:
        in_features, out_features, bias, device, dtype: as torch.nn.Linear.
        act: none, relu, gelu, gelu_tanh, silu, sigmoid, tanh or leaky_relu (slope 0.01).
        precision: of float32 products, as in :func:`triton_kernels.gemm_bias_act`.

    Shapes: x […, in_features] → […, out_features]. Dtypes: float16, bfloat16, float32, float64, the
    same for x, weight and bias.

    Raises:
        ValueError: an unknown ``act`` or ``precision``.
        TypeError: ``bias`` is not True or False.
        TypeError, RuntimeError: at a call, as :func:`triton_kernels.linear_act`.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        act: str = "relu",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        precision: str | None = None,
    ) -> None:
        _arguments.boolean("LinearAct", "bias", bias)
        activations.checked_act("LinearAct", act)
        super().__init__(in_features, out_features, bias, device, dtype)
        self.act, self.precision = act, _precision.checked("LinearAct", precision)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.weight, self.bias  # once: a parametrization computes them each time
        if is_distributed(weight):
            return sharded_linear(x, weight, bias, self.act, self.precision)
        if multiplies_itself(weight):
            return activated_linear(x, weight, bias, self.act)
        if "linear_act" in ops.FUNCTIONS:
            return linear_act(x, weight, bias, act=self.act, precision=self.precision)
        return gemm_bias_act_of_rows(x, weight.t(), bias, self.act, precision=self.precision)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, act={self.act!r}{self._said()}"


class LinearGELU(_FusedLinear):
    """gelu(x @ weight.T + bias): torch.nn.Linear and torch.nn.GELU in one kernel.

    Class, parameters and adapters as :class:`LinearAct`.

    Args:
        in_features, out_features, bias, device, dtype: as torch.nn.Linear.
        approximate: "none" for the erf form, "tanh" for the tanh form, as torch.nn.GELU.
        precision: of float32 products, as in :func:`triton_kernels.gemm_bias_act`.

    Shapes and dtypes as :class:`LinearAct`.

    Raises:
        ValueError: an unknown ``approximate`` or ``precision``.
        TypeError: ``bias`` is not True or False.
        TypeError, RuntimeError: at a call, as :func:`triton_kernels.linear_gelu`.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        approximate: str = "none",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        precision: str | None = None,
    ) -> None:
        _arguments.boolean("LinearGELU", "bias", bias)
        _arguments.one_of("LinearGELU", "approximate", approximate, tuple(GELU_APPROXIMATIONS))
        super().__init__(in_features, out_features, bias, device, dtype)
        self.approximate = approximate
        self.precision = _precision.checked("LinearGELU", precision)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.weight, self.bias  # once: a parametrization computes them each time
        if is_distributed(weight):
            return sharded_linear(x, weight, bias, self._act, self.precision)
        if multiplies_itself(weight):
            return activated_linear(x, weight, bias, self._act)
        return linear_gelu(x, weight, bias, approximate=self.approximate, precision=self.precision)

    @property
    def _act(self) -> str:
        return GELU_APPROXIMATIONS[self.approximate]

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, approximate={self.approximate!r}{self._said()}"


class ReLUScale(torch.nn.Module):
    """relu(x)·scale in one pass over memory; scale is a number or a tensor that broadcasts with x.

    A Parameter is learned; any other tensor is a buffer; a number is not in the state_dict. Shapes
    and dtypes as :func:`triton_kernels.relu_scale`.

    Raises:
        TypeError: ``scale`` is neither number nor tensor.
    """

    scale: Tensor | int | float

    def __init__(self, scale: Tensor | int | float) -> None:
        super().__init__()
        if isinstance(scale, bool) or not isinstance(scale, (Tensor, int, float)):
            raise TypeError(
                "ReLUScale(): argument 'scale' must be a number or a tensor, not "
                f"{type(scale).__name__}"
            )
        if isinstance(scale, Tensor) and not isinstance(scale, torch.nn.Parameter):
            self.register_buffer("scale", scale)
        else:
            self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return relu_scale(x, self.scale)

    def extra_repr(self) -> str:
        if isinstance(self.scale, Tensor):
            return f"scale of shape {list(self.scale.shape)}"
        return f"scale={self.scale}"


class MLP(torch.nn.Module):
    """fc2(act(fc1(x))): two linear layers, each in one kernel with its bias and activation.

    The state_dict has the keys fc1.weight, fc1.bias, fc2.weight and fc2.bias. A
    Sequential(Linear, act, Linear) has the keys 0.weight … 2.bias; use
    :func:`triton_kernels.replace_modules` for it, which keeps them.

    Args:
        in_features, hidden_features, out_features: the layers' sizes.
        bias: whether both have a bias.
        act: between the two, as in :class:`LinearAct`.
        device, dtype: as torch.nn.Linear.
        precision: of both, as in :class:`LinearAct`.

    Shapes: x […, in_features] → […, out_features]. Dtypes and errors as :class:`LinearAct`.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        bias: bool = True,
        act: str = "gelu",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        precision: str | None = None,
    ) -> None:
        super().__init__()
        self.fc1 = LinearAct(in_features, hidden_features, bias, act, device, dtype, precision)
        self.fc2 = LinearAct(hidden_features, out_features, bias, "none", device, dtype, precision)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.fc1(x))
