// Question: how is a TMA tensor map made on the host?
#pragma once

#include <cuda.h>

#include <cstdint>
#include <string>

#include "gpu/runtime/element_type.h"

namespace moeprof::gpu {

// A row-major tensor [planes, rows, cols] of 16-bit values that is copied in boxes of 64 rows by
// 64 columns, swizzled by 128 bytes. planes = 0: a matrix, without the outermost axis. What a box
// holds past the edges reads as zero and is not written.
struct MapShape {
  const void* data;            // aligned to 16 bytes
  int64_t planes, rows, cols;  // cols is a multiple of 8; all within 2^32
};

// Writes the map; returns a complaint, or "".
std::string EncodeMap(ElementType type, const MapShape& shape, CUtensorMap* map);

}  // namespace moeprof::gpu
