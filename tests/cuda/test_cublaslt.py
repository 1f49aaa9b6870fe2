"""Variant "cublaslt" of the products: what the library is asked for, on a stand-in for it that
multiplies on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from cublaslt_calls import (
    ACTS,
    BRAIN,
    DOUBLE,
    FLOAT,
    HALF,
    afresh,
    forget,
    integers,
    moved,
    product,
    stand_in,
)
from fake_cublaslt import Fake
from rung_calls import needs_host
from torch import Tensor

import cuda_reference
from compare.checking.implementations import implementations
from compare.ops import SPECS
from compare.specs import product_bounds
from compare.specs.activations import ACTIVATIONS
from compare.timing import providers
from cuda_reference import _cublaslt, _cublaslt_choices
from cuda_reference import _cublaslt_library as lt
from cuda_reference.ops.gemm_bias_act import _gemm_bias_act

MEGABYTE = 1 << 20


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from afresh(monkeypatch)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Fake]:
    return stand_in(monkeypatch)


# ---- What the library is asked for, on a stand-in ----


@needs_host
@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT, DOUBLE])
@pytest.mark.parametrize("act", ACTS)
def test_both_ways_agree_with_the_plain_kernel(
    act: str, dtype: torch.dtype, fake: Callable[..., Fake]
) -> None:
    lib = fake()
    a, b, bias = (integers(*shape, dtype=dtype) for shape in ((5, 8), (8, 16), (16,)))
    c = integers(5, 16, dtype=dtype)
    right = cuda_reference.gemm_bias_act(a, b, bias, act=act, alpha=0.5, beta=2.0, c=c)
    found = product(a=a, b=b, bias=bias, act=act, alpha=0.5, beta=2.0, c=c)
    torch.testing.assert_close(found, right)
    fits = dtype != DOUBLE and (act in ("none", "relu") or (act == "gelu_tanh" and dtype != FLOAT))
    way = "fused" if fits else "fallback"
    assert lib.ranges == [f"cuda_reference cublaslt {way} {act}"]
    assert lib.depth == 0
    (call,) = lib.calls
    number = {"none": lt.BIAS, "relu": lt.RELU | lt.BIAS, "gelu_tanh": lt.GELU | lt.BIAS}
    assert call[lt.EPILOGUE] == (number[act] if fits else lt.PLAIN)
    assert call["compute"] == (lt.COMPUTE_64F if dtype == DOUBLE else lt.COMPUTE_32F)


@needs_host
@pytest.mark.parametrize("layout_b", ["rows", "columns", "padded", "strided"])
@pytest.mark.parametrize("layout_a", ["rows", "columns", "padded", "strided"])
def test_layouts(layout_a: str, layout_b: str, fake: Callable[..., Fake]) -> None:
    lib = fake()
    a, b = moved(integers(5, 7), layout_a), moved(integers(7, 11), layout_b)
    assert torch.equal(product(a=a, b=b), a @ b)
    (call,) = lib.calls
    first, second, _, out = call["layouts"]
    rows, ld = {"rows": (11, 11), "columns": (7, 7), "padded": (11, 19), "strided": (11, 11)}[
        layout_b
    ]
    assert (first["rows"], first["ld"]) == (rows, ld)
    rows, ld = {"rows": (7, 7), "columns": (5, 5), "padded": (7, 15), "strided": (7, 7)}[layout_a]
    assert (second["rows"], second["ld"]) == (rows, ld)
    assert (call[lt.TRANSA], call[lt.TRANSB]) == (layout_b == "columns", layout_a == "columns")
    assert (out["rows"], out["cols"], out["ld"]) == (11, 5, 11)


@needs_host
@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (1, 9, 4), (9, 1, 4), (4, 9, 1), (3, 5, 0), (0, 4, 8)]
)
@pytest.mark.parametrize("act", ["relu", "gelu"])
def test_thin_and_empty_shapes(
    shape: tuple[int, int, int], act: str, fake: Callable[..., Fake]
) -> None:
    lib = fake()
    M, N, K = shape
    a, b, bias = integers(M, K), integers(K, N), integers(N)
    right = cuda_reference.gemm_bias_act(a, b, bias, act=act)
    torch.testing.assert_close(product(a=a, b=b, bias=bias, act=act), right)
    assert len(lib.calls) == (M * N > 0)


@needs_host
@pytest.mark.parametrize(
    ("how", "options"),
    [
        ("out by columns", {"out": torch.empty(16, 5, dtype=HALF).t()}),
        ("c by columns", {"c": integers(16, 5, dtype=HALF).t()}),
        ("a row as c", {"c": integers(16, dtype=HALF)}),
        ("a column as c", {"c": integers(5, 1, dtype=HALF)}),
        ("another result", {"out_dtype": BRAIN}),
        ("a wide result with a bias", {"out_dtype": FLOAT}),
        ("bias with gaps", {"bias": integers(32, dtype=HALF)[::2]}),
        ("rows of a beside 16 bytes", {"a": integers(5, 9, dtype=HALF)[:, :8]}),
        ("a beside 16 bytes", {"a": integers(5 * 8 + 1, dtype=HALF)[1:].view(5, 8)}),
        ("rows of b beside 16 bytes", {"b": integers(8, 17, dtype=HALF)[:, 1:]}),
        ("out beside 16 bytes", {"out": torch.empty(5, 17, dtype=HALF)[:, :16]}),
        ("c beside 16 bytes", {"c": integers(5, 17, dtype=HALF)[:, :16]}),
        ("bias beside 16 bytes", {"bias": integers(17, dtype=HALF)[1:]}),
    ],
)
def test_what_has_no_epilogue_goes_the_other_way(
    how: str, options: dict[str, Any], fake: Callable[..., Fake]
) -> None:
    lib = fake()
    a, b = integers(5, 8, dtype=HALF), integers(8, 16, dtype=HALF)
    options = {"a": a, "b": b, "bias": integers(16, dtype=HALF), "act": "relu", **options}
    right = cuda_reference.gemm_bias_act(**{k: v for k, v in options.items() if k != "out"})
    assert torch.equal(product(**options), right), how
    assert lib.ranges == ["cuda_reference cublaslt fallback relu"]
    (call,) = lib.calls
    out = call["layouts"][-1]
    assert (out["dtype"], out["ld"]) == (lt.DATA_TYPE[FLOAT], 16)  # rows of the sum are aligned


@needs_host
def test_a_wide_result_without_epilogue_is_one_call(fake: Callable[..., Fake]) -> None:
    lib = fake()
    a, b = integers(5, 8, dtype=HALF), integers(8, 16, dtype=HALF)
    found = product(a=a, b=b, alpha=0.5, out_dtype=FLOAT)
    assert torch.equal(found, 0.5 * (a.float() @ b.float()))
    assert "fused" in lib.ranges[0]


@needs_host
@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT])
@pytest.mark.parametrize("N", [1, 8, 11, 16, 20, 2056, 4100])
def test_rows_of_packs_and_their_tails(
    N: int, dtype: torch.dtype, fake: Callable[..., Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_REFERENCE_NO_EPILOGUE", "1")
    fake()
    a, b, bias = (integers(*shape, dtype=dtype) for shape in ((3, 4), (4, N), (N,)))
    for act in ACTS:
        for added in (bias, None):
            right = cuda_reference.gemm_bias_act(a, b, added, act=act, alpha=0.5)
            out = torch.full((4, N + 8), 77, dtype=dtype)
            rows = out[:3, :N]
            product(a=a, b=b, bias=added, act=act, alpha=0.5, out=rows)
            short = dtype.itemsize == 2 and ACTIVATIONS[act].half is not None
            near = torch.finfo(dtype).eps if short else 0.0
            torch.testing.assert_close(rows, right, rtol=near, atol=near / 16)
            assert {*out[:3, N:].flatten().tolist(), *out[3].tolist()} == {77}


@needs_host
def test_the_fallback_can_be_forced(
    fake: Callable[..., Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_REFERENCE_NO_EPILOGUE", "1")
    lib = fake()
    a, b = integers(5, 7), integers(7, 11)
    assert torch.equal(product(a=a, b=b, act="relu"), (a @ b).relu())
    assert "fallback" in lib.ranges[0]


@needs_host
def test_the_library_may_have_no_epilogue_after_all(fake: Callable[..., Fake]) -> None:
    lib = fake(unfused=True)
    a, b = integers(5, 7), integers(7, 11)
    assert torch.equal(product(a=a, b=b, act="relu"), (a @ b).relu())
    assert "fallback" in lib.ranges[0]


@needs_host
def test_tf32(fake: Callable[..., Fake]) -> None:
    lib = fake()
    a, b = integers(5, 7), integers(7, 11)
    product(a=a, b=b, precision="tf32")
    assert lib.calls[0]["compute"] == lt.COMPUTE_TF32
    for precision in ("tf32x3", "f16x3"):
        with pytest.raises(ValueError, match="variant 'cublaslt' does not multiply"):
            product(a=a, b=b, precision=precision)


@needs_host
def test_linear_act_and_linear_gelu(fake: Callable[..., Fake]) -> None:
    lib = fake()
    x, weight, bias = (integers(*s, dtype=HALF) for s in ((2, 5, 8), (16, 8), (16,)))
    found = cuda_reference.linear_act(x, weight, bias, act="relu", variant="cublaslt")
    assert torch.equal(found, cuda_reference.linear_act(x, weight, bias, act="relu"))
    call = lib.calls[0]
    assert call[lt.EPILOGUE] == lt.RELU | lt.BIAS
    assert (call[lt.TRANSA], call[lt.TRANSB]) == (1, 0)
    for approximate, way in (("tanh", "fused"), ("none", "fallback")):
        options = {"approximate": approximate}
        found = cuda_reference.linear_gelu(x, weight, bias, **options, variant="cublaslt")
        right = cuda_reference.linear_gelu(x, weight, bias, **options)
        torch.testing.assert_close(found, right)
        assert way in lib.ranges[-1]


@needs_host
@pytest.mark.parametrize(
    ("act", "dtype"), [("gelu_tanh", HALF), ("gelu_tanh", FLOAT), ("silu", HALF)]
)
@pytest.mark.parametrize("N", [8, 11])
def test_a_training_step_writes_what_its_backward_pass_reads(
    N: int, act: str, dtype: torch.dtype, fake: Callable[..., Fake]
) -> None:
    lib = fake()
    shapes = ((2, 5, 8), (N, 8), (N,))

    def step(variant: str | None) -> list[Tensor]:
        tensors = [(integers(*s) / 2).to(dtype).requires_grad_() for s in shapes]
        out = cuda_reference.linear_act(*tensors, act=act, variant=variant)
        out.sum().backward()
        return [out.detach(), *(t.grad for t in tensors if t.grad is not None)]

    torch.testing.assert_close(step("cublaslt"), step(None))
    assert len(lib.calls) == 3  # forward, dx, dweight; none again
    fused = act == "gelu_tanh" and dtype == HALF and N == 8
    assert lib.ranges[0] == f"cuda_reference cublaslt {'fused' if fused else 'fallback'} {act}"
    if fused:
        assert lib.calls[0][lt.EPILOGUE] == lt.GELU | lt.AUX | lt.BIAS
        assert lib.calls[0][lt.AUX_LD] == N


@needs_host
def test_a_training_step_is_a_torch_op(fake: Callable[..., Fake]) -> None:
    fake()
    x, weight, bias = (integers(*s).requires_grad_() for s in ((5, 8), (8, 8), (8,)))
    arguments = (x, weight, bias, "silu", "ieee", "cublaslt")
    torch.library.opcheck(
        torch.ops.cuda_reference.linear_act_training.default,
        arguments,
        test_utils=("test_schema", "test_faketensor"),
    )

    def run(x: Tensor) -> Tensor:
        return cuda_reference.linear_act(x, weight, bias, act="silu", variant="cublaslt")

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), run(x))
    with pytest.raises(NotImplementedError, match="no gradient of its own"):
        torch.ops.cuda_reference.linear_act_training(*arguments)[0].sum().backward()


@needs_host
def test_gradients(fake: Callable[..., Fake]) -> None:
    lib = fake()

    def gradients(variant: str | None) -> list[Tensor]:
        tensors = [integers(*s).requires_grad_() for s in ((5, 7), (7, 11), (11,), (5, 11))]
        a, b, bias, c = tensors
        out = cuda_reference.gemm_bias_act(a, b, bias, c=c, act="gelu_tanh", variant=variant)
        out.sum().backward()
        return [t.grad for t in tensors if t.grad is not None]

    torch.testing.assert_close(gradients("cublaslt"), gradients(None))
    assert len(lib.calls) == 3  # forward, da, db


# ---- What is told to the heuristic, and kept ----


@needs_host
def test_alignments_workspace_and_reductions_are_told(fake: Callable[..., Fake]) -> None:
    lib = fake()
    b = integers(8 * 16 + 1, dtype=HALF)[1:].view(8, 16)
    product(a=integers(4, 8, dtype=HALF), b=b, out=integers(4 * 16 + 4, dtype=HALF)[4:].view(4, 16))
    told = lib.asked[0]["preference"]
    assert [told[attribute] for attribute in lt.ALIGNMENT] == [2, 16, 16, 8]
    assert told[lt.MAX_WORKSPACE] == 32 * MEGABYTE
    assert told[lt.REDUCTIONS] == 2


@needs_host
def test_a_repeated_call_asks_nothing_and_makes_nothing(fake: Callable[..., Fake]) -> None:
    lib = fake()
    a, b, bias = integers(5, 8), integers(8, 12), integers(12)
    product(a=a, b=b, bias=bias, act="relu")
    objects = len(lib.objects)
    for step in range(3):
        other = bias + step  # elsewhere
        found = product(a=a, b=b, bias=other, act="relu")
        assert torch.equal(found, (a @ b + other).relu())
    assert len(lib.asked) == 1
    assert len(lib.objects) == objects
    assert len(_gemm_bias_act._known) == 1
    product(a=a, b=b, bias=bias, act="relu", alpha=2.0)  # another call, the same plan
    assert len(lib.asked) == 1
    product(a=a, b=b, bias=bias)
    assert len(lib.asked) == 2


@needs_host
def test_a_repeated_fallback(fake: Callable[..., Fake]) -> None:
    lib = fake()
    for step in range(3):
        a, b, bias = integers(5, 8) + step, integers(8, 12), integers(12) - step
        right = cuda_reference.gemm_bias_act(a, b, bias, act="silu")
        torch.testing.assert_close(product(a=a, b=b, bias=bias, act="silu"), right)
    assert len(lib.asked) == 1
    assert lib.ranges == ["cuda_reference cublaslt fallback silu"] * 3


@needs_host
def test_the_workspace_is_torchs(fake: Callable[..., Fake]) -> None:
    lib = fake(proposed=(4096,))
    product(a=integers(5, 8), b=integers(8, 12))
    address, size = lib.calls[0]["workspace"]
    assert size == 4096
    assert address
    assert fake().calls == []


@needs_host
def test_descriptors_go_with_their_plans(fake: Callable[..., Fake]) -> None:
    lib = fake()
    product(a=integers(5, 8), b=integers(8, 12))
    assert len(lib.objects) == 1 + 5  # the handle, a product, three layouts, a preference
    forget()
    assert len(lib.objects) == 1  # the handle


# ---- In compare ----


def test_check_and_bench_have_it_on_a_gpu_alone() -> None:
    for op in ("gemm_bias_act", "linear_act", "linear_gelu"):
        spec = SPECS[op]
        names = {i.name for i in implementations(spec, ["cuda-host", "cuda-gpu"])}
        assert {name for name in names if "cublaslt" in name} == {"cuda-gpu/cublaslt"}
        assert "cuda/cublaslt" in providers.names(spec)
        assert "cublaslt" not in spec.rungs()
        assert "cublaslt" not in cuda_reference.variants(op)
        (rung,) = cuda_reference.capabilities(op).rungs
        assert (rung.name, rung.dtypes, rung.auto) == ("cublaslt", _cublaslt.DTYPES, False)


def test_its_bound_is_that_of_tensor_cores() -> None:
    def bound(
        implementation: str, dtype: torch.dtype, to: torch.dtype = DOUBLE, **options: Any
    ) -> float:
        a, b = torch.ones(4, 4096, dtype=dtype), torch.ones(4096, 4, dtype=dtype)
        right = torch.full((4, 4), 4096.0, dtype=DOUBLE)
        arguments = ((a, b), options)
        return float(product_bounds.bound(implementation, arguments, right, to).max())

    plain, cores = (bound(f"cuda-gpu/{name}", HALF) for name in ("naive", "cublaslt"))
    assert plain != cores == bound("cuda-gpu/wmma", HALF)
    plain, same = (bound(f"cuda-gpu/{name}", FLOAT) for name in ("naive", "cublaslt"))
    assert plain == same
    rounded, cut = (
        bound(f"cuda-gpu/{name}", FLOAT, precision="tf32") for name in ("wmma", "cublaslt")
    )
    assert 1.5 * rounded < cut < 2.5 * rounded
    ours, theirs = (
        bound(f"cuda-gpu/{name}", HALF, HALF, act="gelu_tanh") for name in ("wmma", "cublaslt")
    )
    relative, absolute = ACTIVATIONS["gelu_tanh"].half or (0.0, 0.0)
    formula = max(relative * 4096 + absolute, 4096 * 2**-19)
    assert theirs - ours == pytest.approx((1 + 2**-11) * formula)


# ---- Choices ----


@needs_host
def test_a_choice_is_kept_and_found_again(
    fake: Callable[..., Fake], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_REFERENCE_CACHE", str(tmp_path / "cache"))
    choice = {"way": "fused", "algorithm": "65" + "00" * 63}
    _cublaslt_choices.keep("NVIDIA H100 80GB HBM3", 130101, "a problem", choice)
    _cublaslt_choices.keep("NVIDIA H100 80GB HBM3", 130101, "another", choice)
    forget()
    kept = _cublaslt_choices.kept
    assert kept("NVIDIA H100 80GB HBM3", 130101, "a problem") == choice
    assert kept("NVIDIA H100 80GB HBM3", 130101, "another") == choice
    assert kept("NVIDIA H100 80GB HBM3", 130102, "a problem") is None
    assert kept("NVIDIA H200", 130101, "a problem") is None
    (file,) = (tmp_path / "cache" / "cublaslt").iterdir()
    file.write_text("[1")
    forget()
    assert kept("NVIDIA H100 80GB HBM3", 130101, "a problem") is None


@needs_host
@pytest.mark.parametrize(
    ("best", "way", "algorithm"), [(1, "fused", 101), (2, "fallback", 100), (3, "fallback", 101)]
)
def test_candidates_and_the_fallback_are_timed_once(
    best: int,
    way: str,
    algorithm: int,
    fake: Callable[..., Fake],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_cublaslt_choices, "_file", lambda gpu, version: tmp_path / "choices")
    monkeypatch.setenv("CUDA_REFERENCE_CUBLASLT_TUNE", "2")
    timed = []

    def fastest(ways: list[Callable[[], Any]]) -> int:
        for run in ways:
            assert run() == 0
        timed.append(len(ways))
        return best

    monkeypatch.setattr(_cublaslt_choices, "fastest", fastest)
    a, b = integers(5, 8), integers(8, 12)
    for expected in ([4], []):  # the second time as in a later process
        lib = fake(proposed=(0, 64, 0))
        timed.clear()
        for _ in range(2):
            assert torch.equal(product(a=a, b=b, act="relu"), (a @ b).relu())
        assert timed == expected
        assert lib.ranges[-1] == f"cuda_reference cublaslt {way} relu"
        assert lib.calls[-1]["algorithm"] == algorithm
        assert lib.calls[-1]["workspace"][1] == (64 if algorithm == 101 else 0)
        monkeypatch.delenv("CUDA_REFERENCE_CUBLASLT_TUNE", raising=False)
    lib = fake(proposed=())  # another library: what was kept does not do there
    with pytest.raises(RuntimeError, match="no algorithm"):
        product(a=a, b=b, act="relu")


# ---- Errors ----


def test_on_the_cpu_it_is_refused() -> None:
    x = torch.ones(4, 4)
    for run in (
        lambda: cuda_reference.gemm_bias_act(x, x, variant="cublaslt"),
        lambda: cuda_reference.linear_act(x, x, act="relu", variant="cublaslt"),
        lambda: cuda_reference.linear_gelu(x, x, variant="cublaslt"),
    ):
        with pytest.raises(ValueError, match=r"^\w+\(\): variant 'cublaslt' .* GPUs.* on cpu$"):
            run()


def test_without_the_library_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cublaslt, "check_device", lambda op, device: None)
    lt.library.cache_clear()
    x = torch.ones(4, 4)
    for version, words in ((None, "this torch has no CUDA"), ("99.1", "libcublasLt.so.99")):
        monkeypatch.setattr(torch.version, "cuda", version)
        with pytest.raises(RuntimeError, match=f"variant 'cublaslt' needs .*{words}"):
            cuda_reference.gemm_bias_act(x, x, variant="cublaslt")
    lt.library.cache_clear()


@needs_host
def test_errors_of_the_library_are_told(fake: Callable[..., Fake]) -> None:
    a = torch.ones(4, 4)
    for refused, words in (
        ({"cublasLtCreate": 1}, "cublasLtCreate: status 1 .fake status 1"),
        ({"cublasLtMatmulAlgoGetHeuristic": 15}, "cublasLt has no algorithm for"),
        ({"cublasLtMatmulAlgoGetHeuristic": 14}, "Heuristic: status 14"),
        ({"cublasLtMatmul": 13}, r"cublaslt\(\) on a \[4, 4\].*cublasLt: fake status 13"),
    ):
        fake(refused=refused)
        with pytest.raises(RuntimeError, match=words):
            product(a=a, b=a)


def test_a_count_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_REFERENCE_CUBLASLT_TUNE", "all")
    with pytest.raises(ValueError, match="CUDA_REFERENCE_CUBLASLT_TUNE must be a count"):
        _cublaslt.settings()
