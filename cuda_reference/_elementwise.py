"""Common parts of the elementwise ops: argument checks, the default launch, and the functions of
ops that consist only of a .cu.

The default kernel of an op takes every dtype and layout. A variant takes tensors of one dtype, and
those of rungs.cuh only what is dense.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from cuda_reference import _arguments, _build, _forms, _launch, _memory, _rungs
from cuda_reference._arguments import FLOATING, INTEGRAL
from cuda_reference._registered import Gradients, Registered, broadcast, empty, promoted
from cuda_reference._signatures import TENSOR, Signature


def function(
    stem: str, signature: Signature, gradients: Gradients | None = None
) -> Callable[..., Tensor]:
    """The function of an op that is completely described by its launcher in csrc/<stem>.cu."""
    op, python = signature.op, _python_signature(signature)
    names = (*signature.operands, *signature.numbers)
    options = [
        (name, python.parameters[name].default)
        for name in ("variant", "explain")
        if name in python.parameters
    ]
    count = len(signature.operands)
    registered = _registered(stem, signature, count, len(options), gradients)
    of_tensors = registered
    if signature.of_tensors:
        of_tensors = _registered(stem, signature, len(names), len(options), gradients)

    def call(*args: Any, **kwargs: Any) -> Tensor:
        if len(args) != len(names) or not known.issuperset(kwargs):
            args = _in_order(op, python, names, args, kwargs)
        form = registered
        if of_tensors is not registered and isinstance(args[count], Tensor):
            form = of_tensors
        result: Tensor = form(
            *args, *[kwargs.get(name, default) for name, default in options], out=kwargs.get("out")
        )
        return result

    known = frozenset(python.parameters).difference(names)
    call.__name__ = call.__qualname__ = op
    call.__module__ = "cuda_reference"
    call.__doc__ = signature.docstring
    call.__signature__ = python  # type: ignore[attr-defined]
    return call


def _registered(
    stem: str, signature: Signature, count: int, options: int, gradients: Gradients | None
) -> Registered:
    """The registered op whose first ``count`` arguments are tensors: its operands, or its numbers,
    too."""
    op, dtypes = signature.op, FLOATING if signature.floating else FLOATING + INTEGRAL
    names, variants = (*signature.operands, *signature.numbers), variants_of(signature)
    in_place = signature.numbers if count > len(signature.operands) else ()
    unfit = "".join(f"takes a number for '{name}', but it is a tensor" for name in in_place[:1])
    symbol = op + TENSOR if in_place else op

    def launch(*args: Any, out: Tensor | None = None) -> Tensor:
        operands, numbers = dict(zip(names[:count], args)), dict(zip(names[count:], args[count:]))
        rest = args[len(names) :]
        return pointwise(
            *(op, stem, operands, numbers, dtypes, out, variants, *rest),
            symbol=symbol,
            unfit=unfit,
            or_tensor=signature.of_tensors,
        )

    kinds = ["Tensor"] * count + ["Scalar"] * (len(names) - count)
    declared = [*map(" ".join, zip(kinds, names)), "str? variant", "bool explain"]
    return Registered(
        symbol,
        ", ".join(declared[: len(names) + options]),
        launch,
        lambda *args: fake(*args[:count]),
        gradients=gradients,
        label=op,
        form=_forms.elementwise,
    )


def _in_order(
    op: str,
    python: inspect.Signature,
    names: tuple[str, ...],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> tuple[Any, ...]:
    """The arguments of these names in order, passed by position or by name."""
    given = {**dict(zip(names, args)), **kwargs}
    fits = len(args) <= len(names) and len(given) == len(args) + len(kwargs)
    if not (
        fits
        and all(name in given for name in names)
        and all(n in python.parameters for n in kwargs)
    ):
        try:
            python.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{op}(): {error}") from None
    return tuple([given[name] for name in names])


def fake(*tensors: Tensor) -> Tensor:
    """The empty result for fake operands."""
    return empty(broadcast(*tensors), result_type(*tensors), *tensors, like=tensors[0])


def variants_of(signature: Signature) -> _rungs.Variants:
    """The variants of an op that consists only of a .cu."""
    strided = _rungs.NOT_DENSE if signature.strided else ()
    names = (*strided, *(_rungs.DENSE if signature.rungs else ()))
    return {name: _rungs.VARIANTS[name] for name in names}


def _python_signature(signature: Signature) -> inspect.Signature:
    kinds = inspect.Parameter
    positional = {
        **dict.fromkeys(signature.operands, "Tensor"),
        **dict.fromkeys(signature.numbers, signature.number),
    }
    options: dict[str, tuple[str, Any]] = {
        "out": ("Tensor | None", None),
        "variant": ("str | None", None),
    }
    if signature.has_variants:
        options["explain"] = ("bool", False)
    parameters = [
        kinds(name, kinds.POSITIONAL_OR_KEYWORD, annotation=annotation)
        for name, annotation in positional.items()
    ]
    parameters += [
        kinds(name, kinds.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in options.items()
    ]
    return inspect.Signature(parameters, return_annotation="Tensor")


def pointwise(
    op: str,
    stem: str,
    operands: dict[str, Any],
    numbers: dict[str, Any],
    dtypes: tuple[torch.dtype, ...],
    out: Tensor | None,
    variants: _rungs.Variants,
    variant: str | None = None,
    explain: bool = False,
    *,
    symbol: str = "",
    unfit: str = "",
    or_tensor: bool = False,
) -> Tensor:
    """The result of an elementwise op, by its default kernel or by a rung.

    Args:
        operands, numbers: the op's arguments by name.
        dtypes: the allowed dtypes of operands.
        variants: the op's rungs.
        symbol: the launcher of the default kernel; by default the op's name.
        unfit: why no rung takes this call; "" if some may.
        or_tensor: whether the op also takes tensors for the numbers, for errors.
    """
    tensors = {n: _arguments.check_tensor(op, n, t, dtypes) for n, t in operands.items()}
    if len(tensors) > 1:
        tensors = on_one_device(tensors)
    dtype = result_type(*tensors.values())
    kinds = "a number or a torch.Tensor" if or_tensor else "a number"
    scalars = [
        _launch.scalar(_arguments.check_number(op, name, number, dtype, kinds))
        for name, number in numbers.items()
    ]
    out = output(op, tensors, dtype, out)
    rung = _rungs.chosen(op, variant, explain, variants, {**tensors, "out": out}, unfit)
    if rung is not None:
        _rungs.launch(stem, op, rung, tensors, list(tensors.values()), (out,), *scalars)
        return out
    described = views(out, tensors)
    arguments = [described[name] for name in (*tensors, "out")]
    return run(stem, symbol or op, out, tensors, *arguments, *scalars)


def on_one_device(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, with 0-d CPU tensors copied to the GPU of the others."""
    for t in tensors.values():
        if t.is_cuda:
            scalars = {n: s for n, s in tensors.items() if s.is_cpu and s.dim() == 0}
            return {**tensors, **{name: s.to(t.device) for name, s in scalars.items()}}
    return tensors


def result_type(*tensors: Tensor) -> torch.dtype:
    """The dtype of torch's promotion; for three tensors, which are floating, by our own rule."""
    return torch.result_type(*tensors) if len(tensors) == 2 else promoted(*tensors)


def output(
    op: str, tensors: dict[str, Tensor], dtype: torch.dtype, out: Any, like: str = ""
) -> Tensor:
    """The checked ``out``, or a new tensor of the broadcast shape. It is dense in the order of the
    operand ``like``, by default the first, if that has the shape."""
    device = _arguments.check_device(op, tensors)
    shape = _broadcast(op, tensors)
    if out is not None:
        return _arguments.check_out(op, out, shape, dtype, tensors, in_place=True)
    return _memory.new_result(op, shape, dtype, device, tensors[like or next(iter(tensors))])


def _broadcast(op: str, tensors: dict[str, Tensor]) -> tuple[int, ...]:
    """The common broadcast shape. torch's own function takes longer than a launch."""
    first, *others = tensors.values()
    shape: tuple[int, ...] = first.shape
    for other in others:
        if other.shape == shape:
            continue
        most = max(len(shape), len(other.shape))
        pairs = zip(*((1,) * (most - len(each)) + tuple(each) for each in (shape, other.shape)))
        sizes = [n if m == 1 else m for m, n in pairs if n in (1, m) or m == 1]
        if len(sizes) < most:
            shapes = " and ".join(f"'{name}' {list(t.shape)}" for name, t in tensors.items())
            raise RuntimeError(f"{op}(): the shapes of {shapes} do not broadcast")
        shape = tuple(sizes)
    return shape


def views(out: Tensor, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The operands and out as launcher arguments, in out's shape; with one or two dimensions if
    they have a form."""
    every = {**tensors, "out": out}
    form = _forms.elementwise(list(every.values()))
    if form is not None:
        layouts = zip(form.layouts, every.items())
        return {name: layout.of(t, form.numbers) for layout, (name, t) in layouts}
    shape = out.shape
    return {
        name: _launch.tensor(t if t.shape == shape else t.expand(shape))
        for name, t in every.items()
    }


def run(
    stem: str,
    symbol: str,
    out: Tensor,
    tensors: dict[str, Tensor],
    *arguments: Any,
    act: str = "none",
) -> Tensor:
    """Call the launcher, unless ``out`` is empty. Returns ``out``."""
    if out.numel():
        _launch.launch(stem, symbol, tensors, (out,), *arguments, act=act, part=_build.PLAIN)
    return out
