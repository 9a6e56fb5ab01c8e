#!/usr/bin/env bash
# Question: do the kernel tests pass with JAX on the GPUs of this machine?
#
#   benchmarks/gpu_tests.sh [PYTEST OPTION…]     # -k "rounding or lens", say
#
# Two parts at the same time, as most of it is compiling on the CPU: the grouped products in JOBS (12)
# processes, and the exchanges in two, since their kernels wait for each other and processes that
# share a GPU take turns. The slow twins, tested on the CPU, are left out. A test that hangs or
# crashes takes only its own process along. JUnit files and logs go to $OUT, or build/gpu-tests where
# OUT is not set; LIMIT_S (140) bounds it all. PYTHON names the Python: jax with its CUDA plugin,
# pytest, pytest-timeout, pytest-xdist, hypothesis.
set -uo pipefail
cd "$(dirname "$0")/.."
out="${OUT:-$PWD/build/gpu-tests}"
mkdir -p "$out"
python="${PYTHON:-python3}"
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
export MOEPROF_GPU_LIBRARY="${MOEPROF_GPU_LIBRARY:-$PWD/build/gpu/libmoeprof_gpu.so}"
# The CPU stays beside the GPUs; tests ask for JAX's default devices.
export JAX_PLATFORMS=cuda,cpu MOEPROF_STRICT=1 XLA_PYTHON_CLIENT_PREALLOCATE=false
export JAX_COMPILATION_CACHE_DIR="${JAX_COMPILATION_CACHE_DIR:-$PWD/build/gpu-compiled}"
exchanges=(test_dispatch test_combine test_moe_transforms test_rendezvous test_on_gpus)
products=(test_grouped_gemm test_grouped_gemm_lens test_grouped_gemm_rounding
  test_grouped_gemm_transforms test_grouped_gemm_variable_k test_poison)

# part NAME PROCESSES MODULE…: its output to NAME.log, JUnit to NAME.xml, the last words to stdout.
part() {
  local name="$1" processes="$2" began=$SECONDS status
  shift 2
  timeout --signal=INT --kill-after=10 "${LIMIT_S:-140}" "$python" -m pytest -v \
    -p no:cacheprovider --timeout=30 --timeout-method=thread -W default --tb=short \
    -o addopts="-ra --strict-markers" --junitxml="$out/$name.xml" -n "$processes" --maxfail=60 \
    -k "not [twin" "${options[@]}" "${@/%/.py}" >"$out/$name.log" 2>&1
  status=$?
  grep -E "^(FAILED|ERROR|E  )|Fatal Python|Timeout" "$out/$name.log" | cut -c1-220 | sort -u | head -60
  printf '%-10s %4d s  status %d  %s\n' "$name" $((SECONDS - began)) "$status" \
    "$(tail -n 1 "$out/$name.log")"
  [ "$status" -eq 0 ] || [ "$status" -eq 5 ] # 5: nothing was selected
}

options=("$@")
part products "${JOBS:-12}" "${products[@]/#/tests/kernels/}" &
first=$!
part exchanges 2 "${exchanges[@]/#/tests/kernels/}"
failed=$?
wait "$first" || failed=1
exit "$failed"
