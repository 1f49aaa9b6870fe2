// The faster kernels of sums: rungs between an op's plain kernel and the fastest, one idea each. They take one of
// float16, bfloat16 and float32, add in float32 in an order that depends only on sizes, strides and alignment, and
// round a result once. docs/CUDA_LADDER.md explains them.
//
//   lanes      neighbouring lanes take neighbouring elements; what several threads have of a result is added by
//              shuffles and in shared memory
//   pack128    the same with 128 bits per load: aligned packs, and single elements at both ends
//   two_pass   where results are few, the addends are cut into parts, whose sums go to a workspace. A second launch
//              adds them.
//
// columns_kernel is for memory whose nearest dimension is kept: a lane has neighbouring results. rows_kernel and
// short_rows_kernel are for memory whose nearest dimension is added up: the lanes of a team share the addends of a row.
#pragma once
#include "rungs.cuh"

enum SumRung { LANES, PACKS, TWO_PASS };  // in the order of RUNGS in _sum_rungs.py

// ---- What may be tuned -------------------------------------------------------------------------------------

// Blocks that a multiprocessor holds at least; _BLOCKS_EACH in _sum_rungs.py is no more.
constexpr int RESIDENT = 4;
// Loads that a thread has in flight: of single elements, and of packs.
constexpr int SINGLE_LOADS = 8, PACK_LOADS = 4;
// columns_kernel: the most groups of threads that take different rows, unless the matrix is narrow. Then the others
// lie side by side: 32 packs, 512 bytes of a row. There are MOST_GROUPS where blocks are few, and one pass will do.
constexpr int GROUPS = 8, MOST_GROUPS = 32;
constexpr int ROWS_EACH = 4;        // the rows that a thread of a part has at least
constexpr int WHOLE_LINE = 8;       // a block's width is a multiple of so many packs, 128 bytes
constexpr int LEAST_MERGED = 64;    // merged rows; with fewer the last additions take longer than packs gain
constexpr int LEAST_BATCHES = 6;    // times that all loads are in flight in one pass, lest a second launch cost more
constexpr int LEAST_LANES = 4;      // rows_kernel: lanes beside each other on a row of packs, 64 bytes
constexpr int BATCHES = 4;          // the same of a lane on a row, where results are many, lest blocks do too little
constexpr int SHORT = 32;           // packs of the longest row of short_rows_kernel: one for each lane of a warp
constexpr int SHORT_ROWS = 4;       // rows that its teams have in flight
constexpr int UNALIGNED_PACKS = 8;  // a row that begins anywhere is read by packs if it has so many
static_assert(UNALIGNED_PACKS >= LEAST_LANES, "the lanes that share the ends of a row in add_row");

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

// How many elements of a pack exist: a constant where all do.
struct Whole {
  static constexpr int SHALLOWER = 1;
  __device__ bool has(int) const { return true; }
};
struct Some {
  static constexpr int SHALLOWER = 2;  // fewer loads in flight, as each element is one
  int count;
  __device__ bool has(int e) const { return e < count; }
};

template <class T, int SIZE>
__device__ void read(Wide<T, SIZE>& to, const T* from, Whole) {
  to.access[0] = *reinterpret_cast<const typename Access<T, SIZE>::V*>(from);
}
template <class T, int SIZE>
__device__ void read(Wide<T, SIZE>& to, const T* from, Some some) {
#pragma unroll
  for (int e = 0; e < SIZE; ++e) round_to(to.element[e], some.has(e) ? widened(from[e]) : 0.0f);
}

template <class T, int SIZE>
__device__ void write(T* to, const Wide<T, SIZE>& from, Whole) {
  *reinterpret_cast<typename Access<T, SIZE>::V*>(to) = from.access[0];
}
template <class T, int SIZE>
__device__ void write(T* to, const Wide<T, SIZE>& from, Some some) {
#pragma unroll
  for (int e = 0; e < SIZE; ++e)
    if (some.has(e)) to[e] = from.element[e];
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
  template <int SIZE, class Count>
  __device__ void load(Loaded<SIZE>& to, Place p, Count count) const {
    const long long at = p.inner * inner_stride + (ONE ? 0 : p.outer * outer_stride);
    read<T, SIZE>(to.x, x + at + (SIZE == 1 ? p.column * column_stride : p.column), count);
  }
  template <int SIZE, class Count>
  __device__ void add(const Loaded<SIZE>& loaded, Place, Count, float* total) const {
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
template <int SIZE, class Source, class Count>
__device__ void add_rows(const Source& source, const Columns& at, Place p, Count count, long long first, long long end,
                         int step, float* total) {
  constexpr int DEPTH = Source::template DEPTH<SIZE> / Count::SHALLOWER;
  p.inner = first;
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
      if (d * step < here) source.template load<SIZE>(loaded[d], p, count);
      p.inner += rest;
      p.outer += over;
      if (!Source::FLAT && p.inner >= at.inner) {
        p.inner -= at.inner;
        ++p.outer;
      }
    }
#pragma unroll
    for (int d = 0; d < DEPTH; ++d)
      if (d * step < here) source.template add<SIZE>(loaded[d], places[d], count, total);
  }
}

// A block has ``width`` packs of a row, and several groups of threads, each with every so many-th row of a part. Their
// totals meet in shared memory.
template <class Source, int SIZE>
__global__ void __launch_bounds__(THREADS, RESIDENT) columns_kernel(Source source, Columns at, Sink out) {
  SHARED(float, sums, [THREADS * SIZE]);
  const int lane = threadIdx.x % at.width, group = threadIdx.x / at.width, groups = THREADS / at.width;
  const unsigned matrix = blockIdx.x / at.across;
  const long long start = static_cast<long long>(blockIdx.x % at.across) * at.width * SIZE;
  const long long begin = blockIdx.y * at.part, end = smaller(begin + at.part, at.rows);
  Place p = {start + lane * SIZE, 0, 0};
  source.go_to(matrix);
  float total[SIZE] = {};
  if (group < groups && p.column + SIZE <= at.columns)
    add_rows<SIZE>(source, at, p, Whole{}, begin + group, end, groups, total);
  if constexpr (SIZE > 1) {
    if (group < groups && p.column < at.columns && p.column + SIZE > at.columns) {
      const Some some = {static_cast<int>(at.columns - p.column)};
      add_rows<SIZE>(source, at, p, some, begin + group, end, groups, total);
    }
    if (group == 0 && blockIdx.y == 0 && p.column < at.rest) {
      const Some some = {static_cast<int>(smaller(SIZE, at.rest - p.column))};
      p.inner = at.rows;
      typename Source::template Loaded<SIZE> loaded;
      source.template load<SIZE>(loaded, p, some);
      source.template add<SIZE>(loaded, p, some, total);
    }
  }
  if (!at.summed) return;
  const int stripe = at.width * SIZE;  // columns of the block
#pragma unroll
  for (int e = 0; e < SIZE; ++e)
    if (group < groups) sums[threadIdx.x * SIZE + e] = total[e];
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
      if (d * team < here) read<T, SIZE>(loaded[d], row, Whole{});
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
    if (result < sum.results() && lane * SIZE < sum.reduced[0]) read<T, SIZE>(loaded[d], row + lane * SIZE, Whole{});
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

// ---- The choice of sizes -----------------------------------------------------------------------------------

inline bool aligned(const void* data) { return reinterpret_cast<size_t>(data) % 16 == 0; }

// The width of a block, and the number of blocks along a row of so many packs. ``depth``: the loads that a thread has
// in flight.
inline void set_width(Columns& at, long long packs, long long matrices, int depth, const Means& means) {
  long long groups = 1, most_groups = GROUPS;
  if (means.rung != TWO_PASS || at.rows < MOST_GROUPS * depth * LEAST_BATCHES) {
    while (most_groups < MOST_GROUPS && ceil_div(packs, THREADS / most_groups) * matrices < means.blocks)
      most_groups *= 2;
  }
  while (groups < most_groups && groups * 2 * ROWS_EACH <= at.rows) groups *= 2;
  const long long most = THREADS / groups;
  const long long across = ceil_div(packs, most), width = ceil_div(packs, across);
  at.width = static_cast<int>(across == 1 ? width : smaller(most, ceil_div(width, WHOLE_LINE) * WHOLE_LINE));
  at.across = static_cast<unsigned>(ceil_div(packs, at.width));
}

// Cuts rows into parts, if blocks are too few. ``results`` is the number of sums of one part.
inline long long cut(Columns& at, long long matrices, long long results, int depth, const Means& means) {
  const long long groups = THREADS / at.width;
  long long parts = 1;
  if (means.rung == TWO_PASS && (at.rows >= groups * depth * LEAST_BATCHES || !at.summed)) {
    parts = smaller(means.blocks / (at.across * matrices), at.rows / (groups * ROWS_EACH));
    if (at.summed) parts = smaller(parts, means.floats / results);
  }
  at.part = larger(1, ceil_div(at.rows, larger(1, parts)));
  return larger(1, ceil_div(at.rows, at.part));
}

// Merges adjacent rows into one that consists of whole packs, and is as wide as a block. ``columns`` and ``rows`` are
// those of a dense matrix. Returns how many are merged.
template <int SIZE>
long long merge(Columns& at, const Means& means) {
  const long long narrow = at.columns, block = THREADS / GROUPS * SIZE;
  long long merged = 1;
  while (merged * narrow % SIZE) merged *= 2;
  if (merged * narrow < block) merged *= block / (merged * narrow);
  if (merged == 1 || at.rows < merged * LEAST_MERGED || merged * narrow > means.floats) return 1;
  at.rest = at.rows % merged * narrow;
  at.columns = merged * narrow;
  at.rows = at.inner = at.rows / merged;
  return merged;
}

template <class T>
void launch_singles(const T* x, const Sum& sum, const Sink& out, const Means& means);

// The second pass: adds the ``parts`` sums of each result in the workspace, where ``first`` put them.
inline void launch_second(const Sink& first, const long long* kept, long long parts, const Sink& out, Means means) {
  const Sum sum = {{kept[0], kept[1]}, {first.stride[0], first.stride[1]}, {parts, 1}, {first.part_stride, 0}};
  means.rung = LANES;
  launch_singles(static_cast<const float*>(first.data), sum, out, means);
}

// The place of partial sums: those of one result lie together if they are more than results.
inline Sink in_workspace(const long long* kept, long long parts, const Means& means) {
  const long long results = kept[0] * kept[1];
  if (parts > results) return {means.workspace, F32, 1.0f, {parts, kept[0] * parts}, 1};
  return {means.workspace, F32, 1.0f, {1, kept[0]}, results};
}

// Launches columns_kernel, and the second pass if there are several sums for a result.
template <int SIZE, class Source>
void launch_columns(Source source, Columns at, const long long* kept, long long merged, const Sink& out,
                    const Means& means) {
  constexpr int DEPTH = Source::template DEPTH<SIZE>;
  set_width(at, ceil_div(at.columns, SIZE), kept[1], DEPTH, means);
  at.folds = at.across == 1 ? static_cast<int>(merged) : 1;
  const long long unfolded = merged / at.folds;
  const long long parts = cut(at, kept[1], kept[0] * kept[1] * unfolded, DEPTH, means);
  const dim3 grid(static_cast<unsigned>(at.across * kept[1]), static_cast<unsigned>(parts));
  if (!at.summed || parts * unfolded == 1) {
    LAUNCH((columns_kernel<Source, SIZE>), grid, THREADS, 0, means.stream, source, at, out);
    return;
  }
  Sink first = in_workspace(kept, parts, means);
  if (unfolded > 1) first = {means.workspace, F32, 1.0f, {1, 0}, at.columns};
  LAUNCH((columns_kernel<Source, SIZE>), grid, THREADS, 0, means.stream, source, at, first);
  if (unfolded > 1) first.part_stride = kept[0];  // the sums of each merged row are parts of their own
  launch_second(first, kept, parts * unfolded, out, means);
}

// How rows are shared by threads, and cut into parts if blocks are too few.
template <int SIZE>
Rows rows_of(const Sum& sum, const Means& means) {
  constexpr int DEPTH = LOADS<SIZE>;
  const long long results = sum.results(), loads = ceil_div(sum.reduced[0], SIZE);
  const long long enough = static_cast<long long>(means.blocks) * THREADS;  // threads
  Rows at = {sum};
  while (SIZE > 1 && at.team < LEAST_LANES && at.team < loads) at.team *= 2;
  while (at.team < THREADS && at.team * DEPTH * BATCHES < loads) at.team *= 2;
  const int of_a_lane = sum.reduced[1] == 1 ? 1 : DEPTH;
  while (at.team < THREADS && at.team * of_a_lane < loads && results * at.team < enough) at.team *= 2;
  at.crew = at.team;
  while (at.crew < THREADS && at.crew / at.team < sum.reduced[1] && results * at.crew < enough) at.crew *= 2;
  long long parts = 1;
  const long long batches = loads * sum.reduced[1] / (at.crew * DEPTH);
  if (means.rung == TWO_PASS && batches >= LEAST_BATCHES) {
    // No block has more than THREADS results, for which the workspace has room.
    const long long blocks = ceil_div(results, THREADS / at.crew);
    parts = larger(1, smaller(means.blocks / blocks, batches));
  }
  at.part_outer = ceil_div(sum.reduced[1], smaller(parts, sum.reduced[1]));
  parts /= ceil_div(sum.reduced[1], at.part_outer);  // of a row
  const long long line = WHOLE_LINE * SIZE;          // parts end where a line does, if the row begins there
  at.part = ceil_div(ceil_div(sum.reduced[0], parts), line) * line;
  at.parts = static_cast<unsigned>(ceil_div(sum.reduced[0], at.part));
  return at;
}

template <class T, int SIZE, bool EVEN>
void launch_sum_of_rows(const T* x, const Sum& sum, const Sink& out, const Means& means) {
  const long long loads = sum.reduced[0] / SIZE;
  const bool many = sum.results() * loads >= static_cast<long long>(means.blocks) * THREADS * SHORT_ROWS;
  if constexpr (EVEN) {
    if (sum.reduced[1] == 1 && loads <= SHORT && many) {
      int team = 1;
      while (team < loads) team *= 2;
      const auto grid = static_cast<unsigned>(ceil_div(sum.results(), THREADS / team * SHORT_ROWS));
      LAUNCH((short_rows_kernel<T, SIZE>), grid, THREADS, 0, means.stream, x, sum, team, out);
      return;
    }
  }
  const Rows at = rows_of<SIZE>(sum, means);
  const long long blocks = ceil_div(sum.results(), THREADS / at.crew);
  const long long parts = at.parts * ceil_div(sum.reduced[1], at.part_outer);
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(parts));
  const Sink first = parts > 1 ? in_workspace(sum.kept, parts, means) : out;
  LAUNCH((rows_kernel<T, SIZE, EVEN>), grid, THREADS, 0, means.stream, x, at, first);
  if (parts > 1) launch_second(first, sum.kept, parts, out, means);
}

// The smallest stride that moves.
inline long long nearest(const long long* size, const long long* stride) {
  long long least = 1LL << 62;
  for (int d = 0; d < 2; ++d)
    if (size[d] > 1 && stride[d] > 0) least = smaller(least, stride[d]);
  return least;
}

inline bool by_rows(const Sum& sum) {
  return nearest(sum.reduced, sum.reduced_stride) < nearest(sum.kept, sum.kept_stride);
}

inline Columns columns_of(const Sum& sum) {
  return {sum.kept[0], sum.reduced[0] * sum.reduced[1], sum.reduced[0]};
}

template <bool ONE, class T>
Addends<T, ONE> addends_of(const T* x, const Sum& sum, long long merged) {
  return {x, sum.kept_stride[0], merged * sum.reduced_stride[0], sum.reduced_stride[1], sum.kept_stride[1]};
}

// Launches a sum whose nearest dimension is kept.
template <int SIZE, class T>
void launch_sum_of_columns(const T* x, const Sum& sum, const Columns& at, long long merged, const Sink& out,
                           const Means& means) {
  if (sum.reduced[1] == 1)
    launch_columns<SIZE>(addends_of<true>(x, sum, merged), at, sum.kept, merged, out, means);
  else
    launch_columns<SIZE>(addends_of<false>(x, sum, merged), at, sum.kept, merged, out, means);
}

// Launches a sum by loads of single elements.
template <class T>
void launch_singles(const T* x, const Sum& sum, const Sink& out, const Means& means) {
  if (by_rows(sum)) return launch_sum_of_rows<T, 1, false>(x, sum, out, means);
  launch_sum_of_columns<1>(x, sum, columns_of(sum), 1, out, means);
}

// Launches a sum by packs if x is aligned to them, and rows are long enough.
template <class T>
void launch_sum(const T* x, const Sum& sum, const Sink& out, const Means& means) {
  constexpr int SIZE = 16 / sizeof(T);
  const long long pitches = sum.reduced_stride[1] | sum.kept_stride[1];
  if (means.rung == LANES) return launch_singles(x, sum, out, means);
  if (by_rows(sum)) {
    const bool even = aligned(x) && (pitches | sum.kept_stride[0] | sum.reduced[0]) % SIZE == 0;
    const bool dense = sum.reduced_stride[0] == 1;
    if (dense && even) return launch_sum_of_rows<T, SIZE, true>(x, sum, out, means);
    if (dense && sum.reduced[0] >= UNALIGNED_PACKS * SIZE)
      return launch_sum_of_rows<T, SIZE, false>(x, sum, out, means);
  } else if (sum.kept_stride[0] == 1 && aligned(x)) {
    Columns at = columns_of(sum);
    const bool dense = sum.kept[1] == 1 && sum.reduced[1] == 1 && sum.reduced_stride[0] == sum.kept[0];
    const long long merged = dense ? merge<SIZE>(at, means) : 1;
    if (merged > 1 || (pitches | sum.reduced_stride[0]) % SIZE == 0)
      return launch_sum_of_columns<SIZE>(x, sum, at, merged, out, means);
  }
  launch_singles(x, sum, out, means);
}
