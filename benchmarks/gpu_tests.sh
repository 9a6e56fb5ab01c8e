#!/usr/bin/env bash
# Question: do the kernel tests pass with JAX on the GPUs of this machine?
#
#   benchmarks/gpu_tests.sh [PYTEST OPTION…]     # -k "rounding or lens", say
#
# The grouped products first, by JOBS (12) processes that share the GPUs, then the exchanges by 4:
# their kernels wait for each other, and more processes mostly take turns. The slow twins of the
# exchanges, tested on the CPU, are left out. JUnit files and logs go to $OUT, or build/gpu-tests
# where OUT is not set. LIMIT_S (150) bounds both parts together. PYTHON names the Python: jax with
# its CUDA plugin, pytest, pytest-timeout, hypothesis; without pytest-xdist it takes far longer.
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
ends=$((SECONDS + ${LIMIT_S:-150}))
exchanges=(test_dispatch test_combine test_moe_transforms test_rendezvous test_on_gpus)
products=(test_grouped_gemm test_grouped_gemm_lens test_grouped_gemm_rounding
  test_grouped_gemm_transforms test_grouped_gemm_variable_k test_poison)
failed=0

# part NAME LIMIT OPTION… -- MODULE…
part() {
  local name="$1" limit="$2" began=$SECONDS options=()
  shift 2
  while [ "$1" != -- ]; do options+=("$1"); shift; done
  shift
  [ $((ends - SECONDS)) -lt "$limit" ] && limit=$((ends - SECONDS))
  timeout --signal=INT --kill-after=10 "$limit" "$python" -m pytest -q -p no:cacheprovider --timeout=60 -W default \
    --tb=short -o addopts="-ra --strict-markers" --junitxml="$out/$name.xml" "${options[@]}" \
    "${extra[@]}" "${@/#/tests/kernels/}" >"$out/$name.log" 2>&1
  local status=$?
  # 5: nothing was selected.
  [ "$status" -eq 0 ] || [ "$status" -eq 5 ] || failed=$((failed + 1))
  grep -E "^(FAILED|ERROR)|^E  " "$out/$name.log" | cut -c1-220 | head -40
  printf '%-10s %4d s  status %d  %s\n' "$name" $((SECONDS - began)) "$status" \
    "$(tail -1 "$out/$name.log")"
}

extra=("$@")
products_jobs=() exchanges_jobs=()
if "$python" -c "import xdist" 2>/dev/null; then
  products_jobs=(-n "${JOBS:-12}" --maxfail=40)
  exchanges_jobs=(-n 4 --maxfail=40)
fi
part products $((${LIMIT_S:-150} * 9 / 20)) "${products_jobs[@]}" -- "${products[@]/%/.py}"
part exchanges "${LIMIT_S:-150}" "${exchanges_jobs[@]}" -k "not twin" -- "${exchanges[@]/%/.py}"
exit "$failed"
