"""An op as torch sees it: two registered ops, their gradients, and the path of a call.

``torch.ops.cuda_reference.<op>`` returns new tensors. It has a fake for tracing, and gradients.
``<op>_out`` writes to its last arguments, returns nothing, and refuses tensors that require grad.

A call on plain tensors goes straight to the op's own function, or through one autograd.Function if
a gradient is needed; repeated calls go to a kept launch. All other calls go to the registered op:
under torch.compile and export, inside modes such as FakeTensorMode, and with subclasses that see
torch's ops. There are no rules for the transforms of torch.func; the checks refuse their tensors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from cuda_reference import _launch, _memory, _prepared
from cuda_reference._memory import has_memory

NAMESPACE = "cuda_reference"
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")
_DEVICES = ("CPU", "CUDA")
_AUTOCAST = ("cpu", "cuda")
_KEPT = 256  # the most calls that are kept per op
_DISABLED: Any = torch._C._disabled_torch_dispatch_impl


class TensorMeta(NamedTuple):
    """Stands for a tensor in a backward pass that does not read its values."""

    shape: torch.Size
    dtype: torch.dtype


class Gradients(NamedTuple):
    """The gradients of an op's inputs.

    Attributes:
        backward: a function of the call and of the results' gradients, which returns input →
            gradient. With two results a gradient may be None. The call has as attributes the op's
            arguments by name, ``needs``, the names of inputs whose gradients are needed, and
            ``result``. The function consists of differentiable ops.
        reads: input → the tensors that its gradient reads, with "result" for the first result; or a
            function that makes this from the call, of which it reads only strings and which
            arguments are None. Only these are saved; others are replaced by a TensorMeta. An input
            that is not a key must not require grad.
    """

    backward: Callable[..., Mapping[str, Tensor | None]]
    reads: Mapping[str, Collection[str]] | Callable[[Any], Mapping[str, Collection[str]]]


class Registered:
    """A registered op of the CUDA side. Call it with all arguments in order.

    Args:
        name: the op's name in the namespace.
        parameters: the schema's parameters: "Tensor x, Scalar scale, str? variant".
        function: checks the arguments, takes ``out=``, and launches.
        fake: makes empty results from the same arguments.
        gradients: the gradients; without them no input may require grad.
        autocast: the dtype to which autocast on CUDA casts the inputs; or "lower": they are cast to
            autocast's dtype on any device, as for torch's own products. The registered op itself
            does not cast.
        label: the op's name in errors, if it is a form of an op of another name.
        results: the number of tensors that it returns.
        form: the form of a call, if apart from it no check and no launch depends on shapes.
    """

    def __init__(
        self,
        name: str,
        parameters: str,
        function: Callable[..., Any],
        fake: Callable[..., Any],
        *,
        gradients: Gradients | None = None,
        autocast: torch.dtype | Literal["lower"] | None = None,
        label: str = "",
        results: int = 1,
        form: _prepared.FormOf | None = None,
    ) -> None:
        declared = [parameter.split() for parameter in parameters.split(", ")]
        self.name, self.label = name, label or name
        self.names = tuple(words[1] for words in declared)
        self._tensors = [i for i, words in enumerate(declared) if words[0].startswith("Tensor")]
        # The checks print the explanation, so a call with ``explain`` is not kept.
        self._explain = self.names.index("explain") if "explain" in self.names else None
        self._function, self._gradients, self._autocast = function, gradients, autocast
        self._form = form
        # Key → the kept launch; None for calls that were made once, or that cannot be kept.
        self._known: dict[tuple[Any, ...], _prepared.Prepared | None] = {}
        # What is saved for a backward pass, by what it depends on.
        self._saved: dict[tuple[Any, ...], tuple[list[str], list[int]]] = {}
        title = "".join(word.capitalize() for word in name.split("_"))
        self._differentiated = _function(title, self._forward, self._backward)
        self._register(parameters, fake, results)
        self._register_out(parameters, results)

    def __call__(self, *args: Any, out: Any = None) -> Any:
        if self._autocast is not None and out is None and _autocasting():
            args = tuple(map(self._cast, args))
        if torch.compiler.is_compiling():
            return self._dispatched(args, out)
        if _watched():
            return self._dispatched(args, out)
        outs = out if isinstance(out, tuple) else () if out is None else (out,)
        if torch._C._are_functorch_transforms_active():
            return self._straight(args, out)
        if forward_ad._current_level >= 0:
            self._refuse_tangents(args)  # a kept launch is not checked
        call = _prepared.ordinary(args + outs if outs else args, self._form)
        if call is not None:
            return self._kept(call, args, out, outs)
        if out is None and self._recorded_at_once(args):
            return self._differentiated(*args)
        if self._seen_by_others(args, outs) or (out is None and self._wants_gradient(args)):
            return self._dispatched(args, out)
        return self._straight(args, out)

    def _kept(
        self, call: _prepared.Call, args: tuple[Any, ...], out: Any, outs: tuple[Tensor, ...]
    ) -> Any:
        """Launch a call that is kept, or that may be kept from now on."""
        key = call[0]
        if key not in self._known:  # the first call is not kept: keeping takes as long as checking
            result = self._straight(args, out)
            if len(self._known) >= _KEPT:
                self._known.clear()
            self._known.setdefault(key, None)  # another thread may have kept it meanwhile
            return result
        known = self._known.pop(key, None)
        result = None if known is None else known.again(call, outs)
        if result is None:
            with _launch.noting() as noted:
                result = self._straight(args, out)
            if self._explain is None or not args[self._explain]:
                known = _prepared.prepared(noted, call, outs, result)
        self._known[key] = known
        return result

    def _cast(self, value: Any) -> Any:
        """An argument, cast as autocast does: floats except float64."""
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        device = value.device.type
        if value.dtype == torch.float64 or not autocasts(device):
            return value
        if self._autocast == "lower":
            return value.to(torch.get_autocast_dtype(device))
        return value.to(self._autocast) if device == "cuda" else value

    def _straight(self, args: tuple[Any, ...], out: Any) -> Any:
        self._refuse_tangents(args)
        return self._function(*args, out=out)

    def _dispatched(self, args: tuple[Any, ...], out: Any) -> Any:
        if out is None:
            return self._functional(*args)
        self._refuse_gradients(args)
        self._mutating(*args, *(out if isinstance(out, tuple) else (out,)))
        return out

    # ---- Observers of a call ----

    def _seen_by_others(self, args: tuple[Any, ...], outs: tuple[Any, ...]) -> bool:
        """Whether a tensor's class observes torch's ops; it would not see a launch."""
        given = [args[i] for i in self._tensors]
        return any(
            isinstance(t, Tensor)
            and not t.is_nested
            and type(t).__torch_dispatch__ is not _DISABLED
            for t in (*given, *outs)
        )

    def _recorded_at_once(self, args: tuple[Any, ...]) -> bool:
        """Whether a gradient is needed, and no tensor needs the dispatcher."""
        wanted = False
        for i in self._tensors:
            t = args[i]
            if t is None:
                continue
            if type(t) not in _prepared.TENSORS or t.layout is not torch.strided:
                return False
            if t.is_neg() or not has_memory(t):
                return False
            wanted = wanted or t.requires_grad
        return wanted and torch.is_grad_enabled()

    def _wants_gradient(self, args: tuple[Any, ...]) -> bool:
        """Whether a gradient is needed and autograd can record the call's tensors. The checks
        refuse other tensors."""
        given = [args[i] for i in self._tensors if isinstance(args[i], Tensor)]
        wanted = torch.is_grad_enabled() and any(t.requires_grad for t in given)
        return wanted and all(t.layout is torch.strided and has_memory(t) for t in given)

    def _refuse_gradients(self, args: tuple[Any, ...]) -> None:
        """Raise if an input requires grad. Called before ``out`` is written, which autograd would
        not record."""
        if torch.is_grad_enabled():
            for i in self._tensors:
                if isinstance(args[i], Tensor) and args[i].requires_grad:
                    raise RuntimeError(
                        f"{self.label}(): argument '{self.names[i]}' requires grad, and a call "
                        "with 'out' has no gradient; call it without out, or under torch.no_grad()"
                    )

    def _refuse_tangents(self, args: tuple[Any, ...]) -> None:
        if forward_ad._current_level < 0:
            return
        for i in self._tensors:
            if isinstance(args[i], Tensor) and forward_ad.unpack_dual(args[i]).tangent is not None:
                raise NotImplementedError(
                    f"{self.label}(): argument '{self.names[i]}' carries a forward-mode tangent, "
                    "and there are reverse-mode gradients only"
                )

    # ---- autograd ----

    def _forward(self, ctx: Any, *args: Any) -> Any:
        call = _prepared.ordinary(args, self._form)
        if call is None:
            result = self._straight(args, None)
        else:
            result = self._kept(call, args, None, ())
        self._keep(ctx, args, result)
        return result

    def _keep(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save the tensors that the needed gradients read, and no others."""
        ctx.set_materialize_grads(False)
        key = needed = ctx.needs_input_grad
        if self._gradients is not None and callable(self._gradients.reads):
            key = needed, *[value if type(value) is str else value is None for value in inputs]
        if key not in self._saved:
            self._saved[key] = self._saved_for(needed, inputs)
        ctx.needs, ctx.kept = self._saved[key]
        every = (*inputs, output[0] if isinstance(output, tuple) else output)
        ctx.save_for_backward(*[every[i] for i in ctx.kept])
        ctx.rest = [
            TensorMeta(value.shape, value.dtype) if isinstance(value, Tensor) else value
            for value in every
        ]

    def _saved_for(
        self, needed: tuple[bool, ...], inputs: tuple[Any, ...]
    ) -> tuple[list[str], list[int]]:
        """The names of inputs whose gradients are needed, and the indices of what is saved for
        them, among the inputs and the first result."""
        needs = [name for name, need in zip(self.names, needed) if need]
        reads: Any = {} if self._gradients is None else self._gradients.reads
        if callable(reads):
            reads = reads(SimpleNamespace(**dict(zip(self.names, inputs))))
        for name in needs:
            if name not in reads:
                raise NotImplementedError(
                    f"{self.label}(): argument '{name}' requires grad, but the op has no gradient "
                    "for it; call it under torch.no_grad(), or with a detached tensor"
                )
        wanted = {read for name in needs for read in reads[name]}
        every = {**{self.names[i]: i for i in self._tensors}, "result": len(self.names)}
        return needs, [i for name, i in every.items() if name in wanted]

    def _backward(self, ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        assert self._gradients is not None, "_keep has raised"
        if all(grad is None for grad in grads):
            return (None,) * len(self.names)
        rest = ctx.rest[:]
        for i, saved in zip(ctx.kept, ctx.saved_tensors):
            rest[i] = saved
        call = SimpleNamespace(**dict(zip((*self.names, "result"), rest)), needs=ctx.needs)
        # For example, the backward of imag makes lazily negated views.
        plain = [None if grad is None else grad.resolve_neg() for grad in grads]
        computed = self._gradients.backward(call, *plain)
        return tuple([computed.get(name) if name in ctx.needs else None for name in self.names])

    # ---- Registration ----

    def _register(self, parameters: str, fake: Callable[..., Any], results: int) -> None:
        returns = ", ".join(["Tensor"] * results)
        whole = self._define(self.name, f"({parameters}) -> ({returns})", self._launched)
        torch.library.register_fake(whole, fake, lib=_LIBRARY)
        torch.library.register_autograd(
            whole, self._backward, setup_context=self._keep, lib=_LIBRARY
        )
        self._functional = getattr(torch.ops.cuda_reference, self.name).default

    def _launched(self, *args: Any) -> Any:
        self._refuse_tangents(args)
        return self._function(*args)

    def _register_out(self, parameters: str, results: int) -> None:
        name, count = f"{self.name}_out", len(self.names)
        outs = ["Tensor(a!) out"] if results == 1 else ["Tensor(a!) out0", "Tensor(b!) out1"]

        def write(*args: Any) -> None:
            self._function(*args[:count], out=args[-1] if results == 1 else args[count:])

        def refuse_gradients(keyset: Any, *args: Any) -> None:
            self._refuse_gradients(args)
            torch.autograd.graph.increment_version(args[count:])
            with torch._C._AutoDispatchBelowAutograd():
                op.redispatch(keyset & torch._C._after_autograd_keyset, *args)

        whole = self._define(name, f"({', '.join([parameters, *outs])}) -> ()", write)
        _LIBRARY.impl(name, refuse_gradients, "Autograd", with_keyset=True)
        torch.library.register_fake(whole, lambda *args: None, lib=_LIBRARY)
        self._mutating = op = getattr(torch.ops.cuda_reference, name).default

    @staticmethod
    def _define(name: str, schema: str, function: Callable[..., Any]) -> str:
        _LIBRARY.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
        for device in _DEVICES:
            _LIBRARY.impl(name, function, device)
        return f"{NAMESPACE}::{name}"


def _function(
    name: str, forward: Callable[..., Any], backward: Callable[..., Any]
) -> Callable[..., Any]:
    """The apply of an autograd.Function, without its work for torch.func's wrappers."""

    def of_grads(ctx: Any, *grads: Any) -> Any:  # torch's compiled autograd takes no method
        return backward(ctx, *grads)

    methods = {"forward": staticmethod(forward), "backward": staticmethod(of_grads)}
    function: Any = type(name, (torch.autograd.Function,), methods)
    apply: Callable[..., Any] = super(torch.autograd.Function, function).apply
    return apply


def _watched() -> bool:
    """Whether torch's dispatcher must see this thread's calls: a mode is active, or a trace is
    recorded."""
    return bool(torch._C._len_torch_dispatch_stack() or torch._C._get_tracing_state() is not None)


def autocasts(device: str) -> bool:
    """Whether autocast is on for a type of device."""
    return device in _AUTOCAST and torch.is_autocast_enabled(device)


def _autocasting() -> bool:
    return any(map(torch.is_autocast_enabled, _AUTOCAST))


def empty(
    shape: tuple[Any, ...], dtype: torch.dtype, *tensors: Tensor, like: Tensor | None = None
) -> Tensor:
    """A fake's result, on the GPU if one of the tensors is on a GPU. ``like``: as for
    :func:`_memory.empty`."""
    device = next((t.device for t in tensors if t.is_cuda), tensors[0].device)
    return _memory.empty(shape, dtype, device, like)


def broadcast(*tensors: Tensor) -> tuple[Any, ...]:
    """The shape of a fake's result."""
    return tuple(torch.broadcast_shapes(*(t.shape for t in tensors)))


def promoted(*tensors: Tensor) -> torch.dtype:
    """torch.result_type of any number of floating tensors: 0-d tensors count only if all are
    0-d."""
    counting = [t for t in tensors if t.dim()] or list(tensors)
    return functools.reduce(torch.promote_types, {t.dtype for t in counting})
