# Question: which GPU library does MOEPROF_GPU ask for?
#
# Any case, and CMake's usual words for ON and OFF; empty, as in an environment where it is cleared,
# is AUTO. What pyproject.toml holds for OFF must be OFF here too. MOEPROF_GPU is ON, OFF, AUTO or
# HIP afterwards.
string(TOUPPER "${MOEPROF_GPU}" MOEPROF_GPU_WORD)
if(MOEPROF_GPU_WORD MATCHES "^(ON|YES|Y|TRUE|T|1)$")
  set(MOEPROF_GPU ON)
elseif(MOEPROF_GPU_WORD MATCHES "^(OFF|NO|N|FALSE|F|0+)$")
  set(MOEPROF_GPU OFF)
elseif(MOEPROF_GPU_WORD MATCHES "^(AUTO)?$")
  set(MOEPROF_GPU AUTO)
elseif(MOEPROF_GPU_WORD STREQUAL "HIP")
  set(MOEPROF_GPU HIP)
else()
  message(FATAL_ERROR "MOEPROF_GPU: expected ON, OFF, AUTO or HIP, found '${MOEPROF_GPU}'")
endif()
