// Products of a few rows with a weight, at the speed at which the weight can be read.
//
// The weight lies in panels of sixteen outputs: for each input in turn, its weights to the sixteen.
// bfloat16 inputs come in pairs, as the processor's dot product of pairs wants them. So a few
// panels are read from memory once, front to back, and again from the cache for each further group
// of rows, while the next panels are fetched. `engine.probe.layouts` finds out up to how many rows
// that beats oneDNN. Sums are in float32.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

#include "tiles.h"
#include "vectors.h"

namespace sluice {

#ifdef __AVX512BF16__
constexpr bool kHasPairs = true;
#else
constexpr bool kHasPairs = false;
#endif

// How many inputs one step of a panel takes.
template <typename T>
constexpr int64_t kInputs = std::is_same_v<T, float> ? 1 : 2;

// One step's inputs of a row, in every lane.
inline Floats spread(const float* x) { return broadcast(*x); }

inline Floats spread(const BFloat16* x) {
  int32_t pair;
  std::memcpy(&pair, x, sizeof(pair));
  return (Floats)(Ints{} + pair);
}

template <typename T>
Floats multiply_add(Floats inputs, Floats weights, Floats sums) {
#ifdef __AVX512BF16__
  if constexpr (std::is_same_v<T, BFloat16>)
    return (Floats)_mm512_dpbf16_ps((__m512)sums, (__m512bh)(__m512)inputs,
                                    (__m512bh)(__m512)weights);
#endif
  return sums + inputs * weights;
}

// What to add to a product before it is rounded; both may be null.
template <typename T>
struct Addend {
  const T* bias;
  const T* residual;  // [num_rows, num_outputs]
};

// So many sums stay in registers, with the weights that they need: of thirty-two, or of sixteen
// that are half as wide.
#ifdef __AVX512F__
constexpr int kRows = 8, kPanels = 3;
#else
constexpr int kRows = 6, kPanels = 1;
#endif

// Rows beyond these take turns, so that their inputs stay in the second-level cache.
constexpr int64_t kRowBlock = 128;

// R rows from `row` on times C panels from `output` on. Meanwhile F lines a step come from `ahead`
// into the second-level cache: the next panels.
template <int R, int C, int F, typename T, typename Out>
void multiply_rows(const T* x, const T* panels, int64_t num_inputs, int64_t num_outputs,
                   int64_t row, int64_t output, const T* ahead, Addend<T> addend, Out* out) {
  constexpr int64_t step = kInputs<T> * kLanes;
  const int64_t panel_size = num_inputs * kLanes;
  x += row * num_inputs;
  panels += output * num_inputs;
  Floats sums[R][C] = {};
  for (int64_t k = 0; k < num_inputs / kInputs<T>; ++k) {
    Floats weights[C];
#pragma GCC unroll 8
    for (int f = 0; f < F; ++f) __builtin_prefetch(ahead + (k * F + f) * step, 0, 2);
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) std::memcpy(&weights[c], panels + c * panel_size + k * step, 64);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Floats inputs = spread(x + r * num_inputs + k * kInputs<T>);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) sums[r][c] = multiply_add<T>(inputs, weights[c], sums[r][c]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      const int64_t column = output + c * kLanes, at = (row + r) * num_outputs + column;
      Floats value = sums[r][c];
      if (addend.bias) value += load(addend.bias + column);
      if (addend.residual) value += load(addend.residual + at);
      store(out + at, value);
    }
}

// The same for as many rows as are asked for, up to R.
template <int R, int C, int F, typename T, typename Out>
void multiply_up_to(int64_t num_rows, const T* x, const T* panels, int64_t num_inputs,
                    int64_t num_outputs, int64_t row, int64_t output, const T* ahead,
                    Addend<T> addend, Out* out) {
  if constexpr (R > 1)
    if (num_rows < R)
      return multiply_up_to<R - 1, C, F>(num_rows, x, panels, num_inputs, num_outputs, row, output,
                                         ahead, addend, out);
  multiply_rows<R, C, F>(x, panels, num_inputs, num_outputs, row, output, ahead, addend, out);
}

// Rows [row, row_end) times C panels from `output` on, in groups of equal size. The first groups
// share the fetching of the next panels, so that reading memory and computing overlap.
template <int C, typename T, typename Out>
void multiply_groups(const T* x, const T* panels, int64_t num_inputs, int64_t num_outputs,
                     int64_t row, int64_t row_end, int64_t output, Addend<T> addend, Out* out) {
  const int64_t num_groups = (row_end - row + kRows - 1) / kRows;
  const T* ahead = panels + (output + C * kLanes) * num_inputs;
  for (int64_t g = 0; g < num_groups; ++g) {
    const int64_t rest = num_groups - g, num_rows = (row_end - row + rest - 1) / rest;
    if (num_groups < C)
      multiply_up_to<kRows, C, C>(num_rows, x, panels, num_inputs, num_outputs, row, output, ahead,
                                  addend, out);
    else
      multiply_up_to<kRows, C, 1>(num_rows, x, panels, num_inputs, num_outputs, row, output,
                                  ahead + g % C * kLanes * num_inputs, addend, out);
    row += num_rows;
  }
}

#ifdef SLUICE_TILES
inline bool fits_tiles(int64_t num_inputs, int64_t num_outputs) {
  return has_tiles() && num_inputs % kTileInputs == 0 && num_outputs % (2 * kLanes) == 0;
}

// As `multiply`, for shapes that fit tiles.
template <typename Out>
void multiply_by_tiles(const BFloat16* x, const BFloat16* panels, int64_t num_rows,
                       int64_t num_inputs, int64_t num_outputs, int64_t begin, int64_t end,
                       Addend<BFloat16> addend, Out* out) {
  constexpr int64_t most = 2 * kTileRows;
  const Tiles configured(std::min(num_rows, most));
  alignas(64) float sums[most * 2 * kLanes];
  const auto multiply_pair = [&](int64_t n, int64_t next, const BFloat16* ahead) {
    const BFloat16* pair = panels + n * num_inputs;
    // Of more rows than tiles hold, the last ones are computed twice rather than by fewer.
    const int64_t row = std::min(next, std::max<int64_t>(num_rows - most, 0));
    const int64_t row_end = std::min(row + most, num_rows);
    if (row_end - row > kTileRows)
      multiply_tiles<true>(x + row * num_inputs, num_inputs, pair, ahead, sums);
    else
      multiply_tiles<false>(x + row * num_inputs, num_inputs, pair, ahead, sums);
    for (int64_t r = row; r < row_end; ++r)
      for (int64_t c = 0; c < 2 * kLanes; c += kLanes) {
        const int64_t at = r * num_outputs + n + c;
        Floats value = load(sums + (r - row) * 2 * kLanes + c);
        if (addend.bias) value += load(addend.bias + n + c);
        if (addend.residual) value += load(addend.residual + at);
        store(out + at, value);
      }
  };
  for (int64_t block = 0; block < num_rows; block += kRowBlock)
    for (int64_t n = begin; n < end; n += 2 * kLanes) {
      const BFloat16* ahead = panels + (n + 2 * kLanes) * num_inputs;
      const int64_t block_end = std::min(block + kRowBlock, num_rows);
      for (int64_t next = block; next < block_end; next += most)
        multiply_pair(n, next, next == block ? ahead : nullptr);
    }
}
#endif

// Multiply all rows with the panels of outputs [begin, end), multiples of kLanes.
template <typename T, typename Out>
void multiply(const T* x, const T* panels, int64_t num_rows, int64_t num_inputs,
              int64_t num_outputs, int64_t begin, int64_t end, Addend<T> addend, Out* out) {
#ifdef SLUICE_TILES
  if constexpr (std::is_same_v<T, BFloat16>)
    if (num_rows > 1 && fits_tiles(num_inputs, num_outputs))
      return multiply_by_tiles(x, panels, num_rows, num_inputs, num_outputs, begin, end, addend,
                               out);
#endif
  for (int64_t row = 0; row < num_rows; row += kRowBlock) {
    const int64_t row_end = std::min(row + kRowBlock, num_rows);
    int64_t n = begin;
    for (; n + kPanels * kLanes <= end; n += kPanels * kLanes)
      multiply_groups<kPanels>(x, panels, num_inputs, num_outputs, row, row_end, n, addend, out);
    for (; n < end; n += kLanes)
      multiply_groups<1>(x, panels, num_inputs, num_outputs, row, row_end, n, addend, out);
  }
}

// Lay a weight [num_inputs, num_outputs] out in panels.
template <typename T>
void fill_panels(const T* weight, int64_t num_inputs, int64_t num_outputs, int64_t begin,
                 int64_t end, T* panels) {
  constexpr int64_t step = kInputs<T>;
  for (int64_t n = begin; n < end; n += kLanes)
    for (int64_t k = 0; k < num_inputs; ++k)
      for (int64_t i = 0; i < kLanes; ++i)
        panels[n * num_inputs + k / step * step * kLanes + i * step + k % step] =
            weight[k * num_outputs + n + i];
}

}  // namespace sluice
