"""What nvcc makes of the rungs: accesses as wide as they say, loads before waits, no spills."""

from __future__ import annotations

import re
from functools import cache

import pytest

from compare.compiling import cross_compile, machine_code
from compare.compiling.machine_code import Figures, readable
from compare.ops import SPECS
from cuda_reference import _build

pytestmark = pytest.mark.skipif(
    cross_compile.nvcc_missing() is not None, reason=str(cross_compile.nvcc_missing())
)

# Op → how many tensors it reads and writes, and how many packs of each a thread of stream has.
SHAPES = {
    "add": (2, 1, 2),
    "square": (1, 1, 4),
    "square_backward": (2, 1, 2),
    "relu_scale": (1, 1, 4),
    "relu_scale_add": (2, 1, 2),
    "relu_scale_backward": (2, 1, 2),
    "act_mul": (2, 1, 2),
    "act_mul_backward": (3, 2, 2),
}
BITS = {"scalar": None, "pack64": "64", "pack128": "128", "stream": "128"}
each = pytest.mark.parametrize(
    ("op", "arch"),
    [(op, arch) for op in SHAPES for arch in ("sm_80", "sm_90") if arch == "sm_90" or op == "add"],
)


@cache
def cubin(stem: str, arch: str) -> tuple[bytes, str]:
    return _build.cubin(stem, arch)


@cache
def figures(stem: str, arch: str) -> dict[str, Figures]:
    return machine_code.of_cuda(*cubin(stem, arch), arch)


@cache
def instructions(stem: str, arch: str) -> dict[str, list[str]]:
    """Kernel → its opcodes in their order."""
    line = re.compile(r"/\*[0-9a-f]{4}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)")
    texts = machine_code.sass(cubin(stem, arch)[0])
    return {name: line.findall(text) for name, text in texts.items()}


@each
def test_a_rung_moves_what_it_says(op: str, arch: str) -> None:
    """The rest, in accesses of one element, is for the ends and for what is not aligned."""
    spec, (read, written, depth) = SPECS[op], SHAPES[op]
    seen = 0
    for name, dtypes in spec.rungs().items():
        for dtype in dtypes if name in BITS else ():
            kernel = spec.cuda_kernel(str(dtype).removeprefix("torch."), name)
            found = figures(spec.stem, arch)[kernel]
            assert (found.spills, found.stack) == (0, 0), kernel
            one = str(8 * dtype.itemsize)
            wide, times = BITS[name] or one, depth if name == "stream" else 1
            assert set(found.loads) == set(found.stores) == {wide, one}, kernel
            if wide != one:
                moved = found.loads[wide], found.stores[wide]
                assert moved == (read * times, written * times), kernel
            seen += 1
    assert seen == (12 if spec.stem == "act_mul" else 15)


@each
def test_rungs_for_other_layouts_move_packs(op: str, arch: str) -> None:
    """strided loads one of each operand, and stores one of each result, or two of each where all
    inputs repeat. tile loads those of operands as they lie, turned or not. The rest, in accesses of
    one element, is for what does not lie side by side or is not aligned. elements has no others."""
    spec, (read, written, _) = SPECS[op], SHAPES[op]
    for dtype in ("float32", "float16", "bfloat16"):
        one = "32" if dtype == "float32" else "16"
        for kernel in spec.cuda_kernels(dtype, "strided").values():
            found, by_rows = figures(spec.stem, arch)[kernel], kernel.startswith("rows")
            assert (found.spills, found.stack) == (0, 0), kernel
            moved, times = (found.loads["128"], found.stores["128"]), 2 if by_rows else 1
            assert moved == (read * times, written * times), kernel
            assert set(found.loads) == {"128", one}, kernel
            assert set(found.stores) == ({"128"} if by_rows else {"128", one}), kernel
        for kernel in spec.cuda_kernels(dtype, "elements").values():
            found = figures(spec.stem, arch)[kernel]
            assert (found.loads, found.stores) == ({one: read}, {one: written}), kernel
        for kernel in spec.cuda_kernels(dtype, "tile").values():
            found = figures(spec.stem, arch)[kernel]
            assert (found.spills, found.stack) == (0, 0), kernel
            assert found.loads["128"] >= 2 * read, kernel
            assert found.stores["128"] >= written, kernel


@each
def test_stream_asks_for_everything_before_it_waits(op: str, arch: str) -> None:
    """All its wide loads, which tell the cache that lines are read once (EF: evicted first), come
    before the first wide store."""
    spec, (read, written, depth) = SPECS[op], SHAPES[op]
    dtypes = ("float16", "float32")
    for kernel in {name for d in dtypes for name in spec.cuda_kernels(d, "stream").values()}:
        wide = [o for o in instructions(spec.stem, arch)[kernel] if re.search(r"\.128", o)]
        assert all(".EF." in opcode for opcode in wide), kernel
        kinds = [opcode.partition(".")[0] for opcode in wide]
        assert kinds == ["LDG"] * read * depth + ["STG"] * written * depth, kernel


@pytest.mark.parametrize("element", ["float", "__half", "__nv_bfloat16"])
def test_the_librarys_epilogue_moves_whole_packs(element: str) -> None:
    """The sums' pack is as many float32, the bias's and the result's 16 bytes."""
    found = figures("gemm_bias_act", "sm_90")[f"gemm_epilogue_packs_kernel<{element}>"]
    loads = 2 if element == "float" else 3
    assert (found.loads["128"], found.stores["128"]) == (loads, 1)
    assert (found.spills, found.stack) == (0, 0)


SUMS = 4  # wide loads that a thread of a kernel of sums has in flight, of all its tensors


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "sm_120"])
@pytest.mark.parametrize("op", ["sum_to", "act_backward"])
def test_sums_move_packs_and_leave_room_for_four_blocks(op: str, arch: str) -> None:
    """Registers for 1024 threads, and nothing in local memory. Besides wide loads there are those
    of the ends, of single elements. nvcc may repeat a loop's body, with its eight loads, or all of
    short_rows_kernel."""
    spec, seen = SPECS[op], 0
    for name, dtypes in spec.rungs().items():
        for dtype in dtypes:
            for kernel in spec.cuda_kernels(str(dtype).removeprefix("torch."), name).values():
                found = figures(spec.stem, arch)[kernel]
                assert (found.spills, found.stack) == (0, 0), kernel
                assert found.registers <= 64, kernel
                single = re.search(r" 1(, false)?>$", kernel) is not None
                whole = kernel.startswith("short") or kernel.endswith("true>")  # without ends
                one = "32" if re.search(r"\bfloat\b", kernel) else "16"
                wide = {"128"} if whole else {one, "128"}
                assert set(found.loads) == ({one} if single else wide), kernel
                if single:
                    assert found.loads[one] % 8 == 0, kernel
                else:
                    without_saved = re.search(r"Products<(Short<)?None\b", kernel) is not None
                    expected = SUMS // 2 if without_saved else SUMS
                    times = (1, 2) if kernel.startswith("short") else (1,)
                    assert found.loads["128"] in [expected * each for each in times], kernel
                seen += 1
    assert seen == {"sum_to": 3 * (3 + 6 + 9), "act_backward": 3 * (1 + 8 + 11)}[op]


@pytest.mark.parametrize("even", ["false", "true"])
@pytest.mark.parametrize("element", ["float", "__half", "__nv_bfloat16"])
def test_rows_are_asked_for_before_the_first_sum(element: str, even: str) -> None:
    """All four packs, beside which no other load and no shuffle is. Lanes meet by shuffles."""
    kernel = f"rows_kernel<{element}, {4 if element == 'float' else 8}, {even}>"
    opcodes = instructions("sum_to", "sm_90")[kernel]
    memory = [o for o in opcodes if o.startswith(("LDG", "SHFL", "STG"))]
    wide = [at for at, opcode in enumerate(memory) if ".128" in opcode]
    assert wide == list(range(wide[0], wide[0] + 4))
    assert any(opcode.startswith("SHFL.DOWN") for opcode in memory[wide[-1] :])


def test_every_kernel_of_a_source_is_some_variants() -> None:
    for stem in ("add", "square", "relu_scale", "act_mul", "sum_to", "act_backward"):
        specs = [spec for spec in SPECS.values() if spec.stem == stem]
        named = set().union(*map(cross_compile._cuda_names, specs))
        assert set(figures(stem, "sm_90")) == named


def test_a_rung_has_its_row_by_dtype_and_name() -> None:
    rows = cross_compile.compile_op("act_mul", "sm_90", ("cuda",))
    labels = {(row.dtype, row.label): row.cuda.name for row in rows if row.cuda}
    assert labels["float16", "stream"] == "stream_kernel<ActMul<Activation>, __half>"
    assert labels["float32", "pack128"] == "pack_kernel<ActMul<Activation>, float, float4, 4>"
    assert ("–", "act_mul_kernel<float>") in labels
    assert len(labels) == len(rows) == 2 + 3 * 9


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        (
            "_Z13stream_kernelI6ActMulILi4EE6__halfEvT_9AddressesIXsrS2_6INPUTSEXsrS2_7OUTPUTSEEx",
            "stream_kernel<ActMul<4>, __half>",
        ),
        ("_Z4bothI1AILi1EES1_S0_ILb1EEEvv", None),  # a template's name alone, once more
        ("_Z4bothI1AILi1EES1_fEvv", "both<A<1>, A<1>, float>"),
        ("_Z4bothI1AI1BfE6__halfS3_EvT_", "both<A<B, float>, __half, __half>"),
        (
            "_ZN4mine3mapINS_2OpIN3c108BFloat16EEEfEEvPT0_",
            "mine::map<mine::Op<c10::BFloat16>, float>",
        ),
    ],
)
def test_names_of_templates_in_templates(symbol: str, name: str | None) -> None:
    assert readable(symbol) == (name or symbol)
