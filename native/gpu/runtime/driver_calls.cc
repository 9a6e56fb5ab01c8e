#include "gpu/runtime/driver_calls.h"

#include <cuda_runtime_api.h>

namespace moeprof::gpu {
namespace {

// CUDA 12.0's form of every call: all that we need came with 11.0 or before.
constexpr unsigned int kDriverApi = 12000;

struct Loaded {
  DriverCalls calls{};
  std::string missing;
};

template <typename Function>
void Look(const char* name, Function& function, std::string& missing) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &address, kDriverApi, cudaEnableDefault, &found);
#else
  const cudaError_t error = cudaGetDriverEntryPoint(name, &address, cudaEnableDefault, &found);
#endif
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess || address == nullptr) {
    if (missing.empty()) missing = name;
    return;
  }
  function = reinterpret_cast<Function>(address);
}

Loaded Load() {
  Loaded loaded;
  DriverCalls& calls = loaded.calls;
  std::string& missing = loaded.missing;
  Look("cuMemGetAddressRange", calls.mem_get_address_range, missing);
  Look("cuMemRetainAllocationHandle", calls.mem_retain_allocation_handle, missing);
  Look("cuMemRelease", calls.mem_release, missing);
  Look("cuMemExportToShareableHandle", calls.mem_export, missing);
  Look("cuMemImportFromShareableHandle", calls.mem_import, missing);
  Look("cuMemAddressReserve", calls.mem_address_reserve, missing);
  Look("cuMemAddressFree", calls.mem_address_free, missing);
  Look("cuMemMap", calls.mem_map, missing);
  Look("cuMemUnmap", calls.mem_unmap, missing);
  Look("cuMemSetAccess", calls.mem_set_access, missing);
  Look("cuIpcGetMemHandle", calls.ipc_get_mem_handle, missing);
  Look("cuIpcOpenMemHandle", calls.ipc_open_mem_handle, missing);
  Look("cuIpcCloseMemHandle", calls.ipc_close_mem_handle, missing);
  Look("cuPointerGetAttribute", calls.pointer_get_attribute, missing);
  Look("cuGetErrorName", calls.get_error_name, missing);
  return loaded;
}

}  // namespace

std::string DriverCalls::NameOf(CUresult result) const {
  const char* name = nullptr;
  if (get_error_name(result, &name) != CUDA_SUCCESS || name == nullptr) {
    return "CUDA error " + std::to_string(static_cast<int>(result));
  }
  return name;
}

const DriverCalls* LoadDriverCalls(std::string& missing) {
  static const Loaded* const loaded = new Loaded(Load());
  missing = loaded->missing;
  return missing.empty() ? &loaded->calls : nullptr;
}

}  // namespace moeprof::gpu
