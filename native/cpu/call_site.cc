#include "cpu/call_site.h"

#include <atomic>
#include <memory>

namespace moeprof {

xla::ffi::TypeId CallSite::id = {};

namespace {

xla::ffi::ErrorOr<std::unique_ptr<CallSite>> MakeCallSite(xla::ffi::Dictionary) {
  static std::atomic<int64_t> next_number{0};
  return std::make_unique<CallSite>(CallSite{next_number++});
}

}  // namespace

XLA_FFI_Error* RegisterCallSiteType(const XLA_FFI_Api* api) {
  static std::atomic<bool> is_registered{false};
  // jaxlib 0.7 first asks for metadata without an interface; it calls again before any use.
  if (api == nullptr || is_registered.exchange(true)) return nullptr;
#ifdef XLA_FFI_DECLARE_TYPE_INFO_SYMBOL
  static const XLA_FFI_TypeInfo info = xla::ffi::MakeTypeInfo<CallSite>();
  return xla::ffi::Ffi::RegisterTypeId(api, "moeprof_call_site", &CallSite::id, &info);
#else
  return xla::ffi::Ffi::RegisterTypeId(api, "moeprof_call_site", &CallSite::id);
#endif
}

}  // namespace moeprof

MOEPROF_DEFINE_CALL_SITE_HANDLER(MoeprofCallSite, moeprof::MakeCallSite,
                                 xla::ffi::Ffi::BindInstantiate().Attrs());
