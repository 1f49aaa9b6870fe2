"""Products on few multiprocessors for each form of the kernels in Gluon: a test checks that. Each
has several tiles in both directions, with tails.
"""

from __future__ import annotations

Cut = tuple[tuple[int, int, int], int]  # (M, N, K), and multiprocessors

# The forms of gemm_gluon_kernel that do not compute the transpose; then with K in parts: by one
# consumer and two, of tiles whose columns are not a power of two.
GLUON: list[Cut] = [((366, 496, 2064), 7), ((464, 328, 2064), 6), ((204, 536, 520), 6)]
GLUON += [((270, 288, 264), 6), ((496, 272, 1552), 7), ((132, 328, 264), 1), ((402, 168, 264), 3)]
GLUON += [((130, 400, 264), 6), ((66, 496, 264), 7), ((136, 784, 264), 8), ((130, 136, 264), 8)]
GLUON += [((232, 80, 520), 9), ((174, 72, 3088), 19), ((350, 80, 4112), 19), ((116, 296, 3088), 8)]
GLUON += [((196, 176, 4112), 9), ((102, 280, 4112), 16)]
# Those that compute the transpose, of products without an addend whose a lies across K; some with K
# in parts. Then those of an a that lies along K: most have an instruction for a tile's whole width.
# Last some with an addend, two of which alternate or have K in parts.
GLUON_TURNED: list[Cut] = [((196, 200, 264), 6), ((258, 584, 1544), 1), ((294, 296, 264), 6)]
GLUON_TURNED += [((296, 592, 520), 6), ((530, 208, 1552), 7), ((386, 456, 1040), 2)]
GLUON_TURNED += [((442, 264, 272), 6), ((164, 520, 264), 6), ((288, 656, 1040), 2)]
GLUON_TURNED += [((336, 552, 1040), 2), ((582, 592, 520), 12), ((638, 264, 520), 6)]
GLUON_TURNED += [((478, 392, 40), 14), ((392, 88, 272), 6), ((466, 72, 272), 6)]
GLUON_TURNED += [((578, 72, 264), 6), ((572, 264, 40), 10), ((578, 392, 264), 14)]
GLUON_TURNED += [((468, 392, 264), 6), ((452, 392, 272), 5), ((258, 360, 264), 1)]
GLUON_TURNED += [((36, 72, 520), 23), ((66, 264, 520), 8), ((36, 72, 1552), 84)]
GLUON_TURNED += [((70, 72, 3088), 26)]
GLUON_ALONG: list[Cut] = [((538, 152, 264), 13), ((578, 272, 264), 20), ((350, 296, 520), 10)]
GLUON_ALONG += [((390, 144, 1040), 6), ((820, 184, 264), 12), ((874, 152, 1040), 12)]
GLUON_ALONG += [((196, 240, 1552), 7), ((402, 200, 264), 11), ((258, 200, 1040), 3)]
GLUON_ALONG += [((302, 232, 264), 7), ((332, 448, 520), 13), ((254, 600, 264), 11)]
GLUON_ALONG += [((642, 232, 264), 10), ((406, 232, 264), 6), ((590, 248, 264), 8)]
GLUON_ALONG += [((316, 496, 520), 8), ((654, 224, 264), 9), ((520, 224, 520), 7)]
GLUON_ALONG += [((358, 472, 1040), 8), ((746, 208, 1552), 8), ((386, 368, 1552), 3)]
GLUON_ALONG += [((622, 232, 1040), 3), ((428, 616, 520), 10), ((684, 240, 1552), 3)]
GLUON_ALONG += [((690, 208, 1552), 3), ((438, 616, 264), 4), ((572, 728, 264), 10)]
GLUON_ALONG += [((392, 696, 520), 9), ((466, 480, 1040), 3), ((544, 680, 1040), 6)]
GLUON_ALONG += [((546, 472, 520), 6), ((130, 392, 264), 7), ((190, 536, 264), 6)]
GLUON_ALONG += [((204, 488, 264), 7), ((474, 568, 1040), 2), ((494, 368, 520), 8)]
GLUON_ALONG += [((644, 560, 264), 16), ((418, 672, 264), 13), ((604, 360, 520), 8)]
GLUON_ALONG += [((478, 920, 1040), 5), ((324, 728, 1040), 8), ((516, 344, 1040), 7)]
GLUON_ALONG += [((542, 368, 3088), 2), ((564, 832, 1040), 16), ((774, 520, 1040), 2)]
GLUON_ALONG += [((412, 904, 264), 10), ((446, 528, 520), 6), ((392, 152, 264), 12)]
GLUON_ALONG += [((844, 264, 1040), 16), ((934, 312, 520), 15), ((518, 264, 264), 4)]
GLUON_ALONG += [((452, 392, 272), 5), ((36, 72, 520), 17), ((66, 264, 520), 8)]
GLUON_ALONG += [((142, 432, 3088), 16), ((318, 176, 3088), 14)]
GLUON_ADDEND: list[Cut] = [((572, 208, 1552), 8), ((556, 208, 1552), 2), ((274, 544, 1552), 3)]
GLUON_ADDEND += [((388, 136, 1552), 6), ((60, 72, 3088), 13)]
# Of 16 bits two side by side, for the rest of the columns, and of the rows. The latter have no
# addend; one of the two computes the transpose, or both.
GLUON_BESIDE: list[Cut] = [((300, 136, 2056), 1), ((236, 264, 2056), 1)]
GLUON_BESIDE_TURNED: list[Cut] = [((450, 136, 2056), 1), ((190, 264, 2056), 1)]
GLUON_BESIDE_TURNED += [((238, 272, 1032), 1)]
# The forms in clusters.
GLUON_CLUSTERS: list[Cut] = [((282, 264, 1032), 24), ((326, 264, 1032), 19), ((470, 176, 1032), 23)]
GLUON_CLUSTERS += [((582, 144, 1032), 22), ((306, 280, 1032), 18), ((162, 208, 1552), 18)]
GLUON_CLUSTERS += [((436, 112, 1552), 20), ((152, 304, 1032), 18), ((166, 304, 1032), 18)]
GLUON_CLUSTERS += [((420, 144, 1032), 18), ((518, 160, 1032), 18)]
# And for up to 32 rows, whole and with K in parts.
GLUON_FEW: list[Cut] = [((5, 136, 1032), 1), ((5, 264, 40), 1), ((20, 136, 2056), 1)]
GLUON_FEW += [((20, 264, 40), 1), ((5, 136, 2056), 12), ((20, 136, 3080), 9)]
# Those of its kernel for "f16x3": several tiles of each form, with even and odd numbers of steps.
GLUON_PARTS: list[Cut] = [((250, 380, 200), 2), ((130, 250, 136), 3), ((130, 130, 264), 5)]
# And of its kernel by multiply-adds: each form whole and with K in parts, with sums that are longer
# than what is added at a time.
GLUON_FMA: list[Cut] = [((9, 72, 136), 1), ((9, 72, 264), 3), ((33, 40, 40), 2), ((33, 40, 264), 3)]
GLUON_FMA += [((33, 328, 136), 4), ((33, 40, 520), 2), ((100, 264, 392), 2), ((33, 264, 520), 2)]
GLUON_FMA += [((194, 72, 40), 4), ((130, 72, 1032), 6), ((100, 200, 392), 1), ((194, 200, 1032), 3)]
