# Question: what do MOEPROF_GPU and PYTHON say to a script that builds a GPU library?
#
# To be sourced, in the repository's root.

# require_gpu WORD SCRIPT: end here where MOEPROF_GPU asks for something else than WORD (ON or HIP),
# as SCRIPT would build.
require_gpu() {
  local asked
  asked="$(printf %s "${MOEPROF_GPU:-}" | tr '[:lower:]' '[:upper:]')"
  case "$asked" in
    Y | YES | T | TRUE | 1) asked=ON ;;
    N | NO | F | FALSE | 0) asked=OFF ;;
  esac
  case "$asked" in
    "$1" | AUTO | '') return ;;
    ON | OFF | HIP)
      echo "$2 builds with MOEPROF_GPU=$1, found MOEPROF_GPU=$MOEPROF_GPU; unset it to build" >&2
      ;;
    *) echo "MOEPROF_GPU: expected ON, OFF, AUTO or HIP, found '$MOEPROF_GPU'" >&2 ;;
  esac
  exit 2
}

# require_python: set $python to the absolute path of the Python whose jax the library is built for.
require_python() {
  local candidate
  python=
  for candidate in ${PYTHON:-.venv/bin/python python3}; do
    python="$(command -v "$candidate" || true)"
    [ -z "$python" ] || break
  done
  if [ -z "$python" ]; then
    echo "expected a Python with jax, found no ${PYTHON:-python3}; name one with PYTHON=" >&2
    exit 2
  fi
  [ "${python#/}" != "$python" ] || python="$PWD/$python" # CMake looks elsewhere for relative ones
  if ! "$python" -c 'import jax.ffi' 2>/dev/null; then
    echo "expected a Python with jax, found $python, where \`import jax\` fails; install jax there" \
      "or name another Python with PYTHON=" >&2
    exit 2
  fi
}
