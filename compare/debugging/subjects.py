"""The subjects of debug: a case of an op, or a launch of a kernel from elsewhere.

Every run of a subject gets fresh memory with the initial content, so that runs can be repeated.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from compare.cases import CPU, Case
from compare.checking import judging, oracles, running
from compare.checking.eager_rule import LessAccurate, answers_to_eager, less_accurate
from compare.checking.judging import Comparison, Deviation, Tolerance
from compare.checking.stores import Stores
from compare.copies import copies, tensors
from compare.debugging.observers.values import Allocations
from compare.debugging.shrink.literals import Unwritable
from compare.debugging.shrink.sources import stored_parameters
from compare.specs import Spec
from triton_kernels import activations, interpreter
from triton_kernels.interpreter import Argument, Shadows


class Result(NamedTuple):
    """A tensor that kernels stored, with its right content."""

    name: str
    tensor: Tensor
    reference: Tensor
    comparison: Comparison
    less_accurate: LessAccurate | None = None  # if it is within its bound but breaks the eager rule

    def deviation(self) -> Deviation:
        """The wrong elements, counted, and the worst one."""
        right, error, bound, _ = (t.cpu() for t in self.comparison)
        return judging.deviation(self.tensor.cpu(), self.reference.cpu(), right, error, bound)


class Subject(Protocol):
    """Something to debug."""

    title: str
    outside_is_usage: bool  # whether an error before the first program is the caller's mistake
    in_ulps: bool  # whether the bounds of its results are in ULPs

    def prepare(self, device: torch.device) -> Any:
        """Make the memory for one run."""

    def launch(self, state: Any, shadows: Shadows | None = None) -> None:
        """Run in that memory, and mark its uninitialised parts in ``shadows``."""

    def judge(self, state: Any, stores: Stores | None) -> list[Result]:
        """Judge the results by the oracle; ``stores`` is None after a compiled run."""

    def expect(self, state: Any, arguments: Sequence[Argument]) -> list[Result]:
        """The outputs with their right content after a run that an error ended, if it is clear
        which of the launches' arguments are outputs."""

    def compilable(self) -> bool:
        """Whether it could run compiled on a GPU."""


# ---- the two kinds of subject ----


class Op:
    """A case of an op, or of a target."""

    outside_is_usage = False

    def __init__(self, spec: Spec, case: Case, variant: str | None, function: Any) -> None:
        self._spec, self._case, self._variant, self._function = spec, case, variant, function
        self.in_ulps = spec.max_ulps is not None
        self.title = str(case) + (f", variant {variant}" if variant else "")

    def prepare(self, device: torch.device) -> Any:
        """The case's inputs."""
        arguments = self._spec.inputs(self._case, device)
        reference = oracles.results(self._spec, arguments)
        oracles.check_precision(self._spec, self._case, reference.dtype)
        return {"arguments": arguments, "reference": reference}

    def launch(self, state: Any, shadows: Shadows | None = None) -> None:
        """Call the op as check does, into a poisoned output."""
        arguments, reference = state["arguments"], state["reference"]

        def function(*args: Any, **kwargs: Any) -> Tensor:
            if shadows is None:
                return self._function(*args, **kwargs)
            if "out" in kwargs and not _in_memory_of(kwargs["out"], args):
                shadows.uninitialize(kwargs["out"])
            with Allocations(shadows):
                return self._function(*args, **kwargs)

        result, _ = running.call(self._spec, self._case, function, arguments, reference)
        if text := running.misfit(self._spec, self._case, result, reference):
            raise TypeError(text)
        state["result"] = result

    def judge(self, state: Any, stores: Stores | None) -> list[Result]:
        """Judge as check does: by bits or the op's bound, and by the eager rule."""
        arguments, reference, result = (state[k] for k in ("arguments", "reference", "result"))
        mode = "triton-compiled" if result.is_cuda else "triton-interpreted"
        name = mode + (f"/{self._variant}" if self._variant else "")
        comparison = running.compare(self._spec, self._case, name, arguments, result, reference)
        worse = None
        if bool(comparison.right.all()) and answers_to_eager(
            self._spec, self._case, "triton", self._variant, reference.numel()
        ):
            oracle = oracles.Oracle(self._spec, arguments, reference)
            worse = less_accurate(self._spec, result, oracle)
        name = self._case.options.get("output", "out")
        return [Result(name, result, reference, comparison, worse)]

    def expect(self, state: Any, arguments: Sequence[Argument]) -> list[Result]:
        """The last launch's out_ptr, if there is one output."""
        if "output" in self._case.options:
            return []
        outs = [a.tensor for a in arguments if a.name == "out_ptr"]
        if not outs or outs[-1].numel() != state["reference"].numel():
            return []
        state["result"] = outs[-1].reshape(state["reference"].shape)
        return self.judge(state, None)

    def compilable(self) -> bool:
        """Whether its kernels can be compiled; not if TRITON_INTERPRET=1 made them interpreted."""
        return not interpreter.made_interpreted(activations.relu)


def _in_memory_of(out: torch.Tensor, args: Sequence[Any]) -> bool:
    """Whether an argument shares out's memory, as in place; then it holds input."""
    memory = out.untyped_storage().data_ptr()
    tensors = (each for each in args if isinstance(each, torch.Tensor))
    return any(each.untyped_storage().data_ptr() == memory for each in tensors)


Oracle = Callable[..., Any]


class Kernel:
    """A launch of a kernel from elsewhere."""

    outside_is_usage = True

    def __init__(
        self,
        kernel: Any,
        grid: Any,
        args: Sequence[Any],
        constexprs: dict[str, Any],
        oracle: Oracle | None,
        max_ulps: float,
        bound: Tolerance | None,
        uninitialized: Sequence[str] = (),
        memory: Mapping[str, Tensor] | None = None,
    ) -> None:
        names = kernel.arg_names if uninitialized else ()
        self._uninitialized = _checked(uninitialized, names, args, constexprs)
        self._kernel, self._grid, self._given = kernel, grid, (tuple(args), constexprs)
        self._memory = dict(memory or {})
        self._max_ulps, self._bound = max_ulps, bound
        self._outputs: list[tuple[str, int]] = []  # name, and index among the tensors
        self.in_ulps = bound is None
        self._expected = None if oracle is None else _expected(_asked(oracle, self._given[0]))
        inner = kernel
        while not hasattr(inner, "__name__") and hasattr(inner, "fn"):
            inner = inner.fn
        self.title = getattr(inner, "__name__", "kernel")

    def prepare(self, device: torch.device) -> Any:
        """Copies of the arguments' memory and of the memory behind addresses in them. Addresses are
        changed to those of the copies."""
        state = copies((*self._given, self._memory), device)
        if self._memory:
            _point_to(list(tensors((*self._given, self._memory))), list(tensors(state)))
        return state

    def launch(self, state: Any, shadows: Shadows | None = None) -> None:
        """Launch on the copies."""
        args, constexprs, memory = state
        if shadows is not None:
            named = {**dict(zip(self._kernel.arg_names, args)), **constexprs}
            for tensor in tensors([named[name] for name in self._uninitialized]):
                shadows.uninitialize(tensor)
        with interpreter.reaching(memory):
            self._kernel[self._grid](*args, **constexprs)

    def judge(self, state: Any, stores: Stores | None) -> list[Result]:
        """Judge every stored argument, in ULPs or by the given bound."""
        if self._expected is None:
            return []
        held = list(tensors(state))
        if stores is not None:
            self._outputs = []
            for argument in self._written(stores):
                at = next(i for i, t in enumerate(held) if t is argument.tensor)
                self._outputs.append((argument.name, at))
        references = self._references()
        return [
            Result(name, held[at], wanted, self._compare(name, held[at].cpu(), wanted))
            for name, at in self._outputs
            if (wanted := references.get(name)) is not None
        ]

    def expect(self, state: Any, arguments: Sequence[Argument]) -> list[Result]:
        """The arguments to which the kernel stores, according to its source."""
        held = list(tensors(state))
        names = stored_parameters(self._kernel) | set(self._named_memory())
        outputs = [a for a in arguments if a.name in names]
        self._outputs = [
            (a.name, next(i for i, t in enumerate(held) if t is a.tensor)) for a in outputs
        ]
        return self.judge(state, None)

    def _written(self, stores: Stores) -> list[Argument]:
        """The stored arguments. If the oracle has more tensors, also those to which the source
        stores, but no program did: they are wrong results."""
        written, expected = stores.stored(), self._expected or []
        names = {argument.name for argument in written}
        if expected.keys() <= names if isinstance(expected, dict) else len(expected) <= len(names):
            return written
        try:
            meant = stored_parameters(self._kernel) | set(self._named_memory())
        except Unwritable:
            return written
        names |= meant & expected.keys() if isinstance(expected, dict) else meant
        launches = (launch for launch in stores.launches if math.prod(launch.grid))
        every = (argument for launch in launches for argument in launch.arguments)
        return [argument for argument in every if argument.name in names]

    def _named_memory(self) -> list[str]:
        """The names that the oracle gives to memory behind addresses."""
        expected = self._expected
        return [name for name in self._memory if isinstance(expected, dict) and name in expected]

    def compilable(self) -> bool:
        """Whether the kernel can be compiled; not if it was made under TRITON_INTERPRET=1."""
        return not interpreter.made_interpreted(self._kernel)

    def _references(self) -> dict[str, Tensor]:
        """The expected tensors by parameter. A dict may leave out tensors with any content, such as
        locks and scratch memory."""
        names = [name for name, _ in self._outputs]
        stored = (
            ", ".join(names) or "nothing that it was given (memory= gives what addresses lead to)"
        )
        expected = self._expected
        if isinstance(expected, dict):
            if not expected or not set(expected) <= set(names):
                raise ValueError(
                    f"debug(): oracle() returned {', '.join(expected) or 'an empty dict'}, but the "
                    f"kernel stored to {stored}"
                )
            return expected
        assert expected is not None
        if len(expected) != len(names):
            raise ValueError(
                f"debug(): oracle() returned {len(expected)} tensors, but the kernel stored to "
                f"{stored}: it must return one for each of these, or a dict by parameter name"
            )
        return dict(zip(names, expected, strict=True))

    def _compare(self, name: str, result: Tensor, reference: Tensor) -> Comparison:
        if result.shape != reference.shape:
            raise ValueError(
                f"debug(): oracle() returned shape {list(reference.shape)} for {name}, which has "
                f"shape {list(result.shape)}"
            )
        reference = reference.cpu()
        if self._bound is None:
            return judging.by_ulps(result, reference, self._max_ulps)
        limit = torch.as_tensor(self._bound(reference, *self._given[0])).cpu().double()
        try:
            return judging.by_bound(result, reference, limit.expand(result.shape))
        except (RuntimeError, ValueError) as error:
            raise ValueError(f"debug(): argument 'bound', for {name}: {error}") from None


def _point_to(given: Sequence[Tensor], made: Sequence[Tensor]) -> None:
    """Replace addresses of the given tensors' memory in the copies by addresses of the copies."""
    for table, copy in zip(given, made):
        if table.dtype not in (torch.int64, torch.uint64) or not table.numel():
            continue
        addresses = copy.view(torch.int64).clone()
        for old, new in zip(given, made):
            reach = sum((n - 1) * st for n, st in zip(old.shape, old.stride())) + 1
            first = old.data_ptr()
            inside = (addresses >= first) & (addresses < first + reach * old.element_size())
            if old.numel() and bool(inside.any()):
                moved = addresses[inside] + (new.data_ptr() - first)
                copy.view(torch.int64)[inside] = moved


def named(memory: Mapping[str, Tensor] | Sequence[Tensor]) -> dict[str, Tensor]:
    """Tensors by name; those of a sequence are memory[0], memory[1], …"""
    if isinstance(memory, Mapping):
        return dict(memory)
    return {f"memory[{i}]": t for i, t in enumerate(memory)}


def takes_arguments(oracle: Oracle) -> bool:
    """Whether an oracle takes the kernel's arguments."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        parameters = inspect.signature(oracle).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(
        p.kind == p.VAR_POSITIONAL or (p.kind in kinds and p.default is p.empty) for p in parameters
    )


def _asked(oracle: Oracle, args: tuple[Any, ...]) -> Any:
    """The value of the oracle, called with copies of the arguments if it takes them."""
    if not takes_arguments(oracle):
        return oracle()
    try:
        inspect.signature(oracle).bind(*args)
    except TypeError as error:
        raise TypeError(
            f"debug(): oracle() must take nothing, or the kernel's {len(args)} positional "
            f"arguments: {error}"
        ) from None
    return oracle(*copies(args, CPU))


def _checked(
    names: Sequence[str], parameters: Sequence[str], args: Sequence[Any], others: dict[str, Any]
) -> tuple[str, ...]:
    """The checked names of uninitialised parameters."""
    if isinstance(names, str):
        names = (names,)
    given = {**dict(zip(parameters, args)), **others}
    able = [name for name in parameters if list(tensors(given.get(name)))]
    for name in names:
        if name not in able:
            what = "is no tensor" if name in given else "is no parameter"
            raise ValueError(
                f"debug(): uninitialized names {name!r}, which {what}; the tensors are "
                f"{', '.join(able) or 'none'}"
            )
    return tuple(names)


def _expected(returned: Any) -> list[Tensor] | dict[str, Tensor]:
    """The checked value of an oracle."""
    results: Any = returned
    if isinstance(returned, Tensor):
        results = [returned]
    elif isinstance(returned, (tuple, list)):
        results = list(returned)
    each = results.values() if isinstance(results, dict) else results
    if not isinstance(results, (list, dict)) or not all(isinstance(t, Tensor) for t in each):
        raise TypeError(
            "debug(): oracle() must return a tensor, a tuple of tensors, or a dict of tensors by "
            f"parameter name, but returned {type(returned).__name__}"
        )
    return results


def subject_of(
    kernel: Any,
    grid: Any,
    args: Sequence[Any],
    oracle: Oracle | None = None,
    max_ulps: float = 1.0,
    bound: Tolerance | None = None,
    uninitialized: Sequence[str] = (),
    memory: Mapping[str, Tensor] | Sequence[Tensor] = (),
    **constexprs: Any,
) -> Kernel:
    """The launch that the arguments of :func:`debug` describe, after a check of them."""
    if not (hasattr(kernel, "run") and hasattr(kernel, "__getitem__")):
        raise TypeError(
            "debug(): argument 'kernel' must be a @triton.jit function, but got "
            f"{type(kernel).__name__}"
        )
    if not isinstance(args, (tuple, list)):
        raise TypeError(
            f"debug(): argument 'args' must be a tuple of arguments, but got {type(args).__name__}"
        )
    if not callable(grid) and not isinstance(grid, (tuple, list)):
        raise TypeError(
            f"debug(): argument 'grid' must be a tuple or a function, but got {type(grid).__name__}"
        )
    reached = named(memory)
    for name, t in reached.items():
        if not isinstance(t, Tensor):
            raise TypeError(f"debug(): {name} must be a tensor, but is a {type(t).__name__}")
    for t in tensors((args, constexprs, reached)):
        if t.layout is not torch.strided or t.device.type == "meta":
            raise TypeError(
                f"debug(): a tensor argument is {t.layout} on {t.device}; it must be strided memory"
            )
    judging.check_max_ulps(max_ulps)
    if bound is not None and oracle is None:
        raise ValueError("debug(): a bound needs an oracle")
    return Kernel(kernel, grid, args, constexprs, oracle, max_ulps, bound, uninitialized, reached)
