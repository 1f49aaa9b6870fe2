// The faster kernels of elementwise ops for tensors that are not all dense: rungs beside those of rungs.cuh, with the
// same formulas and bits, for elements of 16 and 32 bits. docs/CUDA_LADDER.md explains them.
//
//   elements  one element per thread, for small results
//   strided   a pack of the result per thread, in one access of 128 bits. It finds its operands by multiplying instead
//             of dividing, and loads packs where their elements lie side by side
//   tile      for operands whose elements lie side by side along another dimension than the result's: a block loads a
//             tile of each along its own dimension, and turns it in shared memory
//
// Python gives all tensors with the same dimensions, at most DIMS, of which the last is the one along which the
// result's elements lie side by side. For a tile the last but one is that of the turned operands.
#pragma once
#include "places.cuh"
#include "rungs.cuh"

constexpr int DIMS = 4;       // as in _walks.py
constexpr int ROWS_EACH = 2;  // rows of a thread of rows_of_packs_kernel
constexpr int FILLS = 2;      // it is faster where its blocks fill the GPU so many times: from 16 MB on, on an H200
enum Strided { STRIDED, TILE };  // as _rungs.py has them

template <class P, class T>
__device__ void load_pack(P& pack, const T* from, int step, Span span) {
  if (span.whole && step == 1 && on_16_bytes(from)) {
    pack.access[0] = *reinterpret_cast<const float4*>(from);
  } else {
#pragma unroll
    for (int e = 0; e < static_cast<int>(16 / sizeof(T)); ++e)
      if (span.has(e)) pack.element[e] = from[e * step];
  }
}

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
  bool packs[TENSORS];  // whether rows consist of packs

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
      if (step == 0) {
        const T one = from[before], other = here < end ? from[there] : one;
#pragma unroll
        for (int e = 0; e < SIZE; ++e) in[k].element[e] = e < here ? one : other;
      } else {
#pragma unroll
        for (int e = 0; e < SIZE; ++e)
          if (e >= begin && e < end) in[k].element[e] = from[(e < here ? before : there) + e * step];
      }
    } else {  // in several rows
      I of_row = row, left = walk.columns - column, at_element = start;
#pragma unroll
      for (int e = 0; e < SIZE; ++e) {
        if (e < begin || e >= end) continue;
        if (left == 0) {
          I here[DIMS - 1];
          walk.find(++of_row, here);
          at_element = walk.offset(k, here);
          left = walk.columns;
        }
        in[k].element[e] = from[at_element];
        at_element += step;
        --left;
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

// For large results whose inputs all repeat, such as the sum of a row and a column: memory waits for instructions there.
// The result's rows are whole packs, all of them at multiples of 16 bytes. A thread has the packs of one column in several
// rows, and finds the column once. ``places`` are rows here, and ``pitch`` has the packs of a row.
template <class Formula, class T>
__global__ void __launch_bounds__(THREADS)
    rows_of_packs_kernel(Formula formula, Operands<Formula> at, Walk<Formula::INPUTS + Formula::OUTPUTS, int> walk) {
  constexpr int SIZE = 16 / sizeof(T), IN = Formula::INPUTS, OUT = Formula::OUTPUTS;
  using P = Pack<T, float4, SIZE>;
  const int thread = static_cast<int>(global_thread()), part = walk.pitch.quotient(thread);
  const int row = part * ROWS_EACH, column = (thread - part * walk.pitch.size) * SIZE;
  if (row >= walk.places) return;
  int index[DIMS - 1], offset[ROWS_EACH][IN + OUT];
  walk.find(row, index);
#pragma unroll
  for (int k = 0; k < IN + OUT; ++k) offset[0][k] = walk.offset(k, index) + column * walk.along[k];
#pragma unroll
  for (int r = 1; r < ROWS_EACH; ++r) {
    if (++index[0] < walk.size[0].size) {
#pragma unroll
      for (int k = 0; k < IN + OUT; ++k) offset[r][k] = offset[r - 1][k] + walk.stride[k][0];
    } else {
      walk.find(row + r, index);
#pragma unroll
      for (int k = 0; k < IN + OUT; ++k) offset[r][k] = walk.offset(k, index) + column * walk.along[k];
    }
  }
  P in[ROWS_EACH][IN];
#pragma unroll
  for (int k = 0; k < IN; ++k) {
    const T* from = static_cast<const T*>(at.in[k]);
#pragma unroll
    for (int r = 0; r < ROWS_EACH; ++r) {
      if (row + r >= walk.places) continue;
      if (walk.packs[k]) {
        in[r][k].access[0] = *reinterpret_cast<const float4*>(from + offset[r][k]);
      } else if (walk.along[k] == 0) {
        const T same = from[offset[r][k]];
#pragma unroll
        for (int e = 0; e < SIZE; ++e) in[r][k].element[e] = same;
      } else {
#pragma unroll
        for (int e = 0; e < SIZE; ++e) in[r][k].element[e] = from[offset[r][k] + e * walk.along[k]];
      }
    }
  }
#pragma unroll
  for (int r = 0; r < ROWS_EACH; ++r) {
    if (row + r >= walk.places) break;
    P out[OUT];
    compute_pack(formula, in[r], out);
#pragma unroll
    for (int k = 0; k < OUT; ++k)
      *reinterpret_cast<float4*>(static_cast<T*>(at.out[k]) + offset[r][IN + k]) = out[k].access[0];
  }
}

// For small results: one element per thread, so that neighbours load neighbouring elements. Such a call is one wait for
// memory, and a longer kernel also waits for its own instructions.
template <class Formula, class T>
__global__ void elements_kernel(Formula formula, Operands<Formula> at,
                                Walk<Formula::INPUTS + Formula::OUTPUTS, int> walk) {
  constexpr int IN = Formula::INPUTS, OUT = Formula::OUTPUTS;
  const int place = static_cast<int>(global_thread());
  if (place >= walk.places) return;
  const int row = walk.pitch.quotient(place), column = place - row * walk.pitch.size;
  int index[DIMS - 1];
  walk.find(row, index);
  Pack<T, T, 1> in[IN], out[OUT];
#pragma unroll
  for (int k = 0; k < IN; ++k)
    in[k].element[0] = static_cast<const T*>(at.in[k])[walk.offset(k, index) + column * walk.along[k]];
  compute_pack(formula, in, out);
#pragma unroll
  for (int k = 0; k < OUT; ++k)
    static_cast<T*>(at.out[k])[walk.offset(IN + k, index) + column * walk.along[IN + k]] = out[k].element[0];
}

// Whether element i of a tensor is at offset i.
inline bool is_dense(const Tensor& t) {
  long long expected = 1;
  for (int d = t.ndim - 1; d >= 0; expected *= t.size[d--])
    if (t.size[d] > 1 && t.stride[d] != expected) return false;
  return true;
}

template <class Formula>
bool results_are_dense(const Tensor* const* tensors) {
  for (int k = Formula::INPUTS; k < Formula::INPUTS + Formula::OUTPUTS; ++k)
    if (!is_dense(*tensors[k])) return false;
  return true;
}

// The number of places: the elements, or those of whole packs per row if the results' rows are apart.
template <class T>
long long places(const Tensor& out, bool together) {
  constexpr int SIZE = 16 / sizeof(T);
  const long long n = out.numel(), columns = out.size[out.ndim - 1];
  return together ? n : n / columns * ((columns + SIZE - 1) / SIZE * SIZE);
}

// Whether a tensor's rows begin at multiples of 16 bytes, and consist of whole packs.
template <class T>
bool has_rows_of_packs(const Tensor& t) {
  const int last = t.ndim - 1;
  long long elements = reinterpret_cast<size_t>(t.data) / sizeof(T) | t.size[last];
  for (int d = 0; d < last; ++d) elements |= t.stride[d];
  return elements % (16 / sizeof(T)) == 0 && t.stride[last] == 1;
}

inline bool repeats(const Tensor& t) {
  for (int d = 0; d < t.ndim; ++d)
    if (t.size[d] > 1 && t.stride[d] == 0) return true;
  return false;
}

// The walk through tensors, in which ``places`` are the elements, and ``pitch`` is a row.
template <class T, class I, class Formula>
Walk<Formula::INPUTS + Formula::OUTPUTS, I> walk_of(const Tensor* const* tensors, bool together) {
  constexpr int TENSORS = Formula::INPUTS + Formula::OUTPUTS;
  const Tensor& out = *tensors[TENSORS - 1];
  Walk<TENSORS, I> walk = {};
  for (int k = 0; k < TENSORS; ++k) {
    walk.packs[k] = has_rows_of_packs<T>(*tensors[k]);
    walk.dense[k] = together && is_dense(*tensors[k]);
    walk.along[k] = static_cast<I>(tensors[k]->stride[out.ndim - 1]);
    for (int d = 0; d < out.ndim - 1; ++d) walk.stride[k][d] = static_cast<I>(tensors[k]->stride[out.ndim - 2 - d]);
  }
  walk.places = static_cast<I>(out.numel());
  walk.columns = static_cast<I>(out.size[out.ndim - 1]);
  walk.pitch = Divisor<I>(walk.columns);
  walk.rows = out.ndim - 1;
  for (int d = 0; d < walk.rows; ++d) walk.size[d] = Divisor<I>(out.size[out.ndim - 2 - d]);
  return walk;
}

template <class T, class I, class Formula>
void launch_packs_of_places(Formula formula, Operands<Formula> at, const Tensor* const* tensors, long long places,
                            bool together, cudaStream_t stream) {
  constexpr int SIZE = 16 / sizeof(T);
  const Tensor& out = *tensors[Formula::INPUTS + Formula::OUTPUTS - 1];
  auto walk = walk_of<T, I, Formula>(tensors, together);
  walk.places = static_cast<I>(places);
  if (!together) walk.pitch = Divisor<I>((walk.columns + SIZE - 1) / SIZE * SIZE);
  if (together) walk.shift = -static_cast<int>(reinterpret_cast<size_t>(out.data) % 16 / sizeof(T));
  const unsigned blocks = blocks_for((places - walk.shift + SIZE - 1) / SIZE);
  LAUNCH((strided_kernel<Formula, T, I>), blocks, THREADS, 0, stream, formula, at, walk);
}

// Whether rows_of_packs_kernel is for these tensors.
template <class T, class Formula>
bool goes_by_rows(const Tensor* const* tensors, long long places, int most) {
  constexpr int SIZE = 16 / sizeof(T);
  if (tensors[0]->ndim < 2 || places / (ROWS_EACH * SIZE * THREADS) < static_cast<long long>(FILLS) * most) return false;
  for (int k = 0; k < Formula::INPUTS + Formula::OUTPUTS; ++k)
    if (!(k < Formula::INPUTS ? repeats(*tensors[k]) : has_rows_of_packs<T>(*tensors[k]))) return false;
  return true;
}

template <class T, class Formula>
void launch_rows_of_packs(Formula formula, Operands<Formula> at, const Tensor* const* tensors, cudaStream_t stream) {
  auto walk = walk_of<T, int, Formula>(tensors, false);
  walk.places /= walk.columns;
  walk.pitch = Divisor<int>(walk.columns / (16 / sizeof(T)));
  const unsigned blocks = blocks_for((walk.places + ROWS_EACH - 1) / ROWS_EACH * walk.pitch.size);
  LAUNCH((rows_of_packs_kernel<Formula, T>), blocks, THREADS, 0, stream, formula, at, walk);
}

template <class T, class Formula>
void launch_elements(Formula formula, Operands<Formula> at, const Tensor* const* tensors, cudaStream_t stream) {
  const auto walk = walk_of<T, int, Formula>(tensors, false);
  LAUNCH((elements_kernel<Formula, T>), blocks_for(walk.places), THREADS, 0, stream, formula, at, walk);
}

// Whether all offsets have 32 bits.
template <class Formula>
bool offsets_are_near(const Tensor* const* tensors) {
  for (int k = 0; k < Formula::INPUTS + Formula::OUTPUTS; ++k) {
    long long last = 0;
    for (int d = 0; d < tensors[k]->ndim; ++d) last += (tensors[k]->size[d] - 1) * tensors[k]->stride[d];
    if (last >= NEAR) return false;
  }
  return true;
}

template <class T, class Formula>
void launch_strided(const Call& call, Formula formula, Operands<Formula> at, const Tensor* const* tensors,
                    cudaStream_t stream) {
  const bool together = results_are_dense<Formula>(tensors);
  const Tensor& out = *tensors[Formula::INPUTS + Formula::OUTPUTS - 1];
  const long long all = places<T>(out, together);
  if (all >= NEAR || !offsets_are_near<Formula>(tensors)) {
    launch_packs_of_places<T, long long>(formula, at, tensors, all, together, stream);
  } else if (out.numel() <= call.few) {
    launch_elements<T>(formula, at, tensors, stream);
  } else if (goes_by_rows<T, Formula>(tensors, all, call.most)) {
    launch_rows_of_packs<T>(formula, at, tensors, stream);
  } else {
    launch_packs_of_places<T, int>(formula, at, tensors, all, together, stream);
  }
}

// ---- tile --------------------------------------------------------------------------------------------------

constexpr int TILE_BYTES = 8192;
template <class T>
constexpr int AREA = TILE_BYTES / sizeof(T);  // elements of a tile
constexpr int LEAST = 8;                      // and of its shorter edge
// A thread's packs of a result, and the most it has of a turned operand, of which a block has a margin, too.
constexpr int PACKS = TILE_BYTES / 16 / THREADS, MOST_PACKS = PACKS + 1;

// What the kernel knows of its tensors. Dimension 0 is the columns, 1 the rows; a block has one index of the others.
template <int TENSORS>
struct Tiles {
  int size[2], edge[2];              // edges of a tile are powers of two
  int before;                        // columns of turned operands before the tile
  Divisor<int> packs, turned_packs;  // of a row of a tile, and of a column of a turned operand
  Divisor<int> tiles[2], others;
  int stride[TENSORS][DIMS];
  bool turned[TENSORS];  // whether its elements lie side by side along the rows
};

// Blocks that a multiprocessor shall hold: while one waits for its tile, others load and store.
template <class Formula>
constexpr int BLOCKS = Formula::INPUTS + Formula::OUTPUTS > 4 ? 4 : 5;

// All packs begin at multiples of 16 bytes, wherever lines begin: the places of a row's packs are moved by what its first
// element is away from such a multiple, and so are those of a turned operand's columns. A block's columns thus begin at
// other places in each row, and it has as many columns of turned operands as all rows need together.
//
// A thread first loads its packs of all operands, those of turned ones along their own dimension. It stores these to
// shared memory, where a tile is as its operand is: column after column. Four bytes are between them, so that neither
// whole packs of a column nor elements of a row are in the same banks. After a barrier the thread reads the elements of
// its packs of the result.
template <class Formula, class T>
__global__ void __launch_bounds__(THREADS, BLOCKS<Formula>)
    tile_kernel(Formula formula, Operands<Formula> at, Tiles<Formula::INPUTS + Formula::OUTPUTS> tiles) {
  constexpr int SIZE = 16 / sizeof(T), IN = Formula::INPUTS, OUT = Formula::OUTPUTS;
  using P = Pack<T, float4, SIZE>;
  DYNAMIC_SHARED(T, shared);
  const int block = static_cast<int>(blockIdx.x), by_rows = tiles.tiles[0].quotient(block);
  const int others = tiles.tiles[1].quotient(by_rows), outer = tiles.others.quotient(others);
  const int inner = others - outer * tiles.others.size;
  const int first_column = (block - by_rows * tiles.tiles[0].size) * tiles.edge[0];
  const int first_row = (by_rows - others * tiles.tiles[1].size) * tiles.edge[1];
  const int lines = tiles.before + tiles.edge[0];
  const int pitch = tiles.turned_packs.size * SIZE + 4 / static_cast<int>(sizeof(T));
  const T* tensor[IN + OUT];
#pragma unroll
  for (int k = 0; k < IN; ++k) tensor[k] = static_cast<const T*>(at.in[k]);
#pragma unroll
  for (int k = 0; k < OUT; ++k) tensor[IN + k] = static_cast<const T*>(at.out[k]);
#pragma unroll
  for (int k = 0; k < IN + OUT; ++k) tensor[k] += inner * tiles.stride[k][2] + outer * tiles.stride[k][3];
  // Elements from a multiple of 16 bytes to the first one of a line that begins so many elements after the tensor.
  const auto away = [&](int k, int offset) {
    return static_cast<int>(reinterpret_cast<size_t>(tensor[k]) / sizeof(T) + offset) & (SIZE - 1);
  };
  P in[MOST_PACKS][IN];
  int row[PACKS], column[PACKS];
#pragma unroll
  for (int i = 0; i < PACKS; ++i) {
    const int pack = i * THREADS + threadIdx.x, down = tiles.packs.quotient(pack);
    row[i] = first_row + down;
    if (down >= tiles.edge[1] || row[i] >= tiles.size[1]) row[i] = -1;
    column[i] = first_column + (pack - down * tiles.packs.size) * SIZE -
                away(IN + OUT - 1, row[i] * tiles.stride[IN + OUT - 1][1]);
    if (column[i] + SIZE <= 0 || column[i] >= tiles.size[0]) row[i] = -1;
  }
#pragma unroll
  for (int k = 0; k < IN; ++k) {
    if (tiles.turned[k]) {
#pragma unroll
      for (int i = 0; i < MOST_PACKS; ++i) {
        const int pack = i * THREADS + threadIdx.x, line = tiles.turned_packs.quotient(pack);
        const int c = first_column - tiles.before + line;
        if (line >= lines || c < 0 || c >= tiles.size[0]) continue;
        const int here = c * tiles.stride[k][0];
        const int r = first_row + (pack - line * tiles.turned_packs.size) * SIZE - away(k, here);
        if (r + SIZE > 0 && r < tiles.size[1])
          load_pack(in[i][k], tensor[k] + here + r, 1, Span(r, tiles.size[1], SIZE));
      }
    } else {
#pragma unroll
      for (int i = 0; i < PACKS; ++i) {
        const int step = tiles.stride[k][0];
        if (row[i] >= 0)
          load_pack(in[i][k], tensor[k] + row[i] * tiles.stride[k][1] + column[i] * step, step,
                    Span(column[i], tiles.size[0], SIZE));
      }
    }
  }
  T* tile = shared;
#pragma unroll
  for (int k = 0; k < IN; ++k) {
    if (!tiles.turned[k]) continue;
#pragma unroll
    for (int i = 0; i < MOST_PACKS; ++i) {
      const int pack = i * THREADS + threadIdx.x, line = tiles.turned_packs.quotient(pack);
      if (line >= lines) break;
      float* there = reinterpret_cast<float*>(tile + line * pitch + (pack - line * tiles.turned_packs.size) * SIZE);
      const float4 words = in[i][k].access[0];
      there[0] = words.x, there[1] = words.y, there[2] = words.z, there[3] = words.w;
    }
    tile += lines * pitch;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < PACKS; ++i) {
    if (row[i] < 0) continue;
    const T* from = shared + (column[i] - first_column + tiles.before) * pitch + row[i] - first_row;
#pragma unroll
    for (int k = 0; k < IN; ++k) {
      if (!tiles.turned[k]) continue;
#pragma unroll
      for (int e = 0; e < SIZE; ++e)
        in[i][k].element[e] = from[e * pitch + away(k, (column[i] + e) * tiles.stride[k][0])];
      from += lines * pitch;
    }
    P out[OUT];
    compute_pack(formula, in[i], out);
    const Span span(column[i], tiles.size[0], SIZE);
#pragma unroll
    for (int k = 0; k < OUT; ++k) {
      const int step = tiles.stride[IN + k][0];
      T* there = const_cast<T*>(tensor[IN + k]) + row[i] * tiles.stride[IN + k][1] + column[i] * step;
      if (span.whole && step == 1 && on_16_bytes(there)) {
        *reinterpret_cast<float4*>(there) = out[k].access[0];
      } else {
#pragma unroll
        for (int e = 0; e < SIZE; ++e)
          if (span.has(e)) there[e * step] = out[k].element[e];
      }
    }
  }
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
  constexpr int TENSORS = Formula::INPUTS + Formula::OUTPUTS, SIZE = 16 / sizeof(T);
  const Tensor& out = *tensors[TENSORS - 1];
  Tiles<TENSORS> tiles = {};
  long long size[DIMS] = {1, 1, 1, 1};
  for (int d = 0; d < out.ndim; ++d) size[d] = out.size[out.ndim - 1 - d];
  int turned = 0;
  bool apart[2] = {};  // whether columns of turned operands, and rows of the last result, begin anywhere
  for (int k = 0; k < TENSORS; ++k) {
    const Tensor& t = *tensors[k];
    size_t begin = reinterpret_cast<size_t>(t.data) / sizeof(T);
    for (int d = 0; d < out.ndim; ++d)
      tiles.stride[k][d] = size[d] > 1 ? static_cast<int>(t.stride[out.ndim - 1 - d]) : 0;
    tiles.turned[k] = k < Formula::INPUTS && tiles.stride[k][1] == 1 && tiles.stride[k][0] != 0;
    turned += tiles.turned[k];
    if (!tiles.turned[k] && k < TENSORS - 1) continue;
    for (int d = 0; d < DIMS; ++d)
      if (d != tiles.turned[k]) begin |= tiles.stride[k][d];
    if (begin % SIZE) apart[!tiles.turned[k]] = true;
  }
  tiles.before = apart[1] ? SIZE : 0;
  int area = AREA<T>, packs = 0;
  const auto bytes = [&] {
    choose_edges<T>(size, area, tiles.edge);
    packs = tiles.edge[1] / SIZE + apart[0];
    return turned * (tiles.before + tiles.edge[0]) * (packs * 16 + 4);
  };
  while (bytes() > SHARED_BYTES || (tiles.before + tiles.edge[0]) * packs > MOST_PACKS * THREADS) area /= 2;
  long long blocks = size[2] * size[3];
  for (int d = 0; d < 2; ++d) {
    const long long count = (size[d] + (d ? 0 : apart[1] * (SIZE - 1)) + tiles.edge[d] - 1) / tiles.edge[d];
    tiles.size[d] = static_cast<int>(size[d]);
    tiles.tiles[d] = Divisor<int>(count);
    blocks *= count;
  }
  tiles.packs = Divisor<int>(tiles.edge[0] / SIZE);
  tiles.turned_packs = Divisor<int>(packs);
  tiles.others = Divisor<int>(size[2]);
  LAUNCH((tile_kernel<Formula, T>), static_cast<unsigned>(blocks), THREADS, bytes(), stream, formula, at, tiles);
}

// ---- Both --------------------------------------------------------------------------------------------------

// Runs a call on one of the two. The tensors are the formula's inputs, then its results.
template <class Formula>
int launch_strided_rung(const Call& call, Formula formula,
                        const Tensor* const (&tensors)[Formula::INPUTS + Formula::OUTPUTS], cudaStream_t stream) {
  Operands<Formula> at;
  for (int k = 0; k < Formula::INPUTS; ++k) at.in[k] = tensors[k]->data;
  for (int k = 0; k < Formula::OUTPUTS; ++k) at.out[k] = tensors[Formula::INPUTS + k]->data;
  if (call.rung == TILE && offsets_are_near<Formula>(tensors)) {
    WITH_ELEMENT(call.dtype, 4, launch_tile<T>(formula, at, tensors, stream));
  } else {
    WITH_ELEMENT(call.dtype, 4, launch_strided<T>(call, formula, at, tensors, stream));
  }
}
