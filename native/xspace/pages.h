// Question: whose are the pages of a file that was read through? The system's again.
#pragma once

#include <cstddef>
#include <cstdint>

#include "xspace/wire.h"

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace moeprof::xspace {

// Lets go of the pages that lie within a stretch of a mapped file. What is looked at again comes
// out of the system's cache; until then the pages do not count as this process's memory.
// Never for memory that is no map of a file: its contents would be lost.
inline void GiveBack([[maybe_unused]] const uint8_t* data, [[maybe_unused]] Span span) {
#if defined(__linux__)
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data + span.begin) + page - 1) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(data + span.end) / page * page;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
#endif
}

}  // namespace moeprof::xspace
