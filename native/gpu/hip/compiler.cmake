# Question: which compiler, device library and runtime make code for AMD GPUs here?
#
# Needs MOEPROF_HIP_ARCHITECTURES; sets MOEPROF_HIP_COMPILER, MOEPROF_HIP_FLAGS,
# MOEPROF_HIP_INCLUDE and MOEPROF_HIP_LIBRARY.
find_program(MOEPROF_HIP_COMPILER NAMES amdclang++ hipcc clang++-21 clang++-20 clang++-19 clang++
  HINTS $ENV{ROCM_PATH}/bin /opt/rocm/bin)
find_library(MOEPROF_HIP_LIBRARY amdhip64 HINTS $ENV{ROCM_PATH}/lib /opt/rocm/lib)
find_path(MOEPROF_HIP_INCLUDE hip/hip_runtime.h HINTS $ENV{ROCM_PATH}/include /opt/rocm/include)
if(NOT MOEPROF_HIP_COMPILER OR NOT MOEPROF_HIP_LIBRARY OR NOT MOEPROF_HIP_INCLUDE)
  message(FATAL_ERROR "MOEPROF_GPU=HIP: expected a Clang for HIP, hip/hip_runtime.h and "
    "libamdhip64, found '${MOEPROF_HIP_COMPILER}', '${MOEPROF_HIP_INCLUDE}' and "
    "'${MOEPROF_HIP_LIBRARY}'; install ROCm and set ROCM_PATH, or on Debian clang-19, "
    "clang-tools-19, lld-19, libamdhip64-dev and rocm-device-libs.")
endif()
set(MOEPROF_HIP_FLAGS "")

# Debian keeps the device library where Clang does not look, and has it from before gfx942. What the
# library says of a GPU is one number, its version; for a newer GPU that is written here.
find_path(MOEPROF_HIP_BITCODE ockl.bc PATHS /usr/lib/x86_64-linux-gnu/amdgcn/bitcode
  NO_DEFAULT_PATH)
if(MOEPROF_HIP_BITCODE AND NOT EXISTS /opt/rocm AND NOT DEFINED ENV{ROCM_PATH})
  set(bitcode ${CMAKE_CURRENT_BINARY_DIR}/bitcode)
  file(MAKE_DIRECTORY ${bitcode})
  file(GLOB parts ${MOEPROF_HIP_BITCODE}/*.bc)
  foreach(part IN LISTS parts)
    get_filename_component(name ${part} NAME)
    file(CREATE_LINK ${part} ${bitcode}/${name} SYMBOLIC)
  endforeach()
  foreach(architecture IN LISTS MOEPROF_HIP_ARCHITECTURES)
    # gfx942 is 9402, gfx90a 9010: two digits of the major part's rest are hexadecimal.
    string(REGEX MATCH "^gfx([0-9]+)([0-9])([0-9a-f])$" found ${architecture})
    if(NOT found)
      message(FATAL_ERROR "MOEPROF_HIP_ARCHITECTURES: expected names like gfx942, found "
        "'${architecture}'")
    endif()
    set(file ${bitcode}/oclc_isa_version_${CMAKE_MATCH_1}${CMAKE_MATCH_2}${CMAKE_MATCH_3}.bc)
    math(EXPR version "${CMAKE_MATCH_1} * 1000 + ${CMAKE_MATCH_2} * 100 + 0x${CMAKE_MATCH_3}")
    if(EXISTS ${file})
      continue()
    endif()
    file(WRITE ${file}.ll "target triple = \"amdgcn-amd-amdhsa\"\n"
      "@__oclc_ISA_version = linkonce_odr protected local_unnamed_addr addrspace(4) constant i32 "
      "${version}\n")
    execute_process(COMMAND ${MOEPROF_HIP_COMPILER} -x ir -target amdgcn-amd-amdhsa -nogpulib
      -emit-llvm -c ${file}.ll -o ${file} COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
  list(APPEND MOEPROF_HIP_FLAGS --rocm-device-lib-path=${bitcode})
endif()
