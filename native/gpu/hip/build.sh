#!/usr/bin/env bash
# Compile the portable GPU kernels for AMD GPUs: needs a Clang for HIP, the HIP runtime, cmake and a
# Python with jax; no GPU.
#
#   native/gpu/hip/build.sh [FOLDER]     # by default build/hip; makes FOLDER/libmoeprof_hip.so
#
# PYTHON names the Python whose jax the library is built for, MOEPROF_HIP_ARCHITECTURES the GPUs
# ("gfx90a;gfx942" by default).
set -euo pipefail
cd "$(dirname "$0")/../../.."
. native/gpu/settings.sh
require_gpu HIP native/gpu/hip/build.sh
folder="${1:-build/hip}"
[ ! -d .venv/bin ] || PATH="$PWD/.venv/bin:$PATH" # cmake and ninja of the tests' environment
require_python
generator=()
! command -v ninja >/dev/null || generator=(-G Ninja)
cmake -S native -B "$folder" "${generator[@]}" -DMOEPROF_CPU=OFF -DMOEPROF_GPU=HIP \
  ${MOEPROF_HIP_ARCHITECTURES:+-DMOEPROF_HIP_ARCHITECTURES="$MOEPROF_HIP_ARCHITECTURES"} \
  -DMOEPROF_WERROR="${MOEPROF_WERROR:-ON}" -DPython_EXECUTABLE="$python" >/dev/null
cmake --build "$folder" --target moeprof_hip --parallel
echo "$folder/libmoeprof_hip.so"
