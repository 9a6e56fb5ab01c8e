#include "gpu/faults/ffi_error.h"

#include <string>

#include "common/fault_code.h"

namespace moeprof::gpu {

xla::ffi::Error ToError(GpuOp op, const Failure& failure) {
  const bool is_named = failure.text.rfind("moeprof_", 0) == 0;
  return xla::ffi::Error(ErrorCodeOf(failure.fault),
                         is_named ? failure.text : std::string(NameOf(op)) + ": " + failure.text);
}

}  // namespace moeprof::gpu
