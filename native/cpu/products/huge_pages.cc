#include "cpu/products/huge_pages.h"

#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace moeprof {

void PreferHugePages(void* data, size_t size_bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr uintptr_t kPage = uintptr_t{1} << 21;
  const auto address = reinterpret_cast<uintptr_t>(data);
  const uintptr_t begin = (address + kPage - 1) & ~(kPage - 1);
  const uintptr_t end = (address + size_bytes) & ~(kPage - 1);
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
  (void)data;
  (void)size_bytes;
#endif
}

}  // namespace moeprof
