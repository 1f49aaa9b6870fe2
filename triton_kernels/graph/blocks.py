"""For replace_modules: blocks of a model with their own forward, such as GPT2MLP, ViTMLP, LlamaMLP.

torch.compile's tracer sees what a forward does between its layers. Its guards notice later changes
of the training flag, of dtypes and of attributes. The block remains in the model, with its layers
and their names. Its class becomes a subclass with another forward, as FSDP and parametrizations
also do. This forward checks each call, and calls the original forward if a layer has changed: if it
was wrapped, quantised or sharded, or has hooks.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from triton_kernels import _elementwise_kernels, _launch
from triton_kernels.graph import forms
from triton_kernels.graph.fusing import as_written, call_compiled, compiled, own_code
from triton_kernels.graph.planning import Options, Plan, rewrite

# The attribute of a replaced block with its Record.
RECORD = "_replaced_block"
# The leading dimensions of the example with which a block is traced; the first is marked dynamic.
_EXAMPLE = (2, 8)


class Record(NamedTuple):
    """The state of a block when it was replaced. Blocks with equal records share their graphs."""

    options: Options
    children: tuple[tuple[str, type[nn.Module]], ...]
    shapes: tuple[tuple[int, ...], ...]


class FusedBlock(nn.Module):
    """The mixin of a replaced block's class. ``original`` is the block's original class."""

    original: type[nn.Module]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not _ordinary(self, args, kwargs):
            return self.original.forward(self, *args, **kwargs)
        interpreted = _launch.interpreted(_elementwise_kernels.flat_kernel)  # no guard checks it
        original: Any = self.original  # a class; to mypy, modules are not hashable
        call, latest = _call_for(original, getattr(self, RECORD), interpreted)
        return call_compiled(call, _call_original, latest, self, *args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """For pickle and deepcopy, which cannot find a class made here by its name."""
        return _empty, (self.original,), self.__getstate__()  # type: ignore[no-untyped-call]


def _empty(original: Any) -> Any:
    block = _fused_class(original)
    return block.__new__(block)


@functools.cache
def _fused_class(original: Any) -> Any:
    """A subclass with the same name, because wrapping policies and other code compare names."""
    names = {
        "original": original,
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
    }
    return type(original.__name__, (FusedBlock, original), names)


def _call_original(block: FusedBlock, /, *args: Any, **kwargs: Any) -> Any:
    return block.original.forward(block, *args, **kwargs)


@functools.cache
def _call_for(
    original: Any, record: Record, interpreted: bool
) -> tuple[Callable[..., Any], list[Plan]]:
    """A compiled forward, and the list of the latest call's plans."""
    latest: list[Plan] = []
    call = compiled(record.options, latest, by="replace_modules", function=_call_original)
    return call, latest


def _ordinary(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call may be fused: it is not traced, and the layers have not changed."""
    if as_written():
        return False
    tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
    if any(type(t) not in (Tensor, nn.Parameter) for t in tensors):
        return False
    record: Record = getattr(block, RECORD)
    children = block._modules
    return len(children) == len(record.children) and all(
        type(child := children.get(name)) is kind and _plain(child)
        for name, kind in record.children
    )


def _plain(child: Any) -> bool:
    if type(child) is nn.Linear:
        return not forms.unfit_linear(child)
    parameters = child._parameters.values()
    return not forms.has_hooks(child) and all(
        p is None or (type(p) is nn.Parameter and type(p.data) is Tensor) for p in parameters
    )


# ---- replacing ----


def candidates(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """(name, module) of the smallest modules that call linear layers: no descendants below their
    children have parameters."""
    for name, module in model.named_modules():
        if _why_no_block(module) == "":
            yield name, module


def _why_no_block(module: nn.Module) -> str:
    kind = type(module)
    if isinstance(module, (nn.Sequential, nn.Linear, GraphModule, torch.jit.ScriptModule)):
        return "no block"
    if kind.__module__.split(".")[0] in ("torch", "triton_kernels") or hasattr(module, RECORD):
        return "no block"
    if "forward" in vars(module) or kind.__reduce_ex__ is not object.__reduce_ex__:
        return "no block"
    if kind.__reduce__ is not object.__reduce__ or nn.utils.parametrize.is_parametrized(module):
        return "no block"
    inner = [c for child in module.children() for c in child.modules() if c is not child]
    if any(c._parameters for c in inner) or not list(_widths(module)):
        return "no block"
    return "" if _takes_one(kind) else "several arguments"


def _takes_one(kind: type[nn.Module]) -> bool:
    _, *parameters = inspect.signature(kind.forward).parameters.values()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [p for p in parameters if p.default is p.empty and p.kind not in variadic]
    return len(required) == 1 and required[0].kind in positional and parameters[0] is required[0]


def _widths(block: nn.Module) -> Iterator[int]:
    """The widths of its layers' inputs: of Linear, whose weight is [out, in], and of layers with a
    weight [in, out], as in GPT-2."""
    for child in block.children():
        weight = child._parameters.get("weight")
        if type(weight) is nn.Parameter and weight.dim() == 2 and not _is_table(child):
            yield weight.shape[1] if isinstance(child, nn.Linear) else weight.shape[0]


def _is_table(child: nn.Module) -> bool:
    return isinstance(child, (nn.Embedding, nn.EmbeddingBag))


def plan(block: nn.Module, options: Options) -> Plan | str:
    """The plan of a block, or why there is none. The block is traced, but not run."""
    weight = next(p for child in block.children() for p in child.parameters() if p.dim() == 2)
    if weight.device.type == "meta":
        return "on device meta"
    reason = ""
    for width in dict.fromkeys(_widths(block)):
        x = torch.empty((*_EXAMPLE, width), dtype=weight.dtype, device=weight.device)
        torch._dynamo.maybe_mark_dynamic(x, 0)  # type: ignore[no-untyped-call]
        traced = _traced(block, x, options)
        if isinstance(traced, Plan):
            return traced
        reason = reason or traced
    return reason


class _Seen(Exception):
    """Raised to end a trace before anything runs."""


def _call_forward(block: nn.Module, /, x: Tensor) -> Any:
    return type(block).forward(block, x)


def _traced(block: nn.Module, x: Tensor, options: Options) -> Plan | str:
    plans: list[Plan] = []

    def collect(graph: GraphModule, examples: Any) -> Any:
        plans.append(rewrite(graph, options))
        raise _Seen

    trace = torch.compile(own_code(_call_forward), backend=collect, fullgraph=True)
    try:
        with torch._dynamo.config.patch(suppress_errors=False), _silent():
            trace(block, x)
    except Exception as error:  # noqa: BLE001, any forward may raise anything
        if not plans:
            line = str(error).strip().partition("\n")[0]
            return f"{type(block).__name__} cannot be traced: {line or type(error).__name__}"
    return plans[0] if plans else f"{type(block).__name__} computes nothing that can be traced"


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Suppress torch's log of an example with a wrong width, as the first of several may be. The
    report says what was left and why."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def replace(block: nn.Module, options: Options) -> None:
    """Change the block's class, so that it fuses what it can."""
    kinds = tuple((name, type(child)) for name, child in block.named_children())
    shapes = tuple(tuple(p.shape) for p in block.parameters())
    vars(block)[RECORD] = Record(options, kinds, shapes)
    original: Any = type(block)
    block.__class__ = _fused_class(original)


def restore(block: Any) -> None:
    """Undo :func:`replace`."""
    block.__class__ = block.original
    del vars(block)[RECORD]


def restorable(block: nn.Module) -> bool:
    """Whether the block has the class that :func:`replace` gave it."""
    original: Any = getattr(block, "original", None)
    return isinstance(block, FusedBlock) and type(block) is _fused_class(original)
