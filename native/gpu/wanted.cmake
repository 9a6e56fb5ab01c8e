# Question: does this build make the GPU library?
#
# ON insists: without nvcc the build fails. AUTO builds it where it can run: nvcc and an NVIDIA GPU.
# Needs MOEPROF_GPU; sets MOEPROF_BUILDS_GPU.
set(MOEPROF_BUILDS_GPU OFF)
if(MOEPROF_GPU STREQUAL "OFF")
  return()
endif()

# CUDA's installer does not put nvcc on PATH.
find_program(MOEPROF_NVCC nvcc HINTS $ENV{CUDACXX} $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
if(MOEPROF_GPU STREQUAL "AUTO")
  if(NOT MOEPROF_NVCC)
    message(STATUS "GPU library: not built, no nvcc found")
  elseif(NOT EXISTS /dev/nvidiactl)
    message(STATUS "GPU library: not built, no NVIDIA GPU here; MOEPROF_GPU=ON builds it anyway")
  else()
    set(MOEPROF_BUILDS_GPU ON)
  endif()
elseif(NOT MOEPROF_NVCC)
  message(FATAL_ERROR "MOEPROF_GPU=${MOEPROF_GPU}: expected nvcc on PATH, in CUDA_HOME/bin or in "
    "/usr/local/cuda/bin, found none. Install the CUDA toolkit, or build with MOEPROF_GPU=OFF.")
else()
  set(MOEPROF_BUILDS_GPU ON)
endif()

if(MOEPROF_BUILDS_GPU AND NOT CMAKE_CUDA_COMPILER)
  set(CMAKE_CUDA_COMPILER ${MOEPROF_NVCC})
endif()
