"""Where elements lie: strides, tables of indices, windows, parts of different lengths."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gallery.exhibits import Launch, exhibit, integers, near, normal


@triton.jit
def copy_kernel(x_ptr, out_ptr, M, N, BLOCK: tl.constexpr):
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = (m[:, None] < M) & (n[None, :] < N)
    # fault M and N turned round: mask = (m[:, None] < N) & (n[None, :] < M)
    x = tl.load(x_ptr + m[:, None] * N + n[None, :], mask=mask)
    tl.store(out_ptr + m[:, None] * N + n[None, :], x, mask=mask)


@exhibit({"M and N turned round": ("out of bounds", "x_ptr")})
def copy(dtype: torch.dtype) -> Launch:
    x, out = normal(20, 40, dtype=dtype), torch.empty(20, 40, dtype=dtype)
    return Launch(copy_kernel, (2, 3), (x, out, 20, 40), {"out_ptr": x}, BLOCK=16)


@triton.jit
def strided_kernel(x_ptr, out_ptr, M, N, stride_xm, stride_xn, BLOCK: tl.constexpr):
    m, n = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    mask = (m < M) & (n < N)
    x = tl.load(x_ptr + m * stride_xm + n * stride_xn, mask=mask)
    # fault strides of the transpose: x = tl.load(x_ptr + m * stride_xn + n * stride_xm, mask=mask)
    tl.store(out_ptr + m * N + n, x, mask=mask)


@exhibit({"strides of the transpose": ("wrong values", "x_ptr[0:16, 0:16].T")})
def strided_copy(dtype: torch.dtype) -> Launch:
    x, out = normal(16, 16, dtype=dtype), torch.empty(16, 16, dtype=dtype)
    args = (x, out, 16, 16, *x.stride())
    return Launch(strided_kernel, (1,), args, {"out_ptr": x}, BLOCK=16)


@triton.jit
def channels_kernel(x_ptr, scale_ptr, out_ptr, N, BLOCK: tl.constexpr):
    m, n = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    scale = tl.load(scale_ptr + tl.program_id(0))
    # fault wrong program id axis: scale = tl.load(scale_ptr + tl.program_id(1))
    x = tl.load(x_ptr + m * N + n, mask=n < N)
    tl.store(out_ptr + m * N + n, x * scale, mask=n < N)


@exhibit({"wrong program id axis": ("wrong values", "scale_ptr[", "scale =")})
def scale_of_channels(dtype: torch.dtype) -> Launch:
    x, scale = normal(4, 48, dtype=dtype), normal(4, seed=1, dtype=dtype)
    args = (x, scale, torch.empty(4, 48, dtype=dtype), 48)
    return Launch(channels_kernel, (4, 3), args, {"out_ptr": x * scale[:, None]}, BLOCK=16)


@triton.jit
def distant_rows_kernel(x_ptr, out_ptr, stride, BLOCK: tl.constexpr):
    n = tl.arange(0, BLOCK)
    start = tl.program_id(0).to(tl.int64) * stride
    # fault row offsets in 32 bits: start = tl.program_id(0) * stride
    tl.store(out_ptr + tl.program_id(0) * BLOCK + n, tl.load(x_ptr + start + n))


@exhibit({"row offsets in 32 bits": ("int32 overflow", "2147483648", "int64")}, [torch.int8])
def distant_rows(dtype: torch.dtype) -> Launch:
    x = torch.empty_strided((3, 8), (2**30, 1), dtype=dtype)
    x.copy_(torch.arange(24).view(3, 8))
    out = torch.empty(3, 8, dtype=dtype)
    return Launch(distant_rows_kernel, (3,), (x, out, 2**30), {"out_ptr": x}, BLOCK=8)


@triton.jit
def transpose_kernel(x_ptr, out_ptr, M, N, BLOCK: tl.constexpr):
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = (m[:, None] < M) & (n[None, :] < N)
    x = tl.load(x_ptr + m[:, None] * N + n[None, :], mask=mask)
    tl.store(out_ptr + n[:, None] * M + m[None, :], tl.trans(x), mask=tl.trans(mask))
    # fault tile not transposed:
    #    tl.store(out_ptr + n[:, None] * M + m[None, :], x, mask=tl.trans(mask))
    # fault mask not transposed:
    #    tl.store(out_ptr + n[:, None] * M + m[None, :], tl.trans(x), mask=mask)


@exhibit(
    {
        "tile not transposed": ("wrong values",),
        "mask not transposed": ("out of bounds", "out_ptr"),
    }
)
def transpose(dtype: torch.dtype) -> Launch:
    x = normal(20, 40, dtype=dtype)
    args = (x, torch.empty(40, 20, dtype=dtype), 20, 40)
    return Launch(transpose_kernel, (2, 3), args, {"out_ptr": x.T}, BLOCK=16)


@triton.jit
def embedding_kernel(i_ptr, w_ptr, out_ptr, V, N, BLOCK: tl.constexpr):
    i = tl.load(i_ptr + tl.program_id(0))
    # fault words counted from one: i = tl.load(i_ptr + tl.program_id(0)) + 1
    # fault index of the first word: i = tl.load(i_ptr)
    tl.device_assert(i < V, "no such word")
    n = tl.arange(0, BLOCK)
    w = tl.load(w_ptr + i * N + n, mask=n < N)
    tl.store(out_ptr + tl.program_id(0) * N + n, w, mask=n < N)


@exhibit(
    {
        "words counted from one": ("assertion", "no such word", "program (2, 0, 0)"),
        "index of the first word": ("wrong values", "i_ptr[0]"),
    }
)
def embedding(dtype: torch.dtype) -> Launch:
    words, table = torch.tensor([3, 0, 7, 1]), normal(8, 12, dtype=dtype)
    args = (words, table, torch.empty(4, 12, dtype=dtype), 8, 12)
    return Launch(embedding_kernel, (4,), args, {"out_ptr": table[words]}, BLOCK=16)


@triton.jit
def embedding_backward_kernel(i_ptr, grad_ptr, dw_ptr, N, padding, BLOCK: tl.constexpr):
    i = tl.load(i_ptr + tl.program_id(0))
    n = tl.arange(0, BLOCK)
    grad = tl.load(grad_ptr + tl.program_id(0) * N + n, mask=n < N)
    mask = (n < N) & (i != padding)
    # fault padding gets a gradient: mask = n < N
    tl.atomic_add(dw_ptr + i * N + n, grad.to(tl.float32), mask=mask)
    # fault a word twice without atomics:
    #    tl.store(dw_ptr + i * N + n, grad.to(tl.float32) + tl.load(dw_ptr + i * N + n, mask=mask),
    #    mask=mask)


@exhibit(
    {
        "padding gets a gradient": ("wrong values", "dw_ptr"),
        "a word twice without atomics": ("race", "dw_ptr"),
    }
)
def embedding_backward(dtype: torch.dtype) -> Launch:
    words, grad = torch.tensor([3, 0, 3, 1, 2, 3]), normal(6, 12, dtype=dtype)
    right = torch.zeros(5, 12, dtype=torch.float64).index_add_(0, words, grad.double())
    right[0] = 0
    args = (words, grad, torch.zeros(5, 12), 12, 0)
    bound = near(torch.float32, 8)
    return Launch(embedding_backward_kernel, (6,), args, {"dw_ptr": right}, bound=bound, BLOCK=16)


@triton.jit
def gather_kernel(x_ptr, index_ptr, out_ptr, N, K, BLOCK: tl.constexpr):
    """out[m, k] = x[m, index[m, k]]."""
    m = tl.program_id(0)
    k = tl.arange(0, BLOCK)
    index = tl.load(index_ptr + m * K + k, mask=k < K, other=0)
    # fault indices that nobody masked: index = tl.load(index_ptr + m * K + k)
    index = tl.where(index < 0, index + N, index)
    # fault negative indices not wrapped: index = tl.where(index < 0, 0, index)
    x = tl.load(x_ptr + m * N + index, mask=k < K)
    # fault rows of K: x = tl.load(x_ptr + m * K + index, mask=k < K)
    tl.store(out_ptr + m * K + k, x, mask=k < K)


@exhibit(
    {
        "indices that nobody masked": ("out of bounds", "index_ptr"),
        "negative indices not wrapped": ("wrong values",),
        "rows of K": ("wrong values", "x_ptr"),
    }
)
def gather(dtype: torch.dtype) -> Launch:
    x, index = normal(4, 10, dtype=dtype), integers(-10, 10, 4, 6)
    right = x.gather(1, (index % 10).long())
    args = (x, index, torch.empty(4, 6, dtype=dtype), 10, 6)
    return Launch(gather_kernel, (4,), args, {"out_ptr": right}, BLOCK=8)


@triton.jit
def scatter_kernel(x_ptr, index_ptr, out_ptr, N, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Rows of x to where a permutation says."""
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = tl.arange(0, WIDTH)
    to = tl.load(index_ptr + m, mask=m < N, other=0)
    x = tl.load(x_ptr + m[:, None] * WIDTH + n[None, :], mask=m[:, None] < N)
    tl.store(out_ptr + to[:, None] * WIDTH + n[None, :], x, mask=m[:, None] < N)
    # fault rows that nobody sends: tl.store(out_ptr + to[:, None] * WIDTH + n[None, :], x)
    # fault rows gathered:
    #    tl.store(out_ptr + m[:, None] * WIDTH + n[None, :], x, mask=m[:, None] < N)


@exhibit(
    {
        "rows that nobody sends": ("wrong values", "out_ptr"),
        "rows gathered": ("wrong values",),
    }
)
def scatter(dtype: torch.dtype) -> Launch:
    x = normal(10, 8, dtype=dtype)
    to = torch.tensor([3, 7, 0, 9, 1, 4, 8, 2, 6, 5], dtype=torch.int32)
    right = torch.empty_like(x)
    right[to.long()] = x
    args = (x, to, torch.zeros_like(x), 10)
    return Launch(scatter_kernel, (3,), args, {"out_ptr": right}, WIDTH=8, BLOCK=4)


@triton.jit
def causal_conv_kernel(x_ptr, w_ptr, out_ptr, T, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """A depthwise convolution along time: each channel has WIDTH weights."""
    channel = tl.program_id(0)
    t = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for i in tl.static_range(WIDTH):
        # fault a tap short: for i in tl.static_range(WIDTH - 1):
        at = t - (WIDTH - 1) + i
        # fault looks ahead: at = t - (WIDTH - 2) + i
        x = tl.load(x_ptr + channel * T + at, mask=(at >= 0) & (at < T), other=0.0)
        # fault the channel before: x = tl.load(x_ptr + channel * T + at, mask=at < T, other=0.0)
        acc += x.to(tl.float32) * tl.load(w_ptr + channel * WIDTH + i)
    tl.store(out_ptr + channel * T + t, acc * tl.sigmoid(acc), mask=t < T)


@exhibit(
    {
        "a tap short": ("wrong values",),
        "looks ahead": ("wrong values",),
        "the channel before": ("out of bounds", "x_ptr"),
    }
)
def causal_convolution(dtype: torch.dtype) -> Launch:
    x, w = normal(3, 20, dtype=dtype), normal(3, 4, seed=1, dtype=dtype)
    padded = torch.nn.functional.pad(x.double(), (3, 0))[None]
    conv = torch.nn.functional.conv1d(padded, w.double()[:, None], groups=3)[0]
    right = torch.nn.functional.silu(conv)
    args = (x, w, torch.empty_like(x), 20)
    return Launch(
        causal_conv_kernel, (3, 2), args, {"out_ptr": right}, bound=near(dtype, 8), WIDTH=4,
        BLOCK=16,
    )  # fmt: skip


@triton.jit
def max_pool_kernel(x_ptr, out_ptr, H, W, OUT_W, WINDOW: tl.constexpr, BLOCK: tl.constexpr):
    """Windows of WINDOW², one every WINDOW; the last ones may be cut."""
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    largest = tl.full((BLOCK,), -float("inf"), tl.float32)
    for i in tl.static_range(WINDOW):
        for j in tl.static_range(WINDOW):
            y, x = row * WINDOW + i, column * WINDOW + j
            # fault windows that overlap: y, x = row * WINDOW + i, column + j
            mask = (y < H) & (x < W) & (column < OUT_W)
            # fault pixels of the next row: mask = (y < H) & (column < OUT_W)
            value = tl.load(x_ptr + y * W + x, mask=mask, other=-float("inf"))
            # fault pool padded with zeros: value = tl.load(x_ptr + y * W + x, mask=mask, other=0.0)
            largest = tl.maximum(largest, value)
    tl.store(out_ptr + row * OUT_W + column, largest, mask=column < OUT_W)


@exhibit(
    {
        "windows that overlap": ("wrong values",),
        "pixels of the next row": ("out of bounds", "x_ptr"),
        "pool padded with zeros": ("wrong values",),
    }
)
def max_pool(dtype: torch.dtype) -> Launch:
    x = -normal(7, 11, dtype=dtype).abs()
    right = torch.nn.functional.max_pool2d(x.float()[None], 2, ceil_mode=True)[0]
    args = (x, torch.empty(4, 6, dtype=dtype), 7, 11, 6)
    return Launch(max_pool_kernel, (4,), args, {"out_ptr": right.to(dtype)}, WINDOW=2, BLOCK=8)


@triton.jit
def jagged_mean_kernel(
    x_ptr, offsets_ptr, out_ptr, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """Means of parts of different numbers of rows."""
    start = tl.load(offsets_ptr + tl.program_id(0))
    end = tl.load(offsets_ptr + tl.program_id(0) + 1)
    n = tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_N,), tl.float32)
    for first in range(start, end, BLOCK_M):
        m = first + tl.arange(0, BLOCK_M)
        mask = (m[:, None] < end) & (n[None, :] < N)
        # fault rows of the next part: mask = (m[:, None] < end + 1) & (n[None, :] < N)
        x = tl.load(x_ptr + m[:, None] * N + n[None, :], mask=mask, other=0.0)
        # fault rows left undefined: x = tl.load(x_ptr + m[:, None] * N + n[None, :], mask=mask)
        acc += tl.sum(x.to(tl.float32), axis=0)
    count = tl.maximum(end - start, 1)
    # fault nothing divided by nothing: count = end - start
    tl.store(out_ptr + tl.program_id(0) * N + n, acc / count, mask=n < N)


@exhibit(
    {
        "rows of the next part": ("wrong values",),
        "rows left undefined": ("undefined value", "x_ptr"),
        "nothing divided by nothing": ("wrong values", "expected 0"),
    }
)
def jagged_mean(dtype: torch.dtype) -> Launch:
    x, offsets = normal(13, 6, dtype=dtype), torch.tensor([0, 5, 5, 13], dtype=torch.int32)
    parts = x.double().split([5, 0, 8])
    right = torch.stack([part.sum(0) / max(len(part), 1) for part in parts])
    args = (x, offsets, torch.empty(3, 6, dtype=dtype), 6)
    return Launch(
        jagged_mean_kernel, (3,), args, {"out_ptr": right}, bound=near(dtype, 8), BLOCK_M=4,
        BLOCK_N=8,
    )  # fmt: skip


@triton.jit
def concat_kernel(x_ptr, y_ptr, out_ptr, NX, NY, BLOCK: tl.constexpr):
    m = tl.program_id(0)
    n = tl.arange(0, BLOCK)
    from_x = n < NX
    # fault one column too many of x: from_x = n <= NX
    from_y = (n >= NX) & (n < NX + NY)
    x = tl.load(x_ptr + m * NX + n, mask=from_x, other=0.0)
    y = tl.load(y_ptr + m * NY + n - NX, mask=from_y, other=0.0)
    # fault y counted from x's start: y = tl.load(y_ptr + m * NY + n, mask=from_y, other=0.0)
    tl.store(out_ptr + m * (NX + NY) + n, tl.where(from_x, x, y), mask=n < NX + NY)


@exhibit(
    {
        "one column too many of x": ("out of bounds", "x_ptr"),
        "y counted from x's start": ("out of bounds", "y_ptr"),
    }
)
def concat(dtype: torch.dtype) -> Launch:
    x, y = normal(3, 7, dtype=dtype), normal(3, 5, seed=1, dtype=dtype)
    args = (x, y, torch.empty(3, 12, dtype=dtype), 7, 5)
    return Launch(concat_kernel, (3,), args, {"out_ptr": torch.cat([x, y], 1)}, BLOCK=16)


@triton.jit
def shift_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets + 1, mask=offsets + 1 < N, other=0.0)
    # fault the last one's neighbour: x = tl.load(x_ptr + offsets + 1, mask=offsets < N, other=0.0)
    tl.store(out_ptr + offsets, x, mask=offsets < N)


@exhibit(
    {
        "the last one's neighbour": ("out of bounds", "x_ptr"),
        "in-place aliasing": ("race", "x_ptr[32]"),
    }
)
def shift(dtype: torch.dtype) -> Launch:
    x, apart = normal(100, dtype=dtype), torch.empty(100, dtype=dtype)
    right = torch.cat([x[1:], torch.zeros(1, dtype=dtype)])
    args = (x, apart, 100)
    # fault in-place aliasing: args = (x, x, 100)
    return Launch(shift_kernel, (4,), args, {"out_ptr": right}, BLOCK=32)
