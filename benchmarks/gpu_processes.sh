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
  native/stress/gpu_process_exchange_stress.cu native/gpu/processes/process_link.cc \
  native/gpu/processes/process_board.cc native/gpu/processes/process_exchange.cc native/gpu/processes/memory_exports.cc \
  native/gpu/processes/memory_imports.cc native/gpu/runtime/driver_calls.cc -o "$program"
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

# Whatever ends this script, its children end with it: they hold the GPUs' memory.
children=()
end_children() {
  local child
  for child in "${children[@]}"; do kill -9 -- "-$child" 2>/dev/null; done
  children=()
}
trap 'end_children; exit 1' INT TERM
trap end_children EXIT
last=$((SECONDS + ${LIMIT_S:-100})) # no pair begins after this, and none goes on past it

ranks() { # processes, name, limit in seconds, scenario, settings...
  local processes=$1 name=$2 limit=$3 scenario=$4 start end port rank rcs=()
  shift 4
  if ((SECONDS >= last)); then
    table+=("$(printf '%-28s not run: no time left' "$name")")
    return
  fi
  ((limit < last - SECONDS)) || limit=$((last - SECONDS))
  start=$(date +%s%3N)
  port=$((20000 + RANDOM % 20000))
  for ((rank = 0; rank < processes; ++rank)); do
    setsid env "$@" timeout -k 2 "$limit" python3 -m tests.kernels.process_ranks "$scenario" \
      "127.0.0.1:$port" "$rank" "$processes" >"$OUT/$name.$rank.log" 2>"$OUT/$name.$rank.err" &
    children+=($!)
  done
  for rank in "${!children[@]}"; do
    wait "${children[$rank]}" 2>/dev/null
    rcs+=($?)
  done
  end_children
  end=$(date +%s%3N)
  table+=("$(printf '%-28s rc %-8s %6d ms  right %4d  wrong %4d' "$name" "${rcs[*]}" \
    $((end - start)) "$(cat "$OUT/$name".?.log | grep -c '"ok": true')" \
    "$(cat "$OUT/$name".?.log | grep -c '"ok": false')")")
  grep -h -E '"ok": false|"speed|killed' "$OUT/$name".?.log | head -6 | cut -c1-700
  grep -h -E 'moeprof|EP rank|rank . (gave|waited)' "$OUT/$name".?.err | head -4 | cut -c1-400
  [ "${rcs[0]}" = 0 ] || tail -n 5 "$OUT/$name.0.err" | cut -c1-600
}

ranks 2 jax-killed-in-flight 45 killed-in-flight MOEPROF_STRICT=0
ranks 2 jax-speed 45 speed MOEPROF_STRICT=0
ranks 1 jax-speed-in-one-process 45 speed MOEPROF_STRICT=0
ranks 2 jax-cuda-async 40 again-after-reset XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async
ranks 2 jax-platform-allocator 60 rounds XLA_PYTHON_CLIENT_ALLOCATOR=platform
ranks 2 jax-rounds 60 rounds MOEPROF_STRICT=0
ranks 2 jax-killed 40 killed MOEPROF_STRICT=0
ranks 2 jax-arrays 60 arrays MOEPROF_STRICT=1
ranks 2 jax-again-after-reset 60 again-after-reset MOEPROF_STRICT=1
printf '%s\n' "${table[@]}"
