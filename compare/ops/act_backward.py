"""act_backward: oracle, derived bound, cases.

Both results are one matrix here, [M + 1, N]: dx, with the sums as its last row. The implementations
write into it without a copy, so both results have the matrix's layout.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any

import torch
from torch import Tensor

from compare import cases
from compare.case_options import COUNT, FLOAT_DTYPE, LYING, TRUTH, choice
from compare.cases import CPU, FLOATS, Arguments, Case, Level
from compare.specs import sums
from compare.specs.activations import ACTIVATIONS, has_short_formulas
from compare.specs.drawn import elements, equal, matrix, odd_matrix
from compare.specs.product_bounds import U_DOUBLE, U_FMA, growth
from compare.specs.product_inputs import cut_for
from compare.specs.spec import Spec
from cuda_reference import _activations

VALUES = ("normal", "special", "every", "integers")


def in_one(function: Callable[..., Any]) -> Callable[..., Tensor]:
    """The function with both results in one matrix, whose last row is 0 without bias. With
    ``apart`` the function allocates its results, and they are copied."""

    @functools.wraps(function)
    def packed(
        grad: Tensor,
        saved: Tensor,
        act: str,
        *,
        bias: bool = True,
        dtype: torch.dtype | None = None,
        out: Tensor | None = None,
        apart: bool = False,
        **options: Any,
    ) -> Tensor:
        options["bias"] = bias
        if apart:
            dx, sums = function(grad, saved, act, dtype=dtype, **options)
            if not bias:  # there are no sums: a row of zeros
                sums = torch.nn.functional.pad(sums, (0, dx.shape[1]))
            return torch.cat((dx, sums[None]))
        try:
            M, N = grad.shape
            result = dtype or torch.promote_types(grad.dtype, saved.dtype)
            both = torch.empty((M + 1, N), dtype=result, device=grad.device) if out is None else out
            dx, sums = both[:M], both[M] if bias else both[M].zero_()[:0]
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):
            function(grad, saved, act, dtype=dtype, **options)  # raises the function's own error
            raise
        function(grad, saved, act, dtype=dtype, out=(dx, sums), **options)
        return both

    return packed


OPTIONS = {
    "act": choice(*ACTIVATIONS),
    "bias": TRUTH,
    "grad_dtype": FLOAT_DTYPE,
    "out_dtype": FLOAT_DTYPE,
    "saved": LYING,
    "out": LYING,
    "multiprocessors": COUNT,
}


LAYOUTS = (*cases.LAYOUTS, "functional", *cases.OF_MODELS, *cases.DISTANT)
# Of randomly drawn problems: stratum → layout of grad, and option saved.
DRAWN = {
    "dense": ("contiguous", {}),
    "odd count": ("contiguous", {}),
    "offset view": ("misaligned", {}),
    "padded rows": ("chunk", {}),
    "transposed grad": ("transposed", {"saved": "contiguous"}),
    "expanded grad": ("expanded", {"saved": "contiguous"}),
}
SHAPES = [(0, 5), (5, 0), (1, 1), (1, 300), (300, 1), (16, 256), (33, 129), (70, 257)]
BUSY = 1 << 18  # partial sums of all programs of a kernel
SHARE, MOST = 1 << 24, 8  # of a larger matrix as many for each SHARE of its bytes, up to MOST times


@in_one
def _eager(
    grad: Tensor,
    saved: Tensor,
    act: str,
    *,
    bias: bool,
    dtype: torch.dtype | None,
    out: tuple[Tensor, Tensor],
) -> None:
    """The gradient as autograd computes it, then the sums over rows. Tensors of several dtypes are
    converted, because not every torch version takes them."""
    if grad.dtype == saved.dtype == out[0].dtype:
        ACTIVATIONS[act].derivative.eager(grad, saved, out[0])
        if bias:
            torch.sum(out[0], 0, out=out[1])
        return
    common = torch.promote_types(grad.dtype, saved.dtype)
    dx = torch.empty_like(grad, dtype=common)
    ACTIVATIONS[act].derivative.eager(grad.to(common), saved.to(common), dx)
    out[0].copy_(dx)
    if bias:
        out[1].copy_(dx.sum(0))


class ActBackward(Spec):
    """act_backward; both results are judged as one matrix, [M + 1, N]."""

    order = 3
    bounded = True
    layouts = LAYOUTS
    values = VALUES
    options = OPTIONS
    sizes = "M,N"
    in_place = True
    every = "every saved value"
    default_options: Mapping[str, Any] = {"act": "gelu"}

    def __init__(self) -> None:
        super().__init__("act_backward", "grad·act'(saved), and its column sums")
        self.triton, self.cuda = in_one(self.triton), in_one(self.cuda)

    def oracle(
        self,
        grad: Tensor,
        saved: Tensor,
        act: str,
        *,
        bias: bool = True,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """grad·act'(saved) and its column sums in float64; without bias the sums are 0."""
        M, N = grad.shape
        both = torch.empty((M + 1, N), dtype=torch.float64, device=grad.device)
        slope = ACTIVATIONS[act].derivative.function(saved.double())
        torch.mul(grad.double(), slope, out=both[:M])
        ACTIVATIONS[act].derivative.masked(both[:M], slope)
        both[M] = both[:M].sum(0) if bias else 0
        return both

    def bound(
        self, name: str, arguments: Arguments, reference: Tensor, dtype: torch.dtype
    ) -> Tensor:
        """E + u_out·(|ref| + E) + η_out. For dx, E = |grad|·δ + u·(|dx| + |grad|·δ), where δ is the
        derivative's evaluation error. For a sum, E is the sum of these plus γ_M·Σ(|dx| + E), for
        additions in any order."""
        (grad, saved, *rest), options = arguments
        act = rest[0] if rest else options["act"]
        double = torch.float64 in (grad.dtype, saved.dtype, dtype)
        compute = torch.float64 if double else torch.float32
        unit = U_DOUBLE if double else U_FMA
        tiny = torch.finfo(compute).tiny * torch.finfo(compute).eps
        derivative = ACTIVATIONS[act].derivative
        half = derivative.half if dtype.itemsize == 2 and not double else 0.0
        added = growth(grad.shape[0], unit) + growth(grad.shape[0], U_DOUBLE)  # incl. the oracle's
        out = torch.finfo(dtype)
        # What a gradient makes that is no finite number is none, or exactly 0.
        size, magnitude = reference[:-1].abs(), grad.double().abs().nan_to_num(0.0, 0.0)
        error = magnitude * unit * derivative.error(saved.double())
        if has_short_formulas(name):
            error += magnitude * half
        flushed = magnitude * tiny * 4 + tiny  # where a derivative is subnormal
        error += unit * size + unit * error + flushed  # size + error might overflow
        sums = torch.zeros_like(reference[-1])
        if options.get("bias", True):
            sums = error.sum(0) + added * (size + error).sum(0)
        bounds = torch.cat((error, sums[None]))
        rounded = out.eps / 2 * reference.abs() + out.eps / 2 * bounds
        return bounds + rounded + out.tiny * out.eps / 2

    def result_shape(self, arguments: Arguments) -> tuple[int, ...]:
        """[M + 1, N]."""
        M, N = arguments[0][0].shape
        return M + 1, N

    def work(self, case: Case, dtype: torch.dtype, read: int, written: int) -> int:
        """The bytes of a derivative's float64 steps, or of the oracle's result, bound and
        errors."""
        if self.exact(case):
            return 44 * written
        return written * (116 if case.options["act"] in ("gelu", "gelu_tanh") else 100)

    def workspace(self, case: Case, arguments: Arguments) -> int:
        """The bytes of the partial sums in float64. A part has 32 rows or more; a narrow matrix has
        no more parts than keep a GPU busy. With one part the sums are the result."""
        M, N = arguments[0][0].shape
        parts = -(-M // 32)
        size = M * N * self.out_dtype(case).itemsize
        busy = BUSY * max(1, min(MOST, size // SHARE))
        return 8 * min(parts * N, N + busy) if parts > 1 else 0

    # ---- rungs of the CUDA side ----

    def variants(self, side: str) -> dict[str, Callable[..., Tensor]]:
        """They, too, write both results into one matrix."""
        return {name: in_one(function) for name, function in super().variants(side).items()}

    def takes(self, side: str, variant: str | None, case: Case) -> bool:
        """A rung takes tensors of one of its dtypes."""
        rung = self._rung(side, variant)
        if rung is None:
            return super().takes(side, variant, case)
        grad = cases.DTYPES[case.options.get("grad_dtype", case.dtype)]
        alike = grad == case.torch_dtype == self.out_dtype(case)
        return alike and case.torch_dtype in rung.dtypes

    def cuda_kernel(self, dtype: str, variant: str | None) -> str:
        """The kernel of the default activation."""
        kernels = self.cuda_kernels(dtype, variant)
        return kernels.get(self.default_options["act"]) or kernels[""]

    def cuda_kernels(self, dtype: str, variant: str | None) -> dict[str, str]:
        """A rung with packs has one kernel per activation, and the best one a second pass."""
        if variant not in self.rungs():
            return {"": super().cuda_kernel(dtype, variant)}
        records = {"": "ActivationFor<{0}>"}
        if variant != "lanes":
            records = {act: _activations.ACTIVATIONS[act].record for act in ACTIVATIONS}
            if cases.DTYPES[dtype].itemsize == 2:
                records = {act: f"Short<{record}>" for act, record in records.items()}
        kernels = {
            act: sums.columns_kernel(f"Products<{record}, {{0}}>", dtype, variant)
            for act, record in records.items()
        }
        return kernels | (sums.SECOND if variant == "two_pass" else {})

    # ---- results in parts ----

    def cut(self, arguments: Arguments) -> int | None:
        """The columns, which dx and the sums share."""
        return 1

    def part(self, arguments: Arguments, along: int, start: int, size: int) -> Arguments:
        """Some columns of grad and saved."""
        (grad, saved, *act), options = arguments
        return (*(t.narrow(1, start, size) for t in (grad, saved)), *act), options

    def exact(self, case: Case) -> bool:
        """Whether nothing is rounded: sums of integers."""
        return case.values in ("integers", "lattice") and case.options["act"] in ("none", "relu")

    def out_dtype(self, case: Case) -> torch.dtype:
        """The results' dtype."""
        if "out_dtype" in case.options:
            return cases.DTYPES[case.options["out_dtype"]]
        grad = cases.DTYPES[case.options.get("grad_dtype", case.dtype)]
        return torch.promote_types(grad, case.torch_dtype)

    def cases(self, dtype: str, level: Level) -> Iterator[Case]:
        """Every activation on normal, special and all values; the other cases with one of them."""

        def case(
            shape: tuple[int, ...], layout: str = "contiguous", values: str = "normal", **o: Any
        ) -> Case:
            return Case(self.name, dtype, shape, layout, values, 0, {"act": "gelu", **o})

        for act in ACTIVATIONS:
            yield case((33, 129), act=act)
            yield case((33, 129), values="special", act=act)
            if ACTIVATIONS[act].curvature is None:  # others' slopes end where the dtype does
                yield case((33, 129), values="special", act=act, bias=False)
            if cases.DTYPES[dtype].itemsize == 2:
                yield case((256, 256), values="every", act=act)
        for shape in SHAPES:
            if shape != (33, 129):  # done above
                yield case(shape)
            yield case(shape, values="integers", act="relu")
        # One element remains after the last merged row.
        yield case((2**14 + 1, 1), values="integers", act="relu")
        for columns in (50, 100):  # the CUDA side merges two rows of float32, or of 16 bits
            yield case((130, columns), values="integers", act="relu")
        for layout in (*cases.LAYOUTS[1:], "functional"):
            yield case((33, 129), layout)
            yield case((33, 129), layout, "integers", act="none")
        for saved in ("contiguous", "padded"):  # rows whose length is a multiple of 8, and others
            yield case((40, 72), saved=saved)
        for layout in ("strided", "misaligned"):  # the pitch is a multiple of 8, but packs are not
            yield case((40, 72), layout)
        for lying in ("transposed", *cases.DISTANT):  # the layout of grad, saved, or both results
            shape = (17, 19) if lying == "transposed" else (3, 3)
            yield case(shape, lying)
            yield case(shape, lying, saved="contiguous", out="contiguous")
            yield case(shape, saved=lying)
            yield case(shape, out=lying)
        for other in FLOATS:
            if other != dtype:
                yield case((17, 19), grad_dtype=other, out_dtype=dtype)
                yield case((17, 19), out_dtype=other)
                yield case((17, 19), grad_dtype=other)
                if dtype == "float64":
                    yield case((17, 19), grad_dtype=other, out_dtype=other)
        for shape in ((16, 256), (70, 257)):  # rows of one part, and of several
            yield case(shape, bias=False)
            yield case(shape, "functional", bias=False)
        # Parts of two row blocks; then rows that the Triton side merges, with a remainder.
        for shape in ((33 * 64, 32), (33 * 32, 33)):
            yield case(shape, multiprocessors=1)
            yield case(shape, values="integers", act="relu", multiprocessors=1)
        yield case((33 * 32, 33), "functional", multiprocessors=1, bias=False)
        yield case((33 * 32, 33), "padded", multiprocessors=1)  # rows that cannot be merged
        if level != "quick" and torch.cuda.is_available():
            for act in ACTIVATIONS:
                yield case((2048, 2051), act=act)
            yield case((2048, 2051), "transposed")
            yield case((2**14 + 1, 2051))
            yield case((2, 2**22 + 65))  # more than 65535 column blocks
        if level == "full" and torch.cuda.is_available() and dtype == "float16":
            yield case((2**15 + 1, 2**16 + 1), values="integers", act="relu")
            yield case((3, 2**30 + 7))
            yield case((1, 2**31 + 9))

    def called(self, case: Case, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """With option multiprocessors, cut for a GPU of that many. With layout functional the
        function allocates both results."""
        if case.layout == "functional":
            function = functools.partial(function, apart=True)
        number = case.options.get("multiprocessors")
        return cut_for(number, function) if number else function

    def inputs(self, case: Case, device: torch.device = CPU) -> Arguments:
        """grad in the case's layout, and saved in that of option ``saved`` or of the case. "every"
        applies to saved, and so do special values, beside a first row of zeros in grad; without
        sums to grad, too. The saved result of sigmoid or tanh is clipped to ±1."""
        g = case.generator()
        act = case.options["act"]
        of_both = case.values == "special" and case.options.get("bias") is False
        only_saved = case.values in ("special", "every") and not of_both
        plain = "normal" if only_saved else case.values
        dtype = cases.DTYPES[case.options.get("grad_dtype", case.dtype)]
        grad = cases.random_values(case.shape, dtype, plain, g, device)
        if case.values == "special" and not of_both:
            grad[:1] = 0
        saved = cases.random_values(case.shape, case.torch_dtype, case.values, g, device)
        if act in ("sigmoid", "tanh") and device.type != "meta":
            saved = saved.clamp(-1, 1)
        options: dict[str, Any] = {}
        if "out_dtype" in case.options:
            options["dtype"] = self.out_dtype(case)
        if "bias" in case.options:
            options["bias"] = case.options["bias"]
        lying = case.options.get("saved", case.layout)
        return (cases.arrange(grad, case.layout), cases.arrange(saved, lying), act), options

    def sample(self) -> dict[str, Any]:
        """Arguments for a first call, [4, 5]."""
        return {"grad": (4, 5), "saved": (4, 5), "act": "relu"}

    def cost(self, case: Case) -> tuple[int, int]:
        """One multiplication and one addition per element; two matrices read, one written."""
        written = case.numel * self.out_dtype(case).itemsize
        grad = case.shape[-1] if case.layout == "expanded" else case.numel
        return 2 * case.numel, (grad + case.numel) * case.torch_dtype.itemsize + written

    def small(self, dtype: str) -> Iterator[Case]:
        """None: this spec packs both results, which doubles the host time of a small call."""
        return iter(())

    def to_compile(self, dtype: str, options: Mapping[str, Any]) -> Iterator[Case]:
        """Every derivative, and a strided matrix."""
        for act in ACTIVATIONS:
            yield Case(self.name, dtype, (4096, 4096), options={"act": act})
        yield Case(self.name, dtype, (4096, 4096), "padded", options={"act": "gelu"})

    def eager(self, *args: Any, **kwargs: Any) -> Tensor:
        """The gradients by torch's autograd."""
        return _eager(*args, **kwargs)

    @property
    def strata(self) -> Mapping[str, float]:
        """The layouts of the two matrices."""
        return equal(*DRAWN)

    def draw(self, stratum: str, dtype: str, random: Random) -> Case | None:
        """A drawn case with any activation."""
        layout, lying = DRAWN[stratum]
        numel = elements(random, cases.DTYPES[dtype].itemsize)
        shape = (odd_matrix if stratum == "odd count" else matrix)(random, numel)
        act = random.choice([name for name in ACTIVATIONS if name != "none"])
        options = {"act": act, **lying}
        if layout not in ("contiguous", "misaligned") and min(shape) == 1:
            return None  # its layout is the same as contiguous
        return Case(self.name, dtype, shape, layout, options=options)


SPECS = [ActBackward()]
