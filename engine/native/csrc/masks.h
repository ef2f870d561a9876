// Hide the tokens of a row that may not be drawn. `engine.sampling.constraints` has the twin.
#pragma once

#include <algorithm>
#include <cstdint>

#include "draw.h"

namespace sluice {

// `words`: a bit a token, from the lowest of the first word; 0: it is hidden.
inline void mask_row(float* logits, int64_t size, const uint32_t* words) {
  for (int64_t begin = 0; begin < size; begin += 32) {
    const uint32_t word = words[begin / 32];
    if (word == ~uint32_t{0}) continue;
    const int64_t count = std::min<int64_t>(32, size - begin);
    for (int64_t bit = 0; bit < count; ++bit)
      logits[begin + bit] = (word >> bit & 1) ? logits[begin + bit] : -kInfinity;
  }
}

}  // namespace sluice
