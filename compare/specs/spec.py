"""The description of an op, :class:`Spec`, which is the base class of all specs.

A file in ``compare/ops`` makes its specs of :class:`Spec` or of a family's class:
:class:`compare.specs.elementwise.Elementwise`, :class:`compare.specs.products.Product`. One spec
feeds check, debug, bench, compile, profile, report and the tests. A spec of kernels from elsewhere
is made with their functions, and named as a target, ``module:spec``.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any, TypeVar

import torch
from torch import Tensor

import cuda_reference
import triton_kernels
from compare import cases, numerics
from compare.case_options import Option
from compare.cases import (
    CPU,
    DISTANT,
    FLOATS,
    LAYOUTS,
    META,
    OF_MODELS,
    Arguments,
    Case,
    Level,
    Sized,
    tensors_of,
)

Own = TypeVar("Own", bound="Spec")
SMALL = 256  # sizes of a call that the GPU finishes before the host


class Spec:
    """One op.

    A subclass must define :meth:`oracle`, :meth:`cases`, :meth:`inputs`, :meth:`cost`,
    :meth:`eager` and :meth:`sample`; :meth:`bound` if it is ``bounded``.

    Args:
        name: the op's name, by which ``triton_kernels`` and ``cuda_reference`` export it.
        summary: one line for people.
        triton, cuda: for kernels from elsewhere, the functions of both sides, or of one.
        peers: name → function that benchmarks time beside them.
        takes_out: whether these functions take ``out``, as this project's do.

    Attributes:
        name, summary, peers, takes_out: as above; a target's name is ``module:spec``.
        triton, cuda: the functions of both sides. Each returns one tensor, ``out`` if it is given.
            None if kernels from elsewhere lack the side.
        own: whether the kernels are from elsewhere; then stem is empty, and there are no variants.
        dtypes: names of the dtypes that check covers.
        order: the place of its family in tables.
        stem: the name of its source files, set by the scan of compare/ops.
        bounded: whether a bound decides what is right, instead of the oracle's bits.
        max_ulps: the bound in ULPs, in place of the method ``bound``.
        default_variant: the CUDA variant that equals the default, so that it runs once.
        layouts, values, options: the allowed coordinates of a case.
        sizes: the names of the sizes in a case's shape, if their number is fixed.
        default_shape, default_options: of a case on the command line that gives none.
        every: what the cases with values "every" prove, for the table.
        unary: whether the op takes one tensor, so that all its inputs can be tried.
        in_place: whether ``out`` may be an input.
        benchmarked: whether bench times it by default; false if another op has the same kernel.
        configured: whether its Triton kernel's configuration depends on the problem's size.
        random_inputs: whether benchmarks may fill the tensors with their own random numbers.
        by_norm: whether benchmarks judge its results only as strictly as those of peers.
        has_eager: whether it can be written in torch.
        fused: the op by a library's fused kernel, if one covers the timed cases.
    """

    dtypes: tuple[str, ...] = FLOATS
    order = 0
    bounded = False
    max_ulps: float | None = None
    default_variant: str | None = None
    layouts: tuple[str, ...] = (*LAYOUTS, "inplace", "functional", *OF_MODELS, *DISTANT)
    values: tuple[str, ...] = ("normal", "special", "every", "integers")
    options: Mapping[str, Option] = {}
    sizes = ""
    default_shape: tuple[int, ...] = (33, 129)
    default_options: Mapping[str, Any] = {}
    every = ""
    unary = False
    in_place = False
    benchmarked = True
    configured = False
    fused: Callable[..., Tensor] | None = None
    random_inputs = True
    has_eager = True
    by_norm = False

    def __init__(
        self,
        name: str,
        summary: str,
        *,
        triton: Callable[..., Tensor] | None = None,
        cuda: Callable[..., Tensor] | None = None,
        peers: Mapping[str, Callable[..., Tensor]] | None = None,
        takes_out: bool | None = None,
    ) -> None:
        self.name, self.summary = name, summary
        self.own = triton is not None or cuda is not None
        self.takes_out = (not self.own) if takes_out is None else takes_out
        self.peers = dict(peers or {})
        for peer in self.peers:
            if re.split("[/ ]", peer)[0] in ("triton", "cuda", "control"):
                raise ValueError(f"a peer cannot be called {peer!r}: that is a side's name")
        self.stem = "" if self.own else name
        self.triton: Any = triton
        self.cuda: Any = cuda
        if self.own:
            for side, given in (("triton", triton), ("cuda", cuda)):
                if given is not None and not callable(given):
                    kind = type(given).__name__
                    raise TypeError(f"argument '{side}' must be a function, but got {kind}")
            return
        for package in (triton_kernels, cuda_reference):
            if not callable(getattr(package, name, None)):
                raise AttributeError(f"{package.__name__} exports no function {name!r}")
        self.triton = getattr(triton_kernels, name)
        self.cuda = getattr(cuda_reference, name)

    def changed(self: Own, **attributes: Any) -> Own:
        """A copy with other attributes or methods, for tests and experiments."""
        other = copy.copy(self)
        for name, value in attributes.items():
            setattr(other, name, value)
        return other

    @property
    def file_name(self) -> str:
        """The name in file and folder names."""
        return self.name.replace(":", "_")

    def function(self, side: str, variant: str | None = None) -> Callable[..., Tensor]:
        """The function of a side, or of a variant of it.

        Raises:
            ValueError: there is no such function.
        """
        implementation = self.variants(side).get(variant) if variant else getattr(self, side)
        if implementation is None:
            raise ValueError(f"{self.name} has no {side} side{f' {variant}' if variant else ''}")
        return implementation  # type: ignore[no-any-return]

    def variants(self, side: str) -> dict[str, Callable[..., Tensor]]:
        """The variants of a side beside its default kernel: name → function."""
        if self.own:
            return {}
        return (triton_kernels if side == "triton" else cuda_reference).variants(self.name)

    def rungs(self) -> dict[str, tuple[torch.dtype, ...]]:
        """The rungs of the CUDA side, from the plainest to the best one: name → dtypes."""
        return {rung.name: rung.dtypes for rung in self._rungs()}

    def best_rungs(self) -> set[str]:
        """The best rung for dense tensors, and those for other layouts."""
        rungs = self._rungs()
        return {rung.name for rung in rungs if not rung.dense or rung is rungs[-1]}

    @property
    def has_auto(self) -> bool:
        """Whether variant "auto" of the CUDA side may choose a rung."""
        return any(rung.auto for rung in self._rungs())

    def _rung(self, side: str, variant: str | None) -> Any | None:
        """The rung that is a variant of a side; None if it is not one."""
        rungs = self._rungs() if side == "cuda" else []
        return next((rung for rung in rungs if rung.name == variant), None)

    def _rungs(self) -> list[Any]:
        if self.own:
            return []
        rungs = cuda_reference.capabilities(self.name).rungs
        return [rung for rung in rungs if rung.name not in self.library()]

    # ---- what is right ----

    @property
    def in_ulps(self) -> bool:
        """Whether errors are given in ULPs, not as fractions of a bound."""
        return not self.bounded or self.max_ulps is not None

    def oracle(self, *args: Any, **kwargs: Any) -> Tensor:
        """The right result, from the op's arguments without ``out``. In the result's dtype for an
        exact op, in float64 for a bounded one."""
        raise NotImplementedError(f"{self.name} has no oracle")

    def bound(
        self, name: str, arguments: Arguments, reference: Tensor, dtype: torch.dtype
    ) -> Tensor:
        """The tolerance |out − oracle| of each element, from the implementation's name, the
        arguments, the oracle's result and the result's dtype."""
        raise NotImplementedError(f"{self.name} has no bound")

    def exact(self, case: Case) -> bool:
        """Whether bits must agree although the op has a bound."""
        return False

    def out_dtype(self, case: Case) -> torch.dtype:
        """The result's dtype, for a bounded op."""
        return case.torch_dtype

    # ---- some of its results alone ----

    def result_shape(self, arguments: Arguments) -> tuple[int, ...]:
        """The shape of a call's result."""
        args, kwargs = arguments

        def bare(value: Any) -> Any:
            return value.to("meta") if isinstance(value, Tensor) else value

        named = {name: bare(value) for name, value in kwargs.items()}
        return tuple(self.oracle(*map(bare, args), **named).shape)

    def cut(self, arguments: Arguments) -> int | None:
        """The dimension along which a huge result can be computed in slices; None if there is
        none."""
        return None

    def slices(self, arguments: Arguments) -> tuple[int, int] | None:
        """The dimension and the length of the slices in which a huge result is computed and judged.
        None if it is not huge, or cannot be cut."""
        along = self.cut(arguments)
        if along is None:
            return None
        shape = self.result_shape(arguments)
        elements = max(math.prod(shape), *(t.numel() for t in tensors_of(arguments)))
        if elements <= numerics.CHUNK:
            return None
        return along, max(1, shape[along] * numerics.CHUNK // elements)

    def part(self, arguments: Arguments, along: int, start: int, size: int) -> Arguments:
        """The arguments of a call that computes only this slice of the result."""
        raise NotImplementedError(f"{self.name} does not say how to cut its results")

    # ---- where it is probed ----

    def cases(self, dtype: str, level: Level) -> Iterator[Case]:
        """The cases of a dtype at a level."""
        raise NotImplementedError(f"{self.name} has no cases")

    def inputs(self, case: Case, device: torch.device = CPU) -> Arguments:
        """A case's positional and keyword arguments."""
        raise NotImplementedError(f"{self.name} has no inputs")

    def sample(self) -> dict[str, Any]:
        """Arguments of a small call by name, with shapes for tensors; the result is [4, 5]. Tests
        of wrong arguments change one of them."""
        raise NotImplementedError(f"{self.name} has no sample arguments")

    def takes(self, side: str, variant: str | None, case: Case) -> bool:
        """Whether a side, or a variant of it, supports a case."""
        return True

    def pinned(self) -> Mapping[str, Callable[..., Tensor]]:
        """Variants of the Triton side that exist only compiled, on a GPU: kernels between which the
        default chooses, and which the interpreter cannot run."""
        return {}

    def library(self) -> Mapping[str, Callable[..., Tensor]]:
        """Variants of the CUDA side that exist only on a GPU and are no kernels of this project."""
        return {}

    def pinned_to_compile(self, dtype: str) -> Iterator[tuple[str, Case]]:
        """The pinned variants, in each of their configurations."""
        return iter(())

    def refuses(self, case: Case) -> str:
        """Why the op does not take a case, in the command line's words; else an empty string."""
        return ""

    def called(self, case: Case, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """The function that a case calls: the implementation, or a wrapper for options that are no
        arguments of the op."""
        return function

    # ---- what memory it needs ----

    def memory(self, case: Case, device: torch.device = CPU) -> int:
        """An upper bound of the bytes that a check of the case needs on a device at one time:
        inputs in their layout and copies of them, the guarded output, the oracle's result, and the
        intermediates of oracle, bound and comparison."""
        arguments = self.inputs(case, META)
        tensors = tensors_of(arguments)
        held = [cases.held(t, device) for t in tensors]
        dtype = self.result_dtype(case, arguments)
        shape = self.result_shape(arguments)
        guarded = cases.Guarded(shape, dtype, META, case.out_layout)
        out = cases.held(guarded.out, device)
        read, written = sum(t.numel() for t in tensors), math.prod(shape)
        # The check that gaps are intact takes a byte per element.
        looking = guarded.buffer.numel() if guarded.gaps else 0
        if slices := self.slices(arguments):
            along, size = slices
            some = self.part(arguments, along, 0, size)
            read = sum(t.numel() for t in tensors_of(some))
            written = written // shape[along] * size
        largest = max(tensors, key=Tensor.numel).numel() if tensors else 0
        size = case.torch_dtype.itemsize
        drawing = largest * size + min(largest, cases.LONGEST) * 12
        kernels = self.workspace(case, arguments)
        watching = sum(each for each in held if each <= cases.WATCHED)
        both = 2 if "training" in case.options else 1  # results of a training step
        work = max(self.work(case, dtype, read, written), looking + 4 * written, kernels)
        return sum(held) + max(drawing, watching + both * out + work)

    def workspace(self, case: Case, arguments: Arguments) -> int:
        """An upper bound of the bytes that kernels allocate beside inputs and output."""
        return 0

    def work(self, case: Case, dtype: torch.dtype, read: int, written: int) -> int:
        """An upper bound of the bytes of oracle, bound and comparison beside inputs and output.
        ``read`` and ``written`` count the elements of these, ``dtype`` is the output's."""
        return 16 * read + 80 * written

    def result_dtype(self, case: Case, arguments: Arguments) -> torch.dtype:
        """The output's dtype."""
        return self.out_dtype(case)

    # ---- what it costs, and against what it is timed ----

    def cost(self, case: Case) -> tuple[int, int]:
        """Floating-point operations, and the fewest bytes moved."""
        raise NotImplementedError(f"{self.name} has no cost")

    def eager(self, *args: Any, **kwargs: Any) -> Tensor:
        """The op in torch, with which benchmarks compare."""
        raise NotImplementedError(f"{self.name} has no eager form")

    def timed(self, dtype: str, options: Mapping[str, Any]) -> Iterator[Case]:
        """The cases that benchmarks time: squares by default."""
        return (Case(self.name, dtype, (n, n), options=options) for n in (1024, 4096))

    def small(self, dtype: str) -> Iterator[Case]:
        """Small cases for ``bench --host``, which measures a call's host time. Their size may grow
        by a row."""
        timed = next(iter(self.timed(dtype, self.default_options)), None)
        if timed is not None and timed.shape:
            shape = tuple(min(n, SMALL) for n in timed.shape)
            yield Case(self.name, dtype, shape, options=timed.options)

    def sweeps(self, dtype: str, options: Mapping[str, Any]) -> Iterator[Sized]:
        """Cases over a range of sizes: name of the sweep, size, case. By default square matrices of
        2¹² to 2²⁸ elements."""
        for k in range(6, 15):
            yield "numel", 4**k, Case(self.name, dtype, (2**k, 2**k), options=options)

    @property
    def strata(self) -> Mapping[str, float]:
        """The strata of random problems and their shares, which add up to 1."""
        return {}

    def draw(self, stratum: str, dtype: str, random: Random) -> Case | None:
        """A random problem of the stratum, or None if the draw does not fit the stratum."""
        raise NotImplementedError(f"{self.name} does not say what its problems are")

    def fuses(self, case: Case) -> bool:
        """Whether ``fused`` takes the case."""
        return True

    def compiled_alike(self, case: Case) -> bool:
        """Whether torch.compile makes the same kernel of the eager form as eager runs."""
        return False

    # ---- its machine code ----

    def to_compile(self, dtype: str, options: Mapping[str, Any]) -> Iterator[Case]:
        """Cases whose launches together cover every Triton kernel and configuration. Variants are
        compiled for the first one. By default a contiguous case, a strided one, and one with an
        index past 2³¹."""
        yield Case(self.name, dtype, (64, 64), options=options)
        yield Case(self.name, dtype, (64, 64), "padded", options=options)
        if dtype == "float32":
            yield Case(self.name, dtype, (1 << 16, 1 << 15), "padded", options=options)

    def cuda_kernel(self, dtype: str, variant: str | None) -> str:
        """The name in csrc of the kernel that a variant runs."""
        name = f"{self.name}_{variant}" if variant else self.name
        return f"{name}_kernel<{cuda_type(dtype)}>"

    def cuda_kernels(self, dtype: str, variant: str | None) -> dict[str, str]:
        """All kernels that it may run: the options that select one, as tables show them → name."""
        return {"": self.cuda_kernel(dtype, variant)}


def cuda_type(dtype: str) -> str:
    """The compute type of ``dtype`` on the CUDA side."""
    if dtype not in FLOATS:
        return "u64"
    return "double" if dtype == "float64" else "float"
