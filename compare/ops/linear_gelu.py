"""linear_gelu: both forms of GELU, with and without bias."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from compare import cases
from compare.case_options import TRUTH, Option, choice
from compare.cases import CPU, Arguments, Case, Level
from compare.specs import product_bounds
from compare.specs.product_inputs import HOW, addend, arguments_of, matrices
from compare.specs.products import Product

ACTS = {"none": "gelu", "tanh": "gelu_tanh"}


def _fused(x: Tensor, weight: Tensor, bias: Tensor, *, approximate: str = "none") -> Tensor:
    """With cuBLASLt's epilogue, which has the tanh form only."""
    rows = x.reshape(-1, x.shape[-1])
    out: Tensor = torch._addmm_activation(bias, rows, weight.t(), use_gelu=True)
    return out.view(*x.shape[:-1], weight.shape[0])


class LinearGelu(Product):
    """Rows of any leading dimensions against a weight [O, I]."""

    options: Mapping[str, Option] = {"approximate": choice(*ACTS), "bias": TRUTH, **HOW}
    timed_options: Mapping[str, Any] = {"approximate": "tanh"}
    fused = staticmethod(_fused)

    def act(self, options: Mapping[str, Any]) -> str:
        """GELU in one of its forms."""
        return ACTS[options.get("approximate", "none")]

    def oracle(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, **options: Any
    ) -> Tensor:
        """gelu(x @ weight.T + bias) in float64 on the exact inputs; without gelu where training is
        "pre"."""
        flat, act = x.reshape(x.shape[:-1].numel(), x.shape[-1]), self.act(options)
        training = options.get("training", "out")
        result = product_bounds.oracle(flat, weight.t(), bias, act=act, training=training)
        return result.view(*x.shape[:-1], weight.shape[0])

    def bound(
        self, name: str, arguments: Arguments, reference: Tensor, dtype: torch.dtype
    ) -> Tensor:
        """The derived one, of the same product of matrices."""
        (x, weight, bias), options = arguments
        flat = x.reshape(x.shape[:-1].numel(), x.shape[-1])
        inner: Arguments = ((flat, weight.t(), bias), {"act": self.act(options)})
        rows = reference.reshape(flat.shape[0], weight.shape[0])
        return product_bounds.bound(name, inner, rows, dtype).view(reference.shape)

    def inputs(self, case: Case, device: torch.device = CPU) -> Arguments:
        """x [M, I], or [2, M/2, I] where M is even, and weight [O, I] in the case's layout."""
        g = case.generator()
        M, N, K = case.shape
        x, b = matrices(case, g, device)
        x, weight = (cases.arrange(t.contiguous().to(device), case.layout) for t in (x, b.t()))
        if M % 2 == 0 and x.is_contiguous():
            x = x.view(2, M // 2, K)
        options = arguments_of(case)
        bias = (
            cases.arrange(addend(case, (N,), g).to(device), case.layout)
            if options.pop("bias", True)
            else None
        )
        return (x, weight, bias), options

    def cases(self, dtype: str, level: Level) -> Iterator[Case]:
        """Both forms, and of the bias alone."""
        forms: list[dict[str, Any]] = [{}, {"approximate": "tanh"}]
        yield from self.usual_cases(dtype, level, [*forms, {"bias": False}])
        for form in forms:
            for values in ("normal", "special"):
                yield Case(self.name, dtype, (2, 256, 0), values=values, options=form)
        yield from self.training_cases(dtype, forms)

    def sample(self) -> dict[str, Any]:
        """With bias."""
        return {"x": (4, 6), "weight": (5, 6), "bias": (5,)}

    def to_compile(self, dtype: str, options: Mapping[str, Any]) -> Iterator[Case]:
        """Each tile configuration with the erf form of GELU, the last also with the tanh form."""
        for shape in self.shapes_to_compile(dtype):
            yield Case(self.name, dtype, shape)
        yield Case(
            self.name, dtype, self.shapes_to_compile(dtype)[-1], options={"approximate": "tanh"}
        )

    def eager(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, **options: Any
    ) -> Tensor:
        """linear_gelu as torch's users write it."""
        pre = torch.nn.functional.linear(x, weight, bias)
        if options.get("training") == "pre":
            return pre
        approximate = options.get("approximate", "none")
        return torch.nn.functional.gelu(pre, approximate=approximate)


SPECS = [LinearGelu("linear_gelu", "gelu(x @ weight.T + bias)")]
