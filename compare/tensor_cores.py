"""A model of the sums of tensor cores, and experiments that measure its constants.

A tensor core does not round as IEEE 754 requires. It adds ``group`` products and the accumulator at
a time, in fixed point. The unit is 2^-(23 + extra_bits) times the power of two of the largest term.
Each term is truncated to this unit, and the sum is truncated to float32. The power of two of a
product is the product of its factors' powers: 1.5 · 1.5 counts as 2⁰.

    python -m compare.tensor_cores

runs the experiments through the ops (the matrix products of Triton and of the CUDA side), and
compares random products with the model bit by bit. The error bound of :mod:`compare.specs.products`
uses the constants; docs/FACTS.md has the measurements.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import cuda_reference
import triton_kernels
from cuda_reference import _build


class Model(NamedTuple):
    """The constants of one kind of tensor-core instruction."""

    group: int
    extra_bits: int

    def accumulation_error(self, K: int, passes: int = 1) -> float:
        """The largest error of a sum of K products, relative to Σ|products|.

        The largest term of a group is exact, every other one loses less than a unit, and the sum
        less than 2⁻²³ of itself. ``passes``: how often K products are added to one accumulator.

        Raises:
            ValueError: K is so large that the error has no bound.
        """
        groups = -(-K // self.group)
        first_order = passes * (K * 2.0 ** -(23 + self.extra_bits) + groups * 2.0**-23)
        if first_order >= 1:
            raise ValueError(f"a sum of {K} products has no bound: too many for float32")
        return first_order / (1 - first_order)


# Measured on compute capability 9.0. In tf32, wgmma adds groups of eight and wmma groups of four.
HOPPER = {"float16": Model(16, 2), "bfloat16": Model(16, 2), "tf32": Model(4, 2)}
HOPPER_WGMMA_TF32 = Model(8, 2)


def emulate(a: Tensor, b: Tensor, model: Model) -> Tensor:
    """a [M, K] @ b [K, N] in float32, summed as in the model. The values must be finite, and their
    products exact in float64."""
    a, b = a.double(), b.double().t()
    a_power, b_power = _power(a), _power(b)
    c = torch.zeros(a.shape[0], b.shape[0], dtype=torch.float64, device=a.device)
    for k in range(0, a.shape[1], model.group):
        some = slice(k, k + model.group)
        products = a[:, None, some] * b[None, :, some]
        top = (a_power[:, None, some] + b_power[None, :, some]).amax(-1).maximum(_power(c))
        unit = torch.exp2(top - 23 - model.extra_bits)
        total = (products / unit[:, :, None]).trunc().sum(-1) + (c / unit).trunc()
        c = _chopped(total * unit).double()
    return c.float()


def _power(x: Tensor) -> Tensor:
    """⌊log₂|x|⌋ as float64. For zero it is far below all others, but 2^power is not 0."""
    return torch.where(x == 0, -400.0, torch.frexp(x).exponent.double() - 1)


def _chopped(x: Tensor) -> Tensor:
    """float64 → float32, truncated towards zero; infinite from 2¹²⁸ on."""
    nearest = x.float()
    away = (nearest.double().abs() > x.abs()) & (x.abs() < 2.0**128)
    return torch.where(away, torch.nextafter(nearest, torch.zeros_like(nearest)), nearest)


# ---- Experiments ------------------------------------------------------------

Product = Callable[[Tensor, Tensor], Tensor]  # a [M, K] @ b [K, N], accumulated and kept in float32


class Path(NamedTuple):
    """One way to use a tensor core: the op, the kind of operands, and the expected model."""

    name: str
    kind: str  # float16, bfloat16 or tf32
    product: Product
    model: Model
    device: str

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.kind == "tf32" else getattr(torch, self.kind)


class Findings(NamedTuple):
    """The results of the experiments on a path."""

    group: int
    extra_bits: int
    alignment_truncates: bool
    result_truncates: bool
    subnormals_kept: bool
    operand: str  # "exact"; for tf32 how float32 operands are converted: "truncated", "rounded"


def paths() -> list[Path]:
    """All paths that this machine has. The CUDA sources' host target has one, too: there a model in
    C++ stands in for the tensor core."""
    paths_here = []
    for kind in HOPPER:
        options = {"precision": "tf32"} if kind == "tf32" else {"out_dtype": torch.float32}

        def cuda(a: Tensor, b: Tensor, options: dict = options) -> Tensor:
            return cuda_reference.gemm_bias_act(a, b, variant="wmma", **options)

        def wide(a: Tensor, b: Tensor, options: dict = options) -> Tensor:
            """With additional rows, so that the tiles for large matrices are used."""
            rows = torch.cat([a, a.new_zeros(128, a.shape[1])])
            return triton_kernels.gemm_bias_act(rows, b, **options)[: a.shape[0]]

        def narrow(a: Tensor, b: Tensor, options: dict = options) -> Tensor:
            """At most 32 rows at a time, so that tiles of 16 or 32 rows are used."""
            some = [triton_kernels.gemm_bias_act(part, b, **options) for part in a.split(32)]
            return torch.cat(some)

        if torch.cuda.is_available():
            model = HOPPER_WGMMA_TF32 if kind == "tf32" else HOPPER[kind]
            paths_here.append(Path("Triton, large tiles", kind, wide, model, "cuda"))
            if kind != "tf32":  # for which all tiles have at least 64 rows
                paths_here.append(Path("Triton, small tiles", kind, narrow, model, "cuda"))
            if not _build.unavailable("cuda"):
                paths_here.append(Path("CUDA wmma", kind, cuda, HOPPER[kind], "cuda"))
        if not _build.unavailable("host"):
            paths_here.append(Path("CUDA wmma, host target", kind, cuda, HOPPER[kind], "cpu"))
    return paths_here


K = 64
ONE = 2.0**10  # the experiments' 1: float16 can hold 2⁻²⁶ times this number


def _sums(path: Path, rows: list[dict[int, float]]) -> list[float]:
    """The sums of rows of terms. A row is position → value, in units of ONE, as are the sums."""
    a = torch.zeros(len(rows), K, dtype=torch.float64)
    for i, row in enumerate(rows):
        for k, value in row.items():
            a[i, k] = value * ONE
    if not bool((a.to(path.dtype).double() == a).all()):
        raise ValueError(f"a term has no exact form in {path.dtype}")
    ones = torch.ones(K, 64, dtype=path.dtype, device=path.device)
    result = path.product(a.to(path.dtype).to(path.device), ones)
    return [float(x) / ONE for x in result[:, 0].double()]


def _group(path: Path) -> int:
    """The number of products that are added at a time. With 1 in the accumulator, two terms of half
    its last bit change the sum only if they belong to one group."""
    pairs = list(itertools.combinations(range(K // 2, K), 2))
    sums = _sums(path, [{0: 1.0, i: 2.0**-24, j: 2.0**-24} for i, j in pairs])
    joined = {pair for pair, total in zip(pairs, sums) if total > 1}
    group = 1
    while (K // 2, K // 2 + group) in joined:
        group += 1
    if joined != {(i, j) for i, j in pairs if i // group == j // group}:
        raise RuntimeError(f"{path.name}: the products are not added in groups of neighbours")
    return group


def measure(path: Path) -> Findings:
    """Run the experiments on one path."""
    group, first = _group(path), K // 2
    extra = 0
    # 2ⁿ terms of 2⁻ⁿ times the last bit change the sum if n extra bits are kept.
    while 2 ** (extra + 1) <= group:
        n = extra + 1
        terms = {first + i: 2.0 ** -(23 + n) for i in range(2**n)}
        if _sums(path, [{0: 1.0, **terms}]) == [1.0]:
            break
        extra = n
    four = range(first, first + 4)
    # below: if each of the four were rounded up to a unit, the sum would change. above: the sum of
    # the three exceeds 1 by 3/4 of its last bit, and would be rounded up.
    below = dict.fromkeys(four, 0.75 * 2.0 ** -(23 + extra))
    above = dict.fromkeys(four[:3], 2.0**-25)
    up, down, kept, negative = _sums(
        path,
        [
            {0: 1.0, **below},
            {0: 1.0, **{k: -v for k, v in below.items()}},
            {0: 1.0, **above},
            {0: -1.0, **{k: -v for k, v in above.items()}},
        ],
    )
    return Findings(
        group,
        extra,
        alignment_truncates=up == down == 1.0,
        result_truncates=kept == 1.0 and negative == -1.0,
        subnormals_kept=_keeps_subnormals(path),
        operand=_operand(path),
    )


def _keeps_subnormals(path: Path) -> bool:
    info = torch.finfo(path.dtype)
    smallest = info.tiny * (info.eps if path.kind != "tf32" else 2.0**-10)
    a = torch.full((1, K), 0.0, dtype=path.dtype, device=path.device)
    a[0, 0] = smallest
    return float(path.product(a, torch.ones(K, 64, dtype=path.dtype, device=path.device))[0, 0]) > 0


def _operand(path: Path) -> str:
    if path.kind != "tf32":
        return "exact"
    a = torch.zeros(3, K, device=path.device)
    a[:, 0] = 1 + torch.tensor([0.5, 0.625, 1.0], device=path.device) * 2.0**-10
    seen = path.product(a, torch.ones(K, 64, device=path.device))[:, 0]
    steps = tuple(((seen - 1) * 2.0**10).tolist())
    names: dict[Any, str] = {(0, 0, 1): "truncated", (1, 1, 1): "rounded"}
    return names.get(steps, str(steps))


def random_products(path: Path, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Random matrices whose values are exact in the path's format. Half of them have magnitudes far
    apart."""
    g = torch.Generator().manual_seed(seed)
    reach = 4 if path.kind == "float16" else 8
    for k in (path.model.group, 5, 64, 256):
        for spread in (0, reach):
            matrices = []
            for shape in ((96, k), (k, 96)):
                powers = torch.randint(-spread, spread + 1, shape, generator=g)
                x = torch.randn(shape, generator=g) * torch.exp2(powers.float())
                if path.kind == "tf32":  # 10 bits of mantissa
                    x = (x.view(torch.int32) & ~0x1FFF).view(torch.float32)
                matrices.append(x.to(path.dtype).to(path.device))
            yield matrices[0], matrices[1]


def disagreements(path: Path, seed: int = 0) -> tuple[int, int]:
    """The number of elements of random products that differ from the model, and of all elements."""
    wrong = total = 0
    for a, b in random_products(path, seed):
        result, expected = path.product(a, b), emulate(a, b, path.model)
        wrong += int((result != expected).sum())
        total += expected.numel()
    return wrong, total


def main() -> None:
    """Print the results of the experiments on all paths."""
    table = Table(box=None, header_style="bold")
    for title in ("path", "dtype", "products\nat a time", "extra\nbits", "alignment", "result"):
        table.add_column(title)
    for title in ("subnormals", "operands", "random products\nas modelled"):
        table.add_column(title)
    for path in paths():
        model = measure(path)
        wrong, total = disagreements(path)
        table.add_row(
            path.name,
            path.kind,
            str(model.group),
            str(model.extra_bits),
            "truncated" if model.alignment_truncates else "rounded",
            "truncated" if model.result_truncates else "rounded",
            "kept" if model.subnormals_kept else "flushed",
            model.operand,
            f"{total - wrong} of {total}",
        )
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU: the model only"
    console = Console(width=None if Console().is_terminal else 130)
    console.print(table)
    console.print(f"\n{name}; torch {torch.__version__}")


if __name__ == "__main__":
    main()
