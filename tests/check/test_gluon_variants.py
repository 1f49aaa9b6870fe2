"""The check compares Gluon's kernel with Triton's language proper: on a GPU that has both."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from compare.cases import Case
from compare.checking import eager_rule
from compare.checking.implementations import MODES, applies, implementations
from compare.cli import app
from compare.ops import SPECS
from compare.specs.drawn_products import OPERANDS
from compare.specs.gluon_forms import (
    GLUON,
    GLUON_ADDEND,
    GLUON_ALONG,
    GLUON_BESIDE,
    GLUON_BESIDE_TURNED,
    GLUON_CLUSTERS,
    GLUON_FEW,
    GLUON_TURNED,
    Cut,
)
from compare.timing import providers
from triton_kernels.gemm import GPUS, Configuration, Problem, choose, launch
from triton_kernels.gemm.choice import NARROW
from triton_kernels.gemm.gluon import availability
from triton_kernels.gemm.gluon.forms import CLUSTERS, EVERY, FMA_FORMS, FORMS, WIDE
from triton_kernels.gemm.gluon.launch import tiles_of

OPS = ("linear_act", "linear_gelu", "gemm_bias_act")
HALF, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
# Those that compute the transpose of more than 32 rows, where a lies across K; and along it, where
# 160×256 was never found to be the fastest.
TURNED = [f for f in FORMS if f.TURNED and (f.tiles.BLOCK_M > 32 or f.tiles.BLOCK_N <= NARROW)]
INSTEAD = {(*f.tiles[:2], f.ALTERNATE) for f in WIDE} | {(160, 256, False)}
ALONG = [*WIDE, *(f for f in TURNED if (*f.tiles[:2], f.ALTERNATE) not in INSTEAD)]


@pytest.mark.parametrize("op", OPS)
def test_variants_of_one_mode(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each asks for its kernel, whatever the default would be."""
    spec = SPECS[op]
    candidates = {
        implementation.name: implementation for implementation in implementations(spec, list(MODES))
    }
    assert {name for name in candidates if name.endswith(("/gluon", "/tl"))} == {
        "triton-compiled/gluon",
        "triton-compiled/tl",
    }
    asked: list[str] = []
    other = spec.changed(triton=lambda: asked.append(availability._wanted.get()))
    for implementation in implementations(other, ["triton-compiled"]):
        implementation()
    assert asked == ["any", "tl", "gluon"]
    assert "gluon" not in {name.partition("/")[2] for name in providers.names(spec)}


@pytest.mark.parametrize(
    ("shape", "dtype", "options", "taken"),
    [
        ((70, 40, 136), "bfloat16", {}, True),
        ((33, 65, 70), "float16", {"bias": True}, True),
        ((32, 65, 70), "float16", {}, True),
        ((1, 40, 40), "bfloat16", {"bias": True}, True),
        ((32, 65, 70), "float16", {"c": "full"}, True),
        ((32, 32, 70), "float16", {}, False),
        ((70, 40, 0), "float16", {}, False),
        ((70, 40, 136), "float32", {}, True),
        ((7, 40, 136), "float32", {}, True),
        ((70, 32, 136), "float32", {}, False),
        ((7, 40, 136), "float32", {"precision": "tf32"}, False),
        ((70, 40, 136), "float32", {"precision": "tf32x3"}, False),
        ((70, 40, 136), "float16", {"out_dtype": "float32"}, False),
        ((70, 40, 136), "float16", {"out_dtype": "bfloat16"}, True),
    ],
)
def test_cases_that_both_kernels_take(
    shape: tuple[int, int, int],
    dtype: str,
    options: dict[str, Any],
    taken: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = SPECS["gemm_bias_act"]
    case = Case(spec.name, dtype, shape, options=options)
    candidates = [w for w in implementations(spec, ["triton-compiled"]) if w.variant]
    for reason in ("", "there is no GPU"):
        monkeypatch.setattr(availability, "here", lambda reason=reason, **_: reason)
        assert [applies(implementation, spec, case) for implementation in candidates] == [
            taken and not reason
        ] * 2
    assert eager_rule.answers_to_eager(spec, case, "triton", "gluon", 10**4) == (
        eager_rule.answers_to_eager(spec, case, "triton", None, 10**4)
    )


def test_cases_of_every_form_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with a full epilogue, and with strided results and a column or a bias; in float16 plain,
    too. In every layout of the operands. One in bfloat16 has addends that float16 does not hold. Of
    the transpose with a bias, with a pre-activation, and with strided results; where a lies along K
    with one of these, in one of the dtypes."""
    spec = SPECS["gemm_bias_act"]
    forms = len(GLUON + GLUON_BESIDE)
    turned = len(GLUON_TURNED + GLUON_FEW + GLUON_BESIDE_TURNED)
    along, addends = len(GLUON_ALONG) // 2, len(GLUON_ADDEND + GLUON_FEW)
    clusters = len(GLUON_CLUSTERS)
    for dtype, plain, special in (("float16", forms, 0), ("bfloat16", 0, 1)):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        before = set(map(str, spec.cases(dtype, "quick")))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        more = [c for c in spec.cases(dtype, "quick") if str(c) not in before]
        cuts = [c for c in more if "operands" in c.options]
        added = Counter(c.options.get("c") for c in cuts)
        assert added == Counter(
            {
                "full": forms + special + (addends + (dtype == "float16")) // 2,
                "column": forms + (addends + (dtype == "bfloat16")) // 2,
                None: plain + forms + 3 * turned + along + 2 * clusters,
            }
        )
        pre = sum(c.options.get("training") == "pre" for c in cuts)
        assert turned + along // 4 < pre - clusters < turned + along // 2
        for c in ("full", "column"):
            layouts = {each.options["operands"] for each in cuts if each.options.get("c") == c}
            assert layouts == {"forward", "dgrad", "wgrad"}
        assert {c.layout for c in cuts if c.options.get("c") == "column"} == {"strided"}
        assert sum(c.values == "special" for c in cuts) == special


def problem(M: int, N: int, K: int, dtype: torch.dtype, operands: str, c: str) -> Problem:
    """What a case asks for, with its operands where it has 16 bits; else it is in tf32."""
    precision = "tf32" if dtype == torch.float32 else "ieee"
    asked = Problem(M, N, K, dtype, dtype, precision, c, kernels="gluon")
    of_a = (1, M) if operands == "wgrad" else (K, 1)
    of_b = (1, K) if operands == "forward" else (N, 1)
    return launch.lying(asked, of_a, of_b)


@pytest.mark.parametrize(
    ("cuts", "layouts", "forms", "dtypes"),
    [
        (GLUON, tuple(OPERANDS), [form for form in FORMS if not form.TURNED], (HALF, BF16, F32)),
        (GLUON_TURNED, ("wgrad",), TURNED, (HALF, BF16)),
        (GLUON_ALONG, ("forward", "dgrad"), ALONG, (HALF, BF16)),
    ],
    ids=["rows", "transpose", "along"],
)
def test_the_check_reaches_every_form(
    cuts: list[Cut],
    layouts: tuple[str, ...],
    forms: list[Configuration],
    dtypes: tuple[torch.dtype, ...],
) -> None:
    """By the shapes and multiprocessors that stand for Gluon, in these layouts of the operands, and
    with three columns less: several tiles each way, with tails, most of them several a program.
    Cases have an addend, too, except those that compute the transpose."""
    several, turned = 0, cuts is not GLUON
    for dtype in dtypes:
        reached = set()
        for (M, N, K), multiprocessors in cuts:
            gpu = GPUS["sm_90"]._replace(multiprocessors=multiprocessors)
            asked = [problem(M, N, K, dtype, o, "" if turned else "even") for o in layouts]
            form = choose(asked[0], gpu)
            if form.SPLIT > 1:
                continue
            rows, columns = -(-M // form.tiles.BLOCK_M), -(-N // form.tiles.BLOCK_N)
            assert rows > 1 < columns != rows
            assert M % form.tiles.BLOCK_M
            assert N % form.tiles.BLOCK_N
            several += rows * columns > 2 * multiprocessors
            reached.add(form.kind)
            for each in asked if dtype != F32 else ():
                other = choose(each._replace(N=N - 3), gpu)
                assert choose(each, gpu).kind == other.kind == form.kind
        able = [form for form in forms if dtype != F32 or not form.by_registers]
        assert reached == {form.of_dtype(dtype) for form in able}
    assert several >= len(cuts) / 4


def test_the_check_reaches_transposes_with_an_addend() -> None:
    """Whole, alternating, by three consumers, and with K in parts."""
    kinds = set()
    for (M, N, K), multiprocessors in GLUON_ADDEND:
        gpu = GPUS["sm_90"]._replace(multiprocessors=multiprocessors)
        forms = {choose(problem(M, N, K, BF16, o, "even"), gpu) for o in ("forward", "dgrad")}
        (form,) = forms
        assert form.TURNED
        kinds.add((form.tiles.num_warps // 4, form.ALTERNATE, form.SPLIT > 1))
    whole = {(1, False, False), (2, False, False), (2, True, False), (3, False, False)}
    assert kinds == whole | {(1, False, True)}


def test_the_check_reaches_forms_in_clusters() -> None:
    """Each with tails; some with tiles beyond the result."""
    reached, beyond = [], 0
    for (M, N, K), multiprocessors in GLUON_CLUSTERS:
        gpu = GPUS["sm_90"]._replace(multiprocessors=multiprocessors)
        for dtype, o in itertools.product((HALF, BF16), ("forward", "dgrad")):
            form = choose(problem(M, N, K, dtype, o, ""), gpu)
            assert M % form.tiles.BLOCK_M
            assert N % form.tiles.BLOCK_N
            reached.append(form)
        beyond += form.tiles_of(M, N) > form._replace(cluster=(0, 0)).tiles_of(M, N)
    assert Counter(reached) == dict.fromkeys(CLUSTERS, 4)
    assert beyond > 1


def test_the_check_reaches_sums_in_parts() -> None:
    """By one consumer and by two, and in tiles whose columns are no power of two."""
    parts = set()
    for cuts, operands, c in (
        (GLUON, "forward", "even"),
        (GLUON_TURNED, "wgrad", ""),
        (GLUON_ALONG, "forward", ""),
    ):
        for (M, N, K), multiprocessors in cuts:
            gpu = GPUS["sm_90"]._replace(multiprocessors=multiprocessors)
            form = choose(problem(M, N, K, BF16, operands, c), gpu)
            if form.SPLIT > 1:
                parts.add((form.tiles.num_warps // 4, *form.tiles[:2], form.TURNED))
    sides = {(warps, columns) for warps, _, columns, turned in parts if not turned}
    assert sides >= {(1, 64), (1, 128), (1, 160), (1, 192), (2, 64)}
    turned = {(1, 160, 64, True), (2, 80, 128, True), (1, 16, 64, True), (1, 32, 64, True)}
    assert parts >= turned


def test_what_a_gpu_alone_runs_is_debugged_in_the_default_kernel() -> None:
    words = ["debug", "linear_act", "--shape", "40,40,40", "--dtype", "float16", "--seed", "0"]
    done = CliRunner().invoke(app, [*words, "--impl", "triton-compiled/gluon"])
    assert done.exit_code == 0, done.output
    other = CliRunner().invoke(app, [*words, "--impl", "triton-compiled/other"])
    assert other.exit_code == 2


def test_compile_has_every_form_on_sm_90_alone() -> None:
    """Of gemm_bias_act in both dtypes, with and without the heaviest epilogue; of tf32 some, and of
    f16x3 all."""
    from compare.compiling import cross_compile, machine_code
    from triton_kernels.interpreter import cross_compile as without_gpu

    how = ("alternate", "transpose")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            without_gpu,
            "launch",
            lambda kernel, grid, *args, **meta: without_gpu._launches.append(
                without_gpu.Launch(kernel.fn.__name__, meta)
            ),
        )
        patch.setattr(machine_code, "of_triton", lambda kernels, arch: [None] * len(kernels))
        found = {
            arch: [
                (dtype, " ".join(word for word in label.split() if "×" in word or word in how))
                for dtype, label, _ in cross_compile._triton_kernels(SPECS["gemm_bias_act"], arch)
                if label.startswith("gluon")
            ]
            for arch in ("sm_90", "sm_100")
        }
    assert found["sm_100"] == []
    tiles = set()
    for form in EVERY:
        words = ["×".join(map(str, tiles_of(form)[:3]))]
        words += ["alternate"] * form.ALTERNATE + ["transpose"] * form.TURNED
        tiles.add(" ".join(words))
    tiles.add("128×64×64")  # with K in parts
    tiles |= {f"64×{form.tiles.BLOCK_M}" for form in CLUSTERS}
    every = set(itertools.product(("float16", "bfloat16"), tiles))
    wide = ("64×64×64", "64×160×32", "64×192×32", "128×64×32 alternate", "128×160×32")
    wide += ("128×256×32",)
    every |= {("float32/tf32", tile) for tile in wide}
    every |= {("float32/f16x3", tile) for tile in ("128×128×64", "64×128×64", "64×64×64")}
    every |= {("float32", "×".join(map(str, form.tiles[:3]))) for form in FMA_FORMS}
    assert set(found["sm_90"]) == every
