// Question: which calls of the CUDA driver do we need that its runtime does not offer?
//
// They are looked up when first used, so that the library loads on machines without a driver.
#pragma once

#include <cuda.h>

#include <string>

#include "common/failure.h"

namespace moeprof::gpu {

struct DriverCalls {
  decltype(&cuMemGetAddressRange) mem_get_address_range;
  decltype(&cuMemRetainAllocationHandle) mem_retain_allocation_handle;
  decltype(&cuMemRelease) mem_release;
  decltype(&cuMemExportToShareableHandle) mem_export;
  decltype(&cuMemImportFromShareableHandle) mem_import;
  decltype(&cuMemAddressReserve) mem_address_reserve;
  decltype(&cuMemAddressFree) mem_address_free;
  decltype(&cuMemMap) mem_map;
  decltype(&cuMemUnmap) mem_unmap;
  decltype(&cuMemSetAccess) mem_set_access;
  decltype(&cuIpcGetMemHandle) ipc_get_mem_handle;
  decltype(&cuIpcOpenMemHandle) ipc_open_mem_handle;
  decltype(&cuIpcCloseMemHandle) ipc_close_mem_handle;
  decltype(&cuPointerGetAttribute) pointer_get_attribute;
  decltype(&cuGetErrorName) get_error_name;

  // "CUDA_ERROR_INVALID_VALUE".
  std::string NameOf(CUresult result) const;
};

// The calls, or why the driver has none: `missing` then names the call.
const DriverCalls* LoadDriverCalls(std::string& missing);

}  // namespace moeprof::gpu
