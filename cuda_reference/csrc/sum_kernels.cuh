// The kernels of sums: how threads share columns and rows, and what their calls consist of. sums.cuh chooses the sizes.
//
// columns_kernel is for memory whose nearest dimension is kept: a lane has neighbouring results. The others are for memory
// whose nearest dimension is added up: in rows_kernel and short_rows_kernel the lanes of a team share the addends of a
// row, in staged_rows_kernel a thread has a row.
#pragma once
#include "rungs.cuh"

enum SumRung { LANES, PACKS, TWO_PASS };  // in the order of RUNGS in _sum_rungs.py

// Blocks that a multiprocessor holds at least; _BLOCKS_EACH in _sum_rungs.py is no more.
constexpr int RESIDENT = 4;
// Loads that a thread has in flight: of single elements, and of packs.
constexpr int SINGLE_LOADS = 8, PACK_LOADS = 4;
constexpr int LEAST_LANES = 4;  // rows_kernel: lanes beside each other on a row of packs, 64 bytes
constexpr int SHORT_ROWS = 4;   // short_rows_kernel: rows that a team has in flight
constexpr int STAGED = 16384;   // staged_rows_kernel: bytes of a block's rows

// ---- The parts of a call -----------------------------------------------------------------------------------

// A sum over x. Dimensions come innermost first; strides are in elements of x.
struct Sum {
  long long kept[2], kept_stride[2], reduced[2], reduced_stride[2];

  __host__ __device__ long long results() const { return kept[0] * kept[1]; }
};

// Where sums go: the result, or the workspace.
struct Sink {
  void* data;
  int dtype;
  float factor;
  long long stride[2], part_stride;  // of kept dimensions, and of parts

  __device__ void store(long long inner, long long outer, long long part, float total) const {
    const long long at = inner * stride[0] + outer * stride[1] + part * part_stride;
    if (dtype == F16) {
      round_to(static_cast<__half*>(data)[at], total * factor);
    } else if (dtype == BF16) {
      round_to(static_cast<__nv_bfloat16*>(data)[at], total * factor);
    } else {
      static_cast<float*>(data)[at] = total * factor;
    }
  }
};

// What a launcher may use: the blocks that fill the GPU, and memory for sums of parts.
struct Means {
  int rung, blocks;
  void* workspace;
  long long floats;
  cudaStream_t stream;
};

// SIZE elements, loaded and stored at once.
template <class T, int SIZE>
struct Access {
  using V = float4;
};
template <class T>
struct Access<T, 1> {
  using V = T;
};
template <class T, int SIZE>
using Wide = Pack<T, typename Access<T, SIZE>::V, SIZE>;

template <class T, int SIZE>
__device__ void read(Wide<T, SIZE>& to, const T* from) {
  to.access[0] = *reinterpret_cast<const typename Access<T, SIZE>::V*>(from);
}
template <class T, int SIZE>
__device__ void write(T* to, const Wide<T, SIZE>& from) {
  *reinterpret_cast<typename Access<T, SIZE>::V*>(to) = from.access[0];
}

template <int SIZE>
constexpr int LOADS = SIZE == 1 ? SINGLE_LOADS : PACK_LOADS;

__host__ __device__ inline long long ceil_div(long long n, long long d) { return (n + d - 1) / d; }
__host__ __device__ inline long long smaller(long long a, long long b) { return a < b ? a : b; }
__host__ __device__ inline long long larger(long long a, long long b) { return a > b ? a : b; }


// The quotient of numbers that mostly have 32 bits, for which the GPU divides several times as fast.
__device__ inline long long quotient(long long n, long long d) {
  if (((n | d) >> 32) == 0) return static_cast<unsigned>(n) / static_cast<unsigned>(d);
  return n / d;
}

// ---- Columns -----------------------------------------------------------------------------------------------

// The element of a matrix, whose row has an index of two dimensions.
struct Place {
  long long column, inner, outer;
};

// The addends of sum_to: x itself. ONE: whether the index of a row has one dimension.
template <class T, bool ONE>
struct Addends {
  static constexpr bool FLAT = ONE;
  template <int SIZE>
  static constexpr int DEPTH = LOADS<SIZE>;
  template <int SIZE>
  struct Loaded {
    Wide<T, SIZE> x;
  };
  const T* x;
  long long column_stride, inner_stride, outer_stride, matrix_stride;

  __device__ void go_to(unsigned matrix) { x += matrix * matrix_stride; }
  template <int SIZE>
  __device__ void load(Loaded<SIZE>& to, Place p) const {
    const long long at = p.inner * inner_stride + (ONE ? 0 : p.outer * outer_stride);
    read<T, SIZE>(to.x, x + at + (SIZE == 1 ? p.column * column_stride : p.column));
  }
  template <int SIZE>
  __device__ void add(const Loaded<SIZE>& loaded, Place, float* total) const {
#pragma unroll
    for (int e = 0; e < SIZE; ++e) total[e] += widened(loaded.x.element[e]);
  }
};

// How columns_kernel goes through a matrix.
struct Columns {
  long long columns, rows, inner;  // a row's index has two dimensions; inner is the size of the first
  long long part = 0;              // rows of a part
  long long rest = 0;              // elements after the last whole row, if rows are merged
  unsigned across = 1;             // blocks along a row
  int width = 1;                   // threads along a row
  int folds = 1;                   // so many columns at a distance of columns / folds are added to one sum
  bool summed = true;              // whether there are sums at all
};

// Adds the rows first, first + step, … before end to the totals of SIZE columns.
template <int SIZE, int DEPTH, class Source>
__device__ void add_rows(const Source& source, const Columns& at, long long column, long long first, long long end,
                         int step, float* total) {
  Place p = {column, first, 0};
  long long over = 0, rest = step;
  if (!Source::FLAT && at.inner < at.rows) {
    p.outer = quotient(first, at.inner);
    p.inner = first - p.outer * at.inner;
    over = quotient(step, at.inner);
    rest = step - over * at.inner;
  }
  for (long long left = end - first; left > 0; left -= DEPTH * step) {
    const int here = static_cast<int>(smaller(left, DEPTH * step));  // 32 bits, which save registers
    typename Source::template Loaded<SIZE> loaded[DEPTH];
    Place places[DEPTH];
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) {
      places[d] = p;
      if (d * step < here) source.template load<SIZE>(loaded[d], p);
      p.inner += rest;
      p.outer += over;
      if (!Source::FLAT && p.inner >= at.inner) {
        p.inner -= at.inner;
        ++p.outer;
      }
    }
#pragma unroll
    for (int d = 0; d < DEPTH; ++d)
      if (d * step < here) source.template add<SIZE>(loaded[d], places[d], total);
  }
}

// A block has ``width`` packs of a row, and several groups of threads, each with every so many-th row of a part. Their
// totals meet in shared memory.
template <class Source, int SIZE>
__global__ void __launch_bounds__(THREADS, RESIDENT) columns_kernel(Source source, Columns at, Sink out) {
  SHARED(float, sums, [THREADS * SIZE]);
  const int lane = threadIdx.x % at.width, group = threadIdx.x / at.width, groups = THREADS / at.width;
  const int stripe = at.width * SIZE;  // columns of the block
  const unsigned matrix = blockIdx.x / at.across;
  const long long start = static_cast<long long>(blockIdx.x % at.across) * stripe;
  const long long begin = blockIdx.y * at.part, end = smaller(begin + at.part, at.rows);
  source.go_to(matrix);
  float total[SIZE] = {};
  if (group < groups && start + (lane + 1) * SIZE <= at.columns)
    add_rows<SIZE, Source::template DEPTH<SIZE>>(source, at, start + lane * SIZE, begin + group, end, groups, total);
#pragma unroll
  for (int e = 0; e < SIZE; ++e)
    if (group < groups) sums[threadIdx.x * SIZE + e] = total[e];
  if constexpr (SIZE > 1) {
    // What is not in a whole pack, element by element: the end of rows, or what follows the last merged row. Merged rows
    // have no such end.
    __syncthreads();
    const bool in_rest = at.rest > 0;
    const int lanes = in_rest ? THREADS : at.width, first_lane = in_rest ? threadIdx.x : lane;
    const int to = static_cast<int>(smaller(stripe, (in_rest ? at.rest : at.columns) - start));
    const bool here = in_rest ? blockIdx.y == 0 : group < groups;
    for (int c = (in_rest ? 0 : to / SIZE * SIZE) + first_lane; here && c < to; c += lanes) {
      const long long first = in_rest ? at.rows : begin + group;
      float one = 0.0f;
      add_rows<1, 4>(source, at, start + c, first, in_rest ? at.rows + 1 : end, groups, &one);
      sums[(in_rest ? 0 : group * stripe) + c] += one;
    }
  }
  if (!at.summed) return;
  __syncthreads();
#pragma unroll 1
  for (int c = threadIdx.x; c < stripe; c += THREADS) {
    float sum = sums[c];
    for (int g = 1; g < groups; ++g) sum += sums[g * stripe + c];
    sums[c] = sum;
  }
  const int results = static_cast<int>(smaller(stripe, at.columns - start)) / at.folds;
  for (int left = at.folds; left > 1;) {  // all columns are in this block
    const int half = (left + 1) / 2;
    __syncthreads();
#pragma unroll 1
    for (int c = threadIdx.x; c < (left - half) * results; c += THREADS) sums[c] += sums[half * results + c];
    left = half;
  }
  __syncthreads();
#pragma unroll 1
  for (int c = threadIdx.x; c < results; c += THREADS) out.store(start + c, matrix, blockIdx.y, sums[c]);
}

// ---- Rows --------------------------------------------------------------------------------------------------

// How rows_kernel goes through rows, of which a result has one or more.
struct Rows {
  Sum sum;
  int team = 1, crew = 1;              // threads that share a row, and those that share a result; powers of two
  long long part = 0, part_outer = 0;  // addends of a row, and rows, of a part
  unsigned parts = 1;                  // parts of a row
};

// Adds every element of a row that is this lane's to the totals, of which there are SIZE. EVEN: whether the row consists
// of packs.
template <int SIZE, bool EVEN, class T>
__device__ void add_row(const T* row, long long n, long long stride, int lane, int team, float* total) {
  constexpr int DEPTH = LOADS<SIZE>, ENDS = (SIZE - 1 + LEAST_LANES - 1) / LEAST_LANES;  // a lane's share of an end
  T ends[2 * ENDS + 1];
#pragma unroll
  for (int k = 0; k < 2 * ENDS; ++k) round_to(ends[k], 0.0f);
  if constexpr (EVEN) {
    n /= SIZE;
    stride = SIZE;
  } else if constexpr (SIZE > 1) {
    const long long before = (16 - reinterpret_cast<size_t>(row) % 16) % 16 / sizeof(T);
    const int head = static_cast<int>(smaller(before, n));
    const long long packs = (n - head) / SIZE;
    const int tail = static_cast<int>(n - head - packs * SIZE);
#pragma unroll
    for (int k = 0; k < ENDS; ++k) {  // they are added after the packs, for which nobody waits here
      const int i = lane + k * team;
      if (i < head) ends[k] = row[i];
      if (i < tail) ends[ENDS + k] = row[head + packs * SIZE + i];
    }
    row += head;
    n = packs;
    stride = SIZE;
  }
  row += lane * stride;
  const long long step = team * stride;
  for (long long left = n - lane; left > 0; left -= DEPTH * team) {
    const int here = static_cast<int>(smaller(left, DEPTH * team));
    Wide<T, SIZE> loaded[DEPTH];
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) {
      if (d * team < here) read<T, SIZE>(loaded[d], row);
      row += step;
    }
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) {
      if (d * team < here) {
#pragma unroll
        for (int e = 0; e < SIZE; ++e) total[e] += widened(loaded[d].element[e]);
      }
    }
  }
#pragma unroll
  for (int k = 0; k < 2 * ENDS; ++k) total[k] += widened(ends[k]);
}

// A crew adds one result. Its teams take every so many-th row; the totals meet by shuffles, and those of several warps
// in shared memory.
template <class T, int SIZE, bool EVEN>
__global__ void __launch_bounds__(THREADS, RESIDENT) rows_kernel(const T* x, Rows at, Sink out) {
  SHARED(float, of_warps, [THREADS / 32]);
  const Sum& sum = at.sum;
  const int member = threadIdx.x % at.crew, lane = member % at.team;
  const long long result = static_cast<long long>(blockIdx.x) * (THREADS / at.crew) + threadIdx.x / at.crew;
  const long long outer = sum.kept[1] == 1 ? 0 : quotient(result, sum.kept[0]);
  const long long inner = result - outer * sum.kept[0];
  const bool exists = outer < sum.kept[1] && inner < sum.kept[0];
  float totals[SIZE] = {};
  if (exists) {
    const long long begin = blockIdx.y % at.parts * at.part, n = smaller(at.part, sum.reduced[0] - begin);
    const long long first = blockIdx.y / at.parts * at.part_outer, end = smaller(first + at.part_outer, sum.reduced[1]);
    const T* start = x + inner * sum.kept_stride[0] + outer * sum.kept_stride[1] + begin * sum.reduced_stride[0];
    for (long long row = first + member / at.team; row < end; row += at.crew / at.team)
      add_row<SIZE, EVEN>(start + row * sum.reduced_stride[1], n, sum.reduced_stride[0], lane, at.team, totals);
  }
#pragma unroll
  for (int half = SIZE / 2; half; half /= 2) {
#pragma unroll
    for (int e = 0; e < half; ++e) totals[e] += totals[half + e];
  }
  float total = totals[0];
  for (int half = at.crew < 32 ? at.crew / 2 : 16; half; half /= 2)
    total += __shfl_down_sync(0xFFFFFFFFu, total, half);
  if (at.crew > 32) {
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = total;
    __syncthreads();
    if (member == 0)
      for (int warp = 1; warp < at.crew / 32; ++warp) total += of_warps[threadIdx.x / 32 + warp];
  }
  if (exists && member == 0) out.store(inner, outer, blockIdx.y, total);
}

// For many rows of few packs: a team of lanes, each with one pack of a row, has several rows in flight.
template <class T, int SIZE>
__global__ void __launch_bounds__(THREADS, RESIDENT) short_rows_kernel(const T* x, Sum sum, int team, Sink out) {
  const int lane = threadIdx.x % team, teams = THREADS / team;
  const long long first = static_cast<long long>(blockIdx.x) * SHORT_ROWS * teams + threadIdx.x / team;
  Wide<T, SIZE> loaded[SHORT_ROWS];
  long long inner[SHORT_ROWS], outer[SHORT_ROWS];
#pragma unroll
  for (int d = 0; d < SHORT_ROWS; ++d) {
    const long long result = first + d * teams;
    outer[d] = sum.kept[1] == 1 ? 0 : quotient(result, sum.kept[0]);
    inner[d] = result - outer[d] * sum.kept[0];
    const T* row = x + inner[d] * sum.kept_stride[0] + outer[d] * sum.kept_stride[1];
    if (result < sum.results() && lane * SIZE < sum.reduced[0]) read<T, SIZE>(loaded[d], row + lane * SIZE);
  }
#pragma unroll
  for (int d = 0; d < SHORT_ROWS; ++d) {
    float total = 0.0f;
    if (lane * SIZE < sum.reduced[0]) {
#pragma unroll
      for (int e = 0; e < SIZE; ++e) total += widened(loaded[d].element[e]);
    }
    for (int half = team / 2; half; half /= 2) total += __shfl_down_sync(0xFFFFFFFFu, total, half);
    if (lane == 0 && first + d * teams < sum.results()) out.store(inner[d], outer[d], 0, total);
  }
}

// For many short rows that are dense, but no packs: a block brings its rows to shared memory by packs, and a thread adds
// a row. ``rows``: those of a block, a multiple of a pack's size, so that all blocks begin with a pack.
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT) staged_rows_kernel(const T* x, Sum sum, int rows, Sink out) {
  constexpr int SIZE = 16 / sizeof(T), PACKS = STAGED / 16 / THREADS;
  SHARED(T, staged, [STAGED / sizeof(T)]);
  const int n = static_cast<int>(sum.reduced[0]);
  const long long first = static_cast<long long>(blockIdx.x) * rows;
  const int here = static_cast<int>(smaller(rows, sum.results() - first)), elements = here * n;
  const T* from = x + first * n;
  Wide<T, SIZE> loaded[PACKS];
#pragma unroll
  for (int i = 0; i < PACKS; ++i) {
    const int place = (i * THREADS + threadIdx.x) * SIZE;
    if (place + SIZE <= elements) read<T, SIZE>(loaded[i], from + place);
  }
#pragma unroll
  for (int i = 0; i < PACKS; ++i) {
    const int place = (i * THREADS + threadIdx.x) * SIZE;
    if (place + SIZE <= elements) write<T, SIZE>(staged + place, loaded[i]);
  }
  const int rest = elements / SIZE * SIZE + threadIdx.x;
  if (rest < elements) staged[rest] = from[rest];
  __syncthreads();
  for (int r = threadIdx.x; r < here; r += THREADS) {
    float total = 0.0f;
#pragma unroll 4
    for (int i = 0; i < n; ++i) total += widened(staged[r * n + i]);
    out.store(first + r, 0, 0, total);
  }
}
