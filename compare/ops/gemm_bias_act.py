"""gemm_bias_act: every activation, scalar, kind of c and precision."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from compare import cases
from compare.case_options import FLOAT_DTYPE, LYING, NUMBER, TRUTH, choice
from compare.cases import CPU, Arguments, Case, Level
from compare.specs import product_bounds
from compare.specs.activations import ACTIVATIONS, OF_PRE
from compare.specs.gluon_forms import (
    GLUON,
    GLUON_ADDEND,
    GLUON_ALONG,
    GLUON_BESIDE,
    GLUON_BESIDE_TURNED,
    GLUON_CLUSTERS,
    GLUON_FEW,
    GLUON_FMA,
    GLUON_PARTS,
    GLUON_TURNED,
    Cut,
)
from compare.specs.product_inputs import HOW, OPERANDS, addend, arguments_of, lying, matrices
from compare.specs.products import (
    ALIGNMENTS,
    FEW_ROWS,
    HALVES,
    HUGE_COPY,
    HUGE_PARTS,
    LONG_SUM,
    PIECES,
    PRECISIONS,
    TAILS,
    TILES,
    TMA,
    Product,
    activated,
)

EPILOGUE: dict[str, Any] = {"alpha": 0.5, "beta": 2.0, "c": "full", "bias": True}
# Rows of several blocks, in each dtype at multiples of 16 bytes: with a tail, and with the
# last block full. Then, at such multiples in float32 only, with one column in the last block.
WIDE = [(2117, "padded"), (2048, "contiguous"), (2049, "padded")]
LONG, GROUPS = (3, 70, 9001), (2100, 24, 40)
OPTIONS = {
    "act": choice(*ACTIVATIONS),
    "alpha": NUMBER,
    "beta": NUMBER,
    "c": choice("full", "row", "column", "0-d"),
    "bias": TRUTH,
    "precision": choice(*PRECISIONS),
    "out_dtype": FLOAT_DTYPE,
    "operands": choice(*OPERANDS),
    "out": LYING,
    **HOW,
}


def _fused(a: Tensor, b: Tensor, bias: Tensor, *, act: str) -> Tensor:
    """The product with cuBLASLt's epilogue: relu, or the tanh form of GELU."""
    out: Tensor = torch._addmm_activation(bias, a, b, use_gelu=act == "gelu_tanh")
    return out


class GemmBiasAct(Product):
    """A product with any epilogue."""

    every = "acts on every x"
    options = OPTIONS
    every_tensor: Mapping[str, Any] = {"bias": True, "c": "full"}
    timed_options: Mapping[str, Any] = {"act": "relu", "bias": True}
    fused = staticmethod(_fused)

    def act(self, options: Mapping[str, Any]) -> str:
        """The activation that option act names."""
        return str(options.get("act", "none"))

    def oracle(self, *args: Any, **kwargs: Any) -> Tensor:
        """The formula in float64 on the unrounded inputs."""
        return product_bounds.oracle(*args, **kwargs)

    def bound(
        self, name: str, arguments: Arguments, reference: Tensor, dtype: torch.dtype
    ) -> Tensor:
        """The derived bound."""
        return product_bounds.bound(name, arguments, reference, dtype)

    def out_dtype(self, case: Case) -> torch.dtype:
        """The result's dtype."""
        return cases.DTYPES[case.options.get("out_dtype", case.dtype)]

    def inputs(self, case: Case, device: torch.device = CPU) -> Arguments:
        """a, b, bias and a full c in the case's layout. Option bias adds a bias; option c is full,
        row, column or 0-d."""
        g = case.generator()
        M, N, _ = case.shape
        a, b = (
            cases.arrange(t.to(device), layout)
            for t, layout in zip(matrices(case, g, device), lying(case))
        )
        options = arguments_of(case)
        bias = None
        if options.pop("bias", False):
            bias = cases.arrange(addend(case, (N,), g, device).to(device), case.layout)
        if "c" in options:
            shapes = {"full": (M, N), "row": (N,), "column": (M, 1), "0-d": ()}
            c = addend(case, shapes[options["c"]], g, device).to(device)
            if options["c"] == "full":
                c = cases.arrange(c, "transposed" if case.values == "special" else case.layout)
            options["c"] = c
        if "out_dtype" in options:
            options["out_dtype"] = cases.DTYPES[options["out_dtype"]]
        return (a, b, bias), options

    def cases(self, dtype: str, level: Level) -> Iterator[Case]:
        """Every activation, scalar, kind of c and precision; lattices; every x for activations."""
        variations: list[dict[str, Any]] = [{}]
        variations += [{"act": act, "bias": True} for act in ACTIVATIONS]
        variations += [
            {"alpha": 0.3, "bias": True},
            {"alpha": -1.7, "beta": 0.6, "c": "full", "bias": True, "act": "gelu"},
            {"c": "row"},
            {"c": "column", "beta": 2.0},
            {"c": "0-d", "beta": 0.5, "act": "relu"},
            {"c": "full", "beta": 0.0},
            {"alpha": 0.0, "bias": True},
        ]
        if dtype != "float32":
            variations.append({"out_dtype": "float32", "bias": True})
        yield from self.usual_cases(dtype, level, variations)
        if dtype in ("float32", "float64"):  # as accurate as the operands
            yield Case(self.name, dtype, (33, 65, 70), options={"out_dtype": "float16"})
        special = {"bias": True, "c": "full"}
        yield Case(self.name, dtype, TAILS, values="special", options=special)
        yield from self.activation_cases(dtype)
        for precision in PRECISIONS if dtype == "float32" else PRECISIONS[:1]:
            yield from self.precision_cases(dtype, precision)
        if level == "full" and dtype == "float32" and torch.cuda.is_available():
            yield from self.huge_copies()
        if dtype in ("float16", "bfloat16"):
            for shape in ALIGNMENTS:
                yield Case(self.name, dtype, shape, "contiguous", "lattice")
                yield Case(self.name, dtype, shape, "transposed", "lattice")
        yield from self.wide_cases(dtype)
        if dtype in HALVES and torch.cuda.is_available():
            yield from self.gluon_cases(dtype)
        # Both results of a training step with a full epilogue, and with an epilogue in halves.
        forms: list[dict[str, Any]] = [{"act": act} for act in OF_PRE]
        yield from self.training_cases(dtype, forms)
        step = {**forms[0], "bias": True, "training": "pre"}
        yield Case(self.name, dtype, TAILS, "functional", "lattice", 0, {**step, **EPILOGUE})
        if dtype == "float16":
            step["multiprocessors"] = 2
            yield Case(self.name, dtype, (194, 392, 40), "functional", "lattice", 0, step)

    def wide_cases(self, dtype: str) -> Iterator[Case]:
        """Few long rows, with and without each addend. cuBLASLt has no epilogue for them, so that a
        kernel of ours ends the product; then each tensor as the one for aligned rows refuses it."""

        def case(N: int, layout: str = "contiguous", **options: Any) -> Case:
            options = {"act": "silu", "alpha": 0.5, **options}
            return Case(self.name, dtype, (3, N, 8), layout, options=options)

        for N, layout in WIDE:
            yield case(N, layout, bias=True)
            yield case(N, layout)
            yield case(N, layout, bias=True, c="full", beta=2.0)
        yield case(17)
        for layout in ("misaligned", "strided"):
            yield case(64, layout, out="contiguous", bias=True)
            yield case(64, out=layout, bias=True)
        for other in ("float32", "float64"):
            if other != dtype:
                yield case(64, bias=True, out_dtype=other)
                yield case(64, out_dtype=other)

    def gluon_cases(self, dtype: str) -> Iterator[Case]:
        """Every form of Gluon's kernel with a full epilogue, and with results that a descriptor
        cannot store; in float16 plain, too: dtypes differ in the products' instruction alone. Of
        the many that are for an a along K each has one of these, in one of the dtypes; those in
        clusters have no such results."""
        operands = tuple(OPERANDS)
        forms: list[tuple[str, int, dict[str, Any]]] = [
            ("functional", 0, {**EPILOGUE, "act": "relu"}),
            ("strided", 3, {"c": "column", "beta": 2.0, "act": "relu"}),
            ("strided", 3, {"bias": True}),
        ]
        if dtype == "float16":
            forms.append(("functional", 0, {}))
        turned: list[tuple[str, int, dict[str, Any]]] = [
            ("functional", 0, {"alpha": 0.5, "bias": True, "act": "relu"}),
            ("functional", 0, {"act": min(OF_PRE), "bias": True, "training": "pre"}),
            ("strided", 3, {"bias": True}),
        ]

        def of(cut: Cut, operands: str, layout: str, fewer: int, options: dict[str, Any]) -> Case:
            (M, N, K), multiprocessors = cut
            options = {**options, "multiprocessors": multiprocessors, "operands": operands}
            return Case(self.name, dtype, (M, N - fewer, K), layout, "lattice", 0, options)

        for i, cut in enumerate((*GLUON, *GLUON_BESIDE)):
            yield from (of(cut, operands[(i + j) % 3], *each) for j, each in enumerate(forms))
        for cut in GLUON_TURNED:
            yield from (of(cut, "wgrad", *each) for each in turned)
        for i, cut in enumerate((*GLUON_FEW, *GLUON_BESIDE_TURNED)):
            yield from (of(cut, operands[(i + j) % 3], *each) for j, each in enumerate(turned))
        for i, cut in enumerate(GLUON_ALONG):
            if i % 2 == (dtype == "bfloat16"):
                yield of(cut, operands[i // 2 % 2], *turned[i // 2 % 3])
        added = ("functional", 0, {**EPILOGUE}), ("strided", 3, {"bias": True, "c": "column"})
        for i, cut in enumerate((*GLUON_ADDEND, *GLUON_FEW)):
            yield of(cut, operands[i % 2], *added[(i // 2 + (dtype == "bfloat16")) % 2])
        for i, cut in enumerate(GLUON_CLUSTERS):
            yield from (of(cut, operands[(i + j) % 2], *turned[j]) for j in range(2))
        if dtype == "bfloat16":  # an addend that float16 does not hold
            shape, multiprocessors = min(GLUON)
            how = {"multiprocessors": multiprocessors, "operands": "forward"}
            yield Case(self.name, dtype, shape, "functional", "special", 0, {**EPILOGUE, **how})

    def sample(self) -> dict[str, Any]:
        """Arguments with a bias."""
        return {"a": (4, 6), "b": (6, 5), "bias": (5,)}

    def activation_cases(self, dtype: str) -> Iterator[Case]:
        """Cases with K = 0: the pre-activation is c, so only the activation's own error shows. They
        have all 16-bit values, special and normal values, and wider or narrower results."""

        def case(shape: tuple[int, int, int], values: str, **options: Any) -> Case:
            return Case(self.name, dtype, shape, values=values, options={"c": "full", **options})

        for act in ACTIVATIONS:
            if dtype in ("float16", "bfloat16"):
                yield case((256, 256, 0), "every", act=act)
            else:
                yield case((32, 64, 0), "normal", act=act)
                yield case((64, 64, 0), "special", act=act)
        # gelu is the activation whose form for 16-bit results differs in more than speed.
        for other in ("float16", "bfloat16", "float32"):
            if other != dtype:
                yield case((32, 64, 0), "normal", act="gelu", beta=0.3, bias=True, out_dtype=other)
        # With beta = 0, c may be NaN.
        yield case((33, 65, 0), "special", beta=0.0)

    def precision_cases(self, dtype: str, precision: str) -> Iterator[Case]:
        """Lattices with and without an epilogue, special values, every split of the work."""
        o: dict[str, Any] = {} if precision == "ieee" else {"precision": precision}

        def case(
            shape: tuple[int, int, int],
            layout: str = "contiguous",
            values: str = "lattice",
            **more: Any,
        ) -> Case:
            return Case(self.name, dtype, shape, layout, values, 0, {**o, **more})

        for shape in (TAILS, (96, 80, 128), (16, 16, 301), TMA):
            if o:
                yield case(shape, values="normal")
            yield case(shape)
            yield case(shape, "transposed", **EPILOGUE)
            yield case(shape, "padded", **EPILOGUE, act="relu")
            if dtype in ("float32", "float64") and precision != "tf32":
                yield case(shape, values="lattice-wide")
        if o:
            yield case(TAILS, values="special")
            yield case((16, 16, 24), values="tf32")
        else:
            yield case(LONG)
            for number in (1, 132):  # a long K whole and in parts, more groups of tiles than two
                yield case(LONG, multiprocessors=number)
                yield case(GROUPS, multiprocessors=number)
            yield case((9, 40, 1288), values="special", multiprocessors=132)  # in parts
            if dtype == "float32" and torch.cuda.is_available():
                for shape, multiprocessors in GLUON_FMA:
                    yield case(shape, multiprocessors=multiprocessors)
                    full = {**EPILOGUE, "multiprocessors": multiprocessors}
                    yield case(shape, "transposed", "special", **full)
                    yield case(shape, "padded", "normal", **full, act="relu")
        if precision == "f16x3":
            if torch.cuda.is_available():  # shows how often sums leave the tensor cores
                yield case(LONG_SUM, values="normal")
                for shape, multiprocessors in GLUON_PARTS:  # few programs have many tiles each
                    yield case(shape, values="normal", multiprocessors=multiprocessors)
                    full = {**EPILOGUE, "multiprocessors": multiprocessors}
                    yield case(shape, "transposed", "special", **full)
                    yield case(shape, "padded", **full, act="relu")
            for layout in ("contiguous", "transposed"):  # longer than one split step
                yield case((3, 5, 4500), layout, "normal")
            # The largest element of a row is alone in its second step.
            for K, layout in ((4097, "contiguous"), (257, "transposed")):
                yield case((20, 24, K), layout, "special")
            for K, layout in ((40, "contiguous"), (257, "transposed")):
                yield case((20, 37, K), layout, "scaled")
            # More column tiles than a group has rows; then more row tiles than one, by columns.
            yield case((20, 560, 40))
            yield case((70, 40, 40), "transposed", "normal")
            # State that is recomputed after the first tile, and past the columns that one program
            # looks at; a loop of one step.
            yield case((70, 130, 40), values="special")
            yield case((70, 1100, 24), values="special")
            yield case((20, 24, 1), values="special")
            yield case((20, 24, 1), "transposed", "special", **EPILOGUE)
            for K, layout in itertools.product((64, 257), cases.DISTANT):
                yield case((17, 9, K), layout, **EPILOGUE)
            step: dict[str, Any] = {"act": min(OF_PRE), "bias": True, "training": "pre"}
            yield case(TAILS, "functional", "special", **step)
        for shape, multiprocessors in TILES["/".join([dtype, *o.values()])]:
            # c changes the stages of a compiled launch, the dtype its code, but not interpreted.
            if torch.cuda.is_available() or dtype != "bfloat16":
                yield case(shape, multiprocessors=multiprocessors)
            if torch.cuda.is_available() or shape == (194, 388, 40):
                yield case(shape, **EPILOGUE, multiprocessors=multiprocessors)
        if dtype == "float16" or (dtype == "bfloat16" and torch.cuda.is_available()):
            for shape, multiprocessors in PIECES:
                yield case(shape, "transposed", multiprocessors=multiprocessors)
            for layout, cuts in FEW_ROWS.items():
                for shape, multiprocessors in cuts:
                    yield case(shape, layout, multiprocessors=multiprocessors)

    def huge_copies(self) -> Iterator[Case]:
        """float32 operands past 2³¹ elements that are copied: split into float16 parts, and
        transposed for tf32."""
        for shape, layout, values in HUGE_PARTS:
            options = {"precision": "f16x3"}
            yield Case(self.name, "float32", shape, layout, values, options=options)
        options = {"precision": "tf32"}
        yield Case(self.name, "float32", HUGE_COPY, "transposed", options=options)

    def to_compile(self, dtype: str, options: Mapping[str, Any]) -> Iterator[Case]:
        """Each tile configuration and precision, without an epilogue and with the heaviest."""
        heavy: dict[str, Any] = {"act": "gelu", "bias": True, "c": "full"}
        for precision in PRECISIONS if dtype == "float32" else PRECISIONS[:1]:
            for shape in self.shapes_to_compile(dtype):
                for epilogue in ({}, heavy):
                    yield Case(
                        self.name, dtype, shape, options={**epilogue, "precision": precision}
                    )
        for shape, layout in self.few_rows_to_compile(dtype):
            yield Case(self.name, dtype, shape, layout, options=heavy)

    def pinned_to_compile(self, dtype: str) -> Iterator[tuple[str, Case]]:
        """What is compiled of pinned variants, also with the heaviest epilogue."""
        for variant, case in super().pinned_to_compile(dtype):
            yield variant, case
            heavy = {**case.options, "act": "gelu", "bias": True, "c": "full"}
            yield variant, Case(self.name, dtype, case.shape, options=heavy)

    def eager(
        self,
        a: Tensor,
        b: Tensor,
        bias: Tensor | None = None,
        *,
        act: str = "none",
        alpha: float = 1.0,
        beta: float | None = None,
        c: Tensor | None = None,
        out_dtype: torch.dtype | None = None,
        precision: str = "ieee",
        training: str = "out",
    ) -> Tensor:
        """gemm_bias_act in torch, without ``precision``."""
        if c is not None:
            pre = torch.addmm(c, a, b, beta=1.0 if beta is None else beta, alpha=alpha)
            pre = pre if bias is None else pre + bias
        elif bias is not None:
            pre = torch.addmm(bias, a, b, alpha=alpha)
        else:
            pre = a @ b if alpha == 1.0 else alpha * (a @ b)
        result = pre if training == "pre" else activated(pre, act)
        return result if out_dtype is None else result.to(out_dtype)


SPECS = [GemmBiasAct("gemm_bias_act", "act(alpha·(a@b) + beta·c + bias)")]
