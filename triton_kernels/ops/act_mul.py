"""act_mul: out = act(gate)·up. act_mul_backward: dgate = grad·(act'(gate)·up) and
dup = grad·act(gate), both in one pass. Gated units: SwiGLU (silu), GEGLU (gelu), ReGLU (relu).

Shapes: any that broadcast. Dtypes: float16, bfloat16, float32, float64. The compute type C is
float32, or float64 for float64.

Steps: operands → result dtype → C; the activation or its derivative, from
triton_kernels/activations.py; one multiplication, two for dgate; one rounding to the result dtype.
Where relu's slope is 0, dgate is 0 even for infinities and NaN, as in torch.
In many models gate and up are halves of one tensor. They are read in place.
Reference: act(gate) * up with torch.nn.functional's activations, and torch.autograd.grad of it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.fx import Node

from triton_kernels import _arguments, _elementwise, _elementwise_op, _launch
from triton_kernels._counts import cdiv
from triton_kernels._fusion import Activation, Entry, Form, Fusion, Match, Probe, Times
from triton_kernels._launch import REMEMBERED, Launch, specialization_key
from triton_kernels._operator import Operator, TensorMeta, saved_by
from triton_kernels._placements import P, R, Rule, Sharding, elementwise, twice
from triton_kernels._second_derivatives import of_argument
from triton_kernels.activations import ACTIVATIONS, checked_act
from triton_kernels.ops._act_mul_kernels import flat_gradients_kernel, tiled_gradients_kernel
from triton_kernels.ops.add import add
from triton_kernels.ops.sum_to import reduce_to

__all__ = ["act_mul", "act_mul_backward"]

DTYPES = _arguments.FLOATS
NAMES = ("grad", "gate", "up")


@triton.jit
def act_mul_element(gate, up, ACT: tl.constexpr):
    return ACT(gate) * up


def act_mul(gate: Tensor, up: Tensor, act: str, *, out: Tensor | None = None) -> Tensor:
    """act(gate)·up, elementwise, in one pass over memory: the middle of a gated unit.

    Args:
        gate: tensor of float16, bfloat16, float32 or float64.
        up: tensor of these dtypes that broadcasts with gate. Both may be halves of one tensor, as
            ``x.chunk(2, -1)`` makes them; they are not copied.
        act: none, relu, gelu, gelu_tanh, silu, sigmoid, tanh or leaky_relu (slope 0.01).
        out: written and returned if given; exactly the result's shape and dtype; may be gate or up.

    Returns:
        Tensor of dtype ``torch.result_type(gate, up)``.

    Raises:
        TypeError: gate or up is no tensor or has an unsupported dtype.
        ValueError: an unknown act.
        RuntimeError: shapes do not broadcast, devices differ, out does not fit or overlaps, out is
            given and an input requires grad.
    """
    return _act_mul(gate, up, act, out=out)  # type: ignore[no-any-return]


def act_mul_backward(
    grad: Tensor,
    gate: Tensor,
    up: Tensor,
    act: str,
    *,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """grad·act'(gate)·up and grad·act(gate), in one pass over memory: the gradients of act_mul.

    Args:
        grad: tensor of float16, bfloat16, float32 or float64: the gradient of act_mul's result.
        gate, up: act_mul's inputs; tensors of these dtypes that broadcast with grad.
        act: as in act_mul.
        out: both results, written and returned if given. They must not overlap each other; each
            may be one of the inputs.

    Returns:
        The gradients of gate and up, both of the shape to which the three tensors broadcast, and
        of the dtype to which they promote.

    Raises:
        TypeError: grad, gate or up is no tensor or has an unsupported dtype.
        ValueError: an unknown act.
        RuntimeError: as act_mul.
        NotImplementedError: out is given and the call is traced or transformed; as act_backward for
            a second derivative.
    """
    args = (grad, gate, up, act)
    if out is None:
        return _act_mul_backward(*args)  # type: ignore[no-any-return]
    if _act_mul_backward.followed(args):
        raise NotImplementedError(
            "act_mul_backward(): out= is for plain tensors outside of tracing"
        )
    written = _launch_backward(*args, out=out)
    torch.autograd.graph.increment_version(written)
    return written


def _launch_backward(
    grad: Tensor,
    gate: Tensor,
    up: Tensor,
    act: str,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    op = "act_mul_backward"
    given = zip(NAMES, (grad, gate, up))
    inputs = {name: _arguments.tensor(op, name, t, DTYPES) for name, t in given}
    checked_act(op, act)
    shape, dtype = _result(*inputs.values())
    inputs = dict(zip(NAMES, _arguments.on_one_device(*inputs.values())))
    device = _arguments.same_device(op, **inputs)
    _launch.check_device(op, device, flat_gradients_kernel)
    grad, gate, up = inputs.values()
    if out is None:
        dgate = _elementwise.empty_result(shape, dtype, like=gate)
        dup = _elementwise.empty_result(shape, dtype, like=up)
    else:
        dgate, dup = _checked_out(out, inputs, shape, dtype, device)
    tensors = (grad, gate, up, dgate, dup)
    if dgate.numel():
        alike = all(t.shape == shape and t.is_contiguous() for t in tensors)
        dims = () if alike else _dims(shape, tensors)
        keys = tuple(map(specialization_key, tensors))
        launch, rest = _prepared(dgate.numel(), dims, keys, act, dtype)
        launch(device, *tensors, *rest)
    return dgate, dup


def _dims(shape: torch.Size, tensors: tuple[Tensor, ...]) -> _elementwise.Dims:
    """The coalesced dimensions of all five tensors; none where all are dense in one order."""
    strides = (t.expand(shape).stride() for t in tensors)
    dims = _elementwise.coalesced(list(zip(shape, *strides)))
    dense = len(dims) == 1 and all(stride == 1 for stride in dims[0][1:])
    return () if dense else tuple(dims)


@functools.lru_cache(REMEMBERED)
def _prepared(
    n: int, dims: _elementwise.Dims, keys: tuple[Any, ...], act: str, dtype: torch.dtype
) -> tuple[Launch, tuple[Any, ...]]:
    """The launch for these tensors, and its arguments after them."""
    chosen = ACTIVATIONS[act]
    meta = {
        "ACT": chosen.forward_for(dtype, dtype),
        "DERIVATIVE": chosen.derivative_for(dtype, dtype),
        "OF_PRE": chosen.of_pre,
        "DROPS": chosen.drops,
        "C": _elementwise.compute_type(dtype),
        "num_warps": _elementwise.NUM_WARPS,
    }
    block = _elementwise.THREADS * (_elementwise.BYTES_PER_THREAD // dtype.itemsize)
    if not dims:
        grid = (cdiv(n, block),)
        return Launch(flat_gradients_kernel, grid, BLOCK=block, **meta), (n,)
    grid, constants, arguments = _elementwise.tiled(dims, block * _elementwise.VECTORS)
    return Launch(tiled_gradients_kernel, grid, **constants, **meta), arguments


def _result(*tensors: Tensor) -> tuple[torch.Size, torch.dtype]:
    """The shape and dtype of both results."""
    shape = _arguments.broadcast_all("act_mul_backward", NAMES, tensors)
    return shape, _arguments.promoted(*tensors)


def _checked_out(
    out: Any,
    inputs: dict[str, Tensor],
    shape: torch.Size,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    op = "act_mul_backward"
    if not isinstance(out, tuple) or len(out) != 2:
        raise TypeError(f"{op}(): argument 'out' must be a pair of tensors, but got {out!r:.60}")
    if torch.is_grad_enabled():
        _arguments.refuse_gradients(op, _arguments.NO_GRADIENT_WITH_OUT, inputs.items())
    dgate, dup = (
        _arguments.check_out(op, result, shape, dtype, device, dict(inputs), in_place=True)
        for result in out
    )
    other: dict[str, Tensor | None] = {"the other result": dgate}
    _arguments.check_out(op, dup, shape, dtype, device, other, in_place=False)
    return dgate, dup


def _fake(grad: Tensor, gate: Tensor, up: Tensor, act: str) -> tuple[Tensor, Tensor]:
    shape, dtype = _result(grad, gate, up)
    like = _arguments.on_one_device(grad, gate, up)
    dgate, dup = (_elementwise.empty_result(shape, dtype, like=t) for t in like[1:])
    return dgate, dup


def _batched(
    operator: Operator, in_dims: tuple[Any, ...], args: tuple[Any, ...]
) -> tuple[Any, tuple[int, int]]:
    """The vmap rule for two results."""
    return _elementwise_op.batched(operator, in_dims, args)[0], (0, 0)


class _ActMul(Operator):
    """act_mul with gradients. One launch makes both; up's alone is act_mul(gate, grad)."""

    def _keep(self, ctx: Any, args: tuple[Any, ...], out: Any) -> None:
        gate, up, ctx.act = args
        ctx.gate, ctx.up = (TensorMeta(t.shape, t.dtype) for t in (gate, up))
        ctx.save_for_backward(gate, up if ctx.needs_input_grad[0] else None)

    def _backward(self, ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        gate, up = saved_by(ctx)
        grad = grad.resolve_neg()
        if up is None:
            return None, reduce_to(act_mul(gate, grad, ctx.act), ctx.up), None
        dgate, dup = act_mul_backward(grad, gate, up, ctx.act)
        wanted = reduce_to(dup, ctx.up) if ctx.needs_input_grad[1] else None
        return reduce_to(dgate, ctx.gate), wanted, None


class _ActMulBackward(Operator):
    """Linear in grad and in up. torch computes act'', unless act is piecewise linear."""

    def _keep(self, ctx: Any, args: tuple[Any, ...], out: Any) -> None:
        ctx.set_materialize_grads(False)
        *tensors, ctx.act = args
        ctx.like = [TensorMeta(t.shape, t.dtype) for t in tensors]
        ctx.save_for_backward(*tensors)

    def _backward(
        self, ctx: Any, of_dgate: Tensor | None, of_dup: Tensor | None = None
    ) -> tuple[Tensor | None, ...]:
        grad, gate, up = saved_by(ctx)
        act, needed = ctx.act, ctx.needs_input_grad
        sums: list[Tensor | None] = [None, None, None]
        if of_dgate is not None:
            of_dgate = of_dgate.resolve_neg()
            if needed[1] and not ACTIVATIONS[act].straight:
                factors = (grad, up)
                sums[1] = of_argument("act_mul_backward", act, gate, factors, of_dgate)
            if needed[0]:
                sums[0], _ = act_mul_backward(of_dgate, gate, up, act)
            if needed[2]:
                sums[2], _ = act_mul_backward(of_dgate, gate, grad, act)
        if of_dup is not None:
            of_dup = of_dup.resolve_neg()
            if needed[0]:
                term = act_mul(gate, of_dup, act)
                sums[0] = term if sums[0] is None else add(sums[0], term)
            if needed[1]:
                term, _ = act_mul_backward(of_dup, gate, grad, act)
                sums[1] = term if sums[1] is None else add(sums[1], term)
        if needed[1] and sums[1] is None:
            sums[1] = gate.new_zeros(gate.shape)
        reduced = (t if t is None else reduce_to(t, like) for t, like in zip(sums, ctx.like))
        return (*reduced, None)


def _rules(gate: Any, up: Any, act: Any) -> Iterator[Rule]:
    """Sharding: linear in up."""
    yield from elementwise(gate, up)
    yield (P,), (R, P)


def _backward_rules(grad: Any, gate: Any, up: Any, act: Any) -> Iterator[Rule]:
    """Sharding: linear in grad."""
    yield from elementwise(grad, gate, up)
    yield (P,), (P, R, R)


_act_mul = _elementwise_op.define(
    "act_mul",
    "Tensor gate, Tensor up, str act",
    act_mul_element,
    DTYPES,
    sharding=Sharding(_rules),
    operator=_ActMul,
)
_act_mul_backward = _ActMulBackward(
    "act_mul_backward",
    "Tensor grad, Tensor gate, Tensor up, str act",
    _launch_backward,
    _fake,
    batched=_batched,
    results=2,
    sharding=Sharding(twice(_backward_rules)),
)


def _match(root: Node, forms: Mapping[Node, Form | None]) -> Match | None:
    """act(gate)·up, in either order. None for a gate smaller than the result, for example one value
    per channel: activating it before the broadcast is cheaper."""
    form = forms[root]
    if not isinstance(form, Times):
        return None
    matches = []
    for value, up in ((form.x, form.y), (form.y, form.x)):
        act = forms[value]
        if isinstance(act, Activation) and _shape(act.x) == _shape(root):
            arguments = (act.x, up, act.name)
            nodes = (*act.inner, value, root)
            matches.append(Match("act_mul", nodes, act_mul, arguments, {}, act=act.name))
    return min(matches, key=lambda match: len(match.nodes[-2].users), default=None)


def _shape(node: Node) -> Any:
    return getattr(node.meta.get("example_value"), "shape", None)


GRAPH = Fusion(
    elementwise=(_match,),
    # Estimated from bytes moved: eager moves 5 tensors, act_mul 3, fewer if up broadcasts. Inductor
    # fuses too.
    speeds={"act_mul": (Entry(DTYPES, eager=1.5, inductor=1.0, estimated=True),)},
    probes={
        "act_mul": Probe(
            ("n", "n"),
            lambda gate, up: act_mul(gate, up, "silu"),
            lambda gate, up: torch.nn.functional.silu(gate) * up,
        )
    },
)
