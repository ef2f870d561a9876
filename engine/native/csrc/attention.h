// Causal attention over the paged KV cache of `engine.attention.reference`, for rows that decode
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
  // Tokens in a tile: enough rows that widening and loading a block is paid once for many.
  int64_t tile_tokens() const { return std::max<int64_t>(1, 32 / group()); }
};

struct Scratch {
  std::vector<float> queries, partials, scores, keys, values, maxima, sums, factors;

  void fit(const AttentionShape& shape, int64_t num_rows) {
    queries.resize(num_rows * shape.head_dim);
    partials.resize(num_rows * shape.head_dim);
    scores.resize(num_rows * shape.block_size);
    keys.resize(shape.block_size * shape.head_dim);
    values.resize(shape.block_size * shape.head_dim);
    maxima.resize(num_rows);
    sums.resize(num_rows);
    factors.resize(num_rows);
  }
};

// scores[r][t] = queries[r] · keys[:, t] for R rows and C vectors of tokens.
template <int R, int C, typename T>
void score_tokens(const float* queries, int64_t dim, const T* keys, int64_t block_size,
                  float* scores) {
  Floats sums[R][C] = {};
  for (int64_t d = 0; d < dim; ++d) {
    Floats k[C];
    for (int c = 0; c < C; ++c) k[c] = load(keys + d * block_size + c * kLanes);
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < C; ++c) sums[r][c] += queries[r * dim + d] * k[c];
  }
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) store(scores + r * block_size + c * kLanes, sums[r][c]);
}

template <int R, typename T>
void score_block(const float* queries, int64_t dim, const T* keys, int64_t block_size,
                 float* scores) {
  int64_t t = 0;
  for (; t + 4 * kLanes <= block_size; t += 4 * kLanes)
    score_tokens<R, 4>(queries, dim, keys + t, block_size, scores + t);
  for (; t + 2 * kLanes <= block_size; t += 2 * kLanes)
    score_tokens<R, 2>(queries, dim, keys + t, block_size, scores + t);
  for (; t < block_size; t += kLanes)
    score_tokens<R, 1>(queries, dim, keys + t, block_size, scores + t);
}

// partials[r] = partials[r] * factors[r] + Σ_t weights[r][t] * values[t], for C vectors of columns.
template <int R, int C, typename T>
void add_columns(const float* weights, const float* factors, int64_t block_size, const T* values,
                 int64_t begin, int64_t end, int64_t dim, float* partials) {
  Floats sums[R][C];
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) sums[r][c] = load(partials + r * dim + c * kLanes) * factors[r];
  for (int64_t t = begin; t < end; ++t) {
    Floats v[C];
    for (int c = 0; c < C; ++c) v[c] = load(values + t * dim + c * kLanes);
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < C; ++c) sums[r][c] += weights[r * block_size + t] * v[c];
  }
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) store(partials + r * dim + c * kLanes, sums[r][c]);
}

template <int R, typename T>
void add_block(const float* weights, const float* factors, int64_t block_size, const T* values,
               int64_t begin, int64_t end, int64_t dim, float* partials) {
  int64_t d = 0;
  for (; d + 4 * kLanes <= dim; d += 4 * kLanes)
    add_columns<R, 4>(weights, factors, block_size, values + d, begin, end, dim, partials + d);
  for (; d < dim; d += kLanes)
    add_columns<R, 1>(weights, factors, block_size, values + d, begin, end, dim, partials + d);
}

// Turn a row's scores of tokens [begin, end) of a block into weights relative to its new maximum,
// zero elsewhere, and bring its maximum, sum and factor up to date.
inline void weigh(float* scores, int64_t block_size, int64_t begin, int64_t end, float& maximum,
                  float& total, float& factor) {
  if (begin >= end) {
    std::fill(scores, scores + block_size, 0.0f);
    factor = 1.0f;
    return;
  }
  Ints lanes;
  for (int i = 0; i < kLanes; ++i) lanes[i] = i;
  const auto visible = [&](int64_t t) {
    const Ints tokens = lanes + static_cast<int32_t>(t);
    return (tokens >= static_cast<int32_t>(begin)) & (tokens < static_cast<int32_t>(end));
  };
  const Floats nothing = broadcast(-std::numeric_limits<float>::infinity());
  Floats maxima = broadcast(maximum);
  for (int64_t t = 0; t < block_size; t += kLanes)
    maxima = larger(visible(t) ? load(scores + t) : nothing, maxima);
  const float highest = largest(maxima);
  Floats sums{};
  for (int64_t t = 0; t < block_size; t += kLanes) {
    const Floats weights = visible(t) ? exponential(load(scores + t) - highest) : Floats{};
    store(scores + t, weights);
    sums += weights;
  }
  // The first block that a row sees has nothing to bring down.
  factor = maximum == -std::numeric_limits<float>::infinity()
               ? 0.0f
               : exponential(broadcast(maximum - highest))[0];
  total = total * factor + sum(sums);
  maximum = highest;
}

// Have memory brought into the second-level cache while something else is computed.
template <typename T>
void fetch(const T* from, int64_t size) {
  for (int64_t i = 0; i < size; i += 64 / static_cast<int64_t>(sizeof(T)))
    __builtin_prefetch(from + i, 0, 2);
}

template <typename T>
const float* widened(const T* block, int64_t size, std::vector<float>& buffer);

template <>
inline const float* widened(const float* block, int64_t, std::vector<float>&) {
  return block;
}

template <>
inline const float* widened(const BFloat16* block, int64_t size, std::vector<float>& buffer) {
  for (int64_t i = 0; i < size; i += kLanes) store(buffer.data() + i, load(block + i));
  return buffer.data();
}

template <typename K>
void score_rows(const Scratch& scratch, const AttentionShape& shape, const K* keys,
                int64_t num_rows, float* scores) {
  const int64_t dim = shape.head_dim, bs = shape.block_size;
  const float* q = scratch.queries.data();
  int64_t r = 0;
  for (; r + 4 <= num_rows; r += 4) score_block<4>(q + r * dim, dim, keys, bs, scores + r * bs);
  for (; r + 2 <= num_rows; r += 2) score_block<2>(q + r * dim, dim, keys, bs, scores + r * bs);
  for (; r < num_rows; ++r) score_block<1>(q + r * dim, dim, keys, bs, scores + r * bs);
}

template <typename V>
void add_rows(Scratch& scratch, const AttentionShape& shape, const V* values, int64_t begin,
              int64_t end, int64_t num_rows) {
  const int64_t dim = shape.head_dim, bs = shape.block_size;
  const float *weights = scratch.scores.data(), *factors = scratch.factors.data();
  float* partials = scratch.partials.data();
  int64_t r = 0;
  for (; r + 4 <= num_rows; r += 4)
    add_block<4>(weights + r * bs, factors + r, bs, values, begin, end, dim, partials + r * dim);
  for (; r + 2 <= num_rows; r += 2)
    add_block<2>(weights + r * bs, factors + r, bs, values, begin, end, dim, partials + r * dim);
  for (; r < num_rows; ++r)
    add_block<1>(weights + r * bs, factors + r, bs, values, begin, end, dim, partials + r * dim);
}

// Attend for one KV head and `num_tokens` query tokens from `position` on. `queries` is the first
// token's row of heads, rows `query_stride` apart; `out` likewise. `table` names the blocks.
template <typename T>
void attend_tile(const AttentionShape& shape, const T* queries, int64_t query_stride,
                 int64_t num_tokens, int64_t position, int64_t kv_head, const T* key_cache,
                 const T* value_cache, const int32_t* table, T* out, int64_t out_stride,
                 Scratch& scratch) {
  const int64_t group = shape.group(), dim = shape.head_dim, bs = shape.block_size;
  const int64_t num_rows = num_tokens * group, block_values = dim * bs;
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

  const auto first_visible = [&](int64_t p) {
    return shape.window > 0 ? std::max<int64_t>(0, p - shape.window + 1) : 0;
  };
  const int64_t tile_begin = first_visible(position), tile_end = position + num_tokens;
  for (int64_t b = tile_begin / bs; b * bs < tile_end; ++b) {
    const int64_t offset = (table[b] * shape.num_kv_heads + kv_head) * block_values;
    const T *k = key_cache + offset, *v = value_cache + offset;
    float* scores = scratch.scores.data();
    fetch(v, std::min(tile_end - b * bs, bs) * dim);
    // Widening pays where several groups of rows read the block.
    const bool widen = num_rows > 8;
    if (widen)
      score_rows(scratch, shape, widened(k, block_values, scratch.keys), num_rows, scores);
    else
      score_rows(scratch, shape, k, num_rows, scores);
    for (int64_t r = 0; r < num_rows; ++r) {
      const int64_t p = position + r / group;
      const int64_t begin = std::max<int64_t>(first_visible(p) - b * bs, 0);
      const int64_t end = std::min(p + 1 - b * bs, bs);
      weigh(scores + r * bs, bs, begin, end, scratch.maxima[r], scratch.sums[r],
            scratch.factors[r]);
    }
    const int64_t begin = std::max<int64_t>(tile_begin - b * bs, 0);
    const int64_t end = std::min(tile_end - b * bs, bs);
    if ((b + 1) * bs < tile_end)
      fetch(key_cache + (table[b + 1] * shape.num_kv_heads + kv_head) * block_values,
            block_values);
    if (widen)
      add_rows(scratch, shape, widened(v, end * dim, scratch.values), begin, end, num_rows);
    else
      add_rows(scratch, shape, v, begin, end, num_rows);
  }
  for (int64_t r = 0; r < num_rows; ++r) {
    T* to = out + r / group * out_stride + (kv_head * group + r % group) * dim;
    const float scale = 1.0f / scratch.sums[r];
    for (int64_t d = 0; d < dim; d += kLanes)
      store(to + d, load(scratch.partials.data() + r * dim + d) * scale);
  }
}

}  // namespace sluice
