// Sixteen floats at a time, in GCC's and Clang's vector extension: the compiler lowers it to what
// the machine has (one AVX-512 register, two of AVX2, four of NEON), so nothing here is written
// for one instruction set. bfloat16 is widened when loaded and rounded to nearest even when stored.
#pragma once

#include <cstdint>
#include <cstring>

namespace sluice {

constexpr int64_t kLanes = 16;

typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint16_t HalfWords __attribute__((vector_size(32)));

struct BFloat16 {
  uint16_t bits;
};

inline Floats broadcast(float x) { return Floats{} + x; }

inline Floats load(const float* from) {
  Floats values;
  std::memcpy(&values, from, sizeof(values));
  return values;
}

inline Floats load(const BFloat16* from) {
  HalfWords halves;
  std::memcpy(&halves, from, sizeof(halves));
  return (Floats)(__builtin_convertvector(halves, Words) << 16);
}

inline void store(float* to, Floats values) { std::memcpy(to, &values, sizeof(values)); }

inline void store(BFloat16* to, Floats values) {
  const Words bits = (Words)values;
  Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  // Rounding could carry a NaN over into an infinity.
  rounded = values != values ? Words{} + 0x7fc0u : rounded;
  const HalfWords halves = __builtin_convertvector(rounded, HalfWords);
  std::memcpy(to, &halves, sizeof(halves));
}

inline float to_float(float x) { return x; }

inline float to_float(BFloat16 x) {
  const uint32_t bits = uint32_t{x.bits} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline void put(float* to, float x) { *to = x; }

inline void put(BFloat16* to, float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  to->bits = static_cast<uint16_t>(x != x ? 0x7fc0u : rounded);
}

inline float sum(Floats values) {
  float total = 0;
  for (int i = 0; i < kLanes; ++i) total += values[i];
  return total;
}

inline Floats larger(Floats a, Floats b) {
  // A NaN in either comes through, as it must be reported.
  return (a > b) | (a != a) ? a : b;
}

inline float largest(Floats values) {
  float result = values[0];
  for (int i = 1; i < kLanes; ++i)
    if (values[i] > result || values[i] != values[i]) result = values[i];
  return result;
}

// e^x to 2 units in the last place for -87 <= x <= 88, clamped outside; NaN stays NaN.
// Cephes' polynomial on the remainder of x / log(2), whose integer part becomes the exponent.
inline Floats exponential(Floats x) {
  x = x < broadcast(-87.0f) ? broadcast(-87.0f) : x;
  x = x > broadcast(88.0f) ? broadcast(88.0f) : x;
  const Floats magic = broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Floats shifted = x * 1.44269504088896341f + magic;
  const Floats n = shifted - magic;
  const Floats r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  Floats p = broadcast(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const Ints exponent = ((Ints)shifted - (Ints)magic + 127) << 23;
  return p * (Floats)exponent;
}

}  // namespace sluice
