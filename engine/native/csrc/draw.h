// Draw one token of a row, and measure tokens, each in passes over the row's logits.
// `engine.sampling.sampler` says how tokens are drawn, and it and `engine.sampling.logprobs` are the
// twins.
//
// Most noise is never made. Of a token that cannot beat the best one so far only the hash is taken:
// its noise, -log(-log(1 - u)), is at most -log(u), and a float's bits, read as an integer, are a
// logarithm that is never too large. What is left, a dozen tokens of a vocabulary, is computed to
// the last bit of the C library's logarithms.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "rows.h"
#include "vectors.h"

namespace sluice {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Draw {
  float temperature;  // 0: the likeliest token
  uint32_t low, high;  // the two words of (seed, position)
  int64_t top_k;  // 0: of all
  float top_p, min_p;
};

template <typename Bits>
Bits mixed(Bits bits) {
  bits ^= bits >> 16;
  bits *= 0x7feb352du;
  bits ^= bits >> 15;
  bits *= 0x846ca68bu;
  bits ^= bits >> 16;
  return bits;
}

// Load what there is of a row from `at` on; behind its end nothing is ever drawn.
inline Floats load_padded(const float* values, int64_t at, int64_t size) {
  if (at + kLanes <= size) return load(values + at);
  Floats lanes = broadcast(0.0f) - kInfinity;
  for (int64_t i = at; i < size; ++i) lanes[i - at] = values[i];
  return lanes;
}

inline bool any_of(Ints lanes) {
  int64_t words[kLanes / 2], any = 0;
  std::memcpy(words, &lanes, sizeof(words));
  for (const int64_t word : words) any |= word;
  return any != 0;
}

// The largest of a row; NaN where a value is NaN or plus infinity, or none is finite.
inline float largest_of(const float* values, int64_t size) {
  Floats maxima = broadcast(0.0f) - kInfinity;
  Ints bad{};
  for (int64_t i = 0; i < size; i += kLanes) {
    const Floats x = load_padded(values, i, size);
    maxima = x > maxima ? x : maxima;
    bad |= ~(x < broadcast(kInfinity));
  }
  const float maximum = largest(maxima);
  return any_of(bad) || maximum == -kInfinity ? std::numeric_limits<float>::quiet_NaN() : maximum;
}

// The least and the largest of values, of which there are some and all are finite.
inline std::pair<float, float> range_of(const float* values, size_t size) {
  Floats lows = broadcast(values[0]), highs = lows;
  size_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const Floats x = load(values + i);
    lows = x < lows ? x : lows;
    highs = x > highs ? x : highs;
  }
  float low = -largest(-lows), high = largest(highs);
  for (; i < size; ++i) {
    low = std::min(low, values[i]);
    high = std::max(high, values[i]);
  }
  return {low, high};
}

// Logits relative to the largest and over the temperature, and e to the power of each.
struct Tempered {
  std::vector<float> logits, masses;

  void resize(size_t size) {
    logits.resize(size);
    masses.resize(size);
  }

  void copy_to(Tempered& other, size_t at, size_t from) const {
    other.logits[at] = logits[from];
    other.masses[at] = masses[from];
  }
};

// Gather those of a row that are above `cut`; returns the mass of all, the others too.
inline double gather(const float* logits, int64_t size, float maximum, float temperature,
                     float cut, Tempered& gathered) {
  gathered.resize(size + kLanes);
  size_t count = 0;
  double total = 0;
  for (int64_t i = 0; i < size; i += kLanes) {
    const Floats tempered = (load_padded(logits, i, size) - maximum) / broadcast(temperature);
    const Floats masses = exponential(tempered);
    total += sum(masses);
    const Ints above = tempered > broadcast(cut);
    if (!any_of(above)) continue;
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      gathered.logits[count] = tempered[lane];
      gathered.masses[count] = masses[lane];
      count -= above[lane];
    }
  }
  gathered.resize(count);
  return total;
}

// The least of the logits before which, in descending order, there is less mass than `wanted`: of
// all of them, that is. Puts them into buckets by their value, and goes on with the bucket that it
// must be in until few are left to be put in order: two passes, wherever the mass is.
inline float least_before(Tempered& in, double wanted) {
  constexpr int kBuckets = 1024;
  static thread_local std::vector<uint16_t> places;
  double before = 0;
  while (in.logits.size() > 64) {
    const size_t size = in.logits.size();
    const auto [low, high] = range_of(in.logits.data(), size);
    if (low == high) return low;
    const float scale = (kBuckets - 1) / (high - low);
    if (!(scale < kInfinity)) break;
    double masses[kBuckets] = {};
    places.resize(size);
    for (size_t i = 0; i < size; ++i)
      places[i] = static_cast<uint16_t>((in.logits[i] - low) * scale);
    for (size_t i = 0; i < size; ++i) masses[places[i]] += in.masses[i];
    // A bucket without mass may be empty, the topmost one too: the largest may round into the next.
    int place = kBuckets - 1;
    for (; place > 0 && (masses[place] == 0 || before + masses[place] < wanted); --place)
      before += masses[place];
    size_t num_left = 0;
    for (size_t i = 0; i < size; ++i) {
      in.copy_to(in, num_left, i);
      num_left += places[i] == place;
    }
    in.resize(num_left);
  }
  static thread_local std::vector<size_t> order;
  order.resize(in.logits.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t one, size_t other) { return in.logits[one] > in.logits[other]; });
  size_t last = order.front();
  for (size_t i = 0; i < order.size() && before < wanted; ++i) {
    last = order[i];
    before += in.masses[last];
  }
  return in.logits[last];
}

// What top-k, then top-p, then min-p keep of a row's tempered logits at least. Tokens that tie with
// the k-th are kept, and count towards the mass that top-p is of.
inline float threshold_of(const float* logits, int64_t size, float maximum, const Draw& by) {
  const float by_share = by.min_p > 0 ? std::log(by.min_p) : -kInfinity;
  const bool is_limited = 0 < by.top_k && by.top_k < size;
  if (!is_limited && by.top_p >= 1) return by_share;
  static thread_local Tempered kept;
  // Most of a vocabulary is far below: only where that is not so are all looked at.
  for (const float cut : {-16.0f, -kInfinity}) {
    double total = gather(logits, size, maximum, by.temperature, cut, kept);
    const double gathered = std::accumulate(kept.masses.begin(), kept.masses.end(), 0.0);
    const auto count = static_cast<int64_t>(kept.logits.size());
    const bool is_short = is_limited ? count < by.top_k : gathered < by.top_p * total;
    if (is_short && cut != -kInfinity) continue;
    float least = -kInfinity;
    if (is_limited && !is_short) {
      static thread_local Tempered counted;
      counted.logits = kept.logits;
      counted.masses.assign(kept.logits.size(), 1.0f);
      least = least_before(counted, by.top_k);
      size_t num_kept = 0;
      for (int64_t i = 0; i < count; ++i) {
        kept.copy_to(kept, num_kept, i);
        num_kept += kept.logits[i] >= least;
      }
      kept.resize(num_kept);
      total = std::accumulate(kept.masses.begin(), kept.masses.end(), 0.0);
    }
    if (by.top_p < 1) least = std::max(least, least_before(kept, by.top_p * total));
    return std::max(by_share, least);
  }
  return by_share;
}

inline float gumbel(float uniform) { return -std::log(-std::log1p(-uniform)); }

// The token that is drawn; -1 where a logit is NaN or plus infinity, or all are minus infinity.
inline int64_t draw_row(const float* logits, int64_t size, const Draw& by) {
  const float maximum = largest_of(logits, size);
  if (maximum != maximum) return -1;
  if (by.temperature == 0.0f) return std::find(logits, logits + size, maximum) - logits;
  const Floats temperature = broadcast(by.temperature);
  const Floats threshold = broadcast(threshold_of(logits, size, maximum, by));
  constexpr float ln2 = 0.69314718f;
  Ints ids;
  for (int64_t lane = 0; lane < kLanes; ++lane) ids[lane] = static_cast<int32_t>(lane);
  float best = -kInfinity;
  int64_t token = -1;
  for (int64_t i = 0; i < size; i += kLanes, ids += static_cast<int32_t>(kLanes)) {
    const Floats tempered = (load_padded(logits, i, size) - maximum) / temperature;
    const Words bits = mixed(mixed((Words)ids ^ by.low) + by.high) & 0x7fffffffu;
    Floats uniform = (__builtin_convertvector((Ints)bits, Floats) + 0.5f) * 0x1p-31f;
    uniform = uniform < broadcast(1 - 0x1p-24f) ? uniform : broadcast(1 - 0x1p-24f);
    const Floats log2 = __builtin_convertvector((Ints)uniform, Floats) * 0x1p-23f - 127.0f;
    // A little more, for what rounding takes of it.
    const Floats most = tempered - log2 * ln2 + 1e-3f;
    const Ints may_win = (most > broadcast(best)) & (tempered >= threshold);
    if (!any_of(may_win)) continue;
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      if (!may_win[lane] || most[lane] <= best) continue;
      const float score = tempered[lane] + gumbel(uniform[lane]);
      if (score > best) {
        best = score;
        token = i + lane;
      }
    }
  }
  return token;
}

// What is measured of a token: the logarithm of its share, and its rank from 1.
struct Score {
  float logprob;
  int64_t rank;
};

// Measure a row's token and its `width` likeliest ones, the likeliest first and of equal ones the
// first; `width` is at most `size`. A row with a NaN gives NaN.
inline Score score_row(const float* logits, int64_t size, int64_t token, int64_t width,
                       int64_t* top_ids, float* top_logprobs) {
  const float chosen = logits[token], maximum = *std::max_element(logits, logits + size);
  Floats total{};
  Ints above{};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const Floats x = load(logits + i);
    total += exponential(x - maximum);
    above -= x > broadcast(chosen);
  }
  float sum_all = sum(total);
  int64_t rank = 1;
  for (int64_t lane = 0; lane < kLanes; ++lane) rank += above[lane];
  for (; i < size; ++i) {
    sum_all += std::exp(logits[i] - maximum);
    rank += logits[i] > chosen;
  }
  const float norm = maximum + std::log(sum_all);
  std::fill(top_ids, top_ids + width, int64_t{0});
  std::fill(top_logprobs, top_logprobs + width, -kInfinity);
  int64_t num_found = 0;
  for (i = 0; width > 0 && i < size; i += kLanes) {
    const float least = num_found < width ? -kInfinity : top_logprobs[width - 1];
    const Floats x = load_padded(logits, i, size);
    if (num_found == width && !any_of(x > broadcast(least))) continue;
    for (int64_t j = i; j < std::min(i + kLanes, size); ++j) {
      if (num_found == width && !(logits[j] > top_logprobs[width - 1])) continue;
      int64_t place = num_found < width ? num_found++ : width - 1;
      for (; place > 0 && logits[j] > top_logprobs[place - 1]; --place) {
        top_logprobs[place] = top_logprobs[place - 1];
        top_ids[place] = top_ids[place - 1];
      }
      top_logprobs[place] = logits[j];
      top_ids[place] = j;
    }
  }
  for (int64_t place = 0; place < width; ++place) top_logprobs[place] -= norm;
  return {chosen - norm, rank};
}

}  // namespace sluice
