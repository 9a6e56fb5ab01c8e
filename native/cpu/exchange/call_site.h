// Question: which custom call of which compiled program is this?
//
// XLA calls a handler's instantiate stage once for every custom call instruction of a program, for
// all devices together, and hands the state made there to every execution. Its number tells calls
// apart that have the same target and attributes: a jitted function called twice, say.
#pragma once

#include <cstdint>

#include "xla/ffi/api/ffi.h"

namespace moeprof {

struct CallSite {
  static xla::ffi::TypeId id;
  int64_t number;
};

// XLA must know the state's type before it sees a handler that uses it. The interface to tell it
// comes with the first call that XLA makes to any handler.
XLA_FFI_Error* RegisterCallSiteType(const XLA_FFI_Api* api);

}  // namespace moeprof

// Exports an FFI handler whose binding may ask for xla::ffi::State<moeprof::CallSite>.
#define MOEPROF_DEFINE_CALL_SITE_HANDLER(symbol, impl, binding)                         \
  extern "C" __attribute__((visibility("default"))) XLA_FFI_Error* symbol(              \
      XLA_FFI_CallFrame* frame) {                                                       \
    if (XLA_FFI_Error* error = moeprof::RegisterCallSiteType(frame->api)) return error; \
    static auto* const handler = (binding).To(impl).release();                          \
    return handler->Call(frame);                                                        \
  }                                                                                     \
  static_assert(true, "")
