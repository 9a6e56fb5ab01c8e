#include "gpu/grouped_gemm/tensor_map.h"

#include <cuda_runtime_api.h>

namespace moeprof::gpu {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// The driver's entry point, looked up once: the library does not link to the driver.
Encode FindEncode() {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry,
                                                             12000, cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) return nullptr;
  return reinterpret_cast<Encode>(entry);
}

}  // namespace

std::string EncodeMap(ElementType type, const MapShape& shape, CUtensorMap* map) {
  static const Encode encode = FindEncode();
  if (encode == nullptr) return "the CUDA driver has no cuTensorMapEncodeTiled; it needs 12.0";
  const cuuint32_t rank = shape.planes == 0 ? 2 : 3;
  const cuuint64_t row_bytes = static_cast<cuuint64_t>(shape.cols) * 2;
  const cuuint64_t dims[3] = {static_cast<cuuint64_t>(shape.cols),
                              static_cast<cuuint64_t>(shape.rows),
                              static_cast<cuuint64_t>(shape.planes)};
  const cuuint64_t strides[2] = {row_bytes, row_bytes * static_cast<cuuint64_t>(shape.rows)};
  const cuuint32_t box[3] = {64, 64, 1};
  const cuuint32_t steps[3] = {1, 1, 1};
  const CUresult result =
      encode(map,
             type == ElementType::kBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                            : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
             rank, const_cast<void*>(shape.data), dims, strides, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return "";
  return "cuTensorMapEncodeTiled returned " + std::to_string(static_cast<int>(result)) + " for " +
         std::to_string(shape.planes) + " x " + std::to_string(shape.rows) + " x " +
         std::to_string(shape.cols);
}

}  // namespace moeprof::gpu
