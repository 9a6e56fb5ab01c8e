#!/usr/bin/env bash
# Question: are dispatch, combine and cached dispatch right on the GPUs of this machine, without JAX?
#
#   benchmarks/gpu/exchange.sh [OUT [PART…]]     # build/gpu-exchange and all parts by default
#
#   part      what it does                                                        GPUs
#   first     30 random rounds of 2 ranks and 20 of 8                             1
#   rounds    ROUNDS (2000) rounds of 2 to 8 ranks with random skew, SEED (1)     1
#   bench     times of the kernels between GPUs, JSON to OUT/bench.json           2
#   missing   a rank, and a rank's kernel, that never come: what the others say   2
#
# Builds and runs native/stress/gpu_exchange_stress.cu, which compares with the CPU kernels bit for
# bit. Goes on after a failure; the exit status is the number of failures, 2 where it may not begin:
# an unknown part, too few GPUs. PYTHON names the Python.
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
OUT=${1:-build/gpu-exchange}
shift || true
parts=("$@")
needs=()
[ $# -gt 0 ] || parts=(first rounds bench missing)
for part in "${parts[@]}"; do
  case "$part" in
    first | rounds) needs+=("benchmarks/gpu/exchange.sh $part" 1) ;;
    bench | missing) needs+=("benchmarks/gpu/exchange.sh $part" 2) ;;
    *) refuse "$part: expected a part among first, rounds, bench, missing" ;;
  esac
done
need_gpus "${needs[@]}"
need_folder OUT "$OUT"
table=()
failures=0

# check NAME SECONDS COMMAND…: a failure is counted, and what the command wrote is printed.
check() {
  local rc=0
  timed "$@" || rc=$?
  grep -v '^$' "$OUT/$1.log" | head -60
  return $rc
}

program=build/gpu/moeprof_gpu_exchange_stress
native/gpu/build.sh build/gpu moeprof_gpu_exchange_stress >"$OUT/compile.log" 2>&1 || {
  tail -n 30 "$OUT/compile.log"
  exit 1
}
for part in "${parts[@]}"; do
  case "$part" in
    first)
      check two-ranks 30 "$program" --rounds 30 --ranks 2 --seconds 20
      check eight-ranks 40 "$program" --rounds 20 --ranks 8 --seconds 25
      ;;
    bench)
      check bench 90 "$python" benchmarks/gpu/exchange_native.py --out "$OUT/bench.json"
      ;;
    rounds)
      check rounds 150 "$program" --rounds "${ROUNDS:-2000}" --seconds 130 --seed "${SEED:-1}"
      ;;
    missing)
      check missing-rank 20 "$program" --missing-rank
      check missing-kernel 20 "$program" --missing-kernel
      ;;
  esac
done
printf '%s\n' "${table[@]}"
exit "$failures"
