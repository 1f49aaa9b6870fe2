"""What torch sees of an op: two registered ops, its gradients, and the way that a call takes.

``torch.ops.cuda_reference.<op>`` returns new tensors and has a fake, which tracing asks, and
gradients. ``<op>_out`` writes into its last arguments, returns nothing, and refuses what autograd
would have to follow.

A call on plain tensors that wants no gradient goes straight to the op's own function, and when it
comes again to the launch that was kept of it. Every other call goes to the registered op: under
torch.compile and export, inside modes such as FakeTensorMode, with subclasses that see torch's ops,
and where autograd is to follow. The transforms of torch.func have no rules; their tensors are
refused by the checks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from cuda_reference import _launch, _prepared
from cuda_reference._memory import has_memory

NAMESPACE = "cuda_reference"
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")
_DEVICES = ("CPU", "CUDA")
_AUTOCAST = ("cpu", "cuda")
_KEPT = 256  # calls that may come again, an op
_DISABLED: Any = torch._C._disabled_torch_dispatch_impl


class TensorMeta(NamedTuple):
    """What a backward pass knows of a tensor whose values it does not read."""

    shape: torch.Size
    dtype: torch.dtype


class Gradients(NamedTuple):
    """How the gradients of an op's inputs come of its results'.

    Attributes:
        backward: of the call, and of the results' gradients, which may be None where there are two
            results; input → gradient. The call has the op's arguments by name, ``needs``, the names
            of inputs whose gradients are wanted, and ``result``. Made of differentiable ops.
        reads: input → the inputs that its gradient reads, "result" for the first result; or a
            function from the call to that. Only these are kept; the call has a TensorMeta for
            others. An input that is not there must not require grad.
    """

    backward: Callable[..., Mapping[str, Tensor | None]]
    reads: Mapping[str, Collection[str]] | Callable[[Any], Mapping[str, Collection[str]]]


class Registered:
    """An op of the CUDA side; to call with its arguments in their order.

    Args:
        name: in the namespace.
        parameters: as in a schema: "Tensor x, Scalar scale, str? variant".
        function: checks arguments that come in this order, takes ``out=``, and launches.
        fake: of the same arguments: empty results.
        gradients: without them no input may require grad.
        autocast: the dtype to which CUDA's autocast casts the inputs; or "lower", as torch's own
            products: to the dtype of autocast, on any device. The registered op does not cast.
        label: what errors call it, if it is a form of an op of another name.
        results: how many tensors it returns.
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
    ) -> None:
        declared = [parameter.split() for parameter in parameters.split(", ")]
        self.name, self.label = name, label or name
        self.names = tuple(words[1] for words in declared)
        self._tensors = [i for i, words in enumerate(declared) if words[0].startswith("Tensor")]
        # What is printed comes of the checks.
        self._explain = self.names.index("explain") if "explain" in self.names else None
        self._function, self._gradients, self._autocast = function, gradients, autocast
        # None of calls that were made once, or that cannot be kept.
        self._known: dict[tuple[Any, ...], _prepared.Prepared | None] = {}
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
        call = _prepared.ordinary(args + outs if outs else args)
        if call is None:
            if self._seen_by_others(args, outs) or (out is None and self._wants_gradient(args)):
                return self._dispatched(args, out)
            return self._straight(args, out)
        key, addresses = call
        if key not in self._known:  # to keep what may never come again takes as long as to check it
            result = self._straight(args, out)
            self._remember(key, self._known.get(key))  # which another thread may have kept by now
            return result
        known = self._known.pop(key, None)
        result = None if known is None else known.again(addresses, outs)
        if result is None:
            with _launch.noting() as noted:
                result = self._straight(args, out)
            if self._explain is None or not args[self._explain]:
                known = _prepared.prepared(noted, addresses, args, outs, result)
        self._remember(key, known)
        return result

    def _remember(self, key: tuple[Any, ...], known: _prepared.Prepared | None) -> None:
        if len(self._known) >= _KEPT:
            self._known.clear()
        self._known[key] = known

    def _cast(self, value: Any) -> Any:
        """An argument as autocast has it: of floats, all but float64."""
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

    # ---- Who wants to know of a call ----

    def _seen_by_others(self, args: tuple[Any, ...], outs: tuple[Any, ...]) -> bool:
        """Whether a tensor's class sees torch's ops, which a launch is none of."""
        given = [args[i] for i in self._tensors]
        return any(
            isinstance(t, Tensor)
            and not t.is_nested
            and type(t).__torch_dispatch__ is not _DISABLED
            for t in (*given, *outs)
        )

    def _wants_gradient(self, args: tuple[Any, ...]) -> bool:
        """And has tensors that autograd can follow; the checks refuse others."""
        given = [args[i] for i in self._tensors if isinstance(args[i], Tensor)]
        wanted = torch.is_grad_enabled() and any(t.requires_grad for t in given)
        return wanted and all(t.layout is torch.strided and has_memory(t) for t in given)

    def _refuse_gradients(self, args: tuple[Any, ...]) -> None:
        """Before ``out`` is written, which autograd would not follow."""
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

    def _keep(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save what the gradients that are wanted read, and nothing else."""
        ctx.set_materialize_grads(False)
        ctx.needs = [n for n, need in zip(self.names, ctx.needs_input_grad) if need]
        reads: Any = {} if self._gradients is None else self._gradients.reads
        if callable(reads):
            reads = reads(SimpleNamespace(**dict(zip(self.names, inputs))))
        for name in ctx.needs:
            if name not in reads:
                raise NotImplementedError(
                    f"{self.label}(): argument '{name}' requires grad, but the op has no gradient "
                    "for it; call it under torch.no_grad(), or with a detached tensor"
                )
        wanted = {read for name in ctx.needs for read in reads[name]}
        result = output[0] if isinstance(output, tuple) else output
        every = {**dict(zip(self.names, inputs)), "result": result}
        tensors = {name: t for name, t in every.items() if isinstance(t, Tensor)}
        ctx.kept = [name for name in tensors if name in wanted]
        ctx.save_for_backward(*[tensors[name] for name in ctx.kept])
        likes = {name: TensorMeta(t.shape, t.dtype) for name, t in tensors.items()}
        ctx.rest = {**every, **likes}

    def _backward(self, ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        assert self._gradients is not None, "_keep refuses"
        if all(grad is None for grad in grads):
            return (None,) * len(self.names)
        call = SimpleNamespace(**ctx.rest, needs=ctx.needs)
        for name, t in zip(ctx.kept, ctx.saved_tensors):
            setattr(call, name, t)
        # The backward of imag, say, makes lazily negated views.
        plain = (None if grad is None else grad.resolve_neg() for grad in grads)
        computed = self._gradients.backward(call, *plain)
        return tuple(computed.get(name) if name in ctx.needs else None for name in self.names)

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


def _watched() -> bool:
    """Whether torch's dispatcher is to see the calls of this thread: a mode is active, or a trace
    is written."""
    return bool(torch._C._len_torch_dispatch_stack() or torch._C._get_tracing_state() is not None)


def autocasts(device: str) -> bool:
    """Whether autocast is on for a type of device."""
    return device in _AUTOCAST and torch.is_autocast_enabled(device)


def _autocasting() -> bool:
    return any(map(torch.is_autocast_enabled, _AUTOCAST))


def empty(shape: tuple[Any, ...], dtype: torch.dtype, *tensors: Tensor) -> Tensor:
    """A fake's result, on the GPU if one of the tensors is there."""
    device = next((t.device for t in tensors if t.is_cuda), tensors[0].device)
    return torch.empty(shape, dtype=dtype, device=device)


def broadcast(*tensors: Tensor) -> tuple[Any, ...]:
    """The shape of a fake's result."""
    return tuple(torch.broadcast_shapes(*(t.shape for t in tensors)))


def promoted(*tensors: Tensor) -> torch.dtype:
    """torch.result_type of floats: those without dimensions count where all are so."""
    counting = [t for t in tensors if t.dim()] or list(tensors)
    return functools.reduce(torch.promote_types, {t.dtype for t in counting})
