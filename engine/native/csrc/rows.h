// What happens to one row of activations between two matrix products. Sums are in float32.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "vectors.h"

namespace sluice {

// Scale a row to unit root mean square, then by `weight`; `x` and `out` may be the same.
template <typename T>
void rms_norm_row(const T* x, const T* weight, int64_t size, float eps, T* out) {
  const int64_t vector_end = size - size % kLanes;
  Floats squares{};
  for (int64_t i = 0; i < vector_end; i += kLanes) {
    const Floats values = load(x + i);
    squares += values * values;
  }
  float total = sum(squares);
  for (int64_t i = vector_end; i < size; ++i) total += to_float(x[i]) * to_float(x[i]);
  const float scale = 1.0f / std::sqrt(total / static_cast<float>(size) + eps);
  for (int64_t i = 0; i < vector_end; i += kLanes)
    store(out + i, load(x + i) * scale * load(weight + i));
  for (int64_t i = vector_end; i < size; ++i)
    put(out + i, to_float(x[i]) * scale * to_float(weight[i]));
}

// Gate `up` by SiLU of `gate`: gate / (1 + e^-gate) * up.
template <typename T>
void silu_mul_row(const T* gate, const T* up, int64_t size, T* out) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const Floats g = load(gate + i);
    store(out + i, g / (1.0f + exponential(-g)) * load(up + i));
  }
  for (; i < size; ++i) {
    const float g = to_float(gate[i]);
    put(out + i, g / (1.0f + std::exp(-g)) * to_float(up[i]));
  }
}

// Turn one head by its position, in place. `cos` and `sin` are rows of the table of
// `engine.models.rotary`: both halves alike, the first half of `sin` negated.
template <typename T>
void rotate_head(T* head, const T* cos, const T* sin, int64_t dim) {
  const int64_t half = dim / 2;
  T* low = head;
  T* high = head + half;
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const Floats a = load(low + i), b = load(high + i);
    const Floats c = load(cos + i), s = load(sin + half + i);
    store(low + i, a * c - b * s);
    store(high + i, b * c + a * s);
  }
  for (; i < half; ++i) {
    const float a = to_float(low[i]), b = to_float(high[i]);
    const float c = to_float(cos[i]), s = to_float(sin[half + i]);
    put(low + i, a * c - b * s);
    put(high + i, b * c + a * s);
  }
}

// Tell whether no value is infinite or NaN.
inline bool is_finite(const float* values, int64_t size) {
  Floats differences{};
  int64_t i = 0;
  // A difference is zero, unless the value is infinite or NaN.
  for (; i + kLanes <= size; i += kLanes) differences += load(values + i) - load(values + i);
  float rest = sum(differences);
  for (; i < size; ++i) rest += values[i] - values[i];
  return rest == 0.0f;
}

// Find the first of the largest values; -1 where one of them is not finite.
inline int64_t find_largest(const float* values, int64_t size) {
  constexpr int64_t unrolled = 4;
  Floats maxima[unrolled], differences[unrolled] = {};
  std::fill(maxima, maxima + unrolled, broadcast(values[0]));
  int64_t i = 0;
  for (; i + unrolled * kLanes <= size; i += unrolled * kLanes)
#pragma GCC unroll 4
    for (int64_t u = 0; u < unrolled; ++u) {
      const Floats x = load(values + i + u * kLanes);
      maxima[u] = x > maxima[u] ? x : maxima[u];
      // Zero, unless one is infinite or NaN.
      differences[u] += x - x;
    }
  Floats difference = (differences[0] + differences[1]) + (differences[2] + differences[3]);
  float maximum = largest(larger(larger(maxima[0], maxima[1]), larger(maxima[2], maxima[3])));
  float rest = sum(difference);
  for (; i < size; ++i) {
    maximum = std::max(maximum, values[i]);
    rest += values[i] - values[i];
  }
  if (rest != 0.0f) return -1;
  const Floats wanted = broadcast(maximum);
  for (i = 0; i + kLanes <= size; i += kLanes) {
    const Ints equal = load(values + i) == wanted;
    int64_t words[kLanes / 2], any = 0;
    std::memcpy(words, &equal, sizeof(words));
    for (const int64_t word : words) any |= word;
    if (any) break;
  }
  while (values[i] != maximum) ++i;
  return i;
}

}  // namespace sluice
