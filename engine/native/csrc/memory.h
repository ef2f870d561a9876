// Memory that is read from end to end at each step: in huge pages, where the system has them, which
// saves a tenth of the time that such a read takes.
#pragma once

#include <ATen/Functions.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace sluice {

constexpr int64_t kHugePage = int64_t{2} << 20;

// Ask for huge pages where [from, from + size) covers whole ones; no more than a hint.
inline void use_huge_pages(void* from, int64_t size) {
#ifdef MADV_HUGEPAGE
  const auto begin = reinterpret_cast<uintptr_t>(from);
  const auto first = (begin + kHugePage - 1) / kHugePage * kHugePage;
  const auto end = (begin + size) / kHugePage * kHugePage;
  if (first < end) madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
#endif
}

// Make an empty tensor beside those made before, in pieces of memory that live as long as a tensor
// in them does: the weights of a model are smaller than huge pages.
inline at::Tensor empty_beside(at::IntArrayRef sizes, const at::TensorOptions& options) {
  constexpr int64_t piece_size = 16 * kHugePage;
  static std::mutex mutex;
  static std::weak_ptr<char> current;
  static int64_t used = 0;
  int64_t size = static_cast<int64_t>(options.dtype().itemsize());
  for (const int64_t n : sizes) size *= n;
  size = (size + 63) / 64 * 64;
  const auto allocate = [](int64_t bytes) {
    bytes = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    char* memory = static_cast<char*>(std::aligned_alloc(kHugePage, bytes));
    if (!memory) throw std::bad_alloc();
    use_huge_pages(memory, bytes);
    return std::shared_ptr<char>(memory, [](char* p) { std::free(p); });
  };
  const std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<char> piece = current.lock();
  int64_t offset = 0;
  if (size > piece_size / 2) {
    piece = allocate(size);
  } else {
    if (!piece || used + size > piece_size) {
      current = piece = allocate(piece_size);
      used = 0;
    }
    offset = used;
    used += size;
  }
  return at::from_blob(piece.get() + offset, sizes, [piece](void*) {}, options);
}

}  // namespace sluice
