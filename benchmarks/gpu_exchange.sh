#!/usr/bin/env bash
# Are dispatch, combine and cached dispatch right and fast on the GPUs of this machine, without JAX?
# Builds native/stress/gpu_exchange_stress.cu and runs it: random rounds against the CPU kernels, the
# failures, times, and a few rounds under compute-sanitizer. Goes on after a failure; ends with a
# table. Usage: benchmarks/gpu_exchange.sh [OUT [PART...]]; without parts, all of them.
set -uo pipefail
cd "$(dirname "$0")/.."
OUT=${1:-build/gpu-exchange}
shift || true
parts=" ${*:-first bench rounds missing sanitize} "
mkdir -p "$OUT"
table=()
failures=0

check() { # name, limit in seconds, command...
  local name=$1 limit=$2 start end rc
  shift 2
  start=$(date +%s%3N)
  timeout -k 5 "$limit" "$@" >"$OUT/$name.log" 2>&1
  rc=$?
  end=$(date +%s%3N)
  [ $rc -eq 0 ] || failures=$((failures + 1))
  table+=("$(printf '%-28s rc %3d  %6d ms' "$name" "$rc" $((end - start)))")
  grep -vE '^(=+ COMPUTE-SANITIZER|$)' "$OUT/$name.log" | head -60
}

compile() {
  local objects=() pids=() object ok=0
  for source in native/stress/gpu_exchange_{case,compare}.cc native/stress/gpu_exchange_{rank,bench,stress}.cu \
    native/gpu/exchange/moe_{dispatch,cached_dispatch,combine}.cu native/gpu/{meeting/local_exchange,faults/fault_report,runtime/device_memory}.cc \
    native/cpu/{moe_dispatch_kernel,moe_cached_dispatch_kernel,moe_combine_kernel,convert,poison}.cc; do
    object="$OUT/obj/$(echo "$source" | tr / _).o"
    mkdir -p "$OUT/obj"
    nvcc -std=c++17 -O3 -lineinfo -gencode=arch=compute_90a,code=sm_90a -Inative -c "$source" -o "$object" &
    pids+=($!)
    objects+=("$object")
  done
  for pid in "${pids[@]}"; do wait "$pid" || ok=1; done
  [ $ok -eq 0 ] && nvcc -gencode=arch=compute_90a,code=sm_90a "${objects[@]}" -o "$program"
  ok=$?
  rm -rf "$OUT/obj"
  return $ok
}

program=$OUT/gpu_exchange_stress
compile >"$OUT/compile.log" 2>&1 || { tail -30 "$OUT/compile.log"; exit 1; }
wanted() { [[ "$parts" == *" $1 "* ]]; }
if wanted first; then
  check two-ranks 30 "$program" --rounds 30 --ranks 2 --seconds 20
  check eight-ranks 40 "$program" --rounds 20 --ranks 8 --seconds 25
fi
wanted bench && check bench 90 "$program" --bench
wanted rounds && check rounds 150 "$program" --rounds "${ROUNDS:-2000}" --seconds 130 --seed "${SEED:-1}"
if wanted missing; then
  check missing-rank 20 "$program" --missing-rank
  check missing-kernel 20 "$program" --missing-kernel
fi
if wanted sanitize; then
  check memcheck 120 compute-sanitizer --tool memcheck --error-exitcode 9 \
    "$program" --rounds 6 --ranks 2 --seconds 90 --most-bytes 300000
  check racecheck 120 compute-sanitizer --tool racecheck --error-exitcode 9 \
    "$program" --rounds 4 --ranks 2 --seconds 90 --most-bytes 300000
fi
printf '%s\n' "${table[@]}"
exit $failures
