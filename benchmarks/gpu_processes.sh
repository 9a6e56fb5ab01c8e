#!/usr/bin/env bash
# Does the exchange between processes work on the GPUs of this machine? Builds and runs its checks.
# Usage: benchmarks/gpu_processes.sh [OUT]. Goes on after a failure; ends with a table.
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

program=$OUT/gpu_process_exchange_stress
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
printf '%s\n' "${table[@]}"
