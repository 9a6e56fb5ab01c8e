// Question: what does XLA get to see where a handler throws?
//
// XLA calls handlers from code that knows no exceptions: one that escaped would end the process.
#pragma once

#include <exception>
#include <new>
#include <string>

#include "xla/ffi/api/ffi.h"

namespace moeprof {

// The FFI error for the exception now being handled; call it inside a catch block.
inline xla::ffi::Error CaughtError(const char* op) {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return xla::ffi::Error(xla::ffi::ErrorCode::kResourceExhausted,
                           std::string(op) + ": out of memory");
  } catch (const std::exception& error) {
    return xla::ffi::Error::Internal(std::string(op) + ": " + error.what());
  } catch (...) {
    return xla::ffi::Error::Internal(std::string(op) + ": unknown exception");
  }
}

// What `body` returns, or the error for what it throws.
template <typename Body>
xla::ffi::Error Guarded(const char* op, const Body& body) {
  try {
    return body();
  } catch (...) {
    return CaughtError(op);
  }
}

}  // namespace moeprof
