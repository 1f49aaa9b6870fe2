"""The configurations of the kernels in Gluon. Of gemm_gluon_kernel also the fraction of the tensor
cores' peak that the loop of each reaches; see :mod:`triton_kernels.gemm.model`.
"""

from __future__ import annotations

from functools import partial

import triton

from triton_kernels._counts import cdiv
from triton_kernels._gpu import Gpu
from triton_kernels.gemm.configurations import HALVES, Configuration, Problem, Tiles

CAPABILITY = 90

_turned = partial(Configuration, True, gluon=True, TURNED=True)

# Configuration → fraction of the peak, set so that the choice takes least time on 820 drawn
# problems (H200, see gemm.model). Where it is near 1 the loads take longer than the products. Those
# that are the fastest for no problem are left out. Those of three consumers, and 144, 208 and 224
# rows by 128 columns, are set on 254 drawn products, 164 of them drawn because these compete, and
# 18 others: with them the choice takes 1.010 times as long as the best, without them 1.026 times.
# 192 and 224 by 192, and 128 to 160 by 64, are set on 164 drawn products for which these compete:
# 1.011 with them, 1.038 without.
#
# Programs that follow each other share an operand, so the speed depends on GROUP_M. Beside 8, on 4
# to 41 problems each (H100): alternating 128×128 with 4 is 1.04 times as fast, with 16 and 32
# 0.90 and 0.87 times, 128×64 with 2 1.10 times; with 4 64×64 1.07 and 64×128 1.05 times, 160 rows
# or columns and 256×128 1.01 times. Transposes of 64 columns are with 16 1.02 to 1.08 times as fast
# as with 4, or 1.00 to 1.01 times if there are few columns of tiles (H200, 21 to 73 problems each).
# Others do not gain. See also group_m.
FORMS = {
    # Two consumers; each has half of a tile's rows.
    Configuration(True, Tiles(128, 256, 64, 16, 8, 4), 4, gluon=True): 0.94,
    Configuration(True, Tiles(256, 128, 64, 4, 8, 4), 2, gluon=True): 0.92,
    Configuration(True, Tiles(128, 192, 64, 8, 8, 5), 6, gluon=True): 0.9,
    Configuration(True, Tiles(128, 160, 64, 4, 8, 5), 5, gluon=True): 0.81,
    # Three consumers; each has a third of the rows. For the same reason as many widths: more often
    # there is one that fills the waves.
    Configuration(True, Tiles(192, 160, 64, 4, 12, 4), 5, gluon=True): 0.9,
    # Two consumers with alternating tiles: for short sums, which take less time than epilogues.
    Configuration(True, Tiles(128, 128, 64, 4, 8, 6), 2, gluon=True, ALTERNATE=True): 0.91,
    Configuration(True, Tiles(128, 64, 64, 2, 8, 7), 1, gluon=True, ALTERNATE=True): 0.62,
    # One consumer: for few tiles, and for few rows with a large b.
    Configuration(True, Tiles(64, 256, 64, 8, 4, 5), 4, gluon=True): 0.98,
    Configuration(True, Tiles(64, 192, 64, 8, 4, 6), 3, gluon=True): 0.98,
    Configuration(True, Tiles(64, 160, 64, 8, 4, 7), 5, gluon=True): 0.8,
    Configuration(True, Tiles(64, 128, 64, 4, 4, 8), 2, gluon=True): 0.94,
    Configuration(True, Tiles(64, 64, 128, 4, 4, 6), 1, gluon=True): 0.62,
    # Of the transpose: for some hundred rows with a large b, and where they fill the waves better.
    # A bias of rows takes fewer registers, so these may be wider, and their epilogues are shorter.
    _turned(Tiles(96, 128, 64, 8, 8, 7), 3): 0.73,
    _turned(Tiles(144, 128, 64, 8, 8, 6), 9): 0.74,
    _turned(Tiles(160, 128, 64, 4, 8, 5), 5): 0.82,
    _turned(Tiles(160, 256, 64, 8, 8, 4), 5): 0.81,
    _turned(Tiles(192, 128, 64, 8, 8, 5), 6): 0.91,
    _turned(Tiles(208, 128, 64, 8, 8, 5), 13): 0.8,
    _turned(Tiles(224, 128, 64, 8, 8, 4), 7): 0.86,
    _turned(Tiles(96, 192, 64, 8, 12, 5), 3): 0.74,
    _turned(Tiles(160, 192, 64, 8, 12, 4), 5): 0.92,
    _turned(Tiles(192, 192, 64, 8, 12, 4), 6): 0.88,
    _turned(Tiles(208, 192, 64, 8, 12, 4), 13): 0.86,
    _turned(Tiles(224, 192, 64, 8, 12, 4), 14): 0.9,
    _turned(Tiles(128, 64, 64, 16, 4, 8), 4): 0.9,
    _turned(Tiles(144, 64, 64, 16, 4, 7), 9): 0.78,
    _turned(Tiles(160, 64, 64, 16, 4, 6), 10): 0.85,
    _turned(Tiles(224, 64, 64, 16, 4, 6), 7): 0.91,
    _turned(Tiles(288, 64, 64, 16, 4, 4), 9): 0.97,
    _turned(Tiles(320, 64, 64, 16, 4, 4), 5): 0.99,
    _turned(Tiles(192, 64, 64, 16, 8, 6), 3, ALTERNATE=True): 1.01,
    _turned(Tiles(256, 64, 64, 16, 8, 5), 8, ALTERNATE=True): 0.99,
    _turned(Tiles(192, 128, 64, 8, 8, 4), 3, ALTERNATE=True): 0.91,
    # The same for up to 32 rows: as few as a tile of the transpose has columns. They only load, so
    # the fraction hardly counts; it is that of 64×64 and 64×128. For more rows see choice.NARROW.
    _turned(Tiles(16, 64, 128, 8, 4, 9), 1): 0.57,
    _turned(Tiles(16, 128, 64, 8, 8, 10), 1): 0.82,
    _turned(Tiles(32, 64, 128, 8, 4, 8), 1): 0.57,
    _turned(Tiles(32, 128, 64, 8, 8, 9), 1): 0.82,
}

# Of the transpose where a lies along K: there wgmma may have any multiple of 8 columns, see
# gluon.wide. Of FORMS with the same tiles these take the place. Fractions of the peak as above, set
# on 589 drawn products, each in up to eleven of these that the model had within 10 or 12 % of its
# best (H200): of what was timed, the chosen take 1.006 times as long as the best. Widths that by
# the model are hardly ever the fastest are left out. Those that alternate are set on 68 others,
# each with relu and with gelu_tanh: the best of all is 1.009 times as fast with these six as with
# 192 alone, and 1.010 times with all fourteen from 88 to 192.
WIDE = {
    _turned(Tiles(144, 64, 64, 16, 4, 7), 5): 0.83,
    _turned(Tiles(160, 64, 64, 16, 4, 6), 5): 0.92,
    _turned(Tiles(176, 64, 64, 16, 4, 7), 6): 0.86,
    _turned(Tiles(200, 64, 64, 16, 4, 6), 7): 0.9,
    _turned(Tiles(216, 64, 64, 16, 4, 6), 7): 0.94,
    _turned(Tiles(224, 64, 64, 16, 4, 6), 7): 0.95,
    _turned(Tiles(80, 128, 64, 8, 8, 8), 5): 0.8,
    _turned(Tiles(88, 128, 64, 8, 8, 7), 3): 0.8,
    _turned(Tiles(96, 128, 64, 8, 8, 7), 3): 0.89,
    _turned(Tiles(104, 128, 64, 8, 8, 7), 4): 0.86,
    _turned(Tiles(112, 128, 64, 8, 8, 7), 4): 0.93,
    _turned(Tiles(128, 128, 64, 8, 8, 6), 2): 0.95,
    _turned(Tiles(136, 128, 64, 8, 8, 6), 5): 0.96,
    _turned(Tiles(144, 128, 64, 8, 8, 6), 5): 0.98,
    _turned(Tiles(152, 128, 64, 8, 8, 6), 5): 0.9,
    _turned(Tiles(160, 128, 64, 4, 8, 5), 5): 0.95,
    _turned(Tiles(168, 128, 64, 8, 8, 5), 6): 0.94,
    _turned(Tiles(176, 128, 64, 8, 8, 5), 6): 0.97,
    _turned(Tiles(184, 128, 64, 8, 8, 5), 6): 0.96,
    _turned(Tiles(192, 128, 64, 8, 8, 5), 6): 0.96,
    _turned(Tiles(200, 128, 64, 8, 8, 5), 7): 0.96,
    _turned(Tiles(208, 128, 64, 8, 8, 5), 7): 0.95,
    _turned(Tiles(224, 128, 64, 8, 8, 4), 7): 0.95,
    _turned(Tiles(232, 128, 64, 8, 8, 4), 8): 0.93,
    _turned(Tiles(240, 128, 64, 8, 8, 4), 8): 0.95,
    _turned(Tiles(112, 128, 64, 8, 8, 7), 4, ALTERNATE=True): 0.88,
    _turned(Tiles(128, 128, 64, 8, 8, 6), 2, ALTERNATE=True): 0.93,
    _turned(Tiles(144, 128, 64, 8, 8, 6), 5, ALTERNATE=True): 0.95,
    _turned(Tiles(160, 128, 64, 8, 8, 5), 5, ALTERNATE=True): 0.97,
    _turned(Tiles(184, 128, 64, 8, 8, 5), 6, ALTERNATE=True): 0.97,
    _turned(Tiles(192, 128, 64, 8, 8, 4), 3, ALTERNATE=True): 0.97,
    _turned(Tiles(80, 192, 64, 8, 12, 6), 5): 0.77,
    _turned(Tiles(96, 192, 64, 8, 12, 5), 3): 0.93,
    _turned(Tiles(104, 192, 64, 8, 12, 5), 4): 0.92,
    _turned(Tiles(120, 192, 64, 8, 12, 5), 4): 0.94,
    _turned(Tiles(128, 192, 64, 8, 12, 4), 2): 0.95,
    _turned(Tiles(136, 192, 64, 8, 12, 5), 9): 0.93,
    _turned(Tiles(144, 192, 64, 8, 12, 5), 9): 0.95,
    _turned(Tiles(152, 192, 64, 8, 12, 4), 5): 0.95,
    _turned(Tiles(160, 192, 64, 8, 12, 4), 5): 0.96,
    _turned(Tiles(168, 192, 64, 8, 12, 4), 6): 0.92,
    _turned(Tiles(176, 192, 64, 8, 12, 4), 6): 0.96,
    _turned(Tiles(184, 192, 64, 8, 12, 4), 6): 0.94,
    _turned(Tiles(192, 192, 64, 8, 12, 4), 6): 0.95,
    _turned(Tiles(200, 192, 64, 8, 12, 4), 7): 0.93,
}

# Of gemm_gluon_cluster_kernel: configuration → fraction of the peak. 324 drawn products of few
# tiles and sums from 1024 on, 19 of which were known to lose, were timed in up to eight forms in
# clusters each, and in up to three others. The chosen takes 1.017 times as long as the best of
# these, without clusters 1.030 times (H200, triton 3.6). Forms that hardly help are left out.
CLUSTERS = {
    _turned(Tiles(80, 64, 64, 1, 8, 11), 3, cluster=(1, 2)): 0.87,
    _turned(Tiles(144, 64, 64, 1, 8, 8), 5, cluster=(1, 2)): 0.87,
    _turned(Tiles(96, 64, 64, 1, 8, 10), 3, cluster=(1, 4)): 0.87,
    _turned(Tiles(128, 64, 64, 1, 8, 8), 4, cluster=(1, 4)): 0.87,
    _turned(Tiles(160, 64, 64, 1, 8, 7), 5, cluster=(1, 4)): 0.87,
    _turned(Tiles(48, 64, 64, 1, 8, 14), 2, cluster=(2, 2)): 0.87,
    _turned(Tiles(64, 64, 64, 1, 8, 13), 2, cluster=(2, 2)): 0.87,
    _turned(Tiles(80, 64, 64, 1, 8, 11), 3, cluster=(2, 2)): 0.87,
    _turned(Tiles(96, 64, 64, 1, 8, 10), 3, cluster=(2, 2)): 0.87,
    _turned(Tiles(112, 64, 64, 1, 8, 9), 4, cluster=(2, 2)): 0.87,
    _turned(Tiles(144, 64, 64, 1, 8, 8), 5, cluster=(2, 2)): 0.87,
}

if triton.__version__.startswith("3.8."):  # without views of several units, see gluon.wide
    WIDE = {}

EVERY = FORMS | WIDE  # of gemm_gluon_kernel

# Of gemm_gluon_fma_kernel: configuration → fraction of the multiply-adds' peak that a full
# multiprocessor reaches (H200, 100 drawn problems, triton 3.6).
FMA_FORMS = {
    Configuration(True, Tiles(64, 128, 16, 8, 4, 3), gluon=True): 0.79,
    Configuration(True, Tiles(64, 64, 16, 8, 2, 3), gluon=True): 0.75,
    Configuration(True, Tiles(64, 64, 32, 8, 4, 4), gluon=True): 0.76,
    Configuration(True, Tiles(32, 64, 32, 8, 2, 4), gluon=True): 0.73,
    Configuration(True, Tiles(32, 32, 32, 8, 2, 5), gluon=True): 0.56,
    Configuration(True, Tiles(8, 64, 32, 8, 1, 5), gluon=True): 0.40,
}

# Of gemm_gluon_f16x3_kernel: configuration → cost of a tile (H200, ten problems, triton 3.6).
PARTS_FORMS = {
    Configuration(True, Tiles(128, 128, 64, 8, 8, 3), 4, gluon=True): 1.0,
    Configuration(True, Tiles(64, 128, 64, 8, 4, 4), 4, gluon=True): 0.54,
    Configuration(True, Tiles(64, 64, 64, 8, 4, 6), 2, gluon=True): 0.34,
}


# Columns of tiles. With fewer, whatever the order, the programs of a wave have most columns in
# common. What counts then is what 16 programs that follow each other load: they run in one GPC, and
# requests from there for the same lines are combined before L2. So these 16 should be about a
# square of the result. On four to nine problems each with fewer than 24 columns (H100), 256×128
# with 2 is 1.03 times as fast as with 4, 128×256 with 4 1.01 times as with 16 (on four others up to
# 1.05), 128×192 with 4 1.01 and 64×192 1.05 times as with 8. On those with more, 0.98, 0.99, 1.00
# and 0.90 times. Transposes of 64 columns keep their 16.
FEW = 24
# Groups of rows that have the same height. A last group of few rows shares less, and the programs
# that share most wait for it: in 64×256 nine rows are 1.23 times as fast in one group as in eight
# and one, 17 rows 1.11 times in nine and eight as in eight, eight and one (others of up to 18 rows
# 1.01 to 1.10). Of more groups 9 instead of 8, or 5 instead of 4, make tiles of 64 rows 0.95 times
# as fast (0.61 to 1.39, 71 pairs of a product and tiles, some of which are moved as well; H100).
EVEN = 2


def group_m(tiles: Tiles, M: int, N: int) -> int:
    """The GROUP_M of a launch of gemm_gluon_kernel: the tiles', or less if there are few columns.
    If there are up to two groups, they get equal shares of the rows. ``tiles``, M and N are those
    of the kernel, which may compute the transpose."""
    rows, columns, wanted = cdiv(M, tiles.BLOCK_M), cdiv(N, tiles.BLOCK_N), tiles.GROUP_M
    narrow = tiles.BLOCK_M == 64 and wanted == 16  # transposes of 64 columns
    if columns < FEW and not narrow:
        wanted = min(wanted, 2 if tiles.BLOCK_M >= 256 else 4)
    groups = max(1, cdiv(2 * rows - wanted, 2 * wanted))  # rows / wanted, rounded
    return cdiv(rows, groups) if groups <= EVEN else wanted


def able(problem: Problem, gpu: Gpu) -> dict[Configuration, float]:
    """The configurations for a problem that descriptors can load → the fraction of the peak. Their
    shared memory is not checked. Empty if the kernel is not allowed, or not for this GPU."""
    if problem.kernels == "tl" or gpu.capability != CAPABILITY:
        return {}
    if not problem.by_cores:
        return FMA_FORMS
    halves = problem.dtype in HALVES
    wide = WIDE if halves and not problem.across[0] else {}
    instead = {(*form.tiles[:2], form.ALTERNATE) for form in wide}

    def competes(form: Configuration) -> bool:
        if not halves:  # others were not measured
            return not (form.TURNED or form.by_registers)
        return not form.TURNED or (*form.tiles[:2], form.ALTERNATE) not in instead

    each = wide | {form: reached for form, reached in FORMS.items() if competes(form)}
    if halves and problem.out_dtype in HALVES and not problem.across[0]:
        each |= CLUSTERS
    return {form.of_dtype(problem.dtype): reached for form, reached in each.items()}
