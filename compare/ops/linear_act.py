"""linear_act: every activation and precision; linear_gelu: both forms of GELU."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from compare import cases
from compare.case_options import TRUTH, Option, choice
from compare.cases import CPU, Arguments, Case, Level
from compare.specs import product_bounds
from compare.specs.activations import ACTIVATIONS
from compare.specs.product_inputs import HOW, OPERANDS, addend, arguments_of, lying, matrices
from compare.specs.products import HALVES, PRECISIONS, TAILS, TMA, Product, activated

GELUS = {"none": "gelu", "tanh": "gelu_tanh"}


def _fused(
    x: Tensor, weight: Tensor, bias: Tensor, *, act: str = "gelu_tanh", approximate: str = "tanh"
) -> Tensor:
    """The layer with cuBLASLt's epilogue: relu, or the tanh form of GELU, with which linear_gelu is
    timed."""
    rows = x.reshape(-1, x.shape[-1])
    out: Tensor = torch._addmm_activation(bias, rows, weight.t(), use_gelu=act == "gelu_tanh")
    return out.view(*x.shape[:-1], weight.shape[0])


class LinearAct(Product):
    """x with any leading dimensions times a weight [O, I]."""

    options: Mapping[str, Option] = {
        "act": choice(*ACTIVATIONS),
        "bias": TRUTH,
        "precision": choice(*PRECISIONS),
        "operands": choice(*OPERANDS),
        **HOW,
    }
    default_options: Mapping[str, Any] = {"act": "relu"}
    timed_options: Mapping[str, Any] = {"act": "relu"}
    columns = 0
    benchmarked = False  # linear_gelu is
    fused = staticmethod(_fused)

    def act(self, options: Mapping[str, Any]) -> str:
        """The activation that option act names."""
        return str(options.get("act", self.default_options["act"]))

    def oracle(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, **options: Any
    ) -> Tensor:
        """act(x @ weight.T + bias) in float64 on the unrounded inputs; the pre-activation if option
        training is "pre"."""
        flat, act = x.reshape(x.shape[:-1].numel(), x.shape[-1]), self.act(options)
        training = options.get("training", "out")
        result = product_bounds.oracle(flat, weight.t(), bias, act=act, training=training)
        return result.view(*x.shape[:-1], weight.shape[0])

    def bound(
        self, name: str, arguments: Arguments, reference: Tensor, dtype: torch.dtype
    ) -> Tensor:
        """The derived bound of the same product."""
        (x, weight, bias), options = arguments
        flat = x.reshape(x.shape[:-1].numel(), x.shape[-1])
        inner = {"act": self.act(options), "precision": options.get("precision", "ieee")}
        inner["training"] = options.get("training", "out")
        rows = reference.reshape(flat.shape[0], weight.shape[0])
        limits = product_bounds.bound(name, ((flat, weight.t(), bias), inner), rows, dtype)
        return limits.view(reference.shape)

    def inputs(self, case: Case, device: torch.device = CPU) -> Arguments:
        """x [M, I], or [2, M/2, I] where M is even, and weight [O, I] in the case's layout."""
        g = case.generator()
        M, N, K = case.shape
        x, b = matrices(case, g, device)
        x_lies, weight_lies = case.layout, case.layout
        if "operands" in case.options:
            x_lies, b_lies = lying(case)
            weight_lies = "contiguous" if b_lies == "transposed" else "transposed"
        x = cases.arrange(x.contiguous().to(device), x_lies)
        weight = cases.arrange(b.t().contiguous().to(device), weight_lies)
        if M % 2 == 0 and x.is_contiguous():
            x = x.view(2, M // 2, K)
        options = {**self.default_options, **arguments_of(case)}
        bias = (
            cases.arrange(addend(case, (N,), g, device).to(device), case.layout)
            if options.pop("bias", True)
            else None
        )
        return (x, weight, bias), options

    def cases(self, dtype: str, level: Level) -> Iterator[Case]:
        """Every activation with both kernels. Layouts and splits are covered by linear_gelu."""

        def case(shape: tuple[int, int, int], values: str = "normal", **options: Any) -> Case:
            return Case(self.name, dtype, shape, values=values, options=options)

        for act in ACTIVATIONS:
            yield case(TAILS, act=act)
        yield case(TAILS, act="none", bias=False)
        yield case(TAILS, "special", act="relu")
        yield case(TAILS, "lattice", act="relu")
        if dtype in HALVES:
            yield case(TMA, "lattice", act="relu")
        for precision in PRECISIONS[1:] if dtype == "float32" else ():
            yield case(TAILS, act="silu", precision=precision)
        forms: list[dict[str, Any]] = [{"act": "silu"}]
        yield from self.training_cases(dtype, forms)

    def sample(self) -> dict[str, Any]:
        """A sample with a bias."""
        return {"x": (4, 6), "weight": (5, 6), "bias": (5,), "act": "relu"}

    def to_compile(self, dtype: str, options: Mapping[str, Any]) -> Iterator[Case]:
        """One case: linear_gelu and gemm_bias_act cover every configuration of the same kernels."""
        yield Case(self.name, dtype, self.shapes_to_compile(dtype)[-1], options=options)

    def pinned_to_compile(self, dtype: str) -> Iterator[tuple[str, Case]]:
        """One case, for the same reason."""
        return itertools.islice(super().pinned_to_compile(dtype), 1)

    def eager(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, **options: Any
    ) -> Tensor:
        """linear_act in torch, without ``precision``."""
        pre = torch.nn.functional.linear(x, weight, bias)
        return pre if options.get("training") == "pre" else activated(pre, self.act(options))


class LinearGelu(LinearAct):
    """linear_gelu; option ``approximate`` is the form of GELU."""

    options: Mapping[str, Option] = {
        "approximate": choice(*GELUS),
        "bias": TRUTH,
        "operands": choice(*OPERANDS),
        **HOW,
    }
    default_options: Mapping[str, Any] = {}
    timed_options: Mapping[str, Any] = {"approximate": "tanh"}
    forms: Sequence[Mapping[str, Any]] = tuple({"approximate": name} for name in GELUS)
    benchmarked = True

    def act(self, options: Mapping[str, Any]) -> str:
        """The form of GELU."""
        return GELUS[options.get("approximate", "none")]

    def cases(self, dtype: str, level: Level) -> Iterator[Case]:
        """Cases of both forms of GELU, and of the bias alone."""
        forms: list[dict[str, Any]] = [{}, {"approximate": "tanh"}]
        yield from self.usual_cases(dtype, level, [*forms, {"bias": False}])
        for form in forms:
            for values in ("normal", "special"):
                yield Case(self.name, dtype, (2, 256, 0), values=values, options=form)
        yield from self.training_cases(dtype, forms)

    def sample(self) -> dict[str, Any]:
        """A sample with a bias."""
        return {"x": (4, 6), "weight": (5, 6), "bias": (5,)}

    def to_compile(self, dtype: str, options: Mapping[str, Any]) -> Iterator[Case]:
        """Each tile configuration with the erf form of GELU, the last also with the tanh form."""
        for shape in self.shapes_to_compile(dtype):
            yield Case(self.name, dtype, shape)
        yield Case(
            self.name, dtype, self.shapes_to_compile(dtype)[-1], options={"approximate": "tanh"}
        )


SPECS = [
    LinearAct("linear_act", "act(x @ weight.T + bias)"),
    LinearGelu("linear_gelu", "gelu(x @ weight.T + bias)"),
]
