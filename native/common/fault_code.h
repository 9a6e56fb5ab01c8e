// Question: which of XLA's error codes does a fault have?
#pragma once

#include "common/failure.h"
#include "xla/ffi/api/ffi.h"

namespace moeprof {

inline xla::ffi::ErrorCode ErrorCodeOf(Fault fault) {
  switch (fault) {
    case Fault::kInvalidArgument:
      return xla::ffi::ErrorCode::kInvalidArgument;
    case Fault::kDeadlineExceeded:
      return xla::ffi::ErrorCode::kDeadlineExceeded;
    case Fault::kAborted:
      return xla::ffi::ErrorCode::kAborted;
    case Fault::kResourceExhausted:
      return xla::ffi::ErrorCode::kResourceExhausted;
    case Fault::kInternal:
      return xla::ffi::ErrorCode::kInternal;
  }
  return xla::ffi::ErrorCode::kInternal;
}

}  // namespace moeprof
