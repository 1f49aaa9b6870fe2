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
// The kernels are in sum_kernels.cuh. Here is the choice of their sizes.
#pragma once
#include "sum_kernels.cuh"

// ---- What may be tuned -------------------------------------------------------------------------------------

// columns_kernel: the most groups of threads that take different rows, unless the matrix is narrow. Then the others
// lie side by side: 32 packs, 512 bytes of a row. There are MOST_GROUPS where blocks are few, and one pass will do.
constexpr int GROUPS = 8, MOST_GROUPS = 32;
constexpr int ROWS_EACH = 4;        // the rows that a thread of a part has at least
constexpr int WHOLE_LINE = 8;       // a block's width is a multiple of so many packs, 128 bytes
constexpr int LEAST_MERGED = 64;    // merged rows; with fewer the last additions take longer than packs gain
constexpr int LEAST_BATCHES = 6;    // times that all loads are in flight in one pass, lest a second launch cost more
constexpr int BATCHES = 4;          // the same of a lane on a row, where results are many, lest blocks do too little
constexpr int SHORT = 8;            // packs of the longest row of short_rows_kernel, where each is a lane's
constexpr int LONGEST_STAGED = 100;  // elements of the longest row of staged_rows_kernel
constexpr int UNALIGNED_PACKS = 8;  // a row that begins anywhere is read by packs if it has so many
static_assert(UNALIGNED_PACKS >= LEAST_LANES, "the lanes that share the ends of a row in add_row");

// ---- The choice of sizes -----------------------------------------------------------------------------------

inline bool aligned(const void* data) { return reinterpret_cast<size_t>(data) % 16 == 0; }

// The width of a block, and the number of blocks along a row of so many packs. ``depth``: the loads that a thread has
// in flight. Merged rows are as wide as a block of GROUPS, in which they fold.
inline void set_width(Columns& at, long long packs, long long matrices, bool merged, int depth, const Means& means) {
  long long groups = 1, most_groups = GROUPS;
  if (!merged && (means.rung != TWO_PASS || at.rows < MOST_GROUPS * depth * LEAST_BATCHES)) {
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
  set_width(at, ceil_div(at.columns, SIZE), kept[1], merged > 1, DEPTH, means);
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

// Launches the sum of short, dense, aligned rows, if they are so many that all threads have one. Threads would find
// rows of 32 bytes, or of two, three … times as many, in few banks of shared memory. A row of one pack needs none.
template <class T>
bool launch_staged(const T* x, const Sum& sum, const Sink& out, const Means& means) {
  constexpr int SIZE = 16 / sizeof(T);
  const long long n = sum.reduced[0];
  const bool dense = sum.kept[1] == 1 && sum.reduced[1] == 1 && sum.reduced_stride[0] == 1 && sum.kept_stride[0] == n;
  if (!dense || !aligned(x) || sum.results() < static_cast<long long>(means.blocks) * THREADS) return false;
  if (n > LONGEST_STAGED || n == SIZE || n * sizeof(T) % 32 == 0) return false;
  const int rows = static_cast<int>(STAGED / sizeof(T) / n / SIZE * SIZE);
  const auto grid = static_cast<unsigned>(ceil_div(sum.results(), rows));
  LAUNCH((staged_rows_kernel<T>), grid, THREADS, 0, means.stream, x, sum, rows, out);
  return true;
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
    if (launch_staged(x, sum, out, means)) return;
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
