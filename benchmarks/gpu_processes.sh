#!/usr/bin/env bash
# Does the exchange between processes work on the GPUs of this machine? Builds and runs its checks.
# Usage: benchmarks/gpu_processes.sh [OUT]. Goes on after a failure; ends with a table. Takes the
# library that MOEPROF_GPU_LIBRARY names, else builds it.
set -uo pipefail
cd "$(dirname "$0")/.."
OUT=${1:-build/gpu-processes}
mkdir -p "$OUT"
table=()

check() { # name, limit in seconds, command...
  local name=$1 limit=$2 start end rc
  shift 2
  start=$(date +%s%3N)
  timeout -k 5 "$limit" "$@" >"$OUT/$name.log" 2>&1
  rc=$?
  end=$(date +%s%3N)
  table+=("$(printf '%-36s rc %3d  %6d ms' "$name" "$rc" $((end - start)))")
  grep -E '^  |failed|ended with|error' "$OUT/$name.log" | tail -12
}

mkdir -p build
program=build/gpu_process_exchange_stress
check build 120 nvcc -std=c++17 -O2 -gencode=arch=compute_90a,code=sm_90a -Inative \
  native/stress/gpu_process_exchange_stress.cu native/gpu/process_link.cc \
  native/gpu/process_board.cc native/gpu/process_exchange.cc native/gpu/memory_exports.cc \
  native/gpu/memory_imports.cc native/gpu/driver_calls.cc -o "$program"
for scenario in flags plain-memory mapped-memory changing-memory memory-that-cannot-be-shared \
  one-is-killed bench; do
  check "$scenario" 70 "$program" "$scenario" 2
done
check mapped-memory-4-ranks 70 "$program" mapped-memory 4
check one-is-killed-of-3 70 "$program" one-is-killed 3

# Two processes of JAX with a GPU each.
if [ -z "${MOEPROF_GPU_LIBRARY:-}" ]; then
  check build-library 300 env PYTHON="$(command -v python3)" native/gpu/build.sh build/gpu
  export MOEPROF_GPU_LIBRARY=$PWD/build/gpu/libmoeprof_gpu.so
fi
export PYTHONPATH=$PWD MOEPROF_EP_TIMEOUT_S=20

pair() { # name, limit in seconds, scenario, settings...
  local name=$1 limit=$2 scenario=$3 start end port rank rcs=() children=()
  shift 3
  start=$(date +%s%3N)
  port=$((20000 + RANDOM % 20000))
  for rank in 0 1; do
    env "$@" timeout -k 5 "$limit" python3 -m tests.kernels.process_ranks "$scenario" \
      "127.0.0.1:$port" "$rank" 2 >"$OUT/$name.$rank.log" 2>"$OUT/$name.$rank.err" &
    children+=($!)
  done
  for rank in 0 1; do
    wait "${children[$rank]}"
    rcs+=($?)
  done
  end=$(date +%s%3N)
  table+=("$(printf '%-28s rc %3d %3d  %6d ms  right %4d  wrong %4d' "$name" "${rcs[@]}" \
    $((end - start)) "$(cat "$OUT/$name".?.log | grep -c '"ok": true')" \
    "$(cat "$OUT/$name".?.log | grep -c '"ok": false')")")
  grep -h -E '"ok": false|"speed|killed|"setup"' "$OUT/$name".?.log | head -6 | cut -c1-700
  grep -h -E 'moeprof|EP rank|rank . (gave|waited)' "$OUT/$name".?.err | head -4 | cut -c1-400
  [ "${rcs[0]}" = 0 ] || tail -n 5 "$OUT/$name.0.err" | cut -c1-600
}

pair jax-arrays 150 arrays MOEPROF_STRICT=1
pair jax-rounds 100 rounds MOEPROF_STRICT=0
pair jax-again-after-reset 80 again-after-reset MOEPROF_STRICT=1
pair jax-speed 100 speed MOEPROF_STRICT=0
pair jax-killed 60 killed MOEPROF_STRICT=0
pair jax-killed-in-flight 80 killed-in-flight MOEPROF_STRICT=0
pair jax-platform-allocator 100 rounds XLA_PYTHON_CLIENT_ALLOCATOR=platform
pair jax-cuda-async 60 again-after-reset XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async
printf '%s\n' "${table[@]}"
