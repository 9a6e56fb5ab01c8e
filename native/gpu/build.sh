#!/usr/bin/env bash
# Build the GPU library alone: needs nvcc, cmake and a Python with jax; no GPU, no OpenBLAS.
#
#   native/gpu/build.sh [FOLDER [TARGET…]]     # build/gpu and moeprof_gpu where none is named
#
# The library is FOLDER/libmoeprof_gpu.so. Other targets are the programs that check the kernels
# without a framework (native/stress/gpu.cmake), "all" is everything. PYTHON names the Python whose
# jax the library is built for.
set -euo pipefail
cd "$(dirname "$0")/../.."
. native/gpu/settings.sh
require_gpu ON native/gpu/build.sh
folder="${1:-build/gpu}"
shift || true
targets=("${@:-moeprof_gpu}")
[ ! -d .venv/bin ] || PATH="$PWD/.venv/bin:$PATH" # cmake and ninja of the tests' environment
require_python
generator=()
! command -v ninja >/dev/null || generator=(-G Ninja)
cmake -S native -B "$folder" "${generator[@]}" -DMOEPROF_CPU=OFF -DMOEPROF_GPU=ON \
  -DMOEPROF_GPU_CHECKS=ON -DMOEPROF_WERROR="${MOEPROF_WERROR:-ON}" \
  -DPython_EXECUTABLE="$python" >/dev/null
cmake --build "$folder" --target "${targets[@]}" --parallel
printf 'built in %s: %s\n' "$folder" "${targets[*]}"
