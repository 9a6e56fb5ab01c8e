#!/usr/bin/env bash
# Question: what do the GPU kernels reach here? Builds, tests and measures, part by part.
#
#   benchmarks/gpu.sh PART…       results go to $OUT, or benchmarks/results where OUT is not set
#
#   part         what it does                                            took about    limit
#   build        the GPU library and its check programs into build/gpu         60 s     300 s
#   test         tests/kernels on the GPUs                                    200 s     400 s
#   processes    the exchange between processes, with and without JAX          95 s     600 s
#   products     grouped GEMM beside torch's, without JAX                      90 s     300 s
#   gemm         grouped GEMM beside its peers under JAX                      150 s     900 s
#   exchange     dispatch and combine beside XLA's exchanges                   60 s     200 s
#   native       the kernels of dispatch and combine alone, without JAX         20 s     120 s
#   exchange_processes    the same with a process per GPU, beside one for all   50 s     300 s
#   ab           every strategy of the bundled model: speed and memory        330 s     900 s
#   ab-one-gpu   the same on one GPU, where there is no exchange                        900 s
#   convergence  real text with every strategy                                          900 s
#   sanitize     compute-sanitizer memcheck and racecheck                     200 s     400 s
#   stress       2,000 rounds of dispatch and combine with random skew        100 s     200 s
#   capture      a profile of two steps of every strategy                     200 s     330 s
#   steps        captures of every kind of script: do they have their steps              580 s
#   fallback     a step with ragged_dot's dense fallback, and with a grouped GEMM       300 s
#   routing      a step with and without what --routing auto adds to it                 400 s
#   plans        steps beside what moeprof.plan says of them                            300 s
#   whole        whole training commands beside what moeprof memory says       300 s     580 s
#   maxtext      MaxText's training by each of its paths, and by our kernels   200 s     500 s
#   naming       unseen programs: is their time named right (--rules COMMIT)   90 s     580 s
#
# build needs no GPU; test, products, gemm, ab-one-gpu, convergence, sanitize, stress, steps, plans,
# whole, naming, fallback and routing need one, the others two. Where a name is no part's or a part
# has too few GPUs, nothing begins: status 2. What they took was seen on a machine with two H200s. A
# part that fails or runs past its limit is named at the end and does not stop the others; the exit
# status is the number of those. LIMIT_S, if set, bounds all parts together, in whole seconds. A
# signal that ends this script ends what it started. PYTHON names the Python, which needs jax with
# its CUDA plugin and optax, and torch for its figures.
# Options of a part's program: PART_OPTIONS, such as GEMM_OPTIONS="--case e32_k7168_n2048".
set -uo pipefail
cd "$(dirname "$0")/.."
. benchmarks/gpu/shell.sh
root="$PWD"
python="${PYTHON:-python3}"

# gpus_of PART: how many it needs; nothing for a name that is no part's.
gpus_of() {
  case "$1" in
    build) echo 0 ;;
    test | products | gemm | ab-one-gpu | convergence | sanitize | stress | steps | plans | whole | naming | fallback | routing) echo 1 ;;
    processes | exchange | native | exchange_processes | ab | capture | maxtext) echo 2 ;;
  esac
}

if [ $# -eq 0 ]; then
  usage_of "$0" >&2
  exit 2
fi
needs=()
for part in "$@"; do
  case "$part" in
    -h | --help)
      usage_of "$0"
      exit 0
      ;;
  esac
  gpus="$(gpus_of "$part")"
  [ -n "$gpus" ] || refuse "$part: expected a part; benchmarks/gpu.sh --help lists them"
  needs+=("benchmarks/gpu.sh $part" "$gpus")
done
need_seconds LIMIT_S "${LIMIT_S:-}"
need_gpus "${needs[@]}"
out="${OUT:-$root/benchmarks/results}"
need_folder OUT "$out"
out="$(cd "$out" && pwd)"
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
export MOEPROF_GPU_LIBRARY="${MOEPROF_GPU_LIBRARY:-$root/build/gpu/libmoeprof_gpu.so}"
export JAX_COMPILATION_CACHE_DIR="${JAX_COMPILATION_CACHE_DIR:-$root/build/gpu-compiled}"
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0.5
ends=$((SECONDS + ${LIMIT_S:-86400}))
failed=()
lines=()

# A part is a group of processes, and what it starts may leave the group: each has this in its
# environment, so that none is missed and no process of anybody else is taken.
mark="MOEPROF_GPU_PART=$$.$RANDOM$RANDOM"
child=
set -m # a group for each command in the background, with its signals as they were

# end_part: nothing that the part started goes on, and holds a GPU's memory. The group has five
# seconds to put away what it made.
end_part() {
  local marked environment
  if [ -n "$child" ] && kill -TERM -- "-$child" 2>/dev/null; then
    for _ in {1..50}; do
      kill -0 -- "-$child" 2>/dev/null || break
      sleep 0.1
    done
    kill -KILL -- "-$child" 2>/dev/null
  fi
  for _ in {1..50}; do # until none is left: one may have started another meanwhile
    marked="$(grep -lsazxF -- "$mark" /proc/[0-9]*/environ)"
    [ -n "$marked" ] || break
    for environment in $marked; do
      environment="${environment#/proc/}"
      kill -KILL "${environment%/environ}" 2>/dev/null
    done
    sleep 0.1
  done
  child=
}

# stopped STATUS: a signal has come.
stopped() {
  trap '' INT TERM HUP
  end_part
  echo "benchmarks/gpu.sh: stopped by a signal; what it had started is ended" >&2
  exit "$1"
}
trap 'stopped 129' HUP
trap 'stopped 130' INT
trap 'stopped 143' TERM

# run PART SECONDS COMMAND…: one part within its own limit and that of all parts.
run() {
  local part="$1" limit="$2" began=$SECONDS left=$((ends - SECONDS)) status log
  shift 2
  [ "$left" -lt "$limit" ] && limit="$left"
  if [ "$limit" -lt 5 ]; then
    failed+=("$part: not started, the time of all parts is over")
    return
  fi
  echo "== $part"
  exec {log}> >(
    trap '' INT TERM HUP
    exec tee "$out/$part.log"
  )
  local tee=$!
  env "$mark" timeout --kill-after=10 "$limit" "$@" >&"$log" 2>&1 {log}>&- </dev/null &
  child=$!
  wait "$child"
  status=$?
  end_part
  exec {log}>&-
  wait "$tee"
  lines+=("$(printf '%-12s %4d s  status %d' "$part" $((SECONDS - began)) "$status")")
  case "$status" in
    0) ;;
    124 | 137) failed+=("$part: more than $limit s") ;;
    *) failed+=("$part: status $status; see $out/$part.log") ;;
  esac
}

for part in "$@"; do
  options="${part^^}_OPTIONS"
  options="${options//-/_}"
  read -ra options <<<"${!options:-}"
  case "$part" in
    build) run build 300 env PYTHON="$python" native/gpu/build.sh build/gpu "${options[@]:-all}" ;;
    products)
      run products 300 "$python" benchmarks/gpu/products.py build/gpu \
        --out "$out/gpu_grouped_gemm_check.json" "${options[@]}" ;;
    gemm)
      run gemm 900 "$python" benchmarks/gpu/grouped_gemm.py \
        --out "$out/gpu_grouped_gemm.json" "${options[@]}" ;;
    exchange)
      run exchange 200 "$python" benchmarks/gpu/exchange.py --out "$out/gpu_exchange.json" \
        "${options[@]}" ;;
    native)
      run native 120 "$python" benchmarks/gpu/exchange_native.py \
        --out "$out/gpu_exchange_native.json" "${options[@]}" ;;
    exchange_processes)
      run exchange_processes 300 "$python" benchmarks/gpu/exchange_processes.py \
        --out "$out/gpu_exchange_processes.json" "${options[@]}" ;;
    ab)
      run ab 900 "$python" benchmarks/gpu/ab.py --limit-s 880 --out "$out/gpu_ab.json" \
        "${options[@]}" ;;
    ab-one-gpu)
      run ab-one-gpu 900 "$python" benchmarks/gpu/ab.py --devices 1 --limit-s 880 \
        --out "$out/gpu_ab_one_gpu.json" "${options[@]}" ;;
    convergence)
      run convergence 900 "$python" benchmarks/gpu/convergence.py --limit-s 880 \
        --out "$out/gpu_convergence.json" "${options[@]}" ;;
    sanitize)
      run sanitize 400 "$python" benchmarks/gpu/sanitize.py --out "$out/gpu_sanitize.json" \
        "${options[@]}" ;;
    stress) run stress 200 env PYTHON="$python" benchmarks/gpu/exchange.sh "$out/stress" rounds "${options[@]}" ;;
    test)
      run test 400 env OUT="$out/tests" PYTHON="$python" benchmarks/gpu/tests.sh "${options[@]}" ;;
    processes)
      run processes 600 env PYTHON="$python" benchmarks/gpu/processes.sh "$out/processes" \
        "${options[@]}" ;;
    capture)
      run capture 330 env PYTHON="$python" benchmarks/gpu/captures.sh "$out/captures.tar.gz" "${options[@]}" ;;
    steps)
      run steps 580 "$python" benchmarks/gpu/steps.py --out "$out/gpu_steps.json" "${options[@]}" ;;
    fallback)
      run fallback 420 "$python" benchmarks/gpu/dense_fallback.py \
        --out "$out/gpu_dense_fallback.json" "${options[@]}" ;;
    routing)
      run routing 400 "$python" benchmarks/gpu/routing_auto.py \
        --out "$out/gpu_routing_auto.json" "${options[@]}" ;;
    plans)
      run plans 310 "$python" benchmarks/gpu/plans.py --out "$out/gpu_plans.json" "${options[@]}" ;;
    whole)
      run whole 580 "$python" benchmarks/gpu/whole_runs.py --out "$out/gpu_whole_runs.json" \
        "${options[@]}" ;;
    maxtext)
      run maxtext 500 "$python" benchmarks/gpu/maxtext_paths.py \
        --out "$out/gpu_maxtext_paths.json" "${options[@]}" ;;
    naming)
      run naming 580 "$python" benchmarks/gpu/naming.py --out "$out/gpu_naming.json" "${options[@]}" ;;
  esac
done

printf '%s\n' "== parts" "${lines[@]}"
for failure in "${failed[@]}"; do echo "FAILED $failure"; done
exit "${#failed[@]}"
