// Products of up to 32 bfloat16 rows by the processor's matrix tiles (AMX), over the panels of
// `linear.h`: a piece of 32 inputs of a panel is a tile as it lies.
//
// Tiles are state of the thread, and oneDNN assumes that its last configuration still holds: it is
// put back at the end.
#pragma once

#include "vectors.h"

#if defined(__AMX_BF16__) && defined(__linux__)
#define SLUICE_TILES 1
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace sluice {

constexpr int64_t kTileRows = 16;
constexpr int64_t kTileInputs = 32;

#ifdef SLUICE_TILES

struct alignas(64) TileConfig {
  uint8_t palette = 0, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Linux grants a process the tiles' large state when it asks.
inline bool has_tiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
}

class Tiles {
 public:
  // Sums in tiles 0 to 3 (rows [0, 16) with panels 0 and 1, then the other rows), rows in 4 and 5,
  // weights in 6 and 7.
  explicit Tiles(int64_t num_rows) {
    _tile_storeconfig(&before_);
    TileConfig config;
    config.palette = 1;
    const auto low = static_cast<uint8_t>(std::min(num_rows, kTileRows));
    const auto high = static_cast<uint8_t>(std::max<int64_t>(num_rows - kTileRows, 1));
    const uint8_t rows[8] = {low, low, high, high, low, high, 16, 16};
    for (int i = 0; i < 8; ++i) {
      config.rows[i] = rows[i];
      config.row_bytes[i] = 64;
    }
    _tile_loadconfig(&config);
  }
  ~Tiles() {
    if (before_.palette)
      _tile_loadconfig(&before_);
    else
      _tile_release();
  }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

 private:
  TileConfig before_;
};

// sums[r][c * 16 + i] of two panels for up to 32 rows, the second sixteen where `Both`.
template <bool Both>
void multiply_tiles(const BFloat16* x, int64_t num_inputs, const BFloat16* panels,
                    const BFloat16* ahead, float* sums) {
  const int64_t row_bytes = num_inputs * 2, panel_size = num_inputs * kLanes;
  const BFloat16* other_rows = x + kTileRows * num_inputs;
  _tile_zero(0);
  _tile_zero(1);
  if (Both) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t k = 0; k < num_inputs; k += kTileInputs) {
    const BFloat16* weights = panels + k * kLanes;
    // Two tiles' worth of the next panels, in four portions: a burst of requests would stall.
    const auto fetch = [&](int64_t portion) {
      if (!ahead) return;
#pragma GCC unroll 8
      for (int64_t line = 0; line < 8; ++line)
        __builtin_prefetch(ahead + (k * 2 + portion * 16 + line * 2) * kLanes, 0, 2);
    };
    _tile_loadd(4, x + k, row_bytes);
    _tile_loadd(6, weights, 64);
    fetch(0);
    _tile_dpbf16ps(0, 4, 6);
    fetch(1);
    _tile_loadd(7, weights + panel_size, 64);
    _tile_dpbf16ps(1, 4, 7);
    fetch(2);
    if (Both) {
      _tile_loadd(5, other_rows + k, row_bytes);
      _tile_dpbf16ps(2, 5, 6);
    }
    fetch(3);
    if (Both) _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, sums, 128);
  _tile_stored(1, sums + kLanes, 128);
  if (Both) {
    _tile_stored(2, sums + kTileRows * 2 * kLanes, 128);
    _tile_stored(3, sums + kTileRows * 2 * kLanes + kLanes, 128);
  }
}

#else

inline bool has_tiles() { return false; }

#endif

}  // namespace sluice
