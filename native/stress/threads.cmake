# Question: which programs put threads and processes of a host under stress, and how are they built?
#
# With MOEPROF_STRESS; under the thread sanitizer unless MOEPROF_TSAN is off. No GPU, JAX or BLAS.
find_package(Threads REQUIRED)

# add_stress_program(NAME SOURCE…): moeprof_NAME of stress/NAME.cc and what it tests.
function(add_stress_program name)
  add_executable(moeprof_${name} stress/${name}.cc ${ARGN})
  target_include_directories(moeprof_${name} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  target_compile_options(moeprof_${name} PRIVATE -O1 -g -Wall -Wextra)
  target_link_libraries(moeprof_${name} PRIVATE Threads::Threads)
  if(MOEPROF_WERROR)
    target_compile_options(moeprof_${name} PRIVATE -Werror)
  endif()
  if(MOEPROF_TSAN)
    target_compile_options(moeprof_${name} PRIVATE -fsanitize=thread)
    target_link_options(moeprof_${name} PRIVATE -fsanitize=thread)
  endif()
endfunction()

add_stress_program(rendezvous_stress cpu/exchange/meeting.cc cpu/exchange/rendezvous.cc)
add_stress_program(process_board_stress gpu/processes/process_board.cc
  gpu/processes/process_link.cc)

# It stands in for the CUDA runtime, but takes its types from the headers.
find_path(MOEPROF_CUDA_INCLUDE cuda_runtime_api.h
  HINTS $ENV{CUDA_HOME}/include /usr/local/cuda/include)
if(MOEPROF_CUDA_INCLUDE)
  add_stress_program(local_exchange_stress gpu/meeting/local_exchange.cc)
  add_stress_program(fault_report_texts gpu/faults/fault_report.cc)
  foreach(name local_exchange_stress fault_report_texts)
    target_include_directories(moeprof_${name} SYSTEM PRIVATE ${MOEPROF_CUDA_INCLUDE})
  endforeach()
else()
  message(STATUS "local_exchange_stress, fault_report_texts: not built: no cuda_runtime_api.h in CUDA_HOME/include or /usr/local/cuda/include")
endif()
