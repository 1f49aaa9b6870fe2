"""The spec class of functions outside the families: a spec for other kernels in ten lines.

Cases are the given shapes, in every memory layout and with every kind of values.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from compare import cases
from compare.case_options import INDEX, NUMBER, choice
from compare.cases import CPU, DTYPES, META, Arguments, Case, Level, Sized, tensors_of
from compare.specs.outputs import WithOptions, pick
from compare.specs.spec import Spec

Shape = tuple[int, ...]
Count = int | Callable[..., int]
Dtype = str | torch.dtype
Bound = Callable[..., Tensor | float]
OF_THE_SPEC = ("output", "configuration")  # options of cases that the functions do not take


class Function(Spec):
    r"""A function of tensors, and perhaps numbers, that returns one tensor, or several.

    Args:
        name, summary, own: as in :class:`Spec`; one of ``triton`` and ``cuda`` is enough.
        oracle: takes the function's arguments; returns the right result, in the result's dtype or
            in float64.
        shapes: the sizes of the cases.
        operands: makes the shapes of the tensors from the sizes of a case, as in
            ``lambda M, N: [(M, N), (N,)]``; one tensor of these sizes by default.
        outputs: the names of several results, which all functions return as a tuple or list in this
            order, or as a dict by these names. Every case is run for each of them, and judges that
            one: its option ``output`` has the name.
        configurations: of an autotuned Triton kernel, ``len(kernel.configs)``: the interpreter runs
            every case in each, as the case's option ``configuration``. By default only in the
            first one. Compiled, the autotuner chooses.
        numbers: keyword argument → the values that cases give it, the first one in most cases.
        dtypes: of the tensors.
        out_dtype: of the result; by default the tensors'. With ``outputs`` it may be a dict, which
            may leave some out.
        max_ulps: the tolerance, as distance from the oracle's result rounded to the result's dtype.
        bound: instead of max_ulps, makes the tolerance \|result − oracle\| of each element from the
            oracle's result and the arguments. With ``outputs`` a function for all, or a dict with
            one for each.
        layouts: of the tensors; with several tensors, of all and of each alone.
        values: of the tensors: "normal", "special" (NaN, inf, −0, subnormals, extremes),
            "integers".
        eager: the function in torch, for benchmarks.
        timed: the shapes that benchmarks time; by default the cases' nonempty shapes.
        flops, bytes: of a call, as a number or a function of the case's sizes. By default flops are
            unknown, and every tensor is moved once.
    """

    order = 9
    bounded = True

    def __init__(
        self,
        name: str,
        summary: str = "",
        *,
        oracle: Callable[..., Any],
        shapes: Sequence[Shape],
        operands: Callable[..., Sequence[Shape]] | None = None,
        outputs: Sequence[str] = (),
        configurations: int = 1,
        numbers: Mapping[str, Sequence[float]] | None = None,
        dtypes: Sequence[str | torch.dtype] = ("float32",),
        out_dtype: Dtype | Mapping[str, Dtype] | None = None,
        max_ulps: float = 1.0,
        bound: Bound | Mapping[str, Bound] | None = None,
        layouts: Sequence[str] = cases.LAYOUTS,
        values: Sequence[str] = ("normal", "special"),
        eager: Callable[..., Any] | None = None,
        timed: Sequence[Shape] = (),
        flops: Count = 0,
        bytes: Count | None = None,
        **own: Any,
    ) -> None:
        if own.get("triton") is None and own.get("cuda") is None:
            raise TypeError(f"{self._call} needs the argument 'triton' or 'cuda': what to check")
        super().__init__(name, summary, **own)
        if not shapes:
            raise ValueError(f"{self._call}: argument 'shapes' is empty: nothing would be checked")
        names = dtypes if isinstance(dtypes, str) else tuple(map(cases.dtype_name, dtypes))
        self._check_names("dtypes", names, DTYPES)
        self._check_names("layouts", layouts, Spec.layouts)
        self._check_names("values", values, Spec.values)
        if not all(isinstance(shape, Sequence) for shape in (*shapes, *timed)):
            example = "[(3, 5), (33,)]"
            raise TypeError(f"{self._call}: 'shapes' and 'timed' are lists of shapes: {example}")
        self.shapes = [tuple(shape) for shape in shapes]
        self.dtypes, self.layouts, self.values = tuple(names), tuple(layouts), tuple(values)
        self.numbers = {name: tuple(each) for name, each in (numbers or {}).items()}
        if taken := [name for name in OF_THE_SPEC if name in self.numbers]:
            says = f"argument 'numbers': a number cannot be called {taken[0]!r}"
            raise ValueError(f"{self._call}: {says}")
        if not isinstance(max_ulps, (int, float)):
            says = (
                "'max_ulps' is one number for all outputs; 'bound' may be a dict with one for each"
            )
            raise TypeError(f"{self._call}: argument {says}")
        if configurations < 1:
            raise ValueError(f"{self._call}: argument 'configurations' must be at least 1")
        self.default_shape = max(self.shapes, key=math.prod)
        self.default_options = {name: each[0] for name, each in self.numbers.items()}
        self.options = {**dict.fromkeys(self.numbers, NUMBER), "alone": INDEX}
        self.max_ulps = None if bound is not None else max_ulps
        self.has_eager = eager is not None
        self._oracle, self._eager = oracle, eager
        self._operands, self.outputs = operands, self._checked_outputs(outputs)
        if self.outputs:
            self.options["output"] = choice(*self.outputs)
            self.default_options["output"] = self.outputs[0]
        if configurations > 1:
            self.options["configuration"] = INDEX
        self.configurations = configurations
        if self.outputs or configurations > 1:
            wrapped = partial(WithOptions, self.outputs, configurations)
            self.triton = self.triton and wrapped(self.triton)
            self.cuda = self.cuda and wrapped(self.cuda)
            self.peers = {name: wrapped(peer) for name, peer in self.peers.items()}
        self._bounds = self._of_outputs("bound", bound, every=True)
        self._out_dtypes = {
            output: None if dtype is None else DTYPES[cases.dtype_name(dtype)]
            for output, dtype in self._of_outputs("out_dtype", out_dtype).items()
        }
        there = [shape for shape in self.shapes if math.prod(shape)]
        self._timed = [tuple(shape) for shape in timed] or there or self.shapes
        for shape in (*self.shapes, *self._timed):
            self._check_operands(shape)
        self._flops, self._bytes = flops, bytes

    # ---- what is right ----

    def oracle(self, *args: Any, **kwargs: Any) -> Tensor:
        return self._one_of(self._oracle, args, kwargs)

    def bound(
        self, name: str, arguments: Arguments, reference: Tensor, dtype: torch.dtype
    ) -> Tensor:
        """The given bound."""
        args, kwargs = arguments
        limit = self._bounds[kwargs.get("output", "")](reference, *args, **_numbers(kwargs))
        return torch.as_tensor(limit, device=reference.device).double()

    def out_dtype(self, case: Case) -> torch.dtype:
        """The given dtype, or the tensors' dtype."""
        return self._out_dtypes[case.options.get("output", "")] or case.torch_dtype

    def _one_of(self, function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Tensor:
        """The result of a function of the spec, or the output that the options name."""
        returned = function(*args, **_numbers(kwargs))
        return pick(returned, self.outputs, kwargs["output"]) if self.outputs else returned

    def _of_outputs(self, argument: str, given: Any, every: bool = False) -> dict[str, Any]:
        """An argument's value by output; of a function with one output, by ""."""
        names = self.outputs or ("",)
        if not isinstance(given, Mapping):
            return dict.fromkeys(names, given)
        unknown = [name for name in given if name not in names]
        missing = [name for name in names if name not in given]
        if unknown or (every and missing):
            what = f"it names {unknown[0]!r}" if unknown else f"it lacks {missing[0]!r}"
            known = ", ".join(self.outputs) or "one without a name"
            says = f"argument '{argument}': {what}; the outputs are: {known}"
            raise ValueError(f"{self._call}: {says}")
        return {name: given.get(name) for name in names}

    def _checked_outputs(self, outputs: Sequence[str]) -> tuple[str, ...]:
        names = (outputs,) if isinstance(outputs, str) else tuple(outputs)
        if isinstance(outputs, str) or not all(isinstance(name, str) for name in names):
            raise TypeError(f"{self._call}: argument 'outputs' must be a list of names")
        if len(set(names)) < len(names):
            raise ValueError(f"{self._call}: argument 'outputs': names must differ")
        return names

    # ---- where it is probed ----

    def operands(self, shape: Shape) -> list[Shape]:
        """The shapes of the tensors for a case's sizes."""
        if self._operands is None:
            return [shape]
        return [tuple(each) for each in self._operands(*shape)]

    @property
    def _call(self) -> str:
        """The class, in error texts about arguments."""
        return f"{type(self).__name__}()"

    def _check_names(self, argument: str, given: Sequence[str], known: Collection[str]) -> None:
        if isinstance(given, str) or not given:
            raise ValueError(f"{self._call}: argument '{argument}' must be a list, and not empty")
        for each in given:
            if each not in known:
                listed = ", ".join(known)
                says = f"argument '{argument}': {each!r} is not in {listed}"
                raise ValueError(f"{self._call}: {says}")

    def _check_operands(self, shape: Shape) -> None:
        try:
            self.operands(shape)
        except TypeError as error:
            sizes = f"argument 'operands' does not take the sizes of shape {shape}"
            raise ValueError(f"{self._call}: {sizes}: {error}") from None

    def cases(self, dtype: str, level: Level) -> Iterator[Case]:
        """Every shape plain, in every layout, with every kind of values, and with other numbers;
        all for each output, in each configuration."""
        outputs = [{"output": output} for output in self.outputs] or [{}]
        others = [{"configuration": number} for number in range(1, self.configurations)]
        for case in self._cases(dtype, level):
            for output, configuration in itertools.product(outputs, [{}, *others]):
                yield replace(case, options={**case.options, **output, **configuration})

    def _cases(self, dtype: str, level: Level) -> Iterator[Case]:
        def case(shape: Shape, layout: str, values: str, **options: Any) -> Case:
            options = {**self.default_options, **options}
            return Case(self.name, dtype, shape, layout, values, 0, options)

        first, usual = self.layouts[0], self.values[0]
        for shape in self.shapes:
            yield case(shape, first, usual)
        for shape, layout in itertools.product(self.shapes, self.layouts[1:]):
            yield case(shape, layout, usual)
            count = len(self.operands(shape))
            for alone in range(count) if count > 1 else ():
                yield case(shape, layout, usual, alone=alone)
        for shape, values in itertools.product(self.shapes, self.values[1:]):
            if cases.DTYPES[dtype].itemsize <= 2 or values != "every":
                yield case(shape, first, values)
                yield case(shape, self.layouts[-1], values)
        most = max((len(values) for values in self.numbers.values()), default=1)
        for i, shape in itertools.product(range(1, most), self.shapes):
            numbers = {n: each[min(i, len(each) - 1)] for n, each in self.numbers.items()}
            yield case(shape, first, usual, **numbers)
        if level != "quick" and torch.cuda.is_available():
            for shape in self._timed:
                if shape not in self.shapes:
                    yield case(shape, first, usual)

    def inputs(self, case: Case, device: torch.device = CPU) -> Arguments:
        """The tensors and the numbers. All tensors have the case's layout or, with option
        ``alone``, only the one with that index, and the others are contiguous."""
        options, g = dict(case.options), case.generator()
        alone = options.pop("alone", None)
        tensors = []
        for i, shape in enumerate(self.operands(case.shape)):
            t = cases.random_values(shape, case.torch_dtype, case.values, g, device)
            lies = alone is None or alone == i
            tensors.append(cases.arrange(t, case.layout if lies else "contiguous"))
        return tuple(tensors), options

    def refuses(self, case: Case) -> str:
        """Sizes that ``operands`` does not take."""
        try:
            count = len(self.operands(case.shape))
        except TypeError as error:
            return f"'operands' does not take these sizes: {error}"
        alone = case.options.get("alone", 0)
        return "" if alone < count else f"there are {count} tensors, alone counts from 0"

    def result_shape(self, arguments: Arguments) -> Shape:
        """The oracle's shape or, if the oracle does not take meta tensors, that of the largest
        tensor as an estimate."""
        try:
            return super().result_shape(arguments)
        except Exception:  # noqa: BLE001 - the oracle may read values, which meta tensors lack
            return tuple(max(tensors_of(arguments), key=Tensor.numel).shape)

    # ---- what it costs, and against what it is timed ----

    def cost(self, case: Case) -> tuple[int, int]:
        """The given cost; by default every tensor is moved once."""
        flops, moved = (
            count(*case.shape) if callable(count) else count for count in (self._flops, self._bytes)
        )
        if moved is None:
            arguments = self.inputs(case, META)
            written = math.prod(self.result_shape(arguments)) * self.out_dtype(case).itemsize
            moved = written + sum(t.numel() * t.element_size() for t in tensors_of(arguments))
        return flops or 0, moved

    def eager(self, *args: Any, **kwargs: Any) -> Tensor:
        assert self._eager is not None
        return self._one_of(self._eager, args, kwargs)

    def timed(self, dtype: str, options: Mapping[str, Any]) -> Iterator[Case]:
        """The given shapes to time."""
        return (Case(self.name, dtype, shape, options=options) for shape in self._timed)

    def sweeps(self, dtype: str, options: Mapping[str, Any]) -> Iterator[Sized]:
        """Shapes with equal sizes, of 2¹² to 2²⁸ elements."""
        rank = len(self._timed[0])
        for k in range(6, 15) if rank else ():
            size = round(4 ** (k / rank))
            yield "numel", size**rank, Case(self.name, dtype, (size,) * rank, options=options)

    # ---- its machine code ----

    def to_compile(self, dtype: str, options: Mapping[str, Any]) -> Iterator[Case]:
        """The largest case in the first and in the last layout."""
        for layout in dict.fromkeys((self.layouts[0], self.layouts[-1])):
            yield Case(self.name, dtype, self.default_shape, layout, options=options)


def _numbers(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a case that are arguments of the functions."""
    return {name: value for name, value in kwargs.items() if name not in OF_THE_SPEC}
