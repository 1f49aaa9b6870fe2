"""act_mul and act_mul_backward: oracle, derived bound, cases.

Both results of act_mul_backward are one tensor here, [2, …]: the gradients of gate and of up. The
implementations write into it without a copy, so both results have its layout.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from compare import cases
from compare.case_options import FLOAT_DTYPE, LYING, choice
from compare.cases import CPU, META, Arguments, Case, Level
from compare.specs.activations import ACTIVATIONS, has_short_formulas
from compare.specs.elementwise import Elementwise, compute_dtype, promoted, result_type
from compare.specs.product_bounds import U_DOUBLE, U_FMA
from compare.specs.products import activated

EXACT = ("none", "relu")  # only the product is rounded
CLEAR = 1e-3  # values this far from 0 are nonzero in every formula
RARE = ("special", "every")  # values
# The product of two of the last overflows in float32, but not times the error of a slope.
SPRINKLED = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-30, 2.5e19)
STRAIGHT = 1000.0  # beyond it exp(−x) is 0 or infinite
LAYERS = ((4096, 14336), (8192, 11008))  # tokens × hidden features of language models


def in_one(function: Callable[..., Any]) -> Callable[..., Tensor]:
    """The function with both results in one tensor. With ``apart`` the function allocates its
    results, and they are copied."""

    @functools.wraps(function)
    def packed(
        *args: Any, out: Tensor | None = None, apart: bool = False, **options: Any
    ) -> Tensor:
        if apart:
            return torch.stack(function(*args, **options))
        try:
            given = (*args, *options.values())
            tensors = [t for t in given if isinstance(t, Tensor)]
            if out is None:
                shape = torch.broadcast_shapes(*(t.shape for t in tensors))
                device = max((t.device for t in tensors), key=lambda device: device.type)
                out = torch.empty((2, *shape), dtype=result_type(*tensors), device=device)
            both = out[0], out[1]
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):
            function(*args, **options)  # raises the function's own error
            raise
        function(*args, out=both, **options)
        return out

    return packed


def _wide(*tensors: Tensor) -> list[Tensor]:
    """The operands as the kernels read them, in float64."""
    dtype = result_type(*tensors)
    return [promoted(t, dtype, t).double() for t in tensors]


class ActMul(Elementwise):
    """Has the cases of elementwise ops, with every activation; a bound decides what is right."""

    bounded = True
    order = 1
    options: Mapping[str, Any]

    def __init__(self, name: str, summary: str, **options: Any) -> None:
        super().__init__(
            name, summary, lambda gate, up, *, act: self.oracle(gate, up, act), flops=2
        )
        self.options = {"act": choice(*ACTIVATIONS), **self.options, **options}
        self.default_options = {"act": "silu"}
        self.every = "every gate"

    # ---- what is right ----

    def oracle(self, gate: Tensor, up: Tensor, act: str) -> Tensor:
        """act(gate)·up in float64."""
        x, y = _wide(gate, up)
        return ACTIVATIONS[act].function(x) * y

    def bound(
        self, name: str, arguments: Arguments, reference: Tensor, dtype: torch.dtype
    ) -> Tensor:
        """E + u_out·(|ref| + E) + η_out, where E = |up|·δ + u·(|ref| + |up|·δ): δ is the
        activation's evaluation error, u the multiplication's rounding, u_out the store's."""
        (gate, up), options = arguments
        x, y = _wide(gate, up)
        return _Units(name, dtype).product(
            y.abs(), self.off(name, x, options["act"], dtype), reference
        )

    def off(self, name: str, x: Tensor, act: str, dtype: torch.dtype) -> Tensor:
        """The largest error of act(x): that of the formula, plus that of the short one for 16 bits.
        Far from 0 all activations are straight lines."""
        activation = ACTIVATIONS[act]
        value = activation.function(x).abs()
        unit = U_DOUBLE if dtype == torch.float64 else U_FMA
        error = activation.error(x) * unit
        error = torch.where(x.abs() > STRAIGHT, error.minimum(6 * unit * value), error)
        if activation.half and dtype.itemsize == 2 and has_short_formulas(name):
            relative, absolute = activation.half
            error = error + relative * value + absolute
        return error

    def exact(self, case: Case) -> bool:
        """Whether only the result is rounded: a product of two numbers that the compute type holds
        and that does not underflow."""
        return case.options["act"] in EXACT and case.values in ("normal", "integers", "lattice")

    def out_dtype(self, case: Case) -> torch.dtype:
        """The dtype to which torch promotes."""
        return self.result_dtype(case, self.inputs(case, META))

    def work(self, case: Case, dtype: torch.dtype, read: int, written: int) -> int:
        """The bytes of operands, steps and errors in float64; of exact products only the
        oracle's."""
        return written * (28 if self.exact(case) else 108)

    # ---- rungs of the CUDA side ----

    def cuda_kernel(self, dtype: str, variant: str | None) -> str:
        """A rung has one kernel for all activations."""
        formula = self.name.title().replace("_", "")
        name = super().cuda_kernel(dtype, variant)
        return name.replace(f"<{formula},", f"<{formula}<Activation>,")

    # ---- cases ----

    def settings(self, dtype: str) -> list[dict[str, Any]]:
        """Every activation."""
        first = self.default_options["act"]
        return [{"act": act} for act in (first, *(a for a in ACTIVATIONS if a != first))]

    def cases(self, dtype: str, level: Level) -> Iterator[Case]:
        """Those of elementwise ops; every 16-bit gate for every activation; exact products."""
        yield from super().cases(dtype, level)
        for others in self.settings(dtype)[1:] if cases.DTYPES[dtype].itemsize == 2 else ():
            yield Case(self.name, dtype, (65536,), values="every", options=others)
        for act in EXACT:
            yield Case(self.name, dtype, (33, 129), "chunk", "integers", options={"act": act})
        yield Case(self.name, dtype, (33, 128), "chunk", options=self.default_options)

    def inputs(self, case: Case, device: torch.device = CPU) -> Arguments:
        """gate and up as x and y of elementwise ops. With special or all values gate has them, and
        up has some of SPRINKLED."""
        values = f"{case.values}:normal" if case.values in RARE else case.values
        plain = dataclasses.replace(case, values=values)
        (gate, up), options = super().inputs(plain, device)
        self.sprinkle(case, gate, up)
        return (gate, up), options

    def sprinkle(self, case: Case, gate: Tensor, other: Tensor) -> None:
        """Set a quarter of the activation's factors to special values. No infinity goes where the
        activation may be 0 in one formula and not in another."""
        if case.values not in RARE or other.device.type == "meta":
            return
        generator, x = case.generator(), gate.double()
        once = tuple(slice(1) if stride == 0 else slice(None) for stride in other.stride())
        other = other[once]  # each element of an expanded tensor once
        there = torch.rand(other.shape, generator=generator) < 0.25
        which = torch.randint(len(SPRINKLED), other.shape, generator=generator)
        chosen = torch.tensor(SPRINKLED, dtype=other.dtype)[which].to(other.device)
        near = self.near_zero(x, case.options["act"]) & x.isfinite() & (x != 0)
        doubtful = (near & torch.ones_like(other, dtype=torch.bool)).sum_to_size(other.shape) > 0
        there = there.to(other.device) & ~(doubtful & chosen.isinf())
        other.copy_(torch.where(there, chosen, other))

    def near_zero(self, x: Tensor, act: str) -> Tensor:
        """Whether act(x) is so small that a formula may give 0."""
        value, _ = _value_and_slope(x, act)
        return (value.abs() <= CLEAR) & (act not in EXACT)

    def sample(self) -> dict[str, Any]:
        """Arguments for a first call."""
        return {"gate": (4, 5), "up": (4, 5), "act": "relu"}

    def timed(self, dtype: str, options: Mapping[str, Any]) -> Iterator[Case]:
        """Squares, as for other ops, and what language models have: halves of one product."""
        for n in (1024, 4096):
            yield Case(self.name, dtype, (n, n), options=options)
        for shape in LAYERS:
            yield Case(self.name, dtype, shape, "chunk", options={**options, "out": "contiguous"})

    def to_compile(self, dtype: str, options: Mapping[str, Any]) -> Iterator[Case]:
        """Every activation, halves of one tensor, and an index past 2³¹."""
        for act in ACTIVATIONS:
            yield Case(self.name, dtype, (4096, 4096), options={"act": act})
        halves = {"act": "silu", "out": "contiguous"}
        yield Case(self.name, dtype, (4096, 4096), "chunk", options=halves)
        if dtype == "float32":
            yield Case(self.name, dtype, (1 << 16, 1 << 15), "padded", options={"act": "silu"})

    def eager(self, gate: Tensor, up: Tensor, act: str, *, out: Tensor | None = None) -> Tensor:
        """act(gate)·up in torch."""
        return activated(gate, act) * up


class ActMulBackward(ActMul):
    """act_mul_backward; both results are judged as one tensor, [2, …]."""

    layouts = tuple(layout for layout in Elementwise.layouts if layout != "inplace")

    def __init__(self) -> None:
        over = choice("grad", "gate", "up")  # the operand that the first result is written over
        more = {"grad": LYING, "grad_dtype": FLOAT_DTYPE, "over": over}
        super().__init__("act_mul_backward", "grad·act'(gate)·up and grad·act(gate)", **more)
        self.triton, self.cuda = in_one(self.triton), in_one(self.cuda)
        self.operands = ("grad", "gate", "up")

    def oracle(self, grad: Tensor, gate: Tensor, up: Tensor, act: str) -> Tensor:  # type: ignore[override]
        """Both gradients in float64."""
        g, x, y = _wide(grad, gate, up)
        value, slope = _value_and_slope(x, act)
        first = ACTIVATIONS[act].derivative.masked(g * (slope * y), slope)
        return torch.stack(torch.broadcast_tensors(first, g * value))

    def bound(
        self, name: str, arguments: Arguments, reference: Tensor, dtype: torch.dtype
    ) -> Tensor:
        """As for act_mul. dgate has the factors grad·up and the derivative, with one more
        multiplication; dup has the factors grad and the activation."""
        (grad, gate, up), options = arguments
        act, units = options["act"], _Units(name, dtype)
        g, x, y = _wide(grad, gate, up)
        value, derivative = self.off(name, x, act, dtype), ACTIVATIONS[act].derivative
        saved = x if derivative.of_pre else ACTIVATIONS[act].function(x)
        slope = derivative.error(saved) * units.unit
        if derivative.half and units.half:
            slope = slope + derivative.half
        if act in ("sigmoid", "tanh"):  # of a result r that is off itself: 1 − 2r, −2r
            slope = slope + 2 * value
        first = units.product((g * y).abs(), slope, reference[0], 2, g.abs() + y.abs())
        second = units.product(g.abs(), value, reference[1])
        return torch.stack(torch.broadcast_tensors(first, second))

    def variants(self, side: str) -> dict[str, Callable[..., Tensor]]:
        """The variants, with both results in one tensor."""
        return {name: in_one(function) for name, function in super().variants(side).items()}

    def takes(self, side: str, variant: str | None, case: Case) -> bool:
        """The second result follows the first one in memory. It has the same alignment if the first
        one is a multiple of 16 bytes, or if both are allocated apart."""
        taken = super().takes(side, variant, case)
        apart, size = case.layout == "functional", math.prod(case.shape) * case.torch_dtype.itemsize
        return taken and (variant != "stream" or apart or size % 16 == 0)

    def result_shape(self, arguments: Arguments) -> tuple[int, ...]:
        """[2, …], with the shape to which the tensors broadcast."""
        return 2, *super().result_shape(arguments)

    def cut(self, arguments: Arguments) -> int | None:
        """The longest dimension except the first."""
        shape = self.result_shape(arguments)
        return max(range(1, len(shape)), key=shape.__getitem__, default=None)

    def part(self, arguments: Arguments, along: int, start: int, size: int) -> Arguments:
        """A slice of every tensor that does not broadcast along the dimension."""
        shape, (args, options) = self.result_shape(arguments)[1:], arguments
        return tuple(cases.narrowed(t, shape, along - 1, start, size) for t in args), options

    def work(self, case: Case, dtype: torch.dtype, read: int, written: int) -> int:
        """The bytes that oracle and bound of both results take."""
        return written * (34 if self.exact(case) else 84)

    def cases(self, dtype: str, level: Level) -> Iterator[Case]:
        """The cases of act_mul that are not in place, and grad in another dtype or layout."""
        yield from (case for case in super().cases(dtype, level) if case.layout != "inplace")
        options = self.default_options
        for lying in ("transposed", "misaligned", "expanded", *cases.DISTANT):
            shape = (3, 3) if lying in cases.DISTANT else (17, 19)
            yield Case(self.name, dtype, shape, options={**options, "grad": lying})
        for other in cases.FLOATS:
            if other != dtype:
                yield Case(self.name, dtype, (17, 19), options={**options, "grad_dtype": other})
        for over in self.operands:
            yield Case(self.name, dtype, (17, 19), options={**options, "over": over})
        # Each result has the layout of its operand.
        yield Case(self.name, dtype, (17, 19), "functional", options={**options, "y": "transposed"})

    def inputs(self, case: Case, device: torch.device = CPU) -> Arguments:
        """The inputs of act_mul, and grad. Options may set grad's dtype and layout; by default they
        are the result's and the case's."""
        own = {name: case.options.get(name) for name in ("grad", "grad_dtype", "over")}
        rest = {name: value for name, value in case.options.items() if name not in own}
        (gate, up), options = super().inputs(dataclasses.replace(case, options=rest), device)
        shape = torch.broadcast_shapes(gate.shape, up.shape)
        dtype = cases.DTYPES.get(own["grad_dtype"] or "", result_type(gate, up))
        kind = "normal" if case.values in RARE else case.values
        generator = torch.Generator().manual_seed(case.seed + 1)
        grad = cases.random_values(tuple(shape), dtype, kind, generator, device)
        grad = cases.arrange(grad, own["grad"] or case.layout)
        self.sprinkle(case, gate, grad)
        return (grad, gate, up), options

    def near_zero(self, x: Tensor, act: str) -> Tensor:
        """Whether act(x) or act'(x) is near 0."""
        _, slope = _value_and_slope(x, act)
        return super().near_zero(x, act) | ((slope.abs() <= CLEAR) & (act not in EXACT))

    def sample(self) -> dict[str, Any]:
        """Arguments for a first call."""
        return {"grad": (4, 5), **super().sample()}

    def cost(self, case: Case) -> tuple[int, int]:
        """Three tensors read, two written."""
        flops, moved = super().cost(case)
        out = math.prod(torch.broadcast_shapes(*self.shapes(case)))
        return 2 * flops, moved + 2 * out * case.torch_dtype.itemsize

    def small(self, dtype: str) -> Iterator[Case]:
        """None: this spec packs both results, which doubles the host time of a small call."""
        return iter(())

    def called(self, case: Case, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """The function as the case calls it. With layout functional it allocates both results, and
        option over is ignored."""
        if case.layout == "functional":
            return functools.partial(function, apart=True)
        if over := case.options.get("over"):
            return _written_over(self.operands.index(over), function)
        return function

    def eager(self, *args: Any, **kwargs: Any) -> Tensor:
        """The gradients by torch's autograd."""
        return _eager_backward(*args, **kwargs)


def _written_over(index: int, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of three operands, one of which shares memory with the first result."""

    def in_place(*tensors: Tensor, out: Tensor, **options: Any) -> Tensor:
        out[0].copy_(tensors[index])
        return function(*tensors[:index], out[0], *tensors[index + 1 :], out=out, **options)

    return in_place


class _Units:
    """The roundings of an implementation with results of this dtype."""

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        self._out, compute = torch.finfo(dtype), torch.finfo(compute_dtype(dtype))
        self.unit = U_DOUBLE if dtype == torch.float64 else U_FMA
        self.half = dtype.itemsize == 2 and has_short_formulas(name)
        self._tiny = compute.tiny * compute.eps

    def product(
        self,
        factor: Tensor,
        off: Tensor,
        reference: Tensor,
        multiplications: int = 1,
        others: Tensor | None = None,
    ) -> Tensor:
        """The bound of factor·f, where f has the error ``off``. ``others`` is the factor of
        products that may underflow. What a factor makes that is no finite number is none, or
        exactly 0."""
        factor = factor.nan_to_num(0.0, 0.0)
        error = factor * off
        error = error + multiplications * self.unit * (reference.abs() + error)
        beside = factor if others is None else factor + others.nan_to_num(0.0, 0.0)
        error = error + self._tiny * (4 * beside + 1)
        return (
            error
            + self._out.eps / 2 * (reference.abs() + error)
            + self._out.tiny * self._out.eps / 2
        )


def _value_and_slope(x: Tensor, act: str) -> tuple[Tensor, Tensor]:
    """act(x) and act'(x)."""
    activation = ACTIVATIONS[act]
    value = activation.function(x)
    return value, activation.derivative.function(x if activation.derivative.of_pre else value)


@in_one
def _eager_backward(
    grad: Tensor, gate: Tensor, up: Tensor, act: str, *, out: tuple[Tensor, Tensor]
) -> None:
    """The gradients as autograd computes them: of the product, then of the activation. Tensors are
    converted to one dtype and shape, because not every torch version takes others."""
    dgate, dup = out
    alike = [t.to(dgate.dtype).expand(dgate.shape) for t in (grad, gate, up)]
    grad, gate, up = alike
    value, derivative = activated(gate, act), ACTIVATIONS[act].derivative
    torch.mul(grad, value, out=dup)
    derivative.eager(grad * up, gate if derivative.of_pre else value, dgate)


SPECS = [ActMul("act_mul", "act(gate)·up"), ActMulBackward()]
