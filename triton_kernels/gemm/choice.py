"""Which kernel a matrix product gets, and its tiles, by the problem and by what the GPU has.

:func:`choose` takes the configuration that is the fastest where memory is plentiful, from rules and
a table measured on an H200, and of that the first of its smaller forms for which a block has the
shared memory: first with fewer stages, then with smaller tiles. Descriptors compete: of their tiles
those whose waves over the multiprocessors cost least are taken. What was measured stands in
:class:`triton_kernels._measured.Constants`; ``triton_kernels.tune()`` measures it on other GPUs.
On compute capability 9.0 these compete with the forms of gemm_gluon_kernel, by the model of
:mod:`triton_kernels.gemm.gluon.forms`.
"""

from __future__ import annotations

import functools
import warnings
from typing import NamedTuple

import torch
from torch import Tensor

from triton_kernels import _known_calls, _measured
from triton_kernels._gpu import H200, Gpu
from triton_kernels._measured import SHIPPED, Constants
from triton_kernels.gemm.configurations import (
    HALVES,
    Configuration,
    Problem,
    Tiles,
    cdiv,
    ever_smaller,
)
from triton_kernels.gemm.gluon import forms


class TmaTiles(NamedTuple):
    """Tiles of gemm_tma_kernel.

    ``SUBTILES``: 2 if the epilogue takes half a tile at a time: that leaves memory for a stage.
    ``stages_with_c``: num_stages where there is c, which passes through shared memory, too.
    ``long``: instead for K from Constants.long on, without c: the loop counts there, not the
    epilogue.
    """

    tiles: Tiles
    SUBTILES: int
    stages_with_c: int
    long: Tiles | None = None

    def for_problem(self, problem: Problem, constants: Constants = SHIPPED) -> Configuration:
        """With the stages and warps that are best for K, with or without c."""
        tiles = self.tiles
        if problem.c:
            tiles = tiles._replace(num_stages=self.stages_with_c)
        elif problem.K >= constants.long and self.long is not None:
            tiles = self.long
        return Configuration(True, tiles, self.SUBTILES)


# Their costs are the constants', in this order.
TMA_TILES = (
    TmaTiles(Tiles(128, 256, 64, 16, 8, 4), 2, 3),
    TmaTiles(Tiles(128, 128, 64, 16, 8, 4), 1, 4, long=Tiles(128, 128, 64, 8, 4, 5)),
    TmaTiles(Tiles(64, 128, 128, 16, 4, 4), 1, 3),
    TmaTiles(Tiles(64, 64, 128, 16, 4, 6), 1, 5),
    TmaTiles(Tiles(64, 32, 128, 16, 4, 6), 1, 5),
)
SMALL = 32  # rows, columns or steps of K up to which pointers are as fast as descriptors
TMA_CAPABILITY = 90  # the first GPUs with a tensor memory accelerator
# Bytes of shared memory. With less, large tiles leave room for two blocks a multiprocessor, so that
# one's loop runs during the other's epilogue. Smaller tiles keep the tensor cores there busy: they
# are half as fast as an A100's. By the architectures' figures, not measured.
PLENTY = 128 * 1024


@functools.lru_cache(4096)
def choose(problem: Problem, gpu: Gpu) -> Configuration:
    """The configuration for a problem."""
    constants = _measured.constants(gpu)
    costs: dict[Configuration, float] = {}  # of one tile
    if tma_pays(problem, gpu):
        for row, cost in zip(TMA_TILES, constants.costs):
            form = fitting(row.for_problem(problem, constants), problem, gpu)
            if form is not None:
                costs.setdefault(form, cost)

    def waves(form: Configuration) -> int:
        return cdiv(form.tiles_of(problem.M, problem.N), gpu.multiprocessors)

    best = min(costs, key=lambda form: waves(form) * costs[form], default=None)
    if best is not None:
        fit = [form for form in forms.able(problem, gpu) if _fits(form, problem, gpu)]
        return forms.best(problem, gpu, fit, best, costs[best])
    wanted = Configuration(False, tiles_for(problem, gpu, constants))
    return fitting(wanted, problem, gpu) or _SMALLEST


def tma_pays(problem: Problem, gpu: Gpu) -> bool:
    """Whether gemm_tma_kernel can run, and is the faster one."""
    halves = problem.dtype in HALVES and problem.out_dtype in HALVES
    large = min(problem.M, problem.N, problem.K) > SMALL
    return halves and large and gpu.capability >= TMA_CAPABILITY


def tma_compatible(matrix: Tensor) -> bool:
    """Whether a descriptor takes the matrix: rows without gaps, all on multiples of 16 bytes."""
    row, column = matrix.stride()
    size = matrix.element_size()
    return column == 1 and row > 0 and row * size % 16 == 0 and matrix.data_ptr() % 16 == 0


def tiles_for(problem: Problem, gpu: Gpu, constants: Constants = SHIPPED) -> Tiles:
    """The tiles of gemm_bias_act_kernel, if they fit."""
    M, N, _, dtype, _, precision, *_ = problem
    busy = gpu.multiprocessors / H200.multiprocessors
    plenty = gpu.shared_memory >= PLENTY
    if dtype == torch.float64:
        return Tiles(32, 32, 16, 8, 4, 2)
    if dtype == torch.float32:
        if precision == "ieee":
            return Tiles(64, 64, 16, 8, 4, 3)
        if precision == "tf32" and M > 64:
            return Tiles(128, 128, 32, 8, 8, 3)
        return Tiles(64, 64, 32, 8, 4, 2)
    if M <= 32:
        return Tiles(32 if M > 16 else 16, 64 if N >= constants.wide * busy else 32, 128, 8, 4, 6)
    if M * N <= constants.large * busy:
        return Tiles(64, 128, 64, 8, 4, 4 if plenty else 3)
    return Tiles(128, 256, 64, 8, 8, 3) if plenty else Tiles(128, 128, 32, 8, 8, 4)


def fitting(wanted: Configuration, problem: Problem, gpu: Gpu) -> Configuration | None:
    """The largest of its smaller forms for which there is shared memory, itself if it can be."""
    return next((form for form in ever_smaller(wanted) if _fits(form, problem, gpu)), None)


def _fits(form: Configuration, problem: Problem, gpu: Gpu) -> bool:
    """Whether there is shared memory for it, as far as is known."""
    enough = form.shared_memory(problem, gpu.capability) <= gpu.shared_memory
    return enough and (form, problem[3:], gpu) not in _failed


_SMALLEST = Configuration(False, Tiles(16, 16, 16, 8, 4, 1))
# Configurations that a GPU refused although they should have fitted, with what decides: all of a
# Problem but its size.
_failed: set[tuple[Configuration, tuple[object, ...], Gpu]] = set()


def too_large(configuration: Configuration, problem: Problem, gpu: Gpu, error: Exception) -> bool:
    """Note that a launch was out of resources, and warn; whether there is another configuration."""
    if configuration == _SMALLEST:
        return False
    _failed.add((configuration, problem[3:], gpu))
    choose.cache_clear()
    _known_calls.forget()
    warnings.warn(
        f"a matrix product needs more than this GPU has, so that smaller tiles are taken from now "
        f"on; please report it: {problem} on {gpu} as {configuration}: {error}",
        RuntimeWarning,
        stacklevel=2,
    )
    return True
