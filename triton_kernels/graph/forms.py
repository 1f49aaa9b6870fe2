"""One canonical form for the many ways to write an op: functions, methods, operators, modules.

``read(node)`` gives the form of a node of a torch.fx graph, or None if it is none of the operations
that the kernels consist of.
"""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import GraphModule, Node

from triton_kernels import ops
from triton_kernels._fusion import (
    Activation,
    Attribute,
    Columns,
    Divided,
    Form,
    Normalized,
    Operand,
    Product,
    Refused,
    Scaled,
    Signature,
    Square,
    Sum,
    Times,
)
from triton_kernels.activations import GELU_APPROXIMATIONS
from triton_kernels.graph.callees import called

Arguments = dict[str, Any]


# ---- activations ----

# All functions and methods of an activation; some have an argument ``inplace``.
ACTIVATION_FUNCTIONS: dict[Any, str] = {
    F.relu: "relu",
    torch.relu: "relu",
    "relu": "relu",
    F.gelu: "gelu",
    F.silu: "silu",
    F.sigmoid: "sigmoid",
    torch.sigmoid: "sigmoid",
    "sigmoid": "sigmoid",
    F.tanh: "tanh",
    torch.tanh: "tanh",
    "tanh": "tanh",
    F.leaky_relu: "leaky_relu",
}
ACTIVATION_MODULES: dict[type[nn.Module], str] = {
    nn.ReLU: "relu",
    nn.GELU: "gelu",
    nn.SiLU: "silu",
    nn.Sigmoid: "sigmoid",
    nn.Tanh: "tanh",
    nn.LeakyReLU: "leaky_relu",
}


# Modules whose forward is one node.
_NAMED: tuple[type[nn.Module], ...] = (nn.Linear, *ACTIVATION_MODULES)


def module_path(node: Node) -> str:
    """The path of the linear layer or activation whose forward is this node, or ""."""
    stack = node.meta.get("nn_module_stack") if node.op.startswith("call_") else None
    if not stack:
        return ""
    where, kind = list(stack.values())[-1]
    named = kind in _NAMED or kind in [f"{each.__module__}.{each.__name__}" for each in _NAMED]
    path = re.sub(r"^L\[[^]]*\]\.?", "", where)  # torch.compile's local variable
    return path if named and re.fullmatch(r"[\w.]+", path) else ""


def activation_name(family: str, approximate: Any, negative_slope: Any) -> str | Refused:
    """The name of our activation with these parameters, or Refused if there is none."""
    if family == "gelu":
        if approximate not in GELU_APPROXIMATIONS:
            return Refused(f"gelu with approximate={approximate!r}")
        return GELU_APPROXIMATIONS[approximate]
    if family == "leaky_relu" and negative_slope != 0.01:
        return Refused(f"leaky_relu with slope {negative_slope}, not 0.01")
    return family


def activation_of(module: nn.Module) -> str | Refused | None:
    """The name of a module's activation, or Refused; None if the module is no activation."""
    family = ACTIVATION_MODULES.get(type(module))
    if family is None:
        return None
    return activation_name(
        family, getattr(module, "approximate", None), getattr(module, "negative_slope", None)
    )


def _activation(family: str) -> Callable[[Arguments], Form | None]:
    def read(given: Arguments) -> Form | None:
        name = activation_name(
            family, given.get("approximate", "none"), given.get("negative_slope", 0.01)
        )
        return name if isinstance(name, Refused) else Activation(name, given["input"])

    return read


# ---- products, sums, squares ----


def _linear(given: Arguments) -> Form | None:
    return Product(given["input"], given["weight"], True, given.get("bias"))


def _matmul(given: Arguments) -> Form | None:
    return Product(given["input"], given["other"], False)


def _inner(given: Arguments) -> Form | None:
    """x @ weight.T for a matrix ``weight``."""
    return Product(given["input"], given["other"], True) if rank(given["other"]) == 2 else None


def _tensordot(given: Arguments) -> Form | None:
    """A tensordot over x's last dimension and one dimension of a matrix."""
    x, weight, dims = given["a"], given["b"], given.get("dims", 2)
    if rank(weight) != 2 or not (rank(x) or 0) > 1:
        return None
    if dims == 1:
        return Product(x, weight, False)
    pair = [*map(list, dims)] if isinstance(dims, (tuple, list)) and len(dims) == 2 else []
    last = (-1, (rank(x) or 0) - 1)
    if len(pair) != 2 or len(pair[0]) != 1 or len(pair[1]) != 1 or pair[0][0] not in last:
        return None
    by_rows = {0: False, -2: False, 1: True, -1: True}.get(pair[1][0])
    return None if by_rows is None else Product(x, weight, by_rows)


def _bmm(given: Arguments) -> Form | None:
    return Product(given["input"], given["mat2"], False)


def _addmm(given: Arguments) -> Form | None:
    alpha, beta = given.get("alpha", 1), given.get("beta", 1)
    if not (_number(alpha) and _number(beta)):
        return None
    product = Product(given["mat1"], given["mat2"], False, None, float(alpha))
    if rank(given["input"]) == 1 and beta == 1:
        return replace(product, bias=given["input"])
    return replace(product, c=given["input"], beta=float(beta))


def _conv2d(given: Arguments) -> Form | None:
    """A 1×1 convolution whose memory layout is that of a product."""
    x, weight = tensor_of(given["input"]), value(given["weight"])
    ones = all(_each(given.get(name, 1), 1) for name in ("stride", "groups"))
    if not ones or not _each(given.get("padding", 0), 0) or x is None or weight is None:
        return None
    if x.dim() != 4 or weight.dim() != 4 or tuple(weight.shape[2:]) != (1, 1):
        return None
    if not all(isinstance(n, int) for n in x.shape):
        return Refused("a 1×1 convolution of a dynamic shape")
    if not x.permute(0, 2, 3, 1).is_contiguous():
        return Refused("a 1×1 convolution whose channels do not lie together (channels_last)")
    return Product(given["input"], given["weight"], True, given.get("bias"), convolution=True)


def _each(given: Any, number: int) -> bool:
    """Whether the value is this number, or a sequence of only this number."""
    return given == number or (isinstance(given, (tuple, list)) and all(n == number for n in given))


def _einsum(given: Arguments) -> Form | None:
    """The einsums …k,kn->…n and …k,nk->…n, also with exchanged operands."""
    equation, tensors = given["equation"], given["operands"]
    tensors = list(tensors) if isinstance(tensors, (tuple, list)) else [tensors, given.get("other")]
    if not isinstance(equation, str) or len(tensors) != 2:
        return None
    inputs, arrow, result = equation.replace(" ", "").partition("->")
    names = inputs.split(",")
    if not arrow or len(names) != 2 or not all(isinstance(t, Node) for t in tensors):
        return None
    pairs = zip(names, tensors)
    for (left, x), (right, weight) in itertools.permutations(pairs):
        batch, k, n = left[:-1], left[-1:], result[-1:]
        letters = batch.replace("...", "") + k + n
        plain = len(set(letters)) == len(letters) and "." not in k + n
        if plain and result == batch + n and right in (k + n, n + k):
            return Product(x, weight, right == n + k)
    return None


def _batch_norm(given: Arguments) -> Form | None:
    """BatchNorm in eval mode of a matrix. With more dimensions the channels are not the last."""
    x, eps = given["input"], given.get("eps", 1e-5)
    tensors = [given.get(name) for name in ("weight", "bias", "running_mean", "running_var")]
    if given.get("training", False) is not False or rank(x) != 2 or not _number(eps):
        return None
    if not all(isinstance(t, Node) for t in tensors):
        return None
    weight, bias, mean, variance = tensors
    return Normalized(x, Columns(weight, bias, 1.0, mean, variance, float(eps)))


def _add(given: Arguments) -> Form | None:
    x, y, alpha = given["input"], given["other"], given.get("alpha", 1)
    if not (isinstance(x, Node) and isinstance(y, Node) and _number(alpha)):
        return None
    return Sum(x, y, float(alpha))


def _mul(given: Arguments) -> Form | None:
    x, y = given["input"], given["other"]
    if isinstance(x, Node) and x is y:
        return Square(x)
    if isinstance(x, Node) and isinstance(y, Node):
        return Times(x, y)
    if _number(x):
        x, y = y, x
    return Scaled(x, y) if isinstance(x, Node) and _number(y) else None


def _sub(given: Arguments) -> Form | None:
    form = _add(given)
    return replace(form, alpha=-form.alpha) if isinstance(form, Sum) else None


def _div(given: Arguments) -> Form | None:
    x, y = given["input"], given["other"]
    if not isinstance(x, Node) or not _number(y) or not y or not math.isfinite(y):
        return None
    mantissa, _ = math.frexp(abs(y))
    return Scaled(x, 1 / y) if mantissa == 0.5 else Divided(x, float(y))


def _clamp(given: Arguments) -> Form | None:
    """clamp(min=0) as relu, if no gradient is needed: at 0 clamp's may be 1, and relu's is 0."""
    x, least = given["input"], given.get("min")
    example = tensor_of(x)
    if example is None or not _number(least) or least != 0 or given.get("max") is not None:
        return None
    return None if example.requires_grad else Activation("relu", x)


def _pow(given: Arguments) -> Form | None:
    x, exponent = given["input"], given["exponent"]
    return Square(x) if isinstance(x, Node) and _number(exponent) and exponent == 2 else None


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


BINARY = ("input", "other")
CONVOLUTION = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
LIMITS = ("input", "min", "max")
BATCH_NORM = (
    "input",
    "running_mean",
    "running_var",
    "weight",
    "bias",
    "training",
    "momentum",
    "eps",
)
ACTIVATION_ARGUMENTS = {
    F.gelu: ("input", "approximate"),
    F.leaky_relu: ("input", "negative_slope", "inplace"),
}
SIGNATURES: dict[Any, Signature] = {
    F.linear: Signature(("input", "weight", "bias"), _linear),
    **dict.fromkeys(
        (torch.matmul, torch.mm, operator.matmul, "matmul", "mm", "__matmul__"),
        Signature(BINARY, _matmul),
    ),
    **dict.fromkeys((torch.bmm, "bmm"), Signature(("input", "mat2"), _bmm)),
    **dict.fromkeys((torch.inner, "inner"), Signature(BINARY, _inner)),
    torch.functional.tensordot: Signature(("a", "b", "dims"), _tensordot),
    F.conv2d: Signature(CONVOLUTION, _conv2d),
    F.batch_norm: Signature(BATCH_NORM, _batch_norm),
    torch.functional.einsum: Signature(("equation", "operands", "other"), _einsum),
    **dict.fromkeys((torch.addmm, "addmm"), Signature(("input", "mat1", "mat2"), _addmm)),
    **dict.fromkeys((torch.add, operator.add, "add", "__add__"), Signature(BINARY, _add)),
    **dict.fromkeys(
        (torch.sub, torch.subtract, operator.sub, "sub", "subtract", "__sub__"),
        Signature(BINARY, _sub),
    ),
    **dict.fromkeys(
        (torch.div, torch.divide, torch.true_divide, operator.truediv, "div", "divide"),
        Signature(BINARY, _div),
    ),
    **dict.fromkeys((torch.clamp, torch.clip, "clamp", "clip"), Signature(LIMITS, _clamp)),
    **dict.fromkeys((torch.clamp_min, "clamp_min"), Signature(LIMITS[:2], _clamp)),
    **dict.fromkeys((torch.mul, torch.multiply, operator.mul), Signature(BINARY, _mul)),
    **dict.fromkeys(("mul", "multiply", "__mul__"), Signature(BINARY, _mul)),
    **dict.fromkeys((torch.pow, operator.pow, "pow"), Signature(("input", "exponent"), _pow)),
    **dict.fromkeys((torch.square, "square"), Signature(("input",), lambda g: Square(g["input"]))),
    **{
        target: Signature(
            ACTIVATION_ARGUMENTS.get(target, ("input", "inplace")), _activation(family)
        )
        for target, family in ACTIVATION_FUNCTIONS.items()
    },
    ops.FUNCTIONS["add"]: Signature(BINARY, _add),
    **{target: signature for fusion in ops.FUSIONS for target, signature in fusion.reads.items()},
}
KEYWORDS = {"alpha", "beta", "inplace"}


def _signature(node: Node) -> Signature | None:
    if node.op not in ("call_function", "call_method"):
        return None
    return SIGNATURES.get(called(node))


def read(node: Node, module: GraphModule) -> Form | None:
    """The form of a node. Refused if the operation could be fused, but not in this form of call;
    None if it is no such operation."""
    if node.op == "call_module":
        return _read_module(node, module.get_submodule(str(node.target)))
    signature = _signature(node)
    if signature is None:
        return None
    given = dict(zip(signature.names, node.args)) | dict(node.kwargs)
    if len(node.args) > len(signature.names) or set(given) - {*signature.names, *KEYWORDS}:
        return None  # for example with out= or dtype=
    if not isinstance(next(iter(given.values()), None), (Node, int, float, str)):
        return None
    try:
        form = signature.read(given)
    except KeyError:  # a required argument is missing; the call itself raises the error
        return None
    if form is None or not _of_nodes(form):
        return None
    return form


def _of_nodes(form: Form) -> bool:
    """Whether all operands of a form are values of the graph or parameters."""
    tensors = [getattr(form, name, None) for name in ("x", "y", "weight", "bias", "c")]
    return all(t is None or isinstance(t, (Node, Attribute)) for t in tensors)


def _read_module(node: Node, module: nn.Module) -> Form | None:
    (x, *others) = node.args or (None,)
    if not isinstance(x, Node) or others or node.kwargs:
        return None
    if isinstance(module, nn.Linear):
        reason = unfit_linear(module)
        if reason:
            return Refused(reason)
        bias = None if module.bias is None else Attribute(f"{node.target}.bias", module.bias)
        return Product(x, Attribute(f"{node.target}.weight", module.weight), True, bias)
    name = activation_of(module)
    if name is None or isinstance(name, Refused):
        return name
    reason = changed(module)
    return Refused(reason) if reason else Activation(name, x)


# ---- modules ----


def has_hooks(module: nn.Module) -> bool:
    """Whether a call of the module runs more than its forward. torch has no public test for it."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, name, None) for name in hooks)


def changed(module: nn.Module) -> str:
    """Why calling the module is more than the forward of its class, or nothing. Some adapters put a
    forward of theirs on the module."""
    if "forward" in vars(module):
        return "a forward of its own was put on it"
    return "hooks registered" if has_hooks(module) else ""


def unfit_linear(linear: nn.Module) -> str:
    """Why a layer is not a plain torch.nn.Linear with plain parameters, or ""."""
    if nn.utils.parametrize.is_parametrized(linear):
        return "parametrized"
    if "weight" not in dict(linear.named_parameters(recurse=False)):
        return "weight is no parameter: pruned, weight-normed or quantised"
    if type(linear) is not nn.Linear:
        return f"subclass of Linear ({type(linear).__name__})"
    if reason := changed(linear):
        return reason
    for name, t in linear.named_parameters(recurse=False):
        if type(t) is not nn.Parameter or type(t.data) is not torch.Tensor:
            return f"{name} is a {type(t).__name__}"
    return ""


def tensor_of(node: Any) -> torch.Tensor | None:
    """The example value of a node, if it is a tensor."""
    example = node.meta.get("example_value") if isinstance(node, Node) else None
    return example if isinstance(example, torch.Tensor) else None


def may_share(a: Any, b: Any) -> bool:
    """Whether two operands may share memory."""
    values = value(a), value(b)
    if any(v is None or not _has_storage(v) for v in values):
        return True
    first, second = (v.untyped_storage()._cdata for v in values)  # type: ignore[union-attr]
    return first == second


def _has_storage(t: torch.Tensor) -> bool:
    return torch._C._has_storage(t)


def same_shape(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the shapes are known to be equal. Comparing symbols of dynamic shapes would
    specialise the graph on them."""
    if a.dim() != b.dim():
        return False
    if all(isinstance(n, int) for n in (*a.shape, *b.shape)):
        return a.shape == b.shape
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return all(statically_known_true(m == n) for m, n in zip(a.shape, b.shape))


def as_wide(node: Node, x: Node) -> bool:
    """Whether a value has x's shape, and x's dtype or a wider one."""
    value, of = tensor_of(node), tensor_of(x)
    return (
        value is not None
        and of is not None
        and value.is_floating_point()
        and value.dtype.itemsize >= of.dtype.itemsize
        and (value.dtype == of.dtype or of.dtype.itemsize < value.dtype.itemsize)
        and same_shape(value, of)
    )


def value(operand: Operand | None) -> torch.Tensor | None:
    """The example value of an operand, with its shape and dtype; None if there is none."""
    if isinstance(operand, Attribute):
        return operand.tensor
    return tensor_of(operand)


def rank(operand: Any) -> int | None:
    """The number of dimensions, or None if it is unknown."""
    example = value(operand) if isinstance(operand, Node) else None
    return None if example is None else example.dim()
