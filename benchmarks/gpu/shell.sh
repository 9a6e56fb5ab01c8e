# Question: what do the scripts that run on GPUs share? How they refuse; sourced from the root.

# usage_of SCRIPT: its header, without the question.
usage_of() { awk 'NR < 3 { next } !/^#/ { exit } { sub(/^# ?/, ""); print }' "$1"; }

# refuse WORDS…: one line, and the status of what never began.
refuse() {
  echo "$*" >&2
  exit 2
}

# need_python: `python` is a Python that starts.
need_python() {
  "$python" -c '' 2>/dev/null ||
    refuse "PYTHON: expected a Python that starts, found $python; name another"
}

# need_gpus WHO GPUS…: ends the script where one finds too few (gpu/gate.py).
need_gpus() {
  need_python
  "$python" benchmarks/gpu/gate.py "$@" || exit 2
}

# need_seconds NAME VALUE: whole seconds, at least one; an empty value is none.
need_seconds() {
  [[ "$2" =~ ^([1-9][0-9]{0,8})?$ ]] ||
    refuse "$1: expected whole seconds of at least 1, found $2"
}

# need_folder NAME FOLDER: makes it.
need_folder() {
  { mkdir -p -- "$2" && [ -w "$2" ]; } 2>/dev/null ||
    refuse "$1: expected a folder that can be written, found $2; name another"
}

# timed NAME SECONDS COMMAND…: its output goes to $OUT/NAME.log, a line with its status to the array
# `table`; a failure is counted in `failures` and returned.
timed() {
  local name=$1 limit=$2 start end rc
  shift 2
  start=$(date +%s%3N)
  timeout -k 5 "$limit" "$@" >"$OUT/$name.log" 2>&1
  rc=$?
  end=$(date +%s%3N)
  [ $rc -eq 0 ] || failures=$((failures + 1))
  table+=("$(printf '%-28s rc %-8d %6d ms' "$name" "$rc" $((end - start)))")
  return $rc
}
