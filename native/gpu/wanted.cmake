# Question: does this build make the GPU library for NVIDIA?
#
# ON insists: without a fitting nvcc the build fails. AUTO builds it where it can run (an NVIDIA GPU
# is there) and can be built; else it says why not and leaves the rest of the build alone.
# Needs MOEPROF_GPU as choice.cmake sets it; sets MOEPROF_BUILDS_GPU.
set(MOEPROF_BUILDS_GPU OFF)
if(MOEPROF_GPU MATCHES "^(OFF|HIP)$")
  return()
endif()
# cudaGetDriverEntryPointByVersion, by which the library finds the driver, came with 12.5.
set(MOEPROF_OLDEST_NVCC 12.5)
set(MOEPROF_NO_GPU_REASON "")

# CUDA_HOME, then PATH, then where CUDA's installer puts nvcc without putting it on PATH.
set(MOEPROF_NVCC_HINTS "")
if(NOT "$ENV{CUDA_HOME}" STREQUAL "")
  set(MOEPROF_NVCC_HINTS HINTS $ENV{CUDA_HOME}/bin)
endif()
find_program(MOEPROF_NVCC nvcc ${MOEPROF_NVCC_HINTS} PATHS /usr/local/cuda/bin)
if(MOEPROF_GPU STREQUAL "AUTO" AND NOT EXISTS /dev/nvidiactl)
  set(MOEPROF_NO_GPU_REASON "no NVIDIA GPU here; MOEPROF_GPU=ON builds it anyway")
elseif(NOT MOEPROF_NVCC)
  set(MOEPROF_NO_GPU_REASON "expected nvcc on PATH, in CUDA_HOME/bin or in /usr/local/cuda/bin, found none; install the CUDA toolkit")
else()
  execute_process(COMMAND ${MOEPROF_NVCC} --version OUTPUT_VARIABLE MOEPROF_NVCC_TEXT
    ERROR_QUIET RESULT_VARIABLE MOEPROF_NVCC_RESULT)
  string(REGEX MATCH "release ([0-9]+\\.[0-9]+)" MOEPROF_NVCC_MATCH "${MOEPROF_NVCC_TEXT}")
  set(MOEPROF_NVCC_RELEASE "${CMAKE_MATCH_1}")
  if(NOT MOEPROF_NVCC_RESULT STREQUAL "0")
    set(MOEPROF_NO_GPU_REASON "expected nvcc ${MOEPROF_OLDEST_NVCC} or newer, found ${MOEPROF_NVCC}, which does not run (--version ended with: ${MOEPROF_NVCC_RESULT}); set CUDA_HOME to another CUDA toolkit")
  elseif(NOT MOEPROF_NVCC_MATCH)
    set(MOEPROF_NO_GPU_REASON "expected nvcc ${MOEPROF_OLDEST_NVCC} or newer, found ${MOEPROF_NVCC}, whose --version names no release; set CUDA_HOME to another CUDA toolkit")
  elseif(MOEPROF_NVCC_RELEASE VERSION_LESS MOEPROF_OLDEST_NVCC)
    set(MOEPROF_NO_GPU_REASON "expected nvcc ${MOEPROF_OLDEST_NVCC} or newer, found ${MOEPROF_NVCC} of CUDA ${MOEPROF_NVCC_RELEASE}; set CUDA_HOME to a newer CUDA toolkit")
  endif()
endif()
if(NOT MOEPROF_NO_GPU_REASON)
  # In a project of its own, so that an nvcc that cannot work here (with this C++ compiler, say)
  # does not end this one.
  include(CheckLanguage)
  set(ENV{CUDACXX} ${MOEPROF_NVCC})
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    set(MOEPROF_NO_GPU_REASON "${MOEPROF_NVCC} compiles nothing here; see CMake's log for its error")
  endif()
endif()

if(NOT MOEPROF_NO_GPU_REASON)
  set(MOEPROF_BUILDS_GPU ON)
elseif(MOEPROF_GPU STREQUAL "AUTO")
  message(STATUS "GPU library: not built: ${MOEPROF_NO_GPU_REASON}")
else()
  message(FATAL_ERROR "MOEPROF_GPU=${MOEPROF_GPU}: ${MOEPROF_NO_GPU_REASON}. Without the GPU library: MOEPROF_GPU=OFF.")
endif()
