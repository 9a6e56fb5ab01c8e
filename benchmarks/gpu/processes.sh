#!/usr/bin/env bash
# Question: does the exchange between processes work on the GPUs of this machine?
#
#   benchmarks/gpu/processes.sh [OUT]     # logs to OUT, or build/gpu-processes
#
# First without JAX (native/stress/gpu_process_exchange_stress.cu), then two processes of JAX with a
# GPU each (tests/kernels/process_ranks.py). Goes on after a failure; ends with a table; the exit
# status is the number of failures, 2 where it may not begin. Needs two GPUs. Takes the library that MOEPROF_GPU_LIBRARY names, else builds
# it. LIMIT_S, if set, bounds the part with JAX. PYTHON names the Python.
set -uo pipefail
cd "$(dirname "$0")/../.."
. benchmarks/gpu/shell.sh
case "${1:-}" in
  -h | --help)
    usage_of "$0"
    exit 0
    ;;
  -*) refuse "$1: expected a folder for results, or --help" ;;
esac
python="${PYTHON:-python3}"
need_seconds LIMIT_S "${LIMIT_S:-}"
need_gpus benchmarks/gpu/processes.sh 2
OUT=${1:-build/gpu-processes}
need_folder OUT "$OUT"
table=()
failures=0

# check NAME SECONDS COMMAND…: a failure is counted, and what tells is printed.
check() {
  local rc=0
  timed "$@" || rc=$?
  grep -E '^  |failed|ended with|error|GB/s' "$OUT/$1.log" | tail -12
  return $rc
}

targets=(moeprof_gpu_process_exchange_stress)
if [ -z "${MOEPROF_GPU_LIBRARY:-}" ]; then
  targets+=(moeprof_gpu)
  export MOEPROF_GPU_LIBRARY=$PWD/build/gpu/libmoeprof_gpu.so
fi
program=build/gpu/moeprof_gpu_process_exchange_stress
check build 300 env PYTHON="$python" native/gpu/build.sh build/gpu "${targets[@]}" || {
  tail -n 30 "$OUT/build.log"
  exit 1
}
for scenario in flags plain-memory mapped-memory changing-memory memory-that-cannot-be-shared \
  one-is-killed bench; do
  check "$scenario" 70 "$program" "$scenario" 2
done
# More ranks than GPUs share them.
check mapped-memory-4-ranks 70 "$program" mapped-memory 4
check one-is-killed-of-3 70 "$program" one-is-killed 3

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
last=$((SECONDS + ${LIMIT_S:-86400})) # no pair begins after this, and none goes on past it

# ranks STATUSES NAME SECONDS SCENARIO SETTING…: a process per status. The statuses are what each is
# expected to end with, "x" for any but 0, where each rank's stderr must have the words of REFUSAL. A
# finding that is wrong is a failure too, and so is a scenario without one that is right.
ranks() {
  local expected name=$2 limit=$3 scenario=$4 start end port rank rcs=() right wrong as=ok
  read -ra expected <<<"$1"
  shift 4
  if ((SECONDS >= last)); then
    failures=$((failures + 1))
    table+=("$(printf '%-28s not run: no time left' "$name")")
    return
  fi
  ((limit < last - SECONDS)) || limit=$((last - SECONDS))
  start=$(date +%s%3N)
  port=$((20000 + RANDOM % 20000))
  for ((rank = 0; rank < ${#expected[@]}; ++rank)); do
    setsid env "$@" timeout -k 2 "$limit" "$python" -m tests.kernels.process_ranks "$scenario" \
      "127.0.0.1:$port" "$rank" "${#expected[@]}" >"$OUT/$name.$rank.log" 2>"$OUT/$name.$rank.err" &
    children+=($!)
  done
  for rank in "${!children[@]}"; do
    wait "${children[$rank]}" 2>/dev/null
    rcs+=($?)
  done
  end_children
  end=$(date +%s%3N)
  right=$(cat "$OUT/$name".?.log | grep -c '"ok": true')
  wrong=$(cat "$OUT/$name".?.log | grep -c '"ok": false')
  for rank in "${!expected[@]}"; do
    case "${expected[$rank]} ${rcs[$rank]}" in
      "x 0" | "x 124" | "x 137") as=FAILED ;; # 124, 137: past the limit
      "x "*) grep -qF "$REFUSAL" "$OUT/$name.$rank.err" || as=FAILED ;;
      *) [ "${expected[$rank]}" = "${rcs[$rank]}" ] || as=FAILED ;;
    esac
  done
  [ "$wrong" -eq 0 ] && [ "$right" -gt 0 ] || as=FAILED
  table+=("$(printf '%-28s rc %-8s %6d ms  right %4d  wrong %4d  %s' "$name" "${rcs[*]}" \
    $((end - start)) "$right" "$wrong" "$as")")
  grep -h -E '"ok": false|killed' "$OUT/$name".?.log | head -6 | cut -c1-700
  grep -h -E 'moeprof|EP rank|rank . (gave|waited)' "$OUT/$name".?.err | head -4 | cut -c1-400
  [ "$as" = ok ] && return
  failures=$((failures + 1))
  for rank in "${!expected[@]}"; do
    echo "$name, rank $rank: status ${rcs[$rank]}, expected ${expected[$rank]}"
    tail -n 5 "$OUT/$name.$rank.err" | cut -c1-600
  done
}

ranks "0 137" jax-killed-in-flight 45 killed-in-flight MOEPROF_STRICT=0
check jax-speed 100 "$python" benchmarks/gpu/exchange_processes.py --limit-s 45 \
  --out "$OUT/gpu_exchange_processes.json"
REFUSAL="unset XLA_PYTHON_CLIENT_ALLOCATOR" \
  ranks "x x" jax-cuda-async 40 again-after-reset XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async
ranks "0 0" jax-platform-allocator 60 rounds XLA_PYTHON_CLIENT_ALLOCATOR=platform
ranks "0 0" jax-rounds 60 rounds MOEPROF_STRICT=0
ranks "0 137" jax-killed 40 killed MOEPROF_STRICT=0
ranks "0 0" jax-arrays 60 arrays MOEPROF_STRICT=1
ranks "0 0" jax-again-after-reset 60 again-after-reset MOEPROF_STRICT=1
printf '%s\n' "${table[@]}"
exit "$failures"
