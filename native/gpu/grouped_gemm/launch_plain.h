// Question: how is a grouped product put on a stream that goes to plain multiply-adds?
#pragma once

#include <cstdint>
#include <string>

#include "gpu/grouped_gemm/launch.h"

namespace moeprof::gpu {

// As LaunchGroupedGemm and LaunchVariableKGemm of an output that is not empty, on `blocks`
// multiprocessors. Both return a complaint, or "".
std::string LaunchPlainForward(gpuStream_t stream, const GpuGroupedGemm& op, void* scratch,
                               const LengthsReport& report, int32_t blocks);
std::string LaunchPlainVariableK(gpuStream_t stream, const GpuVariableKGemm& op, void* scratch,
                                 const LengthsReport& report, int32_t blocks);

}  // namespace moeprof::gpu
