"""Makes an elementwise op from a formula: argument checks, result, fake, rule for vmap."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from triton_kernels import _arguments, _elementwise, _elementwise_kernels, _launch, _memory
from triton_kernels._operator import Gradient, Operator
from triton_kernels._placements import Sharding, elementwise
from triton_kernels.activations import ACTIVATIONS, checked_act


def define(
    name: str,
    parameters: str,
    element: Any,
    dtypes: Sequence[torch.dtype],
    *,
    gradients: Mapping[str, Gradient] = MappingProxyType({}),
    op: str = "",
    or_tensor: bool = False,
    autocast: torch.dtype | None = None,
    sharding: Sharding | None = None,
    operator: type[Operator] = Operator,
) -> Operator:
    """An elementwise op, registered under ``name``.

    Args:
        name: the op's name in the namespace.
        parameters: "Tensor x[, Tensor y or Scalar y][, Tensor s or Scalar s]", with the op's own
            names; or "Tensor x, Tensor y, str act", where act is a name in ACTIVATIONS. Three
            tensors must all be floating.
        element: the formula, a jit function of these operands in this order: ELEMENT(x),
            ELEMENT(x, y), ELEMENT(x, s), ELEMENT(x, y, s) or ELEMENT(x, y, ACT), where ACT is the
            activation for the result's dtype.
        dtypes: the allowed dtypes of the operands.
        gradients, autocast: as in :class:`Operator`. Without gradients the op is forward-only: an
            input that requires grad is refused.
        op: the op's name in errors, if it is a form of an op of another name.
        or_tensor: whether another form of the op takes a tensor for the number; for errors.
        sharding: by default all tensors may be sharded along the same dimension.
        operator: the class of the op, for gradients that are computed together.

    Raises:
        TypeError: the formula's number of operands is not that of the parameters.
    """
    launch = Launcher(op or name, parameters, element, dtypes, or_tensor)
    return operator(
        name,
        parameters,
        launch,
        launch.fake,
        gradients=gradients,
        batched=batched,
        autocast=autocast,
        label=op,
        sharding=sharding or Sharding(_sharded_alike, decisive=launch.promoting),
        numbers=launch.numbers,
        counted=_elementwise.counted,
    )


def _sharded_alike(*args: Any) -> Any:
    return elementwise(*(arg for arg in args if hasattr(arg, "shape")))


class Pinned(NamedTuple):
    """A variant for results of one dtype, with a fixed number of elements per thread."""

    name: str
    dtype: torch.dtype
    elements_per_thread: int


class Launcher:
    """An elementwise op on plain tensors: checks the arguments, allocates, launches."""

    def __init__(
        self,
        op: str,
        parameters: str,
        element: Any,
        dtypes: Sequence[torch.dtype],
        or_tensor: bool = False,
    ) -> None:
        kinds, self._names = zip(*(parameter.split() for parameter in parameters.split(", ")))
        expected = len(inspect.signature(element.fn).parameters)
        if expected != len(kinds):
            raise TypeError(
                f"{op}: the formula {element.fn.__name__} takes {expected} operands, but the op "
                f"has {len(kinds)}: {parameters}"
            )
        self._op, self._element, self._dtypes = op, element, dtypes
        self._configurations: dict[Any, _elementwise.Configuration] = {}
        operands = kinds[:-1] if kinds[-1] in ("Scalar", "str") else kinds
        self._factor = len(operands) if kinds[-1] == "Scalar" else None
        self._chosen = len(operands) if kinds[-1] == "str" else None  # an activation's name
        self._second = operands[1] if len(operands) > 1 else None  # the second operand's type
        self._third = len(operands) > 2  # a tensor instead of the number
        self._wanted = "a number or a torch.Tensor" if or_tensor else "a number"
        # Index of an argument that is a number → its index among the kernel's arguments.
        self.numbers = {} if self._factor is None else {self._factor: _elementwise.S_VALUE}
        if self._second == "Scalar":
            self.numbers[1] = _elementwise.Y_VALUE
        # The name of a number that takes part in the promotion of the result's dtype.
        self.promoting = self._names[1] if self._second == "Scalar" else ""

    def __call__(
        self, *args: Any, out: Tensor | None = None, variant: Pinned | None = None
    ) -> Tensor:
        """The op's result; the arguments are in the order of the parameters."""
        op, names = self._op, self._names
        x = _arguments.tensor(op, names[0], args[0], self._dtypes)
        y: Any = None
        s: Any = 0
        shape, dtype = x.shape, x.dtype
        if self._third:
            y, s = (_arguments.tensor(op, names[i], args[i], self._dtypes) for i in (1, 2))
            shape, dtype = self._result(x, y, s)
            x, y, s = _arguments.on_one_device(x, y, s)
            _arguments.same_device(op, **dict(zip(names, (x, y, s))))
        elif self._second == "Tensor":
            y = _arguments.tensor(op, names[1], args[1], self._dtypes)
            if shape != y.shape or dtype != y.dtype or x.device != y.device:
                dtype = torch.result_type(x, y)
                if x.device != y.device:
                    x, y = _arguments.on_one_device(x, y)
                    _arguments.same_device(op, **{names[0]: x, names[1]: y})
                shape = _arguments.broadcast(op, x, y, names)
        elif self._second:
            y, dtype = args[1], _result_dtype(x, args[1])
            y = _arguments.number(op, names[1], int(y) if isinstance(y, bool) else y, dtype)
        if self._factor is not None:
            factor = args[self._factor]
            s = _arguments.number(op, names[self._factor], factor, dtype, self._wanted)
        if torch.is_grad_enabled() and (out is not None or variant is not None):
            none = f"a variant of {op} has no gradient"
            why = none if out is None else _arguments.NO_GRADIENT_WITH_OUT
            _arguments.refuse_gradients(op, why, zip(names, (x, y, s)))
        act = None
        if self._chosen is not None:
            act = checked_act(op, args[self._chosen])
        _launch.check_device(op, x.device, _elementwise_kernels.flat_kernel)
        if variant is not None and dtype != variant.dtype:
            raise TypeError(
                f"{op}(): variant '{variant.name}' is for a {variant.dtype} result, but got {dtype}"
            )
        if out is None:
            out = _elementwise.empty_result(shape, dtype, like=x)
            # A variant is called without a check for modes and transforms; these may have made out.
            if variant is not None and not _memory.there(out):
                raise _memory.refusal(op, "the result", out)
        else:
            given = zip(names, (x, y, s))
            inputs: dict[str, Tensor | None] = {n: t for n, t in given if isinstance(t, Tensor)}
            _arguments.check_out(op, out, shape, dtype, x.device, inputs, in_place=True)
        pinned = None if variant is None else variant.elements_per_thread
        how = self._configurations.get((dtype, pinned, act))
        if how is None:
            operands = self._second is not None, self._third or self._factor is not None
            chosen = ACTIVATIONS[act].forward_for(dtype, dtype) if act else None
            how = _elementwise.configuration(self._element, dtype, operands, pinned, chosen)
            self._configurations[dtype, pinned, act] = how
        return _elementwise.apply(how, x, y, s, out)

    def _result(self, *tensors: Tensor) -> tuple[torch.Size, torch.dtype]:
        """The shape and dtype of the result of three tensors."""
        shape = _arguments.broadcast_all(self._op, self._names, tensors)
        return shape, _arguments.promoted(*tensors)

    def fake(self, x: Tensor, *others: Any) -> Tensor:
        """An empty result for the same arguments, which are not checked."""
        shape, dtype = x.shape, x.dtype
        if self._third:
            shape, dtype = self._result(x, *others)
        elif self._second:
            dtype = _result_dtype(x, others[0])
            if self._second == "Tensor":
                try:  # torch can compare symbolic sizes without specialising on them
                    shape = torch.broadcast_shapes(shape, others[0].shape)
                except RuntimeError:
                    shape = _arguments.broadcast(self._op, x, others[0], self._names)
        tensors = (t for t in (x, *others) if isinstance(t, Tensor))
        return _elementwise.empty_result(shape, dtype, like=_arguments.on_one_device(*tensors)[0])


def _result_dtype(x: Tensor, y: Any) -> torch.dtype:
    """The dtype of torch's promotion. Only the type of a number counts; its size is checked
    later."""
    if isinstance(y, (bool, int, float)):
        y = type(y)()
    return torch.result_type(x, y)


def batched(
    operator: Operator, in_dims: tuple[Any, ...], args: tuple[Any, ...]
) -> tuple[Tensor, int]:
    """The rule for vmap. Batch dimensions are moved to the front and followed by dimensions of size
    1, so that the other dimensions broadcast as without vmap."""
    at = operator.tensors
    ranks = {i: args[i].dim() - (in_dims[i] is not None) for i in at}
    moved = list(args)
    for i in at:
        if in_dims[i] is not None:
            t = args[i].movedim(in_dims[i], 0)
            moved[i] = t[(slice(None), *[None] * (max(ranks.values()) - ranks[i]))]
    if len(at) > 1 and 0 in ranks.values():  # 0-d tensors count less in torch's promotion
        if len(at) == 2:
            x, y = (args[i].flatten()[:1].sum() if not ranks[i] else moved[i] for i in at)
            dtype = torch.result_type(x, y)
        else:
            dtype = _arguments.promoted(*(args[i] for i in at), ranks=[*ranks.values()])
        for i in at:
            moved[i] = moved[i].to(dtype)
    return operator(*moved), 0
