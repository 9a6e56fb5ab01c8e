#include "cpu/exchange/call_site.h"

#include <atomic>
#include <memory>
#include <mutex>

namespace moeprof {

xla::ffi::TypeId CallSite::id = {};

namespace {

xla::ffi::ErrorOr<std::unique_ptr<CallSite>> MakeCallSite(xla::ffi::Dictionary) {
  static std::atomic<int64_t> next_number{0};
  return std::make_unique<CallSite>(CallSite{next_number++});
}

XLA_FFI_Error* Register(const XLA_FFI_Api* api) {
#ifdef XLA_FFI_DECLARE_TYPE_INFO_SYMBOL
  static const XLA_FFI_TypeInfo info = xla::ffi::MakeTypeInfo<CallSite>();
  return xla::ffi::Ffi::RegisterTypeId(api, "moeprof_call_site", &CallSite::id, &info);
#else
  return xla::ffi::Ffi::RegisterTypeId(api, "moeprof_call_site", &CallSite::id);
#endif
}

}  // namespace

XLA_FFI_Error* RegisterCallSiteType(const XLA_FFI_Api* api) {
  // jaxlib 0.7 first asks for metadata without an interface; it calls again before any use.
  if (api == nullptr) return nullptr;
  // A second thread must not pass before the first has registered; after a failure the next tries.
  static std::mutex mutex;
  static bool is_registered = false;
  std::lock_guard<std::mutex> lock(mutex);
  if (is_registered) return nullptr;
  XLA_FFI_Error* const error = Register(api);
  is_registered = error == nullptr;
  return error;
}

}  // namespace moeprof

MOEPROF_DEFINE_CALL_SITE_HANDLER(MoeprofCallSite, moeprof::MakeCallSite,
                                 xla::ffi::Ffi::BindInstantiate().Attrs());
