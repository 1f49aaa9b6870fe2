"""An op as torch sees it: two registered ops, their gradients, and the path of a call.

``torch.ops.triton_kernels.<op>`` returns a new tensor. It has a fake for tracing, gradients and
forward-mode tangents, a rule for vmap, and one for autocast if torch's own op has that.
``<op>_out`` writes to its last argument, returns nothing, and refuses tensors that require grad.

Going through a registered op takes about as long as the launch itself. So a call on plain tensors
goes straight to the launcher, or to one autograd.Function if a gradient is needed. The registered
op is called if something observes the call: torch.compile, export and make_fx, FakeTensor, DTensor
and other subclasses, modes (TorchDispatchMode), transforms (torch.func), torch.jit.trace. The
private torch API for this test is in :meth:`Operator._observed`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType, SimpleNamespace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch._functorch.utils import enable_single_level_autograd_function, unwrap_dead_wrappers
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from triton_kernels import _arguments, _replay
from triton_kernels._placements import Sharding
from triton_kernels._plans import Counted
from triton_kernels._tangents import carried, dual, is_batch, pushed

NAMESPACE = "triton_kernels"
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")
_COMPLIANT = (torch.Tag.pt2_compliant_tag,)
_SHARDINGS: dict[str, Sharding] = {}  # of the registered ops, by name
_PLAIN = frozenset({Tensor, torch.nn.Parameter})
# What traces the calls of this thread; None if nothing does, as in graphs that are compiled.
_tracer: Callable[[], Any] = getattr(
    torch._C._dynamo.eval_frame, "get_eval_frame_callback", lambda: True
)
_AUTOCAST_KEYS = {"cuda": "AutocastCUDA", "cpu": "AutocastCPU"}

Batched = Callable[["Operator", tuple[Any, ...], tuple[Any, ...]], tuple[Any, Any]]


class TensorMeta(NamedTuple):
    """Stands for an input tensor in a backward pass that does not read its values."""

    shape: torch.Size
    dtype: torch.dtype


@dataclass(frozen=True)
class Gradient:
    """The gradient of one input.

    Attributes:
        formula: computes it from the result's gradient and the call's arguments, which are
            attributes by name. Input tensors that no gradient reads are replaced by a
            :class:`TensorMeta`. The formula consists of differentiable ops, so that there is a
            second derivative.
        reads: the names of the inputs whose values the formula reads. Only these are saved.
    """

    formula: Callable[[Tensor, Any], Tensor]
    reads: tuple[str, ...] = ()


class Operator:
    """A registered op. A call takes the shortest correct path.

    Args:
        name: the op's name in the namespace.
        parameters: the schema's parameters, "Tensor x, Scalar scale".
        launch: checks the arguments, takes ``out=``, launches. It is called with plain tensors
            only.
        fake: makes an empty result with the right shape, dtype and strides from the arguments.
        gradients: input's name → its gradient. An input without one must not require grad. A
            subclass with its own :meth:`_keep` and :meth:`_backward` needs no gradients here.
        batched: the rule for vmap, called with (operator, in_dims, arguments).
        autocast: the dtype to which autocast on CUDA casts the inputs; or "lower": they are cast to
            autocast's dtype on any device, as for torch's own products; None for no cast.
        label: the op's name in errors, if it is a form of an op of another name.
        results: the number of tensors that it returns. Only with one there is ``<op>_out``.
        sharding: the rules for DTensors; without them DTensor refuses the op.
        numbers: index of an argument that is a number → its index among the kernel's arguments. The
            kernel takes it unchanged, after :func:`triton_kernels._arguments.number`.
        counted: as in :class:`triton_kernels._replay.Replays`.
    """

    def __init__(
        self,
        name: str,
        parameters: str,
        launch: Callable[..., Any],
        fake: Callable[..., Any],
        *,
        gradients: Mapping[str, Gradient] = MappingProxyType({}),
        batched: Batched,
        autocast: torch.dtype | Literal["lower"] | None = None,
        label: str = "",
        results: int = 1,
        sharding: Sharding | None = None,
        numbers: Mapping[int, int] = MappingProxyType({}),
        counted: Counted | None = None,
    ) -> None:
        declared = [parameter.split() for parameter in parameters.split(", ")]
        self.name, self.label = name, label or name
        self.names = tuple(words[1] for words in declared)
        self.tensors = tuple(i for i, words in enumerate(declared) if words[0].startswith("Tensor"))
        self.launch = launch
        count = len(self.names)
        self.replays = _replay.Replays(launch, count, self.tensors, numbers, counted)
        self.gradients = gradients
        self.autocast = autocast
        self._kept: dict[tuple[bool, ...], tuple[int, ...]] = {}
        self._register(parameters, fake, batched, results)
        if sharding is not None:
            _SHARDINGS[name] = sharding
        title = "".join(word.capitalize() for word in name.split("_"))

        def backward(ctx: Any, *grads: Tensor) -> Any:  # torch's compiled autograd takes no method
            return self._backward(ctx, *grads)

        self._function = _function(title, forward=self._forward, backward=backward)
        # The apply of the base class skips the work for torch.func's wrappers. It is only used for
        # replayed calls, whose tensors are no wrappers.
        function: Any = torch.autograd.Function
        self._differentiated = super(function, self._function).apply  # type: ignore[misc]

    def __call__(self, *args: Any, out: Tensor | None = None) -> Any:
        if out is None and not torch.compiler.is_dynamo_compiling():
            results = self.replays.again(args)
            if results is _replay.DIFFERENTIATED:
                return self._differentiated(*args)
            if results is not None:
                return results
        if self.followed(args, out):
            _register_sharding()
            if out is not None:
                self.mutating(*args, out)
                return out
            return self.functional(*args)
        if out is None:
            if torch.is_grad_enabled() and self._requires_grad(args):
                return self._function.apply(*args)
            return self.replays(args)
        written = self.launch(*args, out=out)
        torch.autograd.graph.increment_version(written)
        return written

    def followed(self, args: tuple[Any, ...], out: Tensor | None = None) -> bool:
        """Whether something must see this call as a registered op's, because it does not see a
        launch."""
        return torch.compiler.is_compiling() or self._observed(args, out)

    def _observed(self, args: tuple[Any, ...], out: Tensor | None) -> bool:
        for i in self.tensors:
            if type(args[i]) not in _PLAIN and isinstance(args[i], Tensor):
                _arguments.refuse_nested(self.label, self.names[i], args[i])
                return True
        if type(out) not in _PLAIN and isinstance(out, Tensor):
            _arguments.refuse_nested(self.label, "out", out)
            return True
        return bool(
            torch._C._len_torch_dispatch_stack()
            or torch._C._are_functorch_transforms_active()
            or torch._C._get_tracing_state() is not None
            or (self.autocast is not None and self._autocasting())
            or (forward_ad._current_level >= 0 and carried(args))
            or (torch._C._current_graph_task_id() >= 0 and any(map(is_batch, args)))
        )

    def _autocasting(self) -> bool:
        lower = self.autocast == "lower"
        return torch.is_autocast_enabled("cuda") or (lower and torch.is_autocast_enabled("cpu"))

    def _requires_grad(self, args: tuple[Any, ...]) -> bool:
        for i in self.tensors:  # noqa: SIM110 - a generator takes longer, and this is every call
            if isinstance(args[i], Tensor) and args[i].requires_grad:
                return True
        return False

    # ---- autograd ----

    def _forward(self, ctx: Any, *args: Any) -> Any:
        out = self.replays.again(args)
        if out is None:
            out = self.replays(args)
        self._keep(ctx, args, out)
        return out

    def _keep(self, ctx: Any, args: tuple[Any, ...], out: Any) -> None:
        """Save the inputs that the needed gradients read, and no others."""
        needed = ctx.needs_input_grad
        kept = self._kept.get(needed)
        if kept is None:
            wanted = [name for name, need in zip(self.names, needed) if need]
            for name in wanted:
                if name not in self.gradients:
                    raise NotImplementedError(
                        f"{self.label}(): argument '{name}' requires grad, but the op has no "
                        "gradient for it; call it under torch.no_grad(), or with a detached tensor"
                    )
            reads = {read for name in wanted for read in self.gradients[name].reads}
            kept = tuple(i for i in self.tensors if self.names[i] in reads)
            self._kept[needed] = kept
        rest = list(args)
        for i in self.tensors:
            rest[i] = None if i in kept else TensorMeta(args[i].shape, args[i].dtype)
        ctx.save_for_backward(*[args[i] for i in kept])
        ctx.kept, ctx.rest = kept, rest

    def _backward(self, ctx: Any, grad: Any) -> tuple[Tensor | None, ...]:
        inputs = SimpleNamespace(**dict(zip(self.names, ctx.rest)))
        for i, saved in zip(ctx.kept, saved_by(ctx)):
            setattr(inputs, self.names[i], saved)
        grad = grad.resolve_neg()  # for example, the backward of imag makes lazily negated views
        return tuple(
            self.gradients[name].formula(grad, inputs) if need else None
            for name, need in zip(self.names, ctx.needs_input_grad)
        )

    # ---- registration ----

    def _register(
        self,
        parameters: str,
        fake: Callable[..., Any],
        batched: Batched,
        results: int,
    ) -> None:
        """Register both ops, and set ``functional`` and ``mutating`` to them."""
        whole = f"{NAMESPACE}::{self.name}"
        returned = ", ".join(["Tensor"] * results)
        _LIBRARY.define(f"{self.name}({parameters}) -> ({returned})", tags=_COMPLIANT)
        self.functional = getattr(torch.ops.triton_kernels, self.name).default

        _LIBRARY.impl(self.name, _untraced(self._compute), "CompositeExplicitAutograd")
        torch.library.register_fake(whole, fake, lib=_LIBRARY)
        self._register_gradients(results)
        torch.library.register_vmap(
            whole, lambda info, in_dims, *args: batched(self, in_dims, args), lib=_LIBRARY
        )
        if self.autocast == "lower":
            for device in _AUTOCAST_KEYS:
                self._register_lower(device)
        elif self.autocast is not None:
            torch.library.register_autocast(whole, "cuda", self.autocast, lib=_LIBRARY)
        if results == 1:
            self._register_out(f"{self.name}_out", parameters)

    def _compute(self, *args: Any) -> Any:
        with torch.no_grad():  # gradients are recorded already
            results = self.replays.again(args)
            return self.replays(args) if results is None else results

    def _register_gradients(self, results: int) -> None:
        """Record gradients as torch's own ops do. A custom_op would do it with an autograd.Function
        that torch.func's transforms refuse, in eager mode and in torch.compile."""
        op = self.functional

        def below(*args: Any) -> Any:
            *inputs, keyset = args
            with torch._C._AutoDispatchBelowAutograd():
                return op.redispatch(keyset & torch._C._after_autograd_keyset, *inputs)

        def forward(ctx: Any, *args: Any) -> Any:
            # A Function switches them off, but outer transforms still record.
            with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
                if carried(args):
                    ctx.given = args  # for jvp, which follows at once
                out = below(*args)
            self._keep(ctx, args[:-1], out)
            return out

        def jvp(ctx: Any, *tangents: Tensor | None) -> Any:
            *args, keyset = ctx.given
            ctx.given = None
            _, out = pushed(functools.partial(record, keyset), args, tangents[:-1])
            return out[0] if results == 1 else out

        def backward(ctx: Any, *grads: Tensor) -> Any:
            return *self._backward(ctx, *grads), None

        # The dispatcher calls it for one transform at a time.
        function = _function(
            self.name, _SingleLevelFunction, forward=forward, backward=backward, jvp=jvp
        )

        @_untraced
        def record(keyset: Any, *args: Any) -> Any:
            if torch.is_grad_enabled() and torch._C._any_requires_grad(*args):
                with enable_single_level_autograd_function():
                    return function.apply(*args, keyset)
            if carried(args):
                tangents = [dual(t).tangent if isinstance(t, Tensor) else None for t in args]
                both = pushed(functools.partial(record, keyset), args, tangents)
                duals = tuple(forward_ad.make_dual(*pair, level=0) for pair in zip(*both))
                return duals[0] if results == 1 else duals
            if _last(keyset) in _DEVICES:
                return self._compute(*args)  # the dispatcher would come to this, too, but later
            return below(*args, keyset)

        _LIBRARY.impl(self.name, record, "Autograd", with_keyset=True)

    def _register_lower(self, device: str) -> None:
        """Cast as autocast does for torch's products: floats, except float64, to its dtype."""
        keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)
        keys = keys | torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

        def lower(t: Any) -> Any:
            if not isinstance(t, Tensor) or not t.is_floating_point() or t.device.type != device:
                return t
            if t.dtype == torch.float64:
                return t
            if _cached_by_autocast(t):
                t = torch.einsum("...->...", t)
            return t.to(torch.get_autocast_dtype(device))

        def cast(keyset: Any, *args: Any) -> Any:
            lowered = list(map(lower, args))  # while autocast is on, for its cache of casts
            with torch._C._ExcludeDispatchKeyGuard(keys):
                return self.functional(*lowered)

        _LIBRARY.impl(self.name, cast, _AUTOCAST_KEYS[device], with_keyset=True)

    def _register_out(self, name: str, parameters: str) -> None:
        _LIBRARY.define(f"{name}({parameters}, Tensor(a!) out) -> ()", tags=_COMPLIANT)
        self.mutating = op = getattr(torch.ops.triton_kernels, name).default

        def write(*args: Any) -> None:
            self.launch(*args[:-1], out=args[-1])

        def refuse_gradients(keyset: Any, *args: Any) -> None:
            if torch.is_grad_enabled():
                named = zip((*self.names, "out"), args)
                _arguments.refuse_gradients(self.label, _arguments.NO_GRADIENT_WITH_OUT, named)
            if carried(args):
                raise NotImplementedError(
                    f"{self.label}(): out= does not work with forward-mode derivatives"
                )
            torch.autograd.graph.increment_version(args[-1])
            with torch._C._AutoDispatchBelowAutograd():
                op.redispatch(keyset & torch._C._after_autograd_keyset, *args)

        def refuse_vmap(info: Any, in_dims: Any, *args: Any) -> Any:
            raise NotImplementedError(
                f"{self.label}(): out= does not work inside vmap; call it without out"
            )

        _LIBRARY.impl(name, write, "CompositeExplicitAutograd")
        _LIBRARY.impl(name, refuse_gradients, "Autograd", with_keyset=True)
        torch.library.register_fake(f"{NAMESPACE}::{name}", lambda *args: None, lib=_LIBRARY)
        torch.library.register_vmap(f"{NAMESPACE}::{name}", refuse_vmap, lib=_LIBRARY)


def _cached_by_autocast(t: Tensor) -> bool:
    """Whether autocast caches the cast of t for torch's own products, as it does for weights. Only
    torch's own functions can use the cache; on CUDA, an einsum of one operand is such a function
    that computes nothing."""
    return (
        t.device.type == "cuda"
        and type(t) in _PLAIN
        and t.dtype == torch.float32
        and t.requires_grad
        and t.is_leaf
        and torch.is_autocast_cache_enabled()
    )


def _register_sharding() -> None:
    """Register the sharding rules if torch.distributed.tensor is loaded: there may be DTensors."""
    if "torch.distributed.tensor" in sys.modules:
        from triton_kernels import _sharding

        _sharding.register(_SHARDINGS)


# torch.compile calls it while tracing. This is torch.compiler.assume_constant_result, which would
# import torch._dynamo and take half a second in every process.
_register_sharding._dynamo_marked_constant = True  # type: ignore[attr-defined]


def saved_by(ctx: Any) -> tuple[Any, ...]:
    """What a forward pass has saved. Where a transform of torch.func has ended since, as in the
    function that vjp returns, the saved tensors are its wrappers, which have no memory."""
    return unwrap_dead_wrappers(ctx.saved_tensors)


_DEVICES = (torch._C.DispatchKey.CUDA, torch._C.DispatchKey.CPU)
_AFTER_AUTOGRAD = torch._C._after_autograd_keyset.remove(torch._C.DispatchKey.ADInplaceOrView)


def _last(keyset: Any) -> Any:
    """The dispatcher's next key after autograd. It is a device if there are no modes, subclasses,
    transforms or lazy negations."""
    return (keyset & _AFTER_AUTOGRAD).highestPriorityTypeId()


def _untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, into which torch.compile's tracer does not look. After a graph break it would
    trace launches. The tracer takes long to import, and this does not import it."""
    untraced = _disable_dynamo(function)

    def call(*args: Any) -> Any:
        if _tracer() is None:
            return function(*args)
        return (untraced if "torch._dynamo" in sys.modules else function)(*args)

    return call


def one_by_one(
    operator: Operator, in_dims: tuple[Any, ...], args: tuple[Any, ...]
) -> tuple[Any, Any]:
    """The rule for vmap of ops without a batched form: one call per element, results stacked."""
    size = next(a.shape[d] for a, d in zip(args, in_dims) if d is not None)
    if not size:
        raise NotImplementedError(f"{operator.label}(): vmap over a dimension of size 0")
    results = []
    for i in range(size):
        chosen = (a if d is None else a.select(d, i) for a, d in zip(args, in_dims))
        results.append(operator(*chosen))
    if isinstance(results[0], Tensor):
        return torch.stack(results), 0
    return tuple(torch.stack(each) for each in zip(*results)), (0,) * len(results[0])


def _function(name: str, base: Any = torch.autograd.Function, **methods: Callable[..., Any]) -> Any:
    """An autograd.Function with these static methods."""
    static: dict[str, Any] = {
        method: staticmethod(function) for method, function in methods.items()
    }
    # Compiled autograd asks for it; the base class for single levels lacks it.
    static["_compiled_autograd_key"] = torch.autograd.Function._compiled_autograd_key
    return type(name, (base,), static)
