// Causal attention over the paged KV cache of `engine.cpu.attention`, for rows that decode
// and for slices alike.
//
// A task is one KV head and a tile of consecutive query tokens of one sequence; its rows are the
// tile's tokens times the query heads that share the KV head. It walks the sequence's blocks once,
// with a running maximum and sum per row (online softmax, Milakov and Gimelshein 2018). Keys are
// transposed within a block, so scores of sixteen tokens come out of one vector without a
// horizontal sum. Up to four rows share each load of a key or value.
//
// Nothing beyond a tile's last visible token is read as a value, and scores there are discarded:
// blocks may hold anything, NaN included, where no token was written.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "vectors.h"

namespace sluice {

struct AttentionShape {
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;    // a multiple of kLanes
  int64_t block_size;  // a multiple of kLanes
  int64_t window;      // how many of the newest tokens a token sees; 0 is all
  float scale;

  int64_t group() const { return num_heads / num_kv_heads; }
  int64_t first_visible(int64_t position) const {
    return window > 0 ? std::max<int64_t>(0, position - window + 1) : 0;
  }
  // Tokens in a tile: enough rows that widening and loading a block is paid once for many.
  int64_t tile_tokens() const { return std::max<int64_t>(1, 32 / group()); }
};

struct Scratch {
  std::vector<float> queries, partials, scores, values, maxima, sums, factors;

  void fit(const AttentionShape& shape, int64_t num_rows) {
    queries.resize(num_rows * shape.head_dim);
    partials.resize(num_rows * shape.head_dim);
    scores.resize(num_rows * shape.block_size);
    values.resize(shape.block_size * shape.head_dim);
    maxima.resize(num_rows);
    sums.resize(num_rows);
    factors.resize(num_rows);
  }
};

// A region of memory, of which each row begins with bytes that are used.
struct Region {
  const char* from;
  int64_t num_rows, row_bytes, used_bytes;
};

// Two regions to be brought into the second-level cache, a line at a time between arithmetic: a
// burst of requests would stall it. Reads nothing of them.
class Ahead {
 public:
  Ahead(Region first, Region second) : region_(first), second_(second) {}

  void fetch_line() {
    if (region_.num_rows == 0) {
      if (second_.num_rows == 0) return;
      region_ = second_;
      second_.num_rows = 0;
    }
    __builtin_prefetch(region_.from + column_, 0, 2);
    column_ += 64;
    if (column_ < region_.used_bytes) return;
    column_ = 0;
    region_.from += region_.row_bytes;
    --region_.num_rows;
  }

 private:
  Region region_, second_;
  int64_t column_ = 0;
};

template <typename T>
constexpr int64_t kLineValues = 64 / static_cast<int64_t>(sizeof(T));

// How many values of a token lie side by side in a block of keys: 32 bits.
template <typename T>
constexpr int64_t kPacked = 4 / static_cast<int64_t>(sizeof(T));

// Registers of sixteen tokens or columns, and the most that R rows can each have sums for.
constexpr int kParts = kLanes / kNative;
template <int R>
constexpr int kVectors = std::min(64 / static_cast<int>(kNative), kSums / R);

// sums += q · k for the `kPacked` dimensions of a register of tokens.
inline Native score(const float* q, const float* k, Native sums) {
  return sums + q[0] * load_native(k);
}

inline Native score(const float* q, const BFloat16* k, Native sums) {
  typedef uint32_t Pairs __attribute__((vector_size(sizeof(Native))));
  Pairs pairs;
  std::memcpy(&pairs, k, sizeof(pairs));
  sums += q[0] * (Native)(pairs << 16);
  return sums + q[1] * (Native)(pairs & 0xffff0000u);
}

// scores[r][t] = queries[r] · keys[:, t] for R rows and C registers of tokens.
template <int R, int C, typename T>
void score_tokens(const float* queries, int64_t dim, const T* keys, int64_t block_size,
                  float* scores, Ahead& shared) {
  constexpr int64_t step = kPacked<T>;
  Ahead ahead = shared;
  Native sums[R][C] = {};
  for (int64_t d = 0; d < dim; d += step) {
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) {
      const T* k = keys + d * block_size + c * kNative * step;
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) sums[r][c] = score(queries + r * dim + d, k, sums[r][c]);
      if (c % kParts == 0) ahead.fetch_line();
    }
  }
  shared = ahead;
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) store_native(scores + r * block_size + c * kNative, sums[r][c]);
}

// Score tokens [begin, end) of a block, multiples of kLanes.
template <int R, typename T>
void score_block(const float* queries, int64_t dim, const T* keys, int64_t block_size,
                 int64_t begin, int64_t end, float* scores, Ahead& ahead) {
  int64_t t = begin;
  const auto score_next = [&](auto num_vectors) {
    constexpr int C = decltype(num_vectors)::value;
    for (; t + C * kNative <= end; t += C * kNative)
      score_tokens<R, C>(queries, dim, keys + t * kPacked<T>, block_size, scores + t, ahead);
  };
  score_next(std::integral_constant<int, kVectors<R>>{});
  score_next(std::integral_constant<int, std::max(kVectors<R> / 2, kParts)>{});
  score_next(std::integral_constant<int, kParts>{});
}

// partials[r] = partials[r] * factors[r] + Σ_t weights[r][t] * values[t], for C registers of
// columns.
template <int R, int C, typename T>
void add_columns(const float* weights, const float* factors, int64_t block_size, const T* values,
                 int64_t begin, int64_t end, int64_t dim, float* partials, Ahead& shared) {
  Ahead ahead = shared;
  Native sums[R][C];
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c)
      sums[r][c] = load_native(partials + r * dim + c * kNative) * factors[r];
  for (int64_t t = begin; t < end; ++t) {
#pragma GCC unroll 4
    for (int64_t i = 0; i < C * kNative; i += kLineValues<T>) ahead.fetch_line();
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) {
      const Native v = load_native(values + t * dim + c * kNative);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) sums[r][c] += weights[r * block_size + t] * v;
    }
  }
  shared = ahead;
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) store_native(partials + r * dim + c * kNative, sums[r][c]);
}

template <int R, typename T>
void add_block(const float* weights, const float* factors, int64_t block_size, const T* values,
               int64_t begin, int64_t end, int64_t dim, float* partials, Ahead& ahead) {
  int64_t d = 0;
  const auto add_next = [&](auto num_vectors) {
    constexpr int C = decltype(num_vectors)::value;
    for (; d + C * kNative <= dim; d += C * kNative)
      add_columns<R, C>(weights, factors, block_size, values + d, begin, end, dim, partials + d,
                        ahead);
  };
  add_next(std::integral_constant<int, kVectors<R>>{});
  add_next(std::integral_constant<int, kParts>{});
}

// Turn a row's scores into weights relative to its new maximum, and bring its maximum, sum and
// factor up to date. Tokens [begin, end) of the block are visible; the others of [from, to),
// multiples of kLanes, weigh nothing.
inline void weigh(float* scores, int64_t from, int64_t to, int64_t begin, int64_t end,
                  float& maximum, float& total, float& factor) {
  if (begin >= end) {
    std::fill(scores + from, scores + to, 0.0f);
    factor = 1.0f;
    return;
  }
  NativeInts lanes;
  for (int i = 0; i < kNative; ++i) lanes[i] = i;
  const auto visible = [&](int64_t t) {
    const NativeInts tokens = lanes + static_cast<int32_t>(t);
    return (tokens >= static_cast<int32_t>(begin)) & (tokens < static_cast<int32_t>(end));
  };
  const Native nothing = -std::numeric_limits<float>::infinity() - Native{};
  Native maxima = maximum - Native{};
  for (int64_t t = from; t < to; t += kNative)
    maxima = larger(visible(t) ? load_native(scores + t) : nothing, maxima);
  const float highest = largest(maxima);
  Native sums[kParts] = {};
  for (int64_t t = from; t < to; t += kLanes)
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part) {
      const int64_t at = t + part * kNative;
      const Native below = load_native(scores + at) - highest;
      const Native weights = visible(at) ? exponential(below) : Native{};
      store_native(scores + at, weights);
      sums[part] += weights;
    }
  for (int half = kParts / 2; half > 0; half /= 2)
    for (int part = 0; part < half; ++part) sums[part] += sums[part + half];
  // The first block that a row sees has nothing to bring down.
  factor = maximum == -std::numeric_limits<float>::infinity()
               ? 0.0f
               : exponential(Fours{} + (maximum - highest))[0];
  total = total * factor + sum(sums[0]);
  maximum = highest;
}

// Call `body` for all rows, four at a time while there are so many, then two, then one.
template <typename Body>
void by_rows(int64_t num_rows, Body body) {
  int64_t r = 0;
  for (; r + 4 <= num_rows; r += 4) body(std::integral_constant<int, 4>{}, r);
  for (; r + 2 <= num_rows; r += 2) body(std::integral_constant<int, 2>{}, r);
  for (; r < num_rows; ++r) body(std::integral_constant<int, 1>{}, r);
}

template <typename K>
void score_rows(Scratch& scratch, const AttentionShape& shape, const K* keys, int64_t from,
                int64_t to, int64_t num_rows, Ahead& ahead) {
  const int64_t dim = shape.head_dim, bs = shape.block_size;
  by_rows(num_rows, [&](auto rows, int64_t r) {
    score_block<decltype(rows)::value>(scratch.queries.data() + r * dim, dim, keys, bs, from, to,
                                       scratch.scores.data() + r * bs, ahead);
  });
}

template <typename V>
void add_rows(Scratch& scratch, const AttentionShape& shape, const V* values, int64_t begin,
              int64_t end, int64_t num_rows, Ahead& ahead) {
  const int64_t dim = shape.head_dim, bs = shape.block_size;
  by_rows(num_rows, [&](auto rows, int64_t r) {
    add_block<decltype(rows)::value>(scratch.scores.data() + r * bs, scratch.factors.data() + r,
                                     bs, values, begin, end, dim, scratch.partials.data() + r * dim,
                                     ahead);
  });
}

template <typename T>
const float* widened(const T* values, int64_t begin, int64_t end, std::vector<float>& buffer) {
  if constexpr (std::is_same_v<T, float>) return values;
  for (int64_t i = begin; i < end; i += kLanes) store(buffer.data() + i, load(values + i));
  return buffer.data();
}

// One KV head and `num_tokens` consecutive query tokens from `position` on; `table` names the
// sequence's blocks.
struct Task {
  int64_t kv_head, num_tokens, position;
  const int32_t* table;

  int64_t end() const { return position + num_tokens; }
  int64_t first_block(const AttentionShape& shape) const {
    return shape.first_visible(position) / shape.block_size;
  }
};

template <typename T>
const T* block_at(const AttentionShape& shape, const T* cache, const Task& task, int64_t block) {
  return cache + (task.table[block] * shape.num_kv_heads + task.kv_head) * shape.head_dim *
                     shape.block_size;
}

// The keys of a block that a task reads, or nothing beyond its last block.
template <typename T>
Region keys_of(const AttentionShape& shape, const T* key_cache, const Task& task, int64_t block) {
  const int64_t num_tokens = std::min(task.end() - block * shape.block_size, shape.block_size);
  if (num_tokens <= 0) return {};
  return {reinterpret_cast<const char*>(block_at(shape, key_cache, task, block)),
          shape.head_dim / kPacked<T>, shape.block_size * 4, num_tokens * 4};
}

// Compute a task while `next_keys`, of another one, are fetched. `queries` is the first token's row
// of heads, rows `query_stride` apart; `out` likewise.
template <typename T>
void attend_tile(const AttentionShape& shape, const Task& task, Region next_keys, const T* queries,
                 int64_t query_stride, const T* key_cache, const T* value_cache, T* out,
                 int64_t out_stride, Scratch& scratch) {
  const int64_t group = shape.group(), dim = shape.head_dim, bs = shape.block_size;
  const int64_t num_rows = task.num_tokens * group, kv_head = task.kv_head;
  scratch.fit(shape, num_rows);
  for (int64_t r = 0; r < num_rows; ++r) {
    const T* q = queries + r / group * query_stride + (kv_head * group + r % group) * dim;
    for (int64_t d = 0; d < dim; d += kLanes)
      store(scratch.queries.data() + r * dim + d, load(q + d) * shape.scale);
  }
  std::fill(scratch.partials.begin(), scratch.partials.end(), 0.0f);
  std::fill(scratch.maxima.begin(), scratch.maxima.end(),
            -std::numeric_limits<float>::infinity());
  std::fill(scratch.sums.begin(), scratch.sums.end(), 0.0f);

  const int64_t tile_begin = shape.first_visible(task.position), tile_end = task.end();
  for (int64_t b = task.first_block(shape); b * bs < tile_end; ++b) {
    const T *k = block_at(shape, key_cache, task, b), *v = block_at(shape, value_cache, task, b);
    // Tokens that some row sees, and the whole vectors of scores around them.
    const int64_t begin = std::max<int64_t>(tile_begin - b * bs, 0);
    const int64_t end = std::min(tile_end - b * bs, bs);
    const int64_t from = begin / kLanes * kLanes, to = (end + kLanes - 1) / kLanes * kLanes;
    const int64_t row_bytes = dim * static_cast<int64_t>(sizeof(T));
    const bool is_last = (b + 1) * bs >= tile_end;
    Ahead ahead({reinterpret_cast<const char*>(v + begin * dim), end - begin, row_bytes, row_bytes},
                is_last ? next_keys : keys_of(shape, key_cache, task, b + 1));
    score_rows(scratch, shape, k, from, to, num_rows, ahead);
    for (int64_t r = 0; r < num_rows; ++r) {
      const int64_t p = task.position + r / group;
      weigh(scratch.scores.data() + r * bs, from, to,
            std::max<int64_t>(shape.first_visible(p) - b * bs, 0), std::min(p + 1 - b * bs, bs),
            scratch.maxima[r], scratch.sums[r], scratch.factors[r]);
    }
    // Widening pays where several groups of rows read the block.
    if (num_rows > 8)
      add_rows(scratch, shape, widened(v, begin * dim, end * dim, scratch.values), begin, end,
               num_rows, ahead);
    else
      add_rows(scratch, shape, v, begin, end, num_rows, ahead);
  }
  for (int64_t r = 0; r < num_rows; ++r) {
    T* to = out + r / group * out_stride + (kv_head * group + r % group) * dim;
    const float scale = 1.0f / scratch.sums[r];
    for (int64_t d = 0; d < dim; d += kLanes)
      store(to + d, load(scratch.partials.data() + r * dim + d) * scale);
  }
}

}  // namespace sluice
