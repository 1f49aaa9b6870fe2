// The faster kernels of elementwise ops for tensors that are not all dense: rungs beside those of rungs.cuh, with the
// same formulas, and the plain kernel's bits, for elements of 16 and 32 bits. docs/CUDA_LADDER.md explains them.
//
//   strided   a pack of the result per thread, in one access of 128 bits. It finds its operands by multiplying instead
//             of dividing, and loads packs where their elements lie side by side
//   tile      for operands whose elements lie side by side along another dimension than the result's: a block loads a
//             tile of each along its own dimension, and turns it in shared memory
//
// Python gives all tensors with the same dimensions, at most DIMS, of which the last is the one along which the
// result's elements lie side by side. For a tile the last but one is that of the turned operands.
#pragma once
#include "rungs.cuh"

constexpr int DIMS = 4;  // as in _walks.py
enum Strided { STRIDED, TILE };  // in the order of NOT_DENSE in _rungs.py

// Divides by a size: 32-bit numbers from 0 on by a product and a shift, since x / size is the integer part of
// x·⌈2³¹⁺ᵏ / size⌉ / 2³¹⁺ᵏ if size is at most 2ᵏ.
template <class I>
struct Divisor {
  I size = 1;
  unsigned magic = 0, shift = 0;

  Divisor() = default;
  explicit Divisor(long long by) : size(static_cast<I>(by)) {
    if (sizeof(I) > 4 || by == 1) return;
    int k = 1;
    while (1LL << k < by) ++k;
    magic = static_cast<unsigned>(((1ULL << (31 + k)) + by - 1) / by);
    shift = k - 1;
  }
  __device__ I quotient(I x) const {
    if constexpr (sizeof(I) > 4) return x / size;
    return magic ? static_cast<I>(__umulhi(static_cast<unsigned>(x), magic) >> shift) : x;
  }
};

__device__ inline bool on_16_bytes(const void* address) { return reinterpret_cast<size_t>(address) % 16 == 0; }

// ---- strided -----------------------------------------------------------------------------------------------

// What the kernel knows of its tensors; inputs come first. A row is what has only the last dimension. I: the type of
// offsets.
template <int TENSORS, class I>
struct Walk {
  I places;                   // elements of the result, or of its rows rounded up to whole packs if they are apart
  I columns;                  // of a row
  Divisor<I> pitch;           // places of a row
  int shift;                  // minus the elements from a multiple of 16 bytes to the result, if it is dense
  int rows;                   // dimensions beside the columns
  Divisor<I> size[DIMS - 1];  // theirs, the last one first
  I along[TENSORS], stride[TENSORS][DIMS - 1];
  bool dense[TENSORS];  // whether place i is at offset i

  // The indices of a row.
  __device__ void find(I row, I* index) const {
#pragma unroll
    for (int d = 0; d < DIMS - 1; ++d) {
      const I next = d < rows - 1 ? size[d].quotient(row) : 0;
      index[d] = row - next * size[d].size;
      row = next;
    }
  }
  // The offset of its first element.
  __device__ I offset(int k, const I* index) const {
    I at = 0;
#pragma unroll
    for (int d = 0; d < DIMS - 1; ++d) at += index[d] * stride[k][d];
    return at;
  }
};

// A pack of the result has the places [first, first + SIZE). Only the first one may begin before place 0, and only the
// last one may end behind the last place.
template <class Formula, class T, class I>
__global__ void strided_kernel(Formula formula, Operands<Formula> at,
                               Walk<Formula::INPUTS + Formula::OUTPUTS, I> walk) {
  constexpr int SIZE = 16 / sizeof(T), IN = Formula::INPUTS, OUT = Formula::OUTPUTS;
  using P = Pack<T, float4, SIZE>;
  const I first = static_cast<I>(global_thread()) * SIZE + walk.shift;
  if (first >= walk.places) return;
  const int begin = first < 0 ? static_cast<int>(-first) : 0;
  const I row = walk.pitch.quotient(first + begin);
  const I column = first + begin - row * walk.pitch.size;
  int end = walk.places - first < SIZE ? static_cast<int>(walk.places - first) : SIZE;
  // Rows that are apart are whole packs of places, of which the last ones are no elements.
  if (walk.pitch.size > walk.columns && end > walk.columns - column) end = static_cast<int>(walk.columns - column);
  const bool whole = begin == 0 && end == SIZE;
  const bool together = whole && column + SIZE <= walk.columns;  // in one row
  I index[DIMS - 1];
  walk.find(row, index);
  P in[IN], out[OUT];
#pragma unroll
  for (int k = 0; k < IN; ++k) {
    const T* from = static_cast<const T*>(at.in[k]);
    const I step = walk.dense[k] ? 1 : walk.along[k];
    const I start = walk.dense[k] ? first : walk.offset(k, index) + column * step;
    if (whole && step == 1 && (walk.dense[k] || together) && on_16_bytes(from + start)) {
      in[k].access[0] = *reinterpret_cast<const float4*>(from + start);
    } else if (together && step == 0) {
      const T same = from[start];
#pragma unroll
      for (int e = 0; e < SIZE; ++e) in[k].element[e] = same;
    } else if (walk.dense[k] || together) {
#pragma unroll
      for (int e = 0; e < SIZE; ++e)
        if (e >= begin && e < end) in[k].element[e] = from[start + e * step];
    } else if (walk.columns >= SIZE) {  // in two rows
      const int here = static_cast<int>(walk.columns - column) + begin;
      I next[DIMS - 1];
      walk.find(row + 1, next);
      const I there = walk.offset(k, next) - here * step, before = start - begin * step;
#pragma unroll
      for (int e = 0; e < SIZE; ++e)
        if (e >= begin && e < end) in[k].element[e] = from[(e < here ? before : there) + e * step];
    } else {
#pragma unroll
      for (int e = 0; e < SIZE; ++e) {
        if (e < begin || e >= end) continue;
        const I of_row = walk.pitch.quotient(first + e);
        I here[DIMS - 1];
        walk.find(of_row, here);
        in[k].element[e] = from[walk.offset(k, here) + (first + e - of_row * walk.pitch.size) * step];
      }
    }
  }
  compute_pack(formula, in, out);
#pragma unroll
  for (int k = 0; k < OUT; ++k) {
    T* to = static_cast<T*>(at.out[k]);
    const I step = walk.dense[IN + k] ? 1 : walk.along[IN + k];
    const I start = walk.dense[IN + k] ? first : walk.offset(IN + k, index) + column * step;
    if (whole && step == 1 && on_16_bytes(to + start)) {
      *reinterpret_cast<float4*>(to + start) = out[k].access[0];
    } else {
#pragma unroll
      for (int e = 0; e < SIZE; ++e)
        if (e >= begin && e < end) to[start + e * step] = out[k].element[e];
    }
  }
}

// Whether element i of a tensor is at offset i.
inline bool is_dense(const Tensor& t) {
  long long expected = 1;
  for (int d = t.ndim - 1; d >= 0; expected *= t.size[d--])
    if (t.size[d] > 1 && t.stride[d] != expected) return false;
  return true;
}

// The number of places: the elements, or those of whole packs per row if a result's rows are apart.
template <class Formula, class T>
long long places(const Tensor* const* tensors, bool& together) {
  constexpr int SIZE = 16 / sizeof(T), TENSORS = Formula::INPUTS + Formula::OUTPUTS;
  const Tensor& out = *tensors[TENSORS - 1];
  const long long n = out.numel(), columns = out.size[out.ndim - 1];
  together = true;
  for (int k = Formula::INPUTS; k < TENSORS; ++k) together = together && is_dense(*tensors[k]);
  return together ? n : n / columns * ((columns + SIZE - 1) / SIZE * SIZE);
}

template <class T, class I, class Formula>
void launch_strided_of(Formula formula, Operands<Formula> at, const Tensor* const* tensors, long long places,
                       bool together, cudaStream_t stream) {
  constexpr int SIZE = 16 / sizeof(T), TENSORS = Formula::INPUTS + Formula::OUTPUTS;
  const Tensor& out = *tensors[TENSORS - 1];
  Walk<TENSORS, I> walk = {};
  for (int k = 0; k < TENSORS; ++k) {
    walk.dense[k] = together && is_dense(*tensors[k]);
    walk.along[k] = static_cast<I>(tensors[k]->stride[out.ndim - 1]);
    for (int d = 0; d < out.ndim - 1; ++d) walk.stride[k][d] = static_cast<I>(tensors[k]->stride[out.ndim - 2 - d]);
  }
  walk.places = static_cast<I>(places);
  walk.columns = static_cast<I>(out.size[out.ndim - 1]);
  walk.rows = out.ndim - 1;
  for (int d = 0; d < walk.rows; ++d) walk.size[d] = Divisor<I>(out.size[out.ndim - 2 - d]);
  walk.pitch = Divisor<I>(together ? walk.columns : (walk.columns + SIZE - 1) / SIZE * SIZE);
  if (together) walk.shift = -static_cast<int>(reinterpret_cast<size_t>(out.data) % 16 / sizeof(T));
  const unsigned blocks = blocks_for((places - walk.shift + SIZE - 1) / SIZE);
  LAUNCH((strided_kernel<Formula, T, I>), blocks, THREADS, 0, stream, formula, at, walk);
}

constexpr long long NEAR = (1LL << 31) - 2 * 16 * THREADS;  // places and offsets below it have 32 bits, sums, too

template <class T, class Formula>
void launch_strided(Formula formula, Operands<Formula> at, const Tensor* const* tensors, cudaStream_t stream) {
  bool together;
  const long long all = places<Formula, T>(tensors, together);
  bool near = all < NEAR;
  for (int k = 0; k < Formula::INPUTS + Formula::OUTPUTS; ++k) {
    long long last = 0;
    for (int d = 0; d < tensors[k]->ndim; ++d) last += (tensors[k]->size[d] - 1) * tensors[k]->stride[d];
    near = near && last < NEAR;
  }
  if (near) {
    launch_strided_of<T, int>(formula, at, tensors, all, together, stream);
  } else {
    launch_strided_of<T, long long>(formula, at, tensors, all, together, stream);
  }
}

// ---- tile --------------------------------------------------------------------------------------------------

template <class T>
constexpr int AREA = 8192 / sizeof(T);  // elements of a tile
constexpr int LEAST = 16;               // and of its shorter edge

// What the kernel knows of its tensors. Dimension 0 is the columns, 1 the rows; a block has one index of the others.
template <int TENSORS>
struct Tiles {
  long long size[2];
  int edge[2];            // of a tile: powers of two
  Divisor<int> packs[2];  // of an edge
  Divisor<int> tiles[2], others;
  long long stride[TENSORS][DIMS];
  bool turned[TENSORS];  // whether its elements lie side by side along the rows
};

// The most packs of a thread.
template <class T, bool EVEN>
constexpr int PACKS = (AREA<T> * sizeof(T) / 16 + !EVEN * AREA<T> / LEAST + THREADS - 1) / THREADS;

// Goes through the lines of a tile by packs that begin at multiples of 16 bytes. A line has ``length`` elements, and
// the next one begins ``stride`` elements further. Each thread calls ``use`` with a line, the place in it of a pack, and
// the number of packs that it had before. Unless lines are EVEN, which begin at multiples themselves, they have one pack
// more, and some places are before the tile or behind it.
template <bool EVEN, class T, class Use>
__device__ void by_packs(const T* first, long long stride, int lines, int length, Divisor<int> packs, Use use) {
  constexpr int SIZE = 16 / sizeof(T);
#pragma unroll
  for (int i = 0; i < PACKS<T, EVEN>; ++i) {
    const int pack = i * THREADS + threadIdx.x, line = packs.quotient(pack);
    if (line >= lines) break;
    int place = (pack - line * packs.size) * SIZE;
    if (!EVEN) place -= static_cast<int>(reinterpret_cast<size_t>(first + line * stride) % 16 / sizeof(T));
    if (place < length) use(line, place, i);
  }
}

// Blocks that a multiprocessor shall hold: while one waits for its tile, others load and store. More registers each, and
// so fewer blocks, took up to 1.6 times as long.
template <class Formula>
constexpr int BLOCKS = Formula::INPUTS + Formula::OUTPUTS > 4 ? 3 : 5;

// A thread's packs of the operands that are not turned are loaded before the block waits for the turned ones. A tile in
// shared memory is as its operand is: column after column. Four bytes are between them, so that neither whole packs of
// a column nor elements of a row are in the same banks. EVEN: whether all lines of turned operands and of the last
// result begin at multiples of 16 bytes.
template <class Formula, class T, bool EVEN>
__global__ void __launch_bounds__(THREADS, BLOCKS<Formula>)
    tile_kernel(Formula formula, Operands<Formula> at, Tiles<Formula::INPUTS + Formula::OUTPUTS> tiles) {
  constexpr int SIZE = 16 / sizeof(T), IN = Formula::INPUTS, OUT = Formula::OUTPUTS;
  using P = Pack<T, float4, SIZE>;
  DYNAMIC_SHARED(T, shared);
  const int block = static_cast<int>(blockIdx.x), by_rows = tiles.tiles[0].quotient(block);
  const int others = tiles.tiles[1].quotient(by_rows), outer = tiles.others.quotient(others);
  const int inner = others - outer * tiles.others.size, pitch = tiles.edge[1] + 4 / static_cast<int>(sizeof(T));
  const long long column = static_cast<long long>(block - by_rows * tiles.tiles[0].size) * tiles.edge[0];
  const long long row = static_cast<long long>(by_rows - others * tiles.tiles[1].size) * tiles.edge[1];
  const int columns = static_cast<int>(min(tiles.size[0] - column, static_cast<long long>(tiles.edge[0])));
  const int rows = static_cast<int>(min(tiles.size[1] - row, static_cast<long long>(tiles.edge[1])));
  const T* first[IN + OUT];
#pragma unroll
  for (int k = 0; k < IN + OUT; ++k) {
    const long long* stride = tiles.stride[k];
    first[k] = static_cast<const T*>(k < IN ? at.in[k < IN ? k : 0] : at.out[k < IN ? 0 : k - IN]) +
               (column * stride[0] + row * stride[1] + inner * stride[2] + outer * stride[3]);
  }
  const T* const to = first[IN + OUT - 1];
  const long long to_next = tiles.stride[IN + OUT - 1][1];
  P in[PACKS<T, EVEN>][IN];
  by_packs<EVEN>(to, to_next, rows, columns, tiles.packs[0], [&](int r, int c, int i) {
    const bool inside = c >= 0 && c + SIZE <= columns;
#pragma unroll
    for (int k = 0; k < IN; ++k) {
      if (tiles.turned[k]) continue;
      const long long step = tiles.stride[k][0];
      const T* from = first[k] + r * tiles.stride[k][1] + c * step;
      if (inside && step == 1 && on_16_bytes(from)) {
        in[i][k].access[0] = *reinterpret_cast<const float4*>(from);
      } else {
#pragma unroll
        for (int e = 0; e < SIZE; ++e)
          if (c + e >= 0 && c + e < columns) in[i][k].element[e] = from[e * step];
      }
    }
  });
  T* turned = shared;
#pragma unroll
  for (int k = 0; k < IN; ++k) {
    if (!tiles.turned[k]) continue;
    by_packs<EVEN>(first[k], tiles.stride[k][0], columns, rows, tiles.packs[1], [&](int c, int r, int) {
      const T* here = first[k] + c * tiles.stride[k][0] + r;
      T* there = turned + c * pitch + r;
      if (EVEN && r + SIZE <= rows) {
        const float4 words = *reinterpret_cast<const float4*>(here);
        float* by_words = reinterpret_cast<float*>(there);
        by_words[0] = words.x, by_words[1] = words.y, by_words[2] = words.z, by_words[3] = words.w;
      } else {
        P pack;
        // Elements beside the tile may be read if the operand has them: no block writes to a turned operand.
        const bool inside = row + r >= 0 && row + r + SIZE <= tiles.size[1];
        if (inside) pack.access[0] = *reinterpret_cast<const float4*>(here);
#pragma unroll
        for (int e = 0; e < SIZE; ++e)
          if (r + e >= 0 && r + e < rows) there[e] = inside ? pack.element[e] : here[e];
      }
    });
    turned += tiles.edge[0] * pitch;
  }
  __syncthreads();
  by_packs<EVEN>(to, to_next, rows, columns, tiles.packs[0], [&](int r, int c, int i) {
    const T* across = shared + c * pitch + r;
#pragma unroll
    for (int k = 0; k < IN; ++k) {
      if (!tiles.turned[k]) continue;
#pragma unroll
      for (int e = 0; e < SIZE; ++e)
        if (c + e >= 0 && c + e < columns) in[i][k].element[e] = across[e * pitch];
      across += tiles.edge[0] * pitch;
    }
    P out[OUT];
    compute_pack(formula, in[i], out);
#pragma unroll
    for (int k = 0; k < OUT; ++k) {
      const long long step = tiles.stride[IN + k][0];
      T* there = const_cast<T*>(first[IN + k]) + r * tiles.stride[IN + k][1] + c * step;
      if (c >= 0 && c + SIZE <= columns && step == 1 && on_16_bytes(there)) {
        *reinterpret_cast<float4*>(there) = out[k].access[0];
      } else {
#pragma unroll
        for (int e = 0; e < SIZE; ++e)
          if (c + e >= 0 && c + e < columns) there[e * step] = out[k].element[e];
      }
    }
  });
}

// The edges of a tile: 64 × 64 elements of 16 bits, 32 × 64 of 32; but no more rows or columns than there are, up to a
// power of two.
template <class T>
void choose_edges(const long long (&size)[DIMS], int area, int (&edge)[2]) {
  const auto fits = [](int least, int most, long long size) {
    int each = least;
    while (each < most && each < size) each *= 2;
    return each;
  };
  edge[1] = fits(LEAST, 128 / sizeof(T), size[1]);
  edge[0] = fits(LEAST, area / edge[1], size[0]);
  edge[1] = fits(edge[1], area / edge[0], size[1]);
}

constexpr int SHARED_BYTES = 48 * 1024;  // of a block, without asking for more

template <class T, class Formula>
void launch_tile(Formula formula, Operands<Formula> at, const Tensor* const* tensors, cudaStream_t stream) {
  constexpr int TENSORS = Formula::INPUTS + Formula::OUTPUTS;
  const Tensor& out = *tensors[TENSORS - 1];
  Tiles<TENSORS> tiles = {};
  long long size[DIMS] = {1, 1, 1, 1};
  for (int d = 0; d < out.ndim; ++d) size[d] = out.size[out.ndim - 1 - d];
  int turned = 0;
  bool even = true;
  for (int k = 0; k < TENSORS; ++k) {
    const Tensor& t = *tensors[k];
    for (int d = 0; d < out.ndim; ++d) tiles.stride[k][d] = size[d] > 1 ? t.stride[out.ndim - 1 - d] : 0;
    tiles.turned[k] = k < Formula::INPUTS && tiles.stride[k][1] == 1 && tiles.stride[k][0] != 0;
    turned += tiles.turned[k];
    if (!tiles.turned[k] && k < TENSORS - 1) continue;
    size_t bytes = reinterpret_cast<size_t>(t.data);
    for (int d = 0; d < DIMS; ++d)
      if (d != tiles.turned[k]) bytes |= tiles.stride[k][d] * sizeof(T);
    even = even && bytes % 16 == 0;
  }
  int area = AREA<T>;
  const auto bytes = [&] {
    choose_edges<T>(size, area, tiles.edge);
    return turned * tiles.edge[0] * (tiles.edge[1] * static_cast<int>(sizeof(T)) + 4);
  };
  while (bytes() > SHARED_BYTES) area /= 2;
  long long blocks = size[2] * size[3];
  for (int d = 0; d < 2; ++d) {
    const long long count = (size[d] + tiles.edge[d] - 1) / tiles.edge[d];
    tiles.size[d] = size[d];
    tiles.packs[d] = Divisor<int>(tiles.edge[d] * sizeof(T) / 16 + !even);
    tiles.tiles[d] = Divisor<int>(count);
    blocks *= count;
  }
  tiles.others = Divisor<int>(size[2]);
  const unsigned grid = static_cast<unsigned>(blocks);
  if (even) {
    LAUNCH((tile_kernel<Formula, T, true>), grid, THREADS, bytes(), stream, formula, at, tiles);
  } else {
    LAUNCH((tile_kernel<Formula, T, false>), grid, THREADS, bytes(), stream, formula, at, tiles);
  }
}

// ---- Both --------------------------------------------------------------------------------------------------

// Runs a call on one of the two. The tensors are the formula's inputs, then its results.
template <class Formula>
int launch_strided_rung(const Call& call, Formula formula,
                        const Tensor* const (&tensors)[Formula::INPUTS + Formula::OUTPUTS], cudaStream_t stream) {
  Operands<Formula> at;
  for (int k = 0; k < Formula::INPUTS; ++k) at.in[k] = tensors[k]->data;
  for (int k = 0; k < Formula::OUTPUTS; ++k) at.out[k] = tensors[Formula::INPUTS + k]->data;
  if (call.rung == TILE) {
    WITH_ELEMENT(call.dtype, 4, launch_tile<T>(formula, at, tensors, stream));
  } else {
    WITH_ELEMENT(call.dtype, 4, launch_strided<T>(formula, at, tensors, stream));
  }
  return cudaGetLastError();
}
