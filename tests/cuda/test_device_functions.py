"""CUDA's device functions on the CPU: rounding, bits, mathematics, matches, groups, atomics."""

from __future__ import annotations

import functools
import math
import operator
from fractions import Fraction

import pytest
import torch
from cached import needs_host_target

from cuda_reference import load
from cuda_reference._extension import Extension

pytestmark = [needs_host_target, pytest.mark.usefixtures("own_library_cache")]

SOURCE = r"""
#include <torch/extension.h>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda_fp16.h>
namespace cg = cooperative_groups;

__global__ void to_integers_kernel(const double* x, int64_t* out) {
  const double d = x[threadIdx.x];
  const float f = d;
  out += 8 * threadIdx.x;
  out[0] = __float2int_rn(f); out[1] = __float2int_rz(f); out[2] = __float2int_rd(f);
  out[3] = __float2int_ru(f); out[4] = __float2uint_rn(f); out[5] = __double2ll_rz(d);
  out[6] = __half2int_ru(__float2half(f)); out[7] = __double2int_rn(d);
}
torch::Tensor to_integers(torch::Tensor x) {
  auto out = torch::empty({x.size(0), 8}, x.options().dtype(torch::kLong));
  to_integers_kernel<<<1, x.size(0)>>>(x.data_ptr<double>(), out.data_ptr<int64_t>());
  return out;
}

#define MODES(row, call)                                            \
  out[3 * row] = call(_rd); out[3 * row + 1] = call(_rz); out[3 * row + 2] = call(_ru);
#define ADD(mode) __fadd##mode(a, b)
#define MUL(mode) __fmul##mode(a, b)
#define DIV(mode) __fdiv##mode(a, b)
#define FMA(mode) __fmaf##mode(a, b, a)
#define TO_FLOAT(mode) __ll2float##mode(n)
__global__ void rounded_kernel(const float* x, const float* y, const int64_t* m, float* out) {
  const float a = x[threadIdx.x], b = y[threadIdx.x];
  const long long n = m[threadIdx.x];
  out += 15 * threadIdx.x;
  MODES(0, ADD) MODES(1, MUL) MODES(2, DIV) MODES(3, FMA) MODES(4, TO_FLOAT)
}
torch::Tensor rounded(torch::Tensor x, torch::Tensor y, torch::Tensor n) {
  auto out = torch::empty({x.size(0), 5, 3}, x.options());
  rounded_kernel<<<1, x.size(0)>>>(x.data_ptr<float>(), y.data_ptr<float>(), n.data_ptr<int64_t>(),
                                   out.data_ptr<float>());
  return out;
}

__global__ void bits_kernel(const int* x, const int* y, int64_t* out) {
  const int a = x[threadIdx.x], b = y[threadIdx.x];
  const unsigned u = a, v = b;
  out += 16 * threadIdx.x;
  out[0] = __brev(u); out[1] = __popcll(a * 0x100000001ll); out[2] = __clzll(u);
  out[3] = __ffsll(u);
  out[4] = __byte_perm(u, v, 0x9630); out[5] = __funnelshift_l(u, v, 37);
  out[6] = __funnelshift_rc(u, v, 40); out[7] = __mulhi(a, b); out[8] = __umulhi(u, v);
  out[9] = __dp4a(a, b, -3); out[10] = __vadd4(u, v); out[11] = __vsubss2(u, v);
  out[12] = __vcmpgtu4(u, v); out[13] = __vmaxs4(u, v); out[14] = __mul24(a, b);
  out[15] = __rhadd(a, b);
}
torch::Tensor bits(torch::Tensor x, torch::Tensor y) {
  auto out = torch::empty({x.size(0), 16}, x.options().dtype(torch::kLong));
  bits_kernel<<<1, x.size(0)>>>(x.data_ptr<int>(), y.data_ptr<int>(), out.data_ptr<int64_t>());
  return out;
}

__global__ void mathematics_kernel(const double* x, double* out) {
  const double a = x[threadIdx.x];
  out += 9 * threadIdx.x;
  out[0] = sinpi(a); out[1] = cospi(a); out[2] = erfinv(a / 4); out[3] = erfcinv(1 + a / 4);
  out[4] = normcdfinv(0.5 + a / 8); out[5] = erfcx(a); out[6] = rcbrt(a); out[7] = norm3d(a, 2, 3);
  out[8] = isnan((a - a) / (a - a)) ? rhypot(a, 1) : 0;
}
torch::Tensor mathematics(torch::Tensor x) {
  auto out = torch::empty({x.size(0), 9}, x.options());
  mathematics_kernel<<<1, x.size(0)>>>(x.data_ptr<double>(), out.data_ptr<double>());
  return out;
}

__global__ void together_kernel(const int* x, int* out, unsigned* count) {
  const int i = threadIdx.x, v = x[i];
  out += 8 * i;
  out[0] = __match_any_sync(0xffffffff, v);
  int all;
  out[1] = __match_all_sync(0xffffffff, v, &all) + all;
  out[2] = __reduce_xor_sync(0xffffffff, v);
  out[3] = out[4] = 0;
  if (v % 3 == 0) {  // lanes that diverge
    cg::coalesced_group group = cg::coalesced_threads();
    out[3] = 100 * group.size() + group.thread_rank();
    out[4] = cg::reduce(group, v, cg::plus<int>());
  } else {
    out[3] = cg::coalesced_threads().size();
  }
  for (int k = 0; k < v; ++k) out[5] = __popc(__activemask());  // those whose loop still runs
  cg::thread_group part = cg::tiled_partition(cg::this_thread_block(), 4);
  part.sync();
  out[6] = 10 * part.size() + part.thread_rank();
  out[7] = cg::this_grid().thread_rank();
  atomicInc(&count[0], 20);
  atomicDec(&count[1], 20);
  atomicAdd_system(&count[2], 2u);
}
void together(torch::Tensor x, torch::Tensor out, torch::Tensor count) {
  together_kernel<<<1, 32>>>(x.data_ptr<int>(), out.data_ptr<int>(),
                             reinterpret_cast<unsigned*>(count.data_ptr<int>()));
}

__global__ void waiting_kernel() { if (threadIdx.x) cg::this_grid().sync(); }
void waiting() { waiting_kernel<<<1, 2>>>(); }
__global__ void trap_kernel(int x) { if (x) __trap(); }
void trap(int x) { trap_kernel<<<1, 1>>>(x); }
__global__ void never_kernel() {
  if (threadIdx.x == 0) __syncthreads();
  else { cg::coalesced_threads(); __syncthreads(); }
}
void never() { never_kernel<<<1, 32>>>(); }

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("to_integers", &to_integers); m.def("rounded", &rounded); m.def("bits", &bits);
  m.def("mathematics", &mathematics); m.def("together", &together); m.def("waiting", &waiting);
  m.def("trap", &trap); m.def("never", &never);
}
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Extension:
    path = tmp_path_factory.mktemp("sources") / "device.cu"
    path.write_text(SOURCE)
    with pytest.MonkeyPatch.context() as patch:  # else torch builds it, too
        patch.setattr(torch.cuda, "is_available", lambda: False)
        return load("device", [str(path)])


def test_numbers_to_integers(module: Extension) -> None:
    """To even, toward zero, down, up; what does not fit to the end of the type; NaN."""
    top, low = 2**31 - 1, -(2**31)
    rows = {
        2.5: [2, 2, 2, 3, 2, 2, 3, 2],
        -3.5: [-4, -3, -4, -3, 0, -3, -3, -4],
        -0.75: [-1, 0, -1, 0, 0, 0, 0, -1],
        1e30: [top, top, top, top, 2**32 - 1, 2**63 - 1, top, top],
        -1e30: [low, low, low, low, 0, -(2**63), low, low],
        math.nan: [0, 0, 0, 0, 0, -(2**63), 0, low],
    }
    assert module.to_integers(torch.tensor(list(rows)).double()).tolist() == list(rows.values())


def test_every_way_to_round(module: Extension) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(2, 200) * torch.tensor([1.0, 1e-3])[:, None]
    n = torch.randint(-(2**60), 2**60, (200,))
    found = module.rounded(x, y, n)
    for i, (a, b, whole) in enumerate(zip(x.tolist(), y.tolist(), n.tolist())):
        p, q = Fraction(a), Fraction(b)
        for exact, row in zip((p + q, p * q, p / q, p * q + p, Fraction(whole)), found[i]):
            down, zero, up = row
            above, below = (
                torch.nextafter(t, torch.tensor(end))
                for t, end in ((down, math.inf), (up, -math.inf))
            )
            assert Fraction(down.item()) <= exact < Fraction(above.item())
            assert Fraction(below.item()) < exact <= Fraction(up.item())
            assert zero == (down if exact > 0 else up)


def signed(x: int, bits: int) -> int:
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def lanes(x: int, bits: int) -> list[int]:
    return [x >> at & ((1 << bits) - 1) for at in range(0, 32, bits)]


def word(values: list[int], bits: int) -> int:
    return sum((v & ((1 << bits) - 1)) << bits * i for i, v in enumerate(values))


def bits_by_hand(a: int, b: int) -> list[int]:
    u, v = a % 2**32, b % 2**32
    both, pairs = v << 32 | u, list(zip(lanes(u, 8), lanes(v, 8)))
    halves = [(signed(p, 16), signed(q, 16)) for p, q in zip(lanes(u, 16), lanes(v, 16))]
    eight = lanes(u, 8) + lanes(v, 8)
    bytes_ = [eight[0], eight[3], eight[6], 255 * (eight[1] >> 7)]
    return [
        int(f"{u:032b}"[::-1], 2),
        (a * 0x100000001 % 2**64).bit_count(),
        64 - u.bit_length(),
        (u & -u).bit_length(),
        word(bytes_, 8),
        (both << 5 >> 32) % 2**32,
        (both >> 32),
        a * b >> 32,
        u * v >> 32,
        signed(sum(signed(p, 8) * signed(q, 8) for p, q in pairs) - 3, 32),
        word([p + q for p, q in pairs], 8),
        word([max(-(2**15), min(2**15 - 1, p - q)) for p, q in halves], 16),
        word([-(p > q) for p, q in pairs], 8),
        word([max(signed(p, 8), signed(q, 8)) for p, q in pairs], 8),
        signed(signed(a, 24) * signed(b, 24), 32),
        (a + b + 1) >> 1,
    ]


def test_bits(module: Extension) -> None:
    torch.manual_seed(0)
    x, y = torch.randint(-(2**31), 2**31, (2, 100), dtype=torch.int64).int()
    x[0] = y[1] = 0
    by_hand = [bits_by_hand(a, b) for a, b in zip(x.tolist(), y.tolist())]
    assert module.bits(x, y).tolist() == by_hand


def test_mathematics(module: Extension) -> None:
    x = torch.tensor([0.25, 0.5, 1.0, 1.5, 3.0, 3.999999], dtype=torch.float64)
    special, half = torch.special, 0.5 + x / 8
    expected = [(x * math.pi).sin(), (x * math.pi).cos(), special.erfinv(x / 4)]
    expected += [-special.erfinv(x / 4), special.ndtri(half), special.erfcx(x), x ** (-1 / 3)]
    expected += [(x * x + 13).sqrt(), (x * x + 1).rsqrt()]
    torch.testing.assert_close(
        module.mathematics(x), torch.stack(expected, 1), rtol=1e-9, atol=1e-14
    )
    assert module.mathematics(x)[[1, 2, 3], [1, 0, 1]].tolist() == [0, 0, 0]


def test_lanes_that_run_together(module: Extension) -> None:
    x = torch.arange(32, dtype=torch.int32) % 5
    out, count = torch.empty(32, 8, dtype=torch.int32), torch.tensor([15, 5, 0], dtype=torch.int32)
    module.together(x, out, count)
    values = x.tolist()
    group = [i for i in range(32) if values[i] % 3 == 0]
    for i, row in enumerate(out.tolist()):
        same = sum(1 << j for j in range(32) if values[j] == values[i])
        assert row[:3] == [signed(same, 32), 0, functools.reduce(operator.xor, values)]
        if i in group:
            assert row[3:5] == [100 * len(group) + group.index(i), sum(values[j] for j in group)]
        else:
            assert row[3] == 32 - len(group)
        if values[i]:
            assert row[5] == sum(v >= values[i] for v in values)
        assert row[6:] == [40 + i % 4, i]
    assert count.tolist() == [(15 + 32) % 21, (5 - 32) % 21, 64]
    module.together(torch.full((32,), 7, dtype=torch.int32), out, count)
    assert out[:, 1].tolist() == [0] * 32  # all lanes, and one more


def test_what_cannot_go_on(module: Extension) -> None:
    with pytest.raises(RuntimeError, match=r"grid_group::sync\(\) at line \d+; on the CPU blocks"):
        module.waiting()
    with pytest.raises(RuntimeError, match=r"calls __trap\(\) at line \d+"):
        module.trap(1)
    module.trap(0)
    with pytest.raises(RuntimeError, match="divergent __syncthreads"):
        module.never()
