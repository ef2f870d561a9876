// Products of a few rows with a weight, at the speed at which the weight can be read.
//
// The weight lies in panels of sixteen outputs: for each input in turn, its weights to the sixteen.
// bfloat16 inputs come in pairs, as the processor's dot product of pairs wants them. So a panel is
// read once, front to back, and again from the cache for each further pair of rows. oneDNN reads a
// weight at two thirds of that speed, and wins from three rows on, unless the processor has
// matrix tiles. Sums are in float32.
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
  const T* residual;  // like the output
};

// R rows from `row` on times C panels from `output` on.
template <int R, int C, typename T>
void multiply_rows(const T* x, const T* panels, int64_t num_inputs, int64_t num_outputs,
                   int64_t row, int64_t output, Addend<T> addend, T* out) {
  constexpr int64_t step = kInputs<T> * kLanes;
  const int64_t panel_size = num_inputs * kLanes;
  x += row * num_inputs;
  panels += output * num_inputs;
  Floats sums[R][C] = {};
  for (int64_t k = 0; k < num_inputs / kInputs<T>; ++k) {
    Floats weights[C];
    for (int c = 0; c < C; ++c) std::memcpy(&weights[c], panels + c * panel_size + k * step, 64);
    for (int r = 0; r < R; ++r) {
      const Floats inputs = spread(x + r * num_inputs + k * kInputs<T>);
      for (int c = 0; c < C; ++c) sums[r][c] = multiply_add<T>(inputs, weights[c], sums[r][c]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) {
      const int64_t column = output + c * kLanes, at = (row + r) * num_outputs + column;
      Floats value = sums[r][c];
      if (addend.bias) value += load(addend.bias + column);
      if (addend.residual) value += load(addend.residual + at);
      store(out + at, value);
    }
}

// How many rows are served so that nothing else is faster.
template <typename T>
int64_t max_few_rows(int64_t num_inputs, int64_t num_outputs) {
  const bool tiles = std::is_same_v<T, BFloat16> && has_tiles();
  const bool fits = num_inputs % kTileInputs == 0 && num_outputs % (2 * kLanes) == 0;
  return tiles && fits ? 2 * kTileRows : 2;
}

#ifdef SLUICE_TILES
// As `multiply`, for up to 32 rows of shapes that fit tiles.
inline void multiply_by_tiles(const BFloat16* x, const BFloat16* panels, int64_t num_rows,
                              int64_t num_inputs, int64_t num_outputs, int64_t begin, int64_t end,
                              Addend<BFloat16> addend, BFloat16* out) {
  const Tiles configured(num_rows);
  alignas(64) float sums[2 * kTileRows * 2 * kLanes];
  for (int64_t n = begin; n < end; n += 2 * kLanes) {
    if (num_rows > kTileRows)
      multiply_tiles<true>(x, num_inputs, panels + n * num_inputs, sums);
    else
      multiply_tiles<false>(x, num_inputs, panels + n * num_inputs, sums);
    for (int64_t r = 0; r < num_rows; ++r)
      for (int64_t c = 0; c < 2 * kLanes; c += kLanes) {
        const int64_t at = r * num_outputs + n + c;
        Floats value = load(sums + r * 2 * kLanes + c);
        if (addend.bias) value += load(addend.bias + n + c);
        if (addend.residual) value += load(addend.residual + at);
        store(out + at, value);
      }
  }
}
#endif

// Multiply all rows with the panels of outputs [begin, end), multiples of kLanes.
template <typename T>
void multiply(const T* x, const T* panels, int64_t num_rows, int64_t num_inputs,
              int64_t num_outputs, int64_t begin, int64_t end, Addend<T> addend, T* out) {
  const auto columns = [&](auto num_panels, int64_t output) {
    constexpr int C = decltype(num_panels)::value;
    int64_t r = 0;
    for (; r + 2 <= num_rows; r += 2)
      multiply_rows<2, C>(x, panels, num_inputs, num_outputs, r, output, addend, out);
    for (; r < num_rows; ++r)
      multiply_rows<1, C>(x, panels, num_inputs, num_outputs, r, output, addend, out);
  };
#ifdef SLUICE_TILES
  if constexpr (std::is_same_v<T, BFloat16>)
    if (num_rows > 1 && max_few_rows<T>(num_inputs, num_outputs) > 2)
      return multiply_by_tiles(x, panels, num_rows, num_inputs, num_outputs, begin, end, addend,
                               out);
#endif
  int64_t n = begin;
  for (; n + 4 * kLanes <= end; n += 4 * kLanes) columns(std::integral_constant<int, 4>{}, n);
  for (; n < end; n += kLanes) columns(std::integral_constant<int, 1>{}, n);
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
