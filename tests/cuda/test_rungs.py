"""The rungs of elementwise ops: their bits, what each takes, what "auto" chooses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rung_calls import CALLS, devices, needs_host, with_right_bits
from torch import Tensor

import cuda_reference
from compare.cases import DTYPES, Case, Guarded
from compare.checking.implementations import Implementation, in_quick_level
from compare.ops import SPECS
from compare.timing import providers
from cuda_reference import _rungs, _signatures

HALF, FLOAT, DOUBLE, INT = torch.float16, torch.float32, torch.float64, torch.int32
NARROW = (HALF, torch.bfloat16, FLOAT)
NHWC = torch.channels_last
NAMES = ["scalar", "pack64", "pack128", "stream"]  # those for dense tensors
OTHERS = ["elements", "strided", "tile"]


def moved(t: Tensor, start: int) -> Tensor:
    """The same values ``start`` elements after a multiple of 16 bytes, between guards."""
    memory = torch.full((t.numel() + start + 8,), 77.0, dtype=t.dtype, device=t.device)
    view = memory[start : start + t.numel()]
    view.copy_(t)
    return view


def guards(t: Tensor) -> list[float]:
    """What lies before and behind such a tensor."""
    memory = torch.tensor([], dtype=t.dtype, device=t.device).set_(t.untyped_storage())
    start = t.storage_offset()
    return torch.cat((memory[:start], memory[start + t.numel() :])).tolist()


def inputs_of(op: str, n: int, dtype: torch.dtype, device: str) -> list[Tensor]:
    """Random numbers."""
    generator = torch.Generator().manual_seed(n)
    return [torch.randn(n, generator=generator).to(device, dtype) for _ in range(CALLS[op][0])]


def call(
    op: str, n: int, dtype: torch.dtype, device: str, start: int = 0, **options: Any
) -> list[Tensor]:
    """The op's results on random numbers; all tensors begin at that element."""
    _, others, results = CALLS[op]
    inputs = inputs_of(op, n, dtype, device)
    outs = [moved(torch.full_like(inputs[0], 7), start) for _ in range(results)]
    inputs = [moved(t, start) for t in inputs]
    out = tuple(outs) if results > 1 else outs[0]
    getattr(cuda_reference, op)(*inputs, *others, out=out, **options)
    assert {value for t in outs for value in guards(t)} <= {77.0}
    return outs


@devices
@pytest.mark.parametrize("op", CALLS)
def test_every_rung_gives_the_right_bits(op: str, device: str) -> None:
    """At every count modulo a pack, from every element modulo 16 bytes, and where the grid walks:
    two blocks of stream take 16384 elements at a time at most."""
    tried = set()
    for dtype in (*NARROW, DOUBLE):
        sizes = [(n, start) for n in range(18) for start in (0, 1)]
        sizes += [(1000, start) for start in range(8)]
        sizes += [(40000 + start, start) for start in (0, 3)]
        for n, start in sizes:
            right = with_right_bits(op, inputs_of(op, n, dtype, device))
            for name, dtypes in SPECS[op].rungs().items():
                if dtype in dtypes and name != "tile":
                    found = call(op, n, dtype, device, start, variant=name)
                    assert all(map(torch.equal, right, found)), (name, dtype, n, start)
                    tried.add((name, dtype))
    assert len(tried) == (18 if op.startswith("act_mul") else 21)


@needs_host
def test_operands_that_lie_otherwise_go_through_packs_element_by_element() -> None:
    x, y = (moved(torch.randn(1000), start) for start in (1, 2))
    for name in NAMES[:3]:
        assert torch.equal(cuda_reference.add(x, y, variant=name), cuda_reference.add(x, y))


@needs_host
@pytest.mark.parametrize("name", NAMES)
def test_in_place(name: str) -> None:
    x = torch.randn(20011)
    right = cuda_reference.square(x)
    assert cuda_reference.square(x, out=x, variant=name) is x
    assert torch.equal(x, right)
    grad, gate, up = torch.randn(3, 20011).unbind()
    grad, gate, up = grad.clone(), gate.clone(), up.clone()
    first, second = cuda_reference.act_mul_backward(grad, gate, up, "silu")
    cuda_reference.act_mul_backward(grad, gate, up, "silu", out=(gate, up), variant=name)
    assert torch.equal(gate, first)
    assert torch.equal(up, second)


# ---- what each takes ----


def refused(run: Callable[[], Any], *words: str) -> None:
    with pytest.raises(ValueError, match=r"^\w+\(\): ") as caught:
        run()
    for word in words:
        assert word in str(caught.value), str(caught.value)


@needs_host
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("op", ["square", "relu_scale_add", "act_mul"])
def test_what_a_rung_cannot_do_is_refused_and_nothing_is_written(op: str, name: str) -> None:
    function, (tensors, others, _) = getattr(cuda_reference, op), CALLS[op]
    x, out = torch.ones(9, dtype=torch.float64), torch.full((9,), 7.0)

    def run(x: Tensor, out: Tensor) -> Any:
        return function(x, *[x.clone()] * (tensors - 1), *others, out=out, variant=name)

    wide = torch.full((9,), 7.0, dtype=DOUBLE)
    if op == "act_mul" or name == "pack64":
        refused(lambda: run(x, wide), f"variant '{name}'", "float64")
    strided = torch.ones(18)[::2]
    refused(lambda: run(strided, out), f"variant '{name}'", "dense in one order", "strides [2]")
    if tensors > 1:
        row = torch.ones(2, 9)
        both = torch.full((2, 9), 7.0)
        refused(
            lambda: function(row, out, *others, out=both, variant=name), f"'{name}'", "one shape"
        )
        assert set(both.flatten().tolist()) == {7}
    assert set(out.tolist()) | set(wide.tolist()) == {7}


@needs_host
def test_stream_refuses_tensors_that_lie_unlike() -> None:
    x, out = moved(torch.ones(9), 1), torch.full((9,), 7.0)
    refused(
        lambda: cuda_reference.square(x, out=out, variant="stream"),
        *("variant 'stream'", "16 bytes", "'x' 4", "'out' 0"),
    )
    assert set(out.tolist()) == {7}


@needs_host
@pytest.mark.parametrize("name", [*OTHERS, *NAMES])
def test_tensors_of_several_dtypes_are_refused_and_auto_is_plain(name: str) -> None:
    """Each dtype alone is one that rungs take."""
    x, y = torch.randn(20, 30), torch.randn(30, 20).T.half()
    refused(lambda: cuda_reference.add(x, y, variant=name), "one dtype", "'y' has torch.float16")
    y = y.contiguous()
    refused(lambda: cuda_reference.add(x, y, variant=name), "one dtype", "'y' has torch.float16")
    assert torch.equal(cuda_reference.add(x, y, variant="auto"), cuda_reference.add(x, y))


@needs_host
def test_numbers_and_integers_have_no_rung() -> None:
    x = torch.ones(9)
    refused(lambda: cuda_reference.add(x, 2, variant="stream"), "'y' is a number")
    refused(lambda: cuda_reference.square(x.int(), variant="scalar"), "does not take torch.int32")
    refused(lambda: cuda_reference.square(x, variant="pack32"), "'pack32'", "'auto'", "'stream'")


# ---- auto ----


def lines(capsys: pytest.CaptureFixture[str], run: Callable[[], Any]) -> list[str]:
    run()
    return capsys.readouterr().out.splitlines()


@needs_host
@pytest.mark.parametrize(
    ("made", "chosen", "why"),
    [
        (lambda: torch.ones(4, 9), "'pack128'", "one shape, order and dtype"),
        (lambda: moved(torch.ones(9), 1), "'elements'", "'stream' takes tensors that lie alike"),
        (lambda: torch.ones(9, 4).T, "'pack128'", "are dense and aligned"),
        (lambda: torch.ones(2, 4, 3, 5).to(memory_format=NHWC), "'pack128'", "one shape, order"),
        (lambda: torch.ones(9, 8)[:, ::2], "'elements'", "these go along no dimension"),
        (lambda: torch.ones(65, 16)[:, ::2], "'strided'", "need 520 threads, and 512 run"),
        (lambda: torch.ones(9, dtype=INT), "the plain kernel", "torch.int32"),
        (lambda: torch.ones(9, dtype=DOUBLE), "'pack128'", "dense"),
    ],
)
def test_auto_takes_the_best_that_fits_and_says_why(
    made: Callable[[], Tensor], chosen: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    x = made()
    square = cuda_reference.square
    (line,) = lines(capsys, lambda: square(x, variant="auto", explain=True))
    assert line.startswith(f"square(): variant 'auto' is {chosen}: ")
    assert why in line
    assert torch.equal(square(x, variant="auto"), square(x))
    assert lines(capsys, lambda: square(x, variant="auto")) == []


@needs_host
@pytest.mark.parametrize(
    ("rows", "columns", "chosen", "why"),
    [
        (9, 4, "'elements'", "'tile' would turn tiles of 4 elements"),
        (64, 16, "'strided'", "'tile' would turn rows of only 256 bytes"),
        (65, 16, "'tile'", "strides [1, 16]"),
    ],
)
def test_auto_turns_tiles_that_are_wide_enough(
    rows: int, columns: int, chosen: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    x, y = torch.randn(columns, rows), torch.randn(rows, columns).T
    (line,) = lines(capsys, lambda: cuda_reference.add(x, y, variant="auto", explain=True))
    assert line.startswith(f"add(): variant 'auto' is {chosen}: ")
    assert why in line
    assert torch.equal(cuda_reference.add(x, y, variant="auto"), cuda_reference.add(x, y))


@needs_host
def test_auto_turns_no_tiles_of_few_elements(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    x, y = torch.randn(16, 65), torch.randn(65, 16).T
    for threads, chosen in ((519, "'tile'"), (520, "'elements'")):  # of each of two blocks
        monkeypatch.setattr(_rungs, "_THREADS", threads)
        (line,) = lines(capsys, lambda: cuda_reference.add(x, y, variant="auto", explain=True))
        assert line.startswith(f"add(): variant 'auto' is {chosen}: ")
        assert torch.equal(cuda_reference.add(x, y, variant="auto"), cuda_reference.add(x, y))
    assert "'tile' would turn only 1040 elements" in line


@needs_host
@pytest.mark.parametrize("rung", NAMES)
@pytest.mark.parametrize("op", CALLS)
def test_rungs_take_what_is_dense_in_one_order(op: str, rung: str) -> None:
    """The n-th elements in memory belong together, whatever their indices are."""
    function, (tensors, others, results) = getattr(cuda_reference, op), CALLS[op]
    for dims in [(1, 0, 2), (2, 0, 1)]:
        each = [torch.randn(3, 5, 6).permute(dims) for _ in range(tensors)]
        right = function(*each, *others)
        mine = function(*each, *others, variant=rung)
        for x, y in zip(*((t,) if results == 1 else t for t in (right, mine))):
            assert x.stride() == y.stride() == each[0].stride()
            assert torch.equal(x, y)
        if tensors > 1:
            mixed = [each[0], each[1].contiguous(), *each[2:]]
            refused(lambda ts=mixed: function(*ts, *others, variant=rung), "dense in one order")


@needs_host
@pytest.mark.parametrize("op", CALLS)
def test_auto_launches_what_it_names(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    launched = []
    launch = _rungs.launch

    def noted(stem: str, name: str, rung: str, *rest: Any, **named: Any) -> None:
        launched.append((name, rung))
        launch(stem, name, rung, *rest, **named)

    monkeypatch.setattr(_rungs, "launch", noted)
    call(op, 1000, FLOAT, "cpu", variant="auto")
    assert launched == [(op, "pack128")]


@needs_host
def test_auto_of_tensors_that_lie_alike_beside_a_vector(capsys: pytest.CaptureFixture[str]) -> None:
    x, out = moved(torch.ones(9), 1), moved(torch.ones(9), 1)
    run = lambda: cuda_reference.square(x, out=out, variant="auto", explain=True)  # noqa: E731
    (line,) = lines(capsys, run)
    assert line.startswith("square(): variant 'auto' is 'stream': 'pack128' would go by single")


@needs_host
def test_explain_is_for_auto() -> None:
    x = torch.ones(9)
    for variant in (None, "stream"):
        refused(
            lambda v=variant: cuda_reference.relu_scale(x, 2.0, variant=v, explain=True), "explain"
        )
    with pytest.raises(TypeError, match="'explain' must be a bool"):
        cuda_reference.square(x, variant="auto", explain="yes")


# ---- what is told of them ----


def test_capabilities() -> None:
    every = cuda_reference.capabilities()
    products = {"gemm_bias_act", "linear_act", "linear_gelu"}
    sums = {"sum_to", "act_backward"}
    assert {rung.op for rung in every.rungs} == {*CALLS, *products, *sums}
    assert {rung.name for rung in every.rungs if rung.op in products} == {"cublaslt"}
    own = cuda_reference.capabilities("relu_scale").rungs
    assert [rung.name for rung in own] == [*OTHERS, *NAMES]
    assert [rung.auto for rung in own] == [True, True, True, True, False, True, True]
    assert [DOUBLE in rung.dtypes for rung in own] == [*[False] * 3, True, False, True, True]
    assert [rung.dense for rung in own] == [*[False] * 3, *[True] * 4]
    turned = {"x": torch.ones(5, 4).T, "out": torch.ones(4, 5)}
    assert ["dense in" in rung.refuses(turned) for rung in own] == [rung.dense for rung in own]
    text = str(cuda_reference.capabilities("act_mul"))
    words = [" ".join(line.split()) for line in text.splitlines()]
    assert any(line.startswith(DENSE_STREAM) for line in words)
    assert any("strided float16, bfloat16, float32 of 4 dimensions" in line for line in words)
    assert "not measured" in text
    assert any(line.endswith("yes 1.00 (H200, 2026-11-27)") for line in words)
    with pytest.raises(ValueError, match="capabilities\\(\\): no op 'sub'"):
        cuda_reference.capabilities("sub")
    assert [*OTHERS, *NAMES] == list(_rungs.RUNGS)


def test_a_case_and_a_rung_agree_on_what_fits() -> None:
    """What takes() says of every quick case is what the call does, on the tensors of the case."""
    seen = set()
    for op in ("add", "relu_scale_backward", "act_mul_backward"):
        spec = SPECS[op]
        for case in spec.cases("float16", "quick"):
            for name in (*OTHERS, *NAMES):
                seen.add((op, name, spec.takes("cuda", name, case)))
                if case.layout in ("inplace", "functional") or not spec.takes("cuda", name, case):
                    continue
                arguments, _ = spec.inputs(case)
                tensors = {str(i): t for i, t in enumerate(arguments)}
                if name in OTHERS:
                    shape, dtype = spec.result_shape((arguments, {})), arguments[0].dtype
                    out = Guarded(shape, dtype, arguments[0].device, case.out_layout).out
                    tensors["out"] = out
                dtypes = spec.rungs()[name]
                assert not _rungs.misfit(name, dtypes, tensors), (case, name)
    assert len(seen) == 42  # each takes some and not others


def test_the_quick_level_has_the_plain_kernel_and_the_best_rungs() -> None:
    def of(op: str) -> set[str | None]:
        spec = SPECS[op]
        return {
            name
            for name in (None, *spec.variants("cuda"))
            if in_quick_level(Implementation("cuda-host", name, spec.cuda), spec)
        }

    best = {None, "stream", *OTHERS}
    assert of("square") == of("add") == of("act_mul_backward") == best
    assert of("gemm_bias_act") == {None, "naive", "tiled", "wmma"}
    f32 = Implementation("triton-interpreted", "f32", SPECS["add"].triton)
    assert in_quick_level(f32, SPECS["add"])


def test_bench_races_auto_and_leaves_single_rungs_to_who_asks() -> None:
    case = Case("relu_scale", "float32", (64, 64), options={"scale": 0.1})
    spec = SPECS["relu_scale"]
    ours = [name for name in providers.names(spec, case) if name.startswith("cuda")]
    assert ours == ["cuda", "cuda/auto"]
    every = [name for name in providers.names(spec, case, ["ours"]) if name.startswith("cuda")]
    assert every == ["cuda", *(f"cuda/{name}" for name in NAMES), "cuda/auto"]
    turned = Case("relu_scale", "float32", (64, 64), "transposed", options={"out": "contiguous"})
    others = [name for name in providers.names(spec, turned, ["ours"]) if "cuda/" in name]
    assert others == [*(f"cuda/{name}" for name in OTHERS), "cuda/auto"]
    assert providers.names(spec, case, ["cuda/pack64"]) == ["cuda/pack64"]
    assert {*every} < {*providers.names(spec)}  # which may be asked for
    gemm = Case("gemm_bias_act", "float32", (64, 64, 64))
    assert providers.AUTO not in providers.names(SPECS["gemm_bias_act"], gemm)


DENSE_STREAM = "act_mul stream float16, bfloat16, float32 dense in one order, one shape alike"
LAUNCHERS = """
// leaky: out = x
extern "C" int leaky(const Tensor* x, const Tensor* out, Scalar s, cudaStream_t stream) {
  WITH_FLOATING_TYPE(out->dtype, f());
}
extern "C" int %s(const Call* call, const void* %s, void* out, Scalar s, cudaStream_t stream) {
}
"""


@pytest.mark.parametrize(
    ("symbol", "operand", "wrong"),
    [
        ("leaky_rung", "x", ""),
        ("leaky_rung", "y", "leaky_rung has parameters"),
        ("other_rung", "x", "other_rung is a launcher of rungs of no op"),
    ],
)
def test_an_op_without_host_code_has_rungs_by_its_second_launcher(
    symbol: str, operand: str, wrong: str, tmp_path: Path
) -> None:
    source = tmp_path / "leaky.cu"
    source.write_text(LAUNCHERS % (symbol, operand))
    if wrong:
        with pytest.raises(ImportError, match=wrong):
            _signatures.signatures(source)
        return
    (found,) = _signatures.signatures(source)
    assert (found.op, found.operands, found.numbers, found.rungs) == ("leaky", ("x",), ("s",), True)
    source.write_text(LAUNCHERS.partition('extern "C" int %s')[0])
    assert not _signatures.signatures(source)[0].rungs


FORM = """
extern "C" int leaky_tensor(%s const Tensor* out, cudaStream_t stream) {
  %s(out->dtype, f());
}
"""
BOTH = "const Tensor* x, const Tensor* s,"


@pytest.mark.parametrize(
    ("operands", "dtypes", "right"),
    [
        (BOTH, "WITH_FLOATING_TYPE", True),
        ("const Tensor* s, const Tensor* x,", "WITH_FLOATING_TYPE", False),
        ("const Tensor* x,", "WITH_FLOATING_TYPE", False),
        (BOTH, "WITH_COMPUTE_TYPE", False),
    ],
)
def test_a_number_may_be_a_tensor_by_a_launcher_of_its_own(
    operands: str, dtypes: str, right: bool, tmp_path: Path
) -> None:
    source = tmp_path / "leaky.cu"
    plain = LAUNCHERS.partition('extern "C" int %s')[0]
    source.write_text(plain + FORM % (operands, dtypes))
    if not right:
        with pytest.raises(ImportError, match=r"leaky_tensor takes .* expected the tensors"):
            _signatures.signatures(source)
        return
    (found,) = _signatures.signatures(source)
    assert (found.operands, found.numbers, found.of_tensors) == (("x",), ("s",), True)
    source.write_text(plain)
    assert not _signatures.signatures(source)[0].of_tensors


def test_no_rung_takes_a_tensor_for_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    """Not even one as large as x; "auto" is the plain kernel, and says why."""
    x = torch.randn(4, 16)
    out = cuda_reference.relu_scale(x, x, variant="auto", explain=True)
    assert torch.equal(out, torch.relu(x) * x)
    told = "the plain kernel: 'scalar' takes a number for 'scale', but it is a tensor"
    assert told in capsys.readouterr().out
    for rung in _rungs.RUNGS:
        with pytest.raises(ValueError, match=f"variant '{rung}' takes a number for 'scale'"):
            cuda_reference.relu_scale(x, x, variant=rung)


def case_for(op: str, dtype: str, rung: str) -> Case:
    """A case that the rung takes."""
    if rung in OTHERS:
        return Case(op, dtype, (4, 4), "transposed", options={"out": "contiguous"})
    return Case(op, dtype, (4, 4))


def test_dtypes_of_the_specs_are_those_of_the_rungs() -> None:
    for op in CALLS:
        for name, dtypes in SPECS[op].rungs().items():
            taken = {
                DTYPES[dtype]
                for dtype in SPECS[op].dtypes
                if SPECS[op].takes("cuda", name, case_for(op, dtype, name))
            }
            assert taken == set(dtypes), (op, name)
