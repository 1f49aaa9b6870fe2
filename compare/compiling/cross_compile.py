"""Compiles every kernel of an op to machine code, for architectures that need not be present.

The Triton side: the public functions run on meta tensors, and every launch compiles its kernel. The
CUDA side: nvcc compiles csrc/<stem>.cu. A row of the result has one Triton kernel in one
configuration and the CUDA kernel that computes the same.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from compare.cases import DTYPES, Case
from compare.checking import hints
from compare.checking.without_gpu import WithoutGpu
from compare.compiling import loaded, machine_code, walk
from compare.compiling.machine_code import SHARED_LIMIT, Figures
from compare.ops import SPECS, place, spec_of
from compare.specs import Spec
from cuda_reference import BuildError, _build, _compilers
from triton_kernels.interpreter.cross_compile import Launch, compiling

META = torch.device("meta")


@dataclass(frozen=True)
class Accepted:
    """Accepted spills.

    Attributes:
        side, op, dtypes, labels: the kernels concerned; ``labels`` are prefixes of row labels.
        spills: the largest accepted number of bytes per thread.
        reason: why these spills are accepted.
    """

    side: str
    op: str
    dtypes: tuple[str, ...]
    labels: tuple[str, ...]
    spills: int
    reason: str


_LARGEST_TILE = (
    "with the largest tile each thread holds 128 accumulators until the epilogue; registers spill "
    "once per tile, hardly any inside the K loop"
)
_ADDENDS = "each thread reads 128 elements of an addend; registers spill once per tile"
_RESIDENT = (
    "a thread has 168 registers, so that twelve warps are resident; beside an addend a few spill "
    "once per tile"
)
_WIDE_SUMS = (
    "each thread holds 64 sums of float64 until the epilogue; registers spill once per tile"
)
_ADDRESSES = "a few registers with addresses spill"
_TWO = "beside an addend two registers spill"
_OTHERS = "the autotuner has other configurations"
_SPLIT_OPERANDS = "each operand is held in two parts; one or two registers spill"
ACCEPTED = [
    *(
        Accepted("triton", op, ("float16", "bfloat16"), ("128×256×64 w8 s3",), 256, _LARGEST_TILE)
        for op in ("gemm_bias_act", "linear_gelu")
    ),
    Accepted(
        "triton",
        "gemm_bias_act",
        ("float16", "bfloat16"),
        ("gluon 256×128×64", "gluon 128×128×64 w8"),
        24,
        _ADDENDS,
    ),
    Accepted("triton", "gemm_bias_act", ("float32/tf32",), ("gluon 128×128×32 w8",), 8, _ADDENDS),
    Accepted("triton", "gemm_bias_act", ("float32/tf32",), ("32×64×64 w4 s4",), 8, _TWO),
    Accepted(
        "triton",
        "gemm_bias_act",
        ("float32",),
        ("gluon 64×64×16 w2", "gluon 64×128×16 w4"),
        32,
        _RESIDENT,
    ),
    *(
        Accepted("triton", op, ("float64",), ("64×128×16 w4 s3",), 352, _WIDE_SUMS)
        for op in ("gemm_bias_act", "linear_gelu")
    ),
    Accepted("triton", "gemm_bias_act", ("float64",), ("16×32×32 w4 s4",), 48, _ADDRESSES),
    Accepted("triton", "gemm_bias_act", ("float32/tf32x3",), ("64×64×32 w4",), 16, _SPLIT_OPERANDS),
]


@dataclass(frozen=True)
class Kernel:
    """One side's kernel in a row: its figures, or the compiler's error."""

    name: str
    figures: Figures | None = None
    error: str = ""
    config: Mapping[str, int] = field(default_factory=dict)
    asm: str = field(default="", repr=False)  # the requested text
    passed_over: bool = False  # by an autotuner, which has a configuration without problems

    def problem(self, arch: str, spills: bool = True) -> str:
        """What is wrong with the kernel, or "". Spills are reported only if ``spills``."""
        if self.figures is None:
            return f"does not compile: {self.error}"
        wrong = []
        if self.figures.spills and spills:
            wrong.append(f"spills {self.figures.spills} bytes a thread")
        if self.figures.shared > SHARED_LIMIT[arch]:
            wrong.append(
                f"needs {self.figures.shared} bytes of shared memory, "
                f"and {arch} has {SHARED_LIMIT[arch]}"
            )
        return " and ".join(wrong)


@dataclass(frozen=True)
class Row:
    """The kernels of both sides for one computation; None if a side has none or was not requested.

    Spills of a randomly drawn product (``drawn``) are shown, but are no problem: its operands may
    be unaligned, and then the addresses of single elements need many registers.
    """

    arch: str
    op: str
    dtype: str
    label: str
    triton: Kernel | None = None
    cuda: Kernel | None = None
    drawn: bool = False

    def problems(self) -> Iterator[tuple[str, str, str]]:
        """(side, problem, the reason for accepting it or "")."""
        for side, kernel in (("triton", self.triton), ("cuda", self.cuda)):
            if kernel and (problem := kernel.problem(self.arch, spills=not self.drawn)):
                yield side, problem, self._accepted(side, kernel)

    def _accepted(self, side: str, kernel: Kernel) -> str:
        """Why a spill is accepted, or "". Other problems are so only if an autotuner has other
        configurations."""
        if kernel.passed_over:
            return _OTHERS
        if kernel.figures is None or kernel.figures.shared > SHARED_LIMIT[self.arch]:
            return ""
        for entry in ACCEPTED:
            here = (entry.side, entry.op) == (side, self.op)
            if here and self.dtype in entry.dtypes and self.label.startswith(entry.labels):
                return entry.reason if kernel.figures.spills <= entry.spills else ""
        return ""

    def to_dict(self) -> dict[str, Any]:
        sides = {
            side: kernel
            and {
                "kernel": kernel.name,
                "config": dict(kernel.config),
                "error": kernel.error,
                "figures": kernel.figures and kernel.figures.to_dict(),
            }
            for side, kernel in (("triton", self.triton), ("cuda", self.cuda))
        }
        return {
            "arch": self.arch,
            "op": self.op,
            "dtype": self.dtype,
            "label": self.label,
            "drawn": self.drawn,
            **sides,
            "problems": [
                {"side": side, "problem": problem, "accepted": reason}
                for side, problem, reason in self.problems()
            ],
        }


def nvcc_missing() -> str | None:
    """Why the CUDA side cannot be compiled here, and the remedy; None if it can."""
    try:
        _compilers._nvcc()
        _compilers._cuda_headers()
    except BuildError as error:
        return str(error)
    return None


def sourceless(spec: Spec) -> str:
    """Why the op has no CUDA source to compile, or ""."""
    if not spec.own or loaded.of_spec(spec):
        return ""
    if spec.cuda is None:
        return f"{spec.name} has no CUDA side"
    return f"on the CPU the cuda function of {spec.name} calls nothing of cuda_reference.load"


class Unit(NamedTuple):
    """What one process compiles at a time: the kernels of an op, or some randomly drawn
    products."""

    op: str
    arch: str
    sides: tuple[str, ...]
    products: tuple[walk.Product, ...] = ()
    asm: str = ""  # the text to keep, one of ASM


def units(
    ops: list[str], archs: list[str], sides: list[str], full: bool, asm: str = ""
) -> list[Unit]:
    """The units for all ops and architectures, by architecture, then op. The op ``walk.OP`` is
    followed by its distinct drawn products: all of them if ``full``, else a sample."""
    all_units = []
    for arch, op in itertools.product(archs, ops):
        all_units.append(Unit(op, arch, tuple(sides), asm=asm))
        if op == walk.OP and "triton" in sides:
            drawn = walk.distinct(arch) if full else walk.sample(arch)
            parts = (drawn[i : i + PART] for i in range(0, len(drawn), PART))
            all_units += [Unit(op, arch, ("triton",), tuple(part)) for part in parts]
    return all_units


PART = 16  # products of one unit


def compile_all(units: list[Unit], done: Callable[[], None]) -> list[Row]:
    """The rows of the units, in the units' order. ``done`` is called after each unit. Four or more
    units are shared among several processes."""
    workers = min(len(units), len(os.sched_getaffinity(0)))
    rows_of: dict[Unit, list[Row]] = {}
    if workers == 1 or len(units) < 4:  # a process takes seconds to start
        for unit in units:
            rows_of[unit] = compile_unit(unit)
            done()
    else:
        # Not forked: the process may have threads, and a CUDA context.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            # The longest first, so that no core idles at the end.
            heavy = sorted(units, key=lambda unit: -len(list(_cases(spec_of(unit.op)))))
            heavy.sort(key=lambda unit: not spec_of(unit.op).bounded)
            futures = {pool.submit(compile_unit, unit): unit for unit in heavy}
            for future in as_completed(futures):
                rows_of[futures[future]] = future.result()
                done()
    return [row for unit in units for row in rows_of[unit]]


def compile_unit(unit: Unit) -> list[Row]:
    """The rows of one unit."""
    if unit.products:
        return _compile_products(unit.op, unit.arch, unit.products)
    return compile_op(unit.op, unit.arch, unit.sides, unit.asm)


def compile_op(op: str, arch: str, sides: tuple[str, ...], asm: str = "") -> list[Row]:
    """The rows of one op for one architecture."""
    spec = spec_of(op)
    triton = _triton_kernels(spec, arch, asm) if "triton" in sides and spec.triton else {}
    cuda = _cuda_kernels(spec, arch, asm) if "cuda" in sides and not sourceless(spec) else {}
    rows, shown = [], set()
    twin = next(iter(cuda)) if spec.own and len(cuda) == 1 else ""
    for (dtype, label, variant), kernel in triton.items():
        name = twin
        if not spec.own and (variant is None or variant in spec.variants("cuda")):
            name = spec.cuda_kernel(dtype, variant)
        shown.add(name)
        rows.append(Row(arch, op, dtype, label, kernel, cuda.get(name)))
    # CUDA kernels without a Triton twin. Those of another op of the same source are shown there.
    own = set() if spec.own else _cuda_names(spec)
    for other in SPECS.values():
        if other.stem == spec.stem and other is not spec:
            shown |= _cuda_names(other) - own
    labels = {} if spec.own else _labels(spec)
    for name in cuda:
        if name not in shown:
            rows.append(Row(arch, op, *labels.get(name, ("–", name)), None, cuda[name]))
    return rows


# ---- the Triton side ----


def _cases(spec: Spec) -> Iterator[tuple[str, str | None, Case]]:
    """(dtype, variant, case) of every Triton kernel to compile."""
    for dtype in spec.dtypes:
        cases = list(spec.to_compile(dtype, spec.default_options))
        for case in cases:
            yield dtype, None, case
        for variant in spec.variants("triton"):
            if spec.takes("triton", variant, cases[0]):
                yield dtype, variant, cases[0]
        for variant, case in spec.pinned_to_compile(dtype):
            if spec.takes("triton", variant, case):
                yield dtype, variant, case


def _triton_kernels(
    spec: Spec, arch: str, asm: str = ""
) -> dict[tuple[str, str, str | None], Kernel]:
    """(dtype/precision, label, variant) → kernel."""
    pinned = spec.pinned()
    launched: dict[tuple[str, str, str | None], Launch] = {}
    with compiling(int(arch.removeprefix("sm_"))) as launches:
        for dtype, variant, case in _cases(spec):
            arguments, options = spec.inputs(case, META)
            function = pinned.get(variant or "tl") or spec.function("triton", variant)
            try:
                with WithoutGpu(META):
                    spec.called(case, function)(*arguments, **options)
            except Exception as error:
                if not spec.own:
                    raise
                where = f"{_words(error)}{place(error)}"
                told = RuntimeError(f"on tensors without memory (device 'meta'): {where}")
                launches.append(Launch(f"{spec.name}()", {}, error=told))
            precision = case.options.get("precision", "ieee")
            shown = dtype if precision == "ieee" else f"{dtype}/{precision}"
            for launch in launches:
                # Launches with one label have one configuration; the first is enough.
                label = own_label(launch) if spec.own else _label(case, launch)
                named = None if variant in pinned else variant
                launched.setdefault((shown, named or label, named), launch)
            launches.clear()
    return dict(zip(launched, measured(list(launched.values()), arch, asm)))


def _compile_products(op: str, arch: str, products: tuple[walk.Product, ...]) -> list[Row]:
    """One row per product, without a CUDA twin."""
    launches = walk.compiled(products, arch)
    return [
        Row(arch, op, product.dtype, product.label(arch), kernel, drawn=True)
        for product, kernel in zip(products, measured(launches, arch))
    ]


def measured(launches: Sequence[Launch], arch: str, asm: str = "") -> list[Kernel]:
    """The kernels of launches, with figures if they compile, and with the text ``asm`` if it is
    requested."""
    good = [launch for launch in launches if launch.error is None]
    figures = iter(machine_code.of_triton([(launch.cubin, launch.shared) for launch in good], arch))
    kernels = [
        Kernel(
            launch.kernel,
            next(figures) if launch.error is None else None,
            _words(launch.error),
            _config(launch),
            _text(launch, asm) if asm and launch.error is None else "",
        )
        for launch in launches
    ]
    both = list(zip(launches, kernels))
    served = {launch.tuned for launch, kernel in both if not kernel.problem(arch)} - {None}
    return [
        replace(kernel, passed_over=True)
        if launch.tuned in served and kernel.problem(arch) and _is_passed_over(launch)
        else kernel
        for launch, kernel in both
    ]


def _is_passed_over(launch: Launch) -> bool:
    """Whether an autotuner goes on after it: whatever compiles, and the errors that it catches."""
    return launch.error is None or type(launch.error).__name__ in _CAUGHT


_CAUGHT = ("OutOfResources", "CompileTimeAssertionFailure", "PTXASError")


ASM = ("ttir", "ttgir", "llir", "ptx", "sass")


def _text(launch: Launch, asm: str) -> str:
    if asm == "sass":
        return "\n".join(machine_code.sass(launch.cubin).values())
    return str(launch.asm[asm])


def _config(launch: Launch) -> dict[str, int]:
    """The configuration of a launch: its integer constants, with warps and stages."""
    return {name: value for name, value in launch.meta.items() if type(value) is int}


def _label(case: Case, launch: Launch) -> str:
    """A short label for a launch of this project's kernels: the configuration and options."""
    config = _config(launch)
    tile = [str(value) for name, value in config.items() if name.startswith("BLOCK_")]
    if "CONSUMERS" in config:
        words = ["gluon", "×".join(tile), f"w{4 * config['CONSUMERS']} s{config['STAGES']}"]
        words += ["alternate"] if launch.meta.get("ALTERNATE") else []
        words += ["transpose"] if launch.meta.get("TURNED") else []
    elif "CLUSTER_M" in config:
        words = ["gluon", f"64×{'×'.join(tile)}", f"s{config['STAGES']}"]
        words += [f"clusters of {config['CLUSTER']}"]
    elif "LANES_M" in config:
        words = ["gluon", "×".join(tile), f"w{config['num_warps']} s{config['STAGES']}"]
    elif "num_stages" not in config:  # no matrix product
        words = [launch.kernel.removesuffix("_kernel"), *(["×".join(tile)] if tile else [])]
        unit = min((*launch.meta.get("X_UNITS", ()), *launch.meta.get("Y_UNITS", ())), default=16)
        words += [f"by {unit}"] if unit < 16 else []
        words += ["64-bit"] if str(launch.meta.get("INDEX")) == "int64" else []
        words += [f"{name} scalar" for name in "xy" if case.options.get(name) == "scalar"]
        return " ".join(words)
    else:
        words = ["×".join(tile), f"w{config['num_warps']} s{config['num_stages']}"]
    words += [str(case.options[key]) for key in ("act", "approximate") if key in case.options]
    words += [key for key in ("bias", "c") if case.options.get(key)]
    return " ".join(words)


def own_label(launch: Launch) -> str:
    """The same for a kernel from elsewhere, whose constants may have any names."""
    config = _config(launch)
    words = [launch.kernel]
    words += [f"{name}={value}" for name, value in config.items() if not name.startswith("num_")]
    short = {"num_warps": "w", "num_stages": "s", "num_ctas": "c"}
    words += [f"{short[name]}{value}" for name, value in config.items() if name in short]
    return " ".join(words)


def _words(error: Exception | None) -> str:
    """An error in one line: a known hint if there is one, else the message's last line, because the
    compiler prints its reason after the source excerpt."""
    if error is None:
        return ""
    if known := hints.hint(error):
        return f"{type(error).__name__}: {known}"
    while isinstance(error.__cause__, type(error)):  # the error is in a function called there
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines()]
    lines = [line for line in lines if line.strip("^")] or [repr(error)]
    return f"{type(error).__name__}: {lines[-1] if len(lines) > 1 else lines[0]}"


# ---- the CUDA side ----


def _cuda_variants(spec: Spec) -> Iterator[tuple[str, str | None]]:
    """(dtype, variant) of every CUDA kernel of the op."""
    rungs = spec.rungs()
    for dtype in spec.dtypes:
        case = next(iter(spec.to_compile(dtype, spec.default_options)))
        for variant in (None, *spec.variants("cuda")):
            dtypes = rungs.get(variant or "")
            taken = spec.takes("cuda", variant, case) if dtypes is None else DTYPES[dtype] in dtypes
            if taken:
                yield dtype, variant


def _cuda_names(spec: Spec) -> set[str]:
    """The names of the op's CUDA kernels."""
    return {name for which in _cuda_variants(spec) for name in spec.cuda_kernels(*which).values()}


def _labels(spec: Spec) -> dict[str, tuple[str, str]]:
    """Kernel name → (dtype, label) for the kernels of rungs. Each has one dtype, and its name is
    too long to show."""
    return {
        name: (dtype, f"{variant} {options}".strip())
        for dtype, variant in _cuda_variants(spec)
        if variant in spec.rungs()
        for options, name in spec.cuda_kernels(dtype, variant).items()
    }


def _cuda_kernels(spec: Spec, arch: str, asm: str = "") -> dict[str, Kernel]:
    """Name → kernel, for all kernels of the op's CUDA source."""
    try:
        if spec.own:
            made = [cubin for each in loaded.of_spec(spec) for cubin in each.machine_code(arch)]
        else:
            made = [_build.cubin(spec.stem, arch)]
    except BuildError as error:
        failed = str(error)
        names = [f"{spec.name}()"] if spec.own else sorted(_cuda_names(spec))
        return {name: Kernel(name, None, failed) for name in names}
    return {kernel.name: kernel for cubin in made for kernel in of_cubin(cubin, arch, asm)}


def of_cubin(made: tuple[bytes, str], arch: str, asm: str = "") -> Iterator[Kernel]:
    """The kernels of a cubin of nvcc. ``made`` is the cubin and ptxas's report. sass is the only
    text that they have."""
    cubin, account = made
    texts = machine_code.sass(cubin) if asm == "sass" else {}
    for name, figures in machine_code.of_cuda(cubin, account, arch).items():
        yield Kernel(name, figures, asm=texts.get(name, ""))
