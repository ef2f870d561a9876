// Sixteen floats at a time, in GCC's and Clang's vector extension: the compiler lowers it to what
// the machine has (one AVX-512 register, two of AVX2, four of NEON), so nothing here is written
// for one instruction set. bfloat16 is widened when loaded and rounded to nearest even when stored.
//
// Loops that keep many sums do so in `Native`, a register: GCC keeps what is wider in memory.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace sluice {

constexpr int64_t kLanes = 16;

typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint16_t HalfWords __attribute__((vector_size(32)));
typedef float Eights __attribute__((vector_size(32)));
typedef float Fours __attribute__((vector_size(16)));

// A register, and how many sums stay in registers with what is added to them.
#if defined(__AVX512F__)
typedef Floats Native;
constexpr int kSums = 16;
#elif defined(__AVX__)
typedef Eights Native;
constexpr int kSums = 8;
#else
typedef Fours Native;
constexpr int kSums = 16;
#endif
typedef decltype(Native{} < Native{}) NativeInts;
constexpr int64_t kNative = sizeof(Native) / sizeof(float);

struct BFloat16 {
  uint16_t bits;
};

inline Floats broadcast(float x) { return x - Floats{}; }

inline Floats load(const float* from) {
  Floats values;
  std::memcpy(&values, from, sizeof(values));
  return values;
}

// GCC makes four instructions of what AVX-512 does in one.
inline Words widened(HalfWords halves) {
#ifdef __AVX512F__
  return (Words)_mm512_cvtepu16_epi32((__m256i)halves);
#else
  return __builtin_convertvector(halves, Words);
#endif
}

inline HalfWords narrowed(Words words) {
#ifdef __AVX512F__
  return (HalfWords)_mm512_cvtepi32_epi16((__m512i)words);
#else
  return __builtin_convertvector(words, HalfWords);
#endif
}

inline Floats load(const BFloat16* from) {
  HalfWords halves;
  std::memcpy(&halves, from, sizeof(halves));
  return (Floats)(widened(halves) << 16);
}

inline Native load_native(const float* from) {
  Native values;
  std::memcpy(&values, from, sizeof(values));
  return values;
}

inline Native load_native(const BFloat16* from) {
#ifdef __AVX512F__
  return load(from);
#else
  typedef uint16_t Halves __attribute__((vector_size(sizeof(Native) / 2)));
  typedef uint32_t Wholes __attribute__((vector_size(sizeof(Native))));
  Halves halves;
  std::memcpy(&halves, from, sizeof(halves));
  return (Native)(__builtin_convertvector(halves, Wholes) << 16);
#endif
}

inline void store_native(float* to, Native values) { std::memcpy(to, &values, sizeof(values)); }

inline void store(float* to, Floats values) { std::memcpy(to, &values, sizeof(values)); }

inline void store(BFloat16* to, Floats values) {
#ifdef __AVX512BF16__
  const __m256bh halves = _mm512_cvtneps_pbh((__m512)values);
  std::memcpy(to, &halves, sizeof(halves));
#else
  const Words bits = (Words)values;
  Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  // Rounding could carry a NaN over into an infinity.
  rounded = values != values ? Words{} + 0x7fc0u : rounded;
  const HalfWords halves = narrowed(rounded);
  std::memcpy(to, &halves, sizeof(halves));
#endif
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

// Combine the lanes by halves: a loop over them would wait for each step.
template <typename Combine>
float combined(Fours fours, Combine combine) {
  const Fours swapped = {fours[2], fours[3], fours[0], fours[1]};
  const Fours pairs = combine(fours, swapped);
  const Fours crossed = {pairs[1], pairs[0], pairs[1], pairs[0]};
  return combine(pairs, crossed)[0];
}

template <typename Combine>
float combined(Eights eights, Combine combine) {
  Fours halves[2];
  std::memcpy(halves, &eights, sizeof(eights));
  return combined(combine(halves[0], halves[1]), combine);
}

template <typename Combine>
float combined(Floats values, Combine combine) {
  Eights halves[2];
  std::memcpy(halves, &values, sizeof(values));
  return combined(combine(halves[0], halves[1]), combine);
}

template <typename Values>
float sum(Values values) {
  return combined(values, [](auto a, auto b) { return a + b; });
}

// A NaN in either comes through, as it must be reported.
template <typename Values>
Values larger(Values a, Values b) {
  return (a > b) | (a != a) ? a : b;
}

template <typename Values>
float largest(Values values) {
  return combined(values, [](auto a, auto b) { return larger(a, b); });
}

// e^x to 2 units in the last place for -87 <= x <= 88, clamped outside; NaN stays NaN.
// Cephes' polynomial on the remainder of x / log(2), whose integer part becomes the exponent.
template <typename Values>
Values exponential(Values x) {
  typedef decltype(x < x) Integers;
  const auto broadcast = [](float value) { return value - Values{}; };
  x = x < broadcast(-87.0f) ? broadcast(-87.0f) : x;
  x = x > broadcast(88.0f) ? broadcast(88.0f) : x;
  const Values magic = broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Values shifted = x * 1.44269504088896341f + magic;
  const Values n = shifted - magic;
  const Values r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  Values p = broadcast(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const Integers exponent = ((Integers)shifted - (Integers)magic + 127) << 23;
  return p * (Values)exponent;
}

}  // namespace sluice
