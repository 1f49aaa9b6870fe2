"""fuse: a module that computes the same with the fused kernels, by torch.fx's symbolic trace."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Interpreter, Node, Proxy, Tracer

from triton_kernels import _elementwise, _launch
from triton_kernels.graph import capabilities, forms
from triton_kernels.graph.matching import PASSES
from triton_kernels.graph.planning import Options, Plan, rewrite


def fuse(
    module: nn.Module,
    *,
    min_score: float = capabilities.MIN_SCORE,
    passes: Sequence[str] = PASSES,
) -> Fused:
    """A module that computes what ``module`` does, with its linear layers, activations, residuals
    and elementwise chains fused into this package's kernels where these are faster.

    Parameters and buffers are the module's own. The graph is traced and planned at the first call
    with each kind of inputs, so that shapes, dtypes and devices are known; ``plan`` of
    the result says what became of it.

    Args:
        module: what torch.fx can trace: no control flow on tensors. For the rest there is
            ``torch.compile(module, backend="triton_kernels")``.
        min_score: the least expected speed relative to eager's at which a kernel is taken; 0
            fuses everything that can be.
        passes: the rewriting passes that run, of "elementwise" and "epilogue".

    Raises:
        TypeError: ``module`` is no torch.nn.Module, or an option has a wrong type; at a call, an
            argument that is neither a tensor nor a plain value.
        ValueError: an unknown pass.
        RuntimeError: at the first call, torch.fx cannot trace the module.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"fuse(): argument 'module' must be a module, not {type(module).__name__}")
    return Fused(module, Options(min_score, passes))


class Fused(nn.Module):
    """What :func:`fuse` returns. The original is its child ``module``.

    Hooks are run as they were when the plan was made; train(), eval() and .to() plan anew.
    """

    def __init__(self, module: nn.Module, options: Options) -> None:
        super().__init__()
        self.module = module
        self._options = options
        self._planned: dict[Any, tuple[GraphModule, Plan]] = {}
        self._latest: Plan | None = None
        self.train(module.training)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(self.module.forward).bind(*args, **kwargs)
        bound.apply_defaults()
        key = _signature(bound.arguments)
        if key not in self._planned:
            self._planned[key] = _plan(self.module, bound.arguments, self._options)
        graph, self._latest = self._planned[key]
        return graph(*bound.arguments.values())

    @property
    def plan(self) -> Plan:
        """The plan of the latest call.

        Raises:
            RuntimeError: there was none yet.
        """
        if self._latest is None:
            raise RuntimeError("fuse(): there is a plan once the module has been called")
        return self._latest

    def train(self, mode: bool = True) -> Fused:
        self._planned = {}
        return super().train(mode)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Any:
        self._planned = {}
        return super()._apply(fn, recurse)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_planned": {}}  # plans are made again


def _signature(arguments: dict[str, Any]) -> tuple[Any, ...]:
    """What a plan depends on: the tensors' kinds, the other arguments' values, torch's modes."""
    kinds: list[Any] = [_launch.interpreted(_elementwise.flat_kernel)]
    kinds += [torch.is_autocast_enabled(device) for device in ("cuda", "cpu")]
    for name, value in arguments.items():
        if isinstance(value, Tensor):
            kind = type(value), tuple(value.shape), value.dtype, value.device
            kinds.append((name, kind))
        elif value is None or isinstance(value, (bool, int, float, str, torch.dtype)):
            kinds.append((name, type(value), value))
        else:
            raise TypeError(
                f"fuse(): argument '{name}' is a {type(value).__name__}; a fused module takes "
                'tensors and plain values. torch.compile(module, backend="triton_kernels") takes '
                "all"
            )
    return tuple(kinds)


def _plan(
    module: nn.Module, arguments: dict[str, Any], options: Options
) -> tuple[GraphModule, Plan]:
    fixed = {name: value for name, value in arguments.items() if not isinstance(value, Tensor)}
    try:
        graph = _Tracer().trace(module, concrete_args=fixed)
    except Exception as error:
        raise RuntimeError(
            f"fuse(): torch.fx cannot trace {type(module).__name__}: {error}. "
            'torch.compile(module, backend="triton_kernels") needs no trace of the whole'
        ) from error
    traced = GraphModule(module, graph)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = (mode.from_tensor(v) if isinstance(v, Tensor) else v for v in arguments.values())
        _ExampleValues(traced).run(*fakes)
    plan = rewrite(traced, options)
    return traced, plan


class _Proxy(Proxy):
    """torch.fx's, which turns ``x += y`` into ``x = x + y``: then nobody else would see the sum."""

    def __setitem__(self, key: Any, value: Any) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, key, value), {})


def _in_place(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Proxy, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    return method


for _name in "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift".split():  # noqa: SIM905
    setattr(_Proxy, f"__i{_name}__", _in_place(getattr(operator, f"__i{_name}__")))


class _Tracer(Tracer):
    """torch.fx's, which does not look into this package's modules or hooked ones."""

    def proxy(self, node: Node) -> Proxy:
        return _Proxy(node, self)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        ours = type(m).__module__.startswith("triton_kernels.nn")
        return ours or forms.has_hooks(m) or super().is_leaf_module(m, module_qualified_name)


class _ExampleValues(Interpreter):
    """Runs a graph and notes each node's value where torch.compile notes it."""

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        n.meta["example_value"] = result
        return result
