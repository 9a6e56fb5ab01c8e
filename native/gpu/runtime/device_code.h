// Question: which instructions do portable kernels use that NVIDIA and AMD name differently?
//
// For device code alone. The two files beside this one give each of them for one maker:
//
//   MOEPROF_GRID_CONSTANT    a kernel's argument that is read where it lies
//   kLanes                   of a group: threads 32 g to 32 g + 31 of a block
//   Shuffle(value, lane)     `value` of that lane of the group
//   ShuffleUp(value, step)   `value` of the lane `step` below; the own where there is none
//   Ballot(is)               bit l: `is` of lane l of the group
//   Any(is)                  whether `is` of any lane of the group
//   LoadWord, StoreWord      16 bytes that are read once, near or over the link
//   LoadAcquireSystem, StoreReleaseSystem, FenceSystem
//                            order across GPUs and the host
//   CountUpTo(count, last)   adds one, and goes from `last` to 0; returns the count before
//   ReleaseBeforeBarrier()   what this thread wrote is part of what another thread of its block
//                            releases after __syncthreads
//   LetNextKernelStart()     a kernel launched to start early may take up its place
//   GlobalNanoseconds()      of a clock that all threads of the device share
//   StopKernel()             ends the kernel with an error
//
// All lanes of a group call Shuffle, ShuffleUp, Ballot and Any together. On a wavefront of 64 lanes
// two groups may be at different places meanwhile: neither sees the other.
#pragma once

#include "gpu/runtime/gpu_runtime.h"

#if defined(MOEPROF_HIP)
#include "gpu/runtime/device_code_hip.h"
#else
#include "gpu/runtime/device_code_cuda.h"
#endif
