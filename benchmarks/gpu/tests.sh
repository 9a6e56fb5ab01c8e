#!/usr/bin/env bash
# Question: do the kernel tests pass with JAX on the GPUs of this machine?
#
#   benchmarks/gpu/tests.sh [PYTEST OPTION…]     # -k "rounding or lens", say
#
# All of tests/kernels in three parts, the first two at the same time, as most of it is compiling on
# the CPU: `exchanges` in two processes, since their kernels wait for each other and processes that
# share a GPU take turns; `products`, every other module, in JOBS (12); then `processes`, whose tests
# start processes that want a GPU each. The slow twins, tested on the CPU, are left out. A test that
# hangs or crashes takes only its own process along. JUnit files and logs go to $OUT, or
# build/gpu-tests where OUT is not set. LIMIT_S, if set, bounds each part. PYTHON names the Python:
# jax with its CUDA plugin, pytest, pytest-timeout, pytest-xdist, hypothesis. The exit status is the
# number of failed parts; options that select no test at all are a failure.
set -uo pipefail
cd "$(dirname "$0")/../.."
. benchmarks/gpu/shell.sh
case "${1:-}" in
  -h | --help)
    usage_of "$0"
    exit 0
    ;;
esac
python="${PYTHON:-python3}"
need_seconds LIMIT_S "${LIMIT_S:-}"
need_gpus benchmarks/gpu/tests.sh 1
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
export MOEPROF_GPU_LIBRARY="${MOEPROF_GPU_LIBRARY:-$PWD/build/gpu/libmoeprof_gpu.so}"
# The CPU stays beside the GPUs; tests ask for JAX's default devices.
export JAX_PLATFORMS=cuda,cpu MOEPROF_STRICT=1 XLA_PYTHON_CLIENT_PREALLOCATE=false
export JAX_COMPILATION_CACHE_DIR="${JAX_COMPILATION_CACHE_DIR:-$PWD/build/gpu-compiled}"
exchanges=(tests/kernels/test_{dispatch,combine,moe_transforms,rendezvous,on_gpus}.py)
processes=(tests/kernels/test_exchange_between_processes.py)
products=()
for module in tests/kernels/test_*.py; do
  [[ " ${exchanges[*]} ${processes[*]} " == *" $module "* ]] || products+=("$module")
done
if ! [ -f "$MOEPROF_GPU_LIBRARY" ]; then
  refuse "expected the GPU library in MOEPROF_GPU_LIBRARY, found no $MOEPROF_GPU_LIBRARY;" \
    "native/gpu/build.sh builds it"
fi
out="${OUT:-$PWD/build/gpu-tests}"
need_folder OUT "$out"
bounded=()
[ -z "${LIMIT_S:-}" ] || bounded=(timeout --signal=INT --kill-after=10 "$LIMIT_S")

# part NAME PROCESSES SECONDS MODULE…: its output to NAME.log, JUnit to NAME.xml, the last words to
# stdout; SECONDS bound one test.
part() {
  local name="$1" processes="$2" seconds="$3" began=$SECONDS status
  shift 3
  "${bounded[@]}" "$python" -m pytest -v -p no:cacheprovider --timeout="$seconds" \
    --timeout-method=thread -W default --tb=short -o addopts="-ra --strict-markers" \
    --junitxml="$out/$name.xml" -n "$processes" --maxfail=60 -k "not [twin" "${options[@]}" "$@" \
    >"$out/$name.log" 2>&1
  status=$?
  grep -E "^(FAILED|ERROR|E  )|Fatal Python|Timeout" "$out/$name.log" | cut -c1-220 | sort -u | head -60
  printf '%-10s %4d s  status %d  %s\n' "$name" $((SECONDS - began)) "$status" \
    "$(tail -n 1 "$out/$name.log")"
  return "$status"
}

options=("$@")
statuses=()
part products "${JOBS:-12}" 30 "${products[@]}" &
first=$!
part exchanges 2 30 "${exchanges[@]}"
statuses+=($?)
wait "$first"
statuses+=($?)
part processes 1 200 "${processes[@]}"
statuses+=($?)
failed=0
empty=0
for status in "${statuses[@]}"; do
  case "$status" in
    0) ;;
    5) empty=$((empty + 1)) ;; # nothing was selected in this part
    *) failed=$((failed + 1)) ;;
  esac
done
if [ "$empty" -eq "${#statuses[@]}" ]; then
  echo "expected options that select a test, found none for: $*" >&2
  failed=1
fi
exit "$failed"
