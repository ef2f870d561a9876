// The operators of `engine.native`, registered with torch; `tests/engine/native/test_ops.py` holds
// each against its twin in torch. Tensors are contiguous, on the CPU, float32 or bfloat16; the
// Python side sees to that, here it is asserted.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <limits>
#include <optional>
#include <tuple>
#include <vector>

#include "attention.h"
#include "draw.h"
#include "masks.h"
#include "linear.h"
#include "memory.h"
#include "rows.h"

namespace {

using at::Tensor;
using sluice::AttentionShape;
using sluice::BFloat16;

template <typename T>
T* data(const Tensor& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}

// Call `body` with a value of the tensor's element type.
template <typename Body>
void by_type(const Tensor& tensor, Body body) {
  if (tensor.scalar_type() == at::kFloat)
    body(float{});
  else if (tensor.scalar_type() == at::kBFloat16)
    body(BFloat16{});
  else
    TORCH_CHECK(false, "float32 or bfloat16, not ", tensor.scalar_type());
}

// So many rows that a thread has a few microseconds of work.
int64_t grain(int64_t row_size) { return std::max<int64_t>(1, 16384 / row_size); }

void rms_norm_out(const Tensor& x, const Tensor& weight, double eps, Tensor& out) {
  const int64_t size = x.size(-1);
  by_type(x, [&](auto type) {
    using T = decltype(type);
    const T *from = data<T>(x), *scale = data<T>(weight);
    T* to = data<T>(out);
    at::parallel_for(0, x.numel() / size, grain(size), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        sluice::rms_norm_row(from + r * size, scale, size, static_cast<float>(eps), to + r * size);
    });
  });
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  TORCH_CHECK(x.is_contiguous() && weight.is_contiguous() && weight.numel() == x.size(-1));
  Tensor out = at::empty_like(x);
  rms_norm_out(x, weight, eps, out);
  return out;
}

void silu_mul_out(const Tensor& gate_up, Tensor& out) {
  const int64_t size = gate_up.size(1) / 2;
  by_type(gate_up, [&](auto type) {
    using T = decltype(type);
    const T* from = data<T>(gate_up);
    T* to = data<T>(out);
    at::parallel_for(0, gate_up.size(0), grain(size), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* gate = from + r * 2 * size;
        sluice::silu_mul_row(gate, gate + size, size, to + r * size);
      }
    });
  });
}

Tensor silu_mul(const Tensor& gate_up) {
  TORCH_CHECK(gate_up.is_contiguous() && gate_up.dim() == 2);
  Tensor out = at::empty({gate_up.size(0), gate_up.size(1) / 2}, gate_up.options());
  silu_mul_out(gate_up, out);
  return out;
}

// The first of each row's largest values, and whether all of the row are finite; where one is not,
// the index means nothing.
std::tuple<Tensor, Tensor> find_largest(const Tensor& logits) {
  TORCH_CHECK(logits.is_contiguous() && logits.dim() == 2 && logits.scalar_type() == at::kFloat);
  const int64_t num_rows = logits.size(0), size = logits.size(1);
  Tensor indices = at::empty({num_rows}, logits.options().dtype(at::kLong));
  Tensor finite = at::empty({num_rows}, logits.options().dtype(at::kBool));
  at::parallel_for(0, num_rows, grain(size), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t index = sluice::find_largest(data<float>(logits) + r * size, size);
      data<bool>(finite)[r] = index >= 0;
      data<int64_t>(indices)[r] = std::max<int64_t>(index, 0);
    }
  });
  return {indices, finite};
}

// What rows are drawn by, checked.
class Draws {
 public:
  Draws(const Tensor& logits, const Tensor& temperature, const Tensor& low, const Tensor& high,
        const Tensor& top_k, const Tensor& top_p, const Tensor& min_p)
      : temperature_(temperature), low_(low), high_(high), top_k_(top_k), top_p_(top_p),
        min_p_(min_p) {
    TORCH_CHECK(logits.is_contiguous() && logits.dim() == 2 && logits.scalar_type() == at::kFloat);
    for (const Tensor& column : {temperature, low, high, top_k, top_p, min_p})
      TORCH_CHECK(column.is_contiguous() && column.numel() == logits.size(0));
    for (const Tensor& column : {temperature, top_p, min_p})
      TORCH_CHECK(column.scalar_type() == at::kFloat);
    TORCH_CHECK(top_k.scalar_type() == at::kLong && low.scalar_type() == at::kInt &&
                high.scalar_type() == at::kInt);
  }

  sluice::Draw row(int64_t r) const {
    return {data<float>(temperature_)[r], data<uint32_t>(low_)[r], data<uint32_t>(high_)[r],
            data<int64_t>(top_k_)[r],     data<float>(top_p_)[r],  data<float>(min_p_)[r]};
  }

 private:
  const Tensor &temperature_, &low_, &high_, &top_k_, &top_p_, &min_p_;
};

// Draw a token of each row by `draw_row`, which gives -1 where none could be drawn.
template <typename DrawRow>
std::tuple<Tensor, Tensor> draw_each(const Tensor& logits, DrawRow draw_row) {
  const int64_t num_rows = logits.size(0);
  Tensor ids = at::empty({num_rows}, logits.options().dtype(at::kLong));
  Tensor is_drawn = at::empty({num_rows}, logits.options().dtype(at::kBool));
  at::parallel_for(0, num_rows, grain(logits.size(1)), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t token = draw_row(r);
      data<bool>(is_drawn)[r] = token >= 0;
      data<int64_t>(ids)[r] = std::max<int64_t>(token, 0);
    }
  });
  return {ids, is_drawn};
}

// One token a row, drawn as `engine.sampling.sampler` says, and whether it could be; where it could
// not, the token means nothing. `low` and `high`: int32, the words of (seed, position). A logit of
// minus infinity is a failure too unless they are `edited`.
std::tuple<Tensor, Tensor> draw(const Tensor& logits, const Tensor& temperature, const Tensor& low,
                                const Tensor& high, const Tensor& top_k, const Tensor& top_p,
                                const Tensor& min_p, bool edited) {
  const Draws by(logits, temperature, low, high, top_k, top_p, min_p);
  const int64_t size = logits.size(1);
  return draw_each(logits, [&](int64_t r) -> int64_t {
    const float* row = data<float>(logits) + r * size;
    const bool is_whole = edited || sluice::is_finite(row, size);
    return is_whole ? sluice::draw_row(row, size, by.row(r)) : -1;
  });
}

// Find the mask of each row, of 32 tokens a word; null where it has none.
std::vector<const uint32_t*> masks_of(const Tensor& logits, const Tensor& rows,
                                      const Tensor& words) {
  const int64_t num_rows = logits.size(0), width = words.size(1);
  TORCH_CHECK(words.is_contiguous() && words.dim() == 2 && words.scalar_type() == at::kInt);
  TORCH_CHECK(rows.is_contiguous() && rows.numel() == words.size(0) &&
              rows.scalar_type() == at::kLong);
  TORCH_CHECK(width == (logits.size(1) + 31) / 32, "a bit a token");
  std::vector<const uint32_t*> masks(num_rows, nullptr);
  for (int64_t i = 0; i < rows.numel(); ++i) {
    const int64_t row = data<int64_t>(rows)[i];
    TORCH_CHECK(0 <= row && row < num_rows);
    masks[row] = data<uint32_t>(words) + i * width;
  }
  return masks;
}

// Draw what the masks of `rows` leave, as `mask_logits` and then `draw` would, in one call: a logit
// that is not finite before is a failure of its row, and what is forbidden is hidden in `logits`.
std::tuple<Tensor, Tensor> draw_masked(const Tensor& logits, const Tensor& temperature,
                                       const Tensor& low, const Tensor& high, const Tensor& top_k,
                                       const Tensor& top_p, const Tensor& min_p,
                                       const Tensor& rows, const Tensor& words) {
  const Draws by(logits, temperature, low, high, top_k, top_p, min_p);
  const std::vector<const uint32_t*> masks = masks_of(logits, rows, words);
  const int64_t size = logits.size(1);
  return draw_each(logits, [&](int64_t r) -> int64_t {
    float* row = data<float>(logits) + r * size;
    if (!sluice::is_finite(row, size)) return -1;
    if (masks[r] != nullptr) sluice::mask_row(row, size, masks[r]);
    return sluice::draw_row(row, size, by.row(r));
  });
}

// Hide from `rows` the tokens that their masks, of 32 tokens a word, do not allow.
void mask_logits(const Tensor& logits, const Tensor& rows, const Tensor& words) {
  TORCH_CHECK(logits.is_contiguous() && logits.dim() == 2 && logits.scalar_type() == at::kFloat);
  const std::vector<const uint32_t*> masks = masks_of(logits, rows, words);
  const int64_t size = logits.size(1);
  at::parallel_for(0, logits.size(0), grain(size), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      if (masks[r] != nullptr) sluice::mask_row(data<float>(logits) + r * size, size, masks[r]);
  });
}

// One token a row and its `width` likeliest ones, measured as `engine.sampling.logprobs` says.
std::tuple<Tensor, Tensor, Tensor, Tensor> score(const Tensor& logits, const Tensor& token_ids,
                                                 int64_t width) {
  TORCH_CHECK(logits.is_contiguous() && logits.dim() == 2 && logits.scalar_type() == at::kFloat);
  const int64_t num_rows = logits.size(0), size = logits.size(1);
  TORCH_CHECK(token_ids.numel() == num_rows && token_ids.scalar_type() == at::kLong);
  width = std::min(width, size);
  Tensor logprobs = at::empty({num_rows}, logits.options());
  Tensor ranks = at::empty({num_rows}, logits.options().dtype(at::kLong));
  Tensor top_ids = at::empty({num_rows, width}, logits.options().dtype(at::kLong));
  Tensor top_logprobs = at::empty({num_rows, width}, logits.options());
  at::parallel_for(0, num_rows, grain(size), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t token = data<int64_t>(token_ids)[r];
      TORCH_CHECK(0 <= token && token < size, "token ids are of the vocabulary");
      const sluice::Score found = sluice::score_row(
          data<float>(logits) + r * size, size, token, width, data<int64_t>(top_ids) + r * width,
          data<float>(top_logprobs) + r * width);
      data<float>(logprobs)[r] = found.logprob;
      data<int64_t>(ranks)[r] = found.rank;
    }
  });
  return {logprobs, ranks, top_ids, top_logprobs};
}

// One step's ragged batch; all of int32, as `engine.models.attention.AttentionBatch`.
struct Batch {
  Batch(const Tensor& query_lens, const Tensor& context_lens, const Tensor& block_tables)
      : num_seqs(query_lens.numel()),
        table_width(block_tables.size(1)),
        query_len(data<int32_t>(query_lens)),
        context_len(data<int32_t>(context_lens)),
        tables(data<int32_t>(block_tables)) {
    TORCH_CHECK(query_lens.scalar_type() == at::kInt && context_lens.scalar_type() == at::kInt &&
                block_tables.scalar_type() == at::kInt && block_tables.is_contiguous());
  }

  const int32_t* table(int64_t seq) const { return tables + seq * table_width; }

  int64_t num_seqs, table_width;
  const int32_t *query_len, *context_len, *tables;
};

// Where the batch's tokens lie in the cache, and how their attention is cut into tiles.
struct Schedule {
  struct Tile {
    int64_t seq, token, num_tokens, position;
  };

  Schedule(const Batch& batch, int64_t block_size, int64_t tile_tokens) {
    int64_t token = 0;
    for (int64_t s = 0; s < batch.num_seqs; ++s) {
      const int64_t start = batch.context_len[s] - batch.query_len[s];
      for (int64_t i = 0; i < batch.query_len[s]; i += tile_tokens)
        tiles.push_back({s, token + i, std::min<int64_t>(tile_tokens, batch.query_len[s] - i),
                         start + i});
      for (int64_t p = start; p < batch.context_len[s]; ++p) {
        blocks.push_back(batch.table(s)[p / block_size]);
        offsets.push_back(p % block_size);
        positions.push_back(p);
      }
      token += batch.query_len[s];
    }
  }

  std::vector<Tile> tiles;
  std::vector<int64_t> blocks, offsets, positions;
};

template <typename T>
void write_head(const AttentionShape& shape, const T* k, const T* v, int64_t block, int64_t offset,
                int64_t kv_head, T* key_cache, T* value_cache) {
  const int64_t dim = shape.head_dim, bs = shape.block_size;
  const int64_t base = (block * shape.num_kv_heads + kv_head) * dim * bs;
  constexpr int64_t step = sluice::kPacked<T>;
  for (int64_t d = 0; d < dim; d += step)
    std::memcpy(key_cache + base + d * bs + offset * step, k + d, step * sizeof(T));
  std::memcpy(value_cache + base + offset * dim, v, dim * sizeof(T));
}

// A key's values go to as many lines; have them brought near while the key is computed.
template <typename T>
void fetch_for_write(const AttentionShape& shape, int64_t block, int64_t offset, int64_t kv_head,
                     const T* key_cache) {
  const int64_t dim = shape.head_dim, bs = shape.block_size;
  const T* head = key_cache + (block * shape.num_kv_heads + kv_head) * dim * bs;
  constexpr int64_t step = sluice::kPacked<T>;
  for (int64_t d = 0; d < dim; d += step)
    __builtin_prefetch(head + d * bs + offset * step, 1, 3);
}

// Norm and turn the query and key heads of merged projections in place, and store keys and values.
void rotate_and_write(const AttentionShape& shape, const Schedule& schedule, Tensor& qkv,
                      const Tensor& qk_norm, double eps, const Tensor& cos, const Tensor& sin,
                      const Tensor& key_cache, const Tensor& value_cache) {
  const int64_t dim = shape.head_dim, heads = shape.num_heads, kv_heads = shape.num_kv_heads;
  // Rows behind the last token only fill a product up.
  const int64_t num_tokens = schedule.positions.size(), stride = qkv.size(1);
  by_type(qkv, [&](auto type) {
    using T = decltype(type);
    T* rows = data<T>(qkv);
    const T* weights = qk_norm.numel() ? data<T>(qk_norm) : nullptr;
    T *keys = data<T>(key_cache), *values = data<T>(value_cache);
    at::parallel_for(0, num_tokens, grain(stride), [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        const T* c = data<T>(cos) + schedule.positions[n] * dim;
        const T* s = data<T>(sin) + schedule.positions[n] * dim;
        for (int64_t h = 0; h < heads + kv_heads; ++h) {
          T* head = rows + n * stride + h * dim;
          if (h < kv_heads)
            fetch_for_write(shape, schedule.blocks[n], schedule.offsets[n], h, keys);
          if (weights)
            sluice::rms_norm_row(head, weights + h * dim, dim, static_cast<float>(eps), head);
          sluice::rotate_head(head, c, s, dim);
        }
        const T* k = rows + n * stride + heads * dim;
        for (int64_t h = 0; h < kv_heads; ++h)
          write_head(shape, k + h * dim, k + (kv_heads + h) * dim, schedule.blocks[n],
                     schedule.offsets[n], h, keys, values);
      }
    });
  });
}

// `queries` may be rows of merged projections: only the first num_heads heads of a row are read.
void attend(const AttentionShape& shape, const Batch& batch, const Schedule& schedule,
            const Tensor& queries, const Tensor& key_cache, const Tensor& value_cache,
            Tensor& out) {
  const int64_t kv_heads = shape.num_kv_heads, query_stride = queries.stride(0);
  const int64_t num_tasks = static_cast<int64_t>(schedule.tiles.size()) * kv_heads;
  by_type(queries, [&](auto type) {
    using T = decltype(type);
    const T *q = data<T>(queries), *k = data<T>(key_cache), *v = data<T>(value_cache);
    T* to = data<T>(out);
    at::parallel_for(0, num_tasks, 1, [&](int64_t begin, int64_t end) {
      static thread_local sluice::Scratch scratch;
      const auto task_at = [&](int64_t i) {
        const Schedule::Tile& tile = schedule.tiles[i / kv_heads];
        return sluice::Task{i % kv_heads, tile.num_tokens, tile.position, batch.table(tile.seq)};
      };
      for (int64_t i = begin; i < end; ++i) {
        const sluice::Task task = task_at(i), next = task_at(std::min(i + 1, end - 1));
        const int64_t token = schedule.tiles[i / kv_heads].token;
        sluice::attend_tile(shape, task, sluice::keys_of(shape, k, next, next.first_block(shape)),
                            q + token * query_stride, query_stride, k, v,
                            to + token * out.size(1), out.size(1), scratch);
      }
    });
  });
}

AttentionShape shape_of(const Tensor& key_cache, int64_t num_heads, int64_t window) {
  const int64_t dim = key_cache.size(2), block_size = key_cache.size(3);
  TORCH_CHECK(key_cache.is_contiguous() && dim % sluice::kLanes == 0 &&
              block_size % sluice::kLanes == 0);
  return {num_heads, key_cache.size(1), dim,
          block_size, window,           1.0f / std::sqrt(static_cast<float>(dim))};
}

void write_kv(const Tensor& k, const Tensor& v, const Tensor& key_cache, const Tensor& value_cache,
              const Tensor& query_lens, const Tensor& context_lens, const Tensor& block_tables) {
  const AttentionShape shape = shape_of(key_cache, key_cache.size(1), 0);
  const Batch batch(query_lens, context_lens, block_tables);
  const Schedule schedule(batch, shape.block_size, 1);
  const Tensor keys = k.contiguous(), values = v.contiguous();
  const int64_t kv_heads = shape.num_kv_heads, dim = shape.head_dim;
  by_type(keys, [&](auto type) {
    using T = decltype(type);
    for (int64_t n = 0; n < keys.size(0); ++n)
      for (int64_t h = 0; h < kv_heads; ++h) {
        const int64_t at = (n * kv_heads + h) * dim;
        write_head(shape, data<T>(keys) + at, data<T>(values) + at, schedule.blocks[n],
                   schedule.offsets[n], h, data<T>(key_cache), data<T>(value_cache));
      }
  });
}

// `rotate_and_write` on its own: `qkv` [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim].
void rotate_and_write_batch(const Tensor& qkv, const Tensor& qk_norm, double eps, const Tensor& cos,
                            const Tensor& sin, const Tensor& key_cache, const Tensor& value_cache,
                            const Tensor& query_lens, const Tensor& context_lens,
                            const Tensor& block_tables) {
  const int64_t kv_heads = key_cache.size(1);
  const int64_t num_heads = qkv.size(1) / key_cache.size(2) - 2 * kv_heads;
  const AttentionShape shape = shape_of(key_cache, num_heads, 0);
  const Batch batch(query_lens, context_lens, block_tables);
  const Schedule schedule(batch, shape.block_size, 1);
  TORCH_CHECK(qkv.is_contiguous() && num_heads > 0);
  Tensor rows = qkv;
  rotate_and_write(shape, schedule, rows, qk_norm, eps, cos, sin, key_cache, value_cache);
}

Tensor paged_attention(const Tensor& q, const Tensor& key_cache, const Tensor& value_cache,
                       const Tensor& query_lens, const Tensor& context_lens,
                       const Tensor& block_tables, int64_t window) {
  const AttentionShape shape = shape_of(key_cache, q.size(1), window);
  const Batch batch(query_lens, context_lens, block_tables);
  const Schedule schedule(batch, shape.block_size, shape.tile_tokens());
  const Tensor queries = q.contiguous();
  Tensor out = at::empty({q.size(0), q.size(1) * q.size(2)}, q.options());
  attend(shape, batch, schedule, queries, key_cache, value_cache, out);
  return out;
}

// Tell whether `few_rows_linear` can compute with such a weight, [in_features, out_features].
bool has_few_rows(const Tensor& weight) {
  const bool is_float = weight.scalar_type() == at::kFloat;
  return (is_float || (weight.scalar_type() == at::kBFloat16 && sluice::kHasPairs)) &&
         weight.size(0) % 2 == 0 && weight.size(1) % sluice::kLanes == 0;
}

template <typename Body>
void by_few_rows_type(const Tensor& tensor, Body body) {
  if (tensor.scalar_type() == at::kFloat) return body(float{});
  if constexpr (sluice::kHasPairs) return body(BFloat16{});
  TORCH_CHECK(false, "has_few_rows says where this is possible");
}

Tensor few_rows_weight(const Tensor& weight) {
  TORCH_CHECK(has_few_rows(weight));
  const Tensor plain = weight.contiguous();
  Tensor panels = sluice::empty_beside(plain.sizes(), plain.options());
  by_few_rows_type(plain, [&](auto type) {
    using T = decltype(type);
    sluice::fill_panels(data<T>(plain), plain.size(0), plain.size(1), 0, plain.size(1),
                        data<T>(panels));
  });
  return panels;
}

// `out`, which is not the residual, is of the inputs' type or of float32.
void few_rows_linear_out(const Tensor& x, const Tensor& panels, const std::optional<Tensor>& bias,
                         const std::optional<Tensor>& residual, Tensor& out) {
  const int64_t num_rows = x.size(0), num_inputs = x.size(1), num_outputs = panels.size(1);
  TORCH_CHECK(x.is_contiguous() && num_inputs == panels.size(0) && out.is_contiguous());
  by_few_rows_type(x, [&](auto type) {
    using T = decltype(type);
    const sluice::Addend<T> addend{bias ? data<T>(*bias) : nullptr,
                                   residual ? data<T>(*residual) : nullptr};
    const auto multiply = [&](auto* to) {
      const int64_t unit = 6 * sluice::kLanes;
      at::parallel_for(0, (num_outputs + unit - 1) / unit, 4, [&](int64_t begin, int64_t end) {
        sluice::multiply(data<T>(x), data<T>(panels), num_rows, num_inputs, num_outputs,
                         begin * unit, std::min(end * unit, num_outputs), addend, to);
      });
    };
    if (out.scalar_type() == x.scalar_type())
      multiply(data<T>(out));
    else
      multiply(data<float>(out));
  });
}

Tensor few_rows_linear(const Tensor& x, const Tensor& panels, const std::optional<Tensor>& bias,
                       const std::optional<Tensor>& residual) {
  Tensor out = at::empty({x.size(0), panels.size(1)}, x.options());
  few_rows_linear_out(x, panels, bias, residual, out);
  return out;
}

// `engine.models.linear.Linear`: which of the layouts are there, and which one serves how many
// rows, is decided there.
class Linear {
 public:
  // `layouts`: plain, packed, few rows, bias; empty where absent.
  Linear(const Tensor* layouts, int64_t max_few_rows)
      : plain_(layouts[0]),
        packed_(layouts[1]),
        few_rows_(layouts[2]),
        max_few_rows_(max_few_rows) {
    TORCH_CHECK(max_few_rows == 0 || few_rows_.numel());
    if (layouts[3].numel()) bias_ = layouts[3];
  }

  int64_t num_outputs() const {
    if (few_rows_.numel()) return few_rows_.size(1);
    return plain_.numel() ? plain_.size(1) : packed_.size(0);
  }

  // Up to so many rows, results go to the memory that is given.
  int64_t max_few_rows() const { return max_few_rows_; }

  // Fill `out`, of the inputs' type or float32, or replace it by memory that oneDNN has taken.
  void apply(const Tensor& x, Tensor& out) const {
    if (takes_few_rows(x)) return few_rows_linear_out(x, few_rows_, bias_, std::nullopt, out);
    Tensor product =
        takes_packed(x)
            ? packed().call(x, packed_, bias_, "none", c10::List<std::optional<at::Scalar>>(), "")
        : bias_ ? at::addmm(*bias_, x, plain_)
                : at::mm(x, plain_);
    if (out.scalar_type() == product.scalar_type())
      out = std::move(product);
    else
      out.copy_(product);
  }

  // The same, with `residual` added, which is not `out`.
  void add_to(const Tensor& residual, const Tensor& x, Tensor& out) const {
    if (takes_few_rows(x)) return few_rows_linear_out(x, few_rows_, bias_, residual, out);
    if (takes_packed(x)) {
      out = packed_binary().call(x, residual, packed_, bias_, "add");
      return;
    }
    out = at::addmm(residual, x, plain_);
    if (bias_) out.add_(*bias_);
  }

 private:
  using Packed = Tensor(const Tensor&, const Tensor&, const std::optional<Tensor>&,
                        std::string_view, c10::List<std::optional<at::Scalar>>,
                        std::optional<std::string_view>);
  using PackedBinary = Tensor(const Tensor&, const Tensor&, const Tensor&,
                              const std::optional<Tensor>&, std::string_view);

  static const c10::TypedOperatorHandle<Packed>& packed() {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("mkldnn::_linear_pointwise", "")
                               .typed<Packed>();
    return op;
  }

  static const c10::TypedOperatorHandle<PackedBinary>& packed_binary() {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("mkldnn::_linear_pointwise", "binary")
                               .typed<PackedBinary>();
    return op;
  }

  // No rows at all come where nothing is sampled, and whatever the layouts.
  bool takes_few_rows(const Tensor& x) const {
    return max_few_rows_ > 0 && x.size(0) <= max_few_rows_;
  }

  bool takes_packed(const Tensor& x) const {
    return packed_.is_mkldnn() && (x.size(0) > 1 || !plain_.numel());
  }

  Tensor plain_, packed_, few_rows_;
  int64_t max_few_rows_;
  std::optional<Tensor> bias_;
};

struct Layer {
  int64_t window;
  Tensor input_norm;
  Linear qkv;
  Tensor qk_norm;
  Linear out;
  Tensor mlp_norm;
  Linear gate_up, down;
};

// Memory for rows of activations that steps reuse: to take and give back some megabytes a step
// costs more than to fill them.
class Rows {
 public:
  Tensor take(int64_t num_rows, int64_t width, const at::TensorOptions& options) {
    if (rows_.defined() && rows_.size(0) == num_rows) return rows_;
    if (!memory_.defined() || memory_.numel() < num_rows * width)
      memory_ = at::empty({num_rows * width}, options);
    rows_ = memory_.narrow(0, 0, num_rows * width).view({num_rows, width});
    return rows_;
  }

  // Rows that leave the decoder: nobody else's memory, and only a decode step's worth is kept.
  Tensor lend(int64_t num_rows, int64_t width, const at::TensorOptions& options) {
    constexpr int64_t most = int64_t{16} << 20;
    if (num_rows * width > most) return at::empty({num_rows, width}, options);
    const bool is_held = memory_.defined() && memory_.storage().use_count() > 1;
    if (is_held || !memory_.defined() || memory_.numel() < num_rows * width)
      memory_ = at::empty({num_rows * width}, options);
    return memory_.narrow(0, 0, num_rows * width).view({num_rows, width});
  }

 private:
  Tensor memory_, rows_;
};

// `engine.models.decoder.Decoder.forward` in one call: no Python between two operators.
//
// What a layer does to each row by itself is done for a piece of rows at a time where panels serve
// all products: a piece's activations are then still near when the next operator reads them.
class Decoder : public torch::CustomClassHolder {
 public:
  // `layers` holds `kPerLayer` tensors a layer, in the order that the loop reads them; a bias or
  // norm that a model has not is empty. `head` is the layouts and bias of the last product.
  // `max_few_rows` is that of each product, in the same order, the head's last.
  Decoder(int64_t num_heads, double eps, Tensor embedding, std::vector<Tensor> layers,
          std::vector<int64_t> windows, Tensor norm, std::vector<Tensor> head, Tensor cos,
          Tensor sin, std::vector<int64_t> max_few_rows)
      : num_heads_(num_heads),
        eps_(eps),
        embedding_(std::move(embedding)),
        norm_(std::move(norm)),
        head_(head.data(), max_few_rows.back()),
        cos_(std::move(cos)),
        sin_(std::move(sin)) {
    TORCH_CHECK(layers.size() == windows.size() * kPerLayer && head.size() == 4 &&
                max_few_rows.size() == windows.size() * 4 + 1);
    for (size_t i = 0; i < windows.size(); ++i) {
      const Tensor* t = &layers[i * kPerLayer];
      const int64_t* rows = &max_few_rows[i * 4];
      layers_.push_back({windows[i], t[0], Linear(t + 1, rows[0]), t[5], Linear(t + 6, rows[1]),
                         t[10], Linear(t + 11, rows[2]), Linear(t + 15, rows[3])});
    }
    least_few_rows_ = find_least_few_rows();
    piece_rows_ = choose_piece_rows();
  }

  // `key_cache` and `value_cache` are those of all layers. Returns logits in float32. One thread at
  // a time may call it.
  Tensor forward(const Tensor& token_ids, const std::optional<Tensor>& logit_rows,
                 const Tensor& key_cache, const Tensor& value_cache, const Tensor& query_lens,
                 const Tensor& context_lens, const Tensor& block_tables) {
    // A method of a class is no operator to torch's profiler unless it says so.
    RECORD_FUNCTION("sluice::decoder", c10::ArrayRef<const c10::IValue>{});
    const Batch batch(query_lens, context_lens, block_tables);
    AttentionShape shape = shape_of(key_cache.select(0, 0), num_heads_, 0);
    const Schedule schedule(batch, shape.block_size, shape.tile_tokens());
    const at::TensorOptions& options = embedding_.options();
    const int64_t num_tokens = token_ids.size(0), num_rows = pad(num_tokens);
    const int64_t piece = std::min(piece_rows_, num_rows);
    Tensor x = embed(token_ids, num_rows);
    Tensor attended = attended_.take(num_rows, num_heads_ * shape.head_dim, options);
    if (num_rows > num_tokens) attended.narrow(0, num_tokens, num_rows - num_tokens).zero_();
    for (size_t i = 0; i < layers_.size(); ++i) {
      const Layer& layer = layers_[i];
      const Tensor keys = key_cache.select(0, i), values = value_cache.select(0, i);
      shape.window = layer.window;
      Tensor qkv = qkv_.take(num_rows, layer.qkv.num_outputs(), options);
      for (int64_t row = 0; row < num_rows; row += piece)
        project(layer, part(x, row, piece), qkv, row);
      rotate_and_write(shape, schedule, qkv, layer.qk_norm, eps_, cos_, sin_, keys, values);
      attend(shape, batch, schedule, qkv, keys, values, attended);
      for (int64_t row = 0; row < num_rows; row += piece)
        finish(layer, part(attended, row, piece), x, row);
    }
    x = logit_rows ? x.index_select(0, *logit_rows) : part(x, 0, num_tokens);
    Tensor logits = logits_.lend(x.size(0), embedding_.size(0), options.dtype(at::kFloat));
    head_.apply(rms_norm(x, norm_, eps_), logits);
    return logits;
  }

 private:
  static constexpr size_t kPerLayer = 19;

  static Tensor part(const Tensor& rows, int64_t row, int64_t num_rows) {
    if (num_rows >= rows.size(0)) return rows;
    return rows.narrow(0, row, std::min(num_rows, rows.size(0) - row));
  }

  // oneDNN compiles a kernel for each number of rows that it sees, 0.2 to 0.5 ms each, and keeps a
  // thousand: steps of all sizes would have them compiled for ever. So products that it serves have
  // one of about eighty numbers of rows, more than there are tokens by seven or a sixteenth at most.
  int64_t pad(int64_t num_tokens) const {
    if (num_tokens <= least_few_rows_ || piece_rows_ == sluice::kRowBlock) return num_tokens;
    int64_t unit = 8;
    while (32 * unit <= num_tokens) unit *= 2;
    return (num_tokens + unit - 1) / unit * unit;
  }

  // Look the tokens up; rows behind them are zeros.
  Tensor embed(const Tensor& token_ids, int64_t num_rows) const {
    const int64_t num_tokens = token_ids.size(0);
    if (num_rows == num_tokens) return embedding_.index_select(0, token_ids);
    Tensor x = at::empty({num_rows, embedding_.size(1)}, embedding_.options());
    Tensor tokens = x.narrow(0, 0, num_tokens);
    at::index_select_out(tokens, embedding_, 0, token_ids);
    x.narrow(0, num_tokens, num_rows - num_tokens).zero_();
    return x;
  }

  // Take over rows that a product has put into memory of its own; of a piece it never does.
  static void keep(const Tensor& product, Tensor& rows) {
    if (product.size(0) == rows.size(0)) rows = product;
  }

  // Norm rows `x` and multiply them with the merged projections, into `qkv` from `row` on.
  void project(const Layer& layer, const Tensor& x, Tensor& qkv, int64_t row) {
    Tensor normed = normed_.take(x.size(0), x.size(1), x.options());
    rms_norm_out(x, layer.input_norm, eps_, normed);
    Tensor product = part(qkv, row, x.size(0));
    layer.qkv.apply(normed, product);
    keep(product, qkv);
  }

  // Take rows of `x` from `row` on through the rest of a layer, all that follows its attention.
  void finish(const Layer& layer, const Tensor& attended, Tensor& x, int64_t row) {
    const int64_t num_rows = attended.size(0), hidden = x.size(1);
    const at::TensorOptions& options = x.options();
    Tensor to = part(x, row, num_rows), mixed = mixed_.take(num_rows, hidden, options);
    layer.out.add_to(to, attended, mixed);
    Tensor normed = normed_.take(num_rows, hidden, options);
    rms_norm_out(mixed, layer.mlp_norm, eps_, normed);
    const int64_t width = layer.gate_up.num_outputs();
    Tensor gate_up = gate_up_.take(num_rows, width, options);
    layer.gate_up.apply(normed, gate_up);
    Tensor gated = gated_.take(num_rows, width / 2, options);
    silu_mul_out(gate_up, gated);
    layer.down.add_to(mixed, gated, to);
    keep(to, x);
  }

  // Up to how many rows panels serve all products of the layers.
  int64_t find_least_few_rows() const {
    int64_t least = std::numeric_limits<int64_t>::max();
    for (const Layer& layer : layers_)
      for (const Linear* linear : {&layer.qkv, &layer.out, &layer.gate_up, &layer.down})
        least = std::min(least, linear->max_few_rows());
    return least;
  }

  // The products by panels are as fast for a piece; oneDNN's are faster for all rows at once.
  int64_t choose_piece_rows() const {
    const bool are_panels = least_few_rows_ >= sluice::kRowBlock;
    return are_panels ? sluice::kRowBlock : std::numeric_limits<int64_t>::max();
  }

  int64_t num_heads_;
  double eps_;
  Tensor embedding_;
  std::vector<Layer> layers_;
  Tensor norm_;
  Linear head_;
  Tensor cos_, sin_;
  int64_t least_few_rows_, piece_rows_;
  Rows attended_, qkv_, normed_, mixed_, gate_up_, gated_, logits_;
};

}  // namespace

TORCH_LIBRARY(sluice, m) {
  m.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor", &rms_norm);
  m.def("silu_mul(Tensor gate_up) -> Tensor", &silu_mul);
  m.def("find_largest(Tensor logits) -> (Tensor, Tensor)", &find_largest);
  m.def(
      "draw(Tensor logits, Tensor temperature, Tensor low, Tensor high, Tensor top_k, "
      "Tensor top_p, Tensor min_p, bool edited) -> (Tensor, Tensor)",
      &draw);
  m.def(
      "draw_masked(Tensor(a!) logits, Tensor temperature, Tensor low, Tensor high, Tensor top_k, "
      "Tensor top_p, Tensor min_p, Tensor rows, Tensor words) -> (Tensor, Tensor)",
      &draw_masked);
  m.def("mask_logits(Tensor(a!) logits, Tensor rows, Tensor words) -> ()", &mask_logits);
  m.def("score(Tensor logits, Tensor token_ids, int width) -> (Tensor, Tensor, Tensor, Tensor)",
        &score);
  m.def("has_few_rows(Tensor weight) -> bool", &has_few_rows);
  m.def("few_rows_weight(Tensor weight) -> Tensor", &few_rows_weight);
  m.def("few_rows_linear(Tensor x, Tensor panels, Tensor? bias, Tensor? residual) -> Tensor",
        &few_rows_linear);
  m.def("use_huge_pages(Tensor memory) -> ()", [](const Tensor& memory) {
    sluice::use_huge_pages(memory.data_ptr(), static_cast<int64_t>(memory.nbytes()));
  });
  m.def("write_kv", &write_kv);
  m.def(
      "rotate_and_write(Tensor(a!) qkv, Tensor qk_norm, float eps, Tensor cos, Tensor sin, "
      "Tensor(b!) key_cache, Tensor(c!) value_cache, Tensor query_lens, Tensor context_lens, "
      "Tensor block_tables) -> ()",
      &rotate_and_write_batch);
  m.def("paged_attention", &paged_attention);
  m.class_<Decoder>("Decoder")
      .def(torch::init<int64_t, double, Tensor, std::vector<Tensor>, std::vector<int64_t>, Tensor,
                       std::vector<Tensor>, Tensor, Tensor, std::vector<int64_t>>())
      .def("forward", &Decoder::forward);
}
