#!/usr/bin/env bash
# Question: what do profiles of every strategy on two GPUs look like? One archive of captures.
#
#   benchmarks/gpu/captures.sh ARCHIVE.tar.gz [--only NAME …]
#
# Captures from a neutral place, MOEPROF_SOURCES (/src), under a neutral host name, so that the
# profiles name no machine; what it put there it removes at the end. An archive holds at least one
# capture that succeeded. The exit status is the number of those that failed, 2 where it may not
# begin. PYTHON names the Python.
set -uo pipefail
case "${1:-}" in
  "" | -*) archive= ;;
  *) archive="$(realpath -m -- "$1")" ;;
esac
script="$(realpath -- "$0")"
cd "$(dirname "$script")/../.."
. benchmarks/gpu/shell.sh
case "${1:-}" in
  -h | --help)
    usage_of "$script"
    exit 0
    ;;
esac
if [ -z "$archive" ]; then
  usage_of "$script" >&2
  exit 2
fi
shift
python="${PYTHON:-python3}"
need_gpus benchmarks/gpu/captures.sh 2
python="$(command -v "$python")" # found from another folder too
python="$(cd "$(dirname "$python")" && pwd)/$(basename "$python")"
need_folder ARCHIVE "$(dirname "$archive")"
sources="$(realpath -m -- "${MOEPROF_SOURCES:-/src}")"
if [ -e "$sources/moeprof" ] || [ -e "$sources/captures" ]; then
  refuse "$sources: expected neither moeprof nor captures in it, found one; remove it or name" \
    "another folder in MOEPROF_SOURCES"
fi
made=("$sources/moeprof" "$sources/captures" "$archive.part")
was_there=yes
[ -d "$sources" ] || was_there=
clean_up() {
  cd /
  rm -rf -- "${made[@]}"
  [ -n "$was_there" ] || rmdir -- "$sources" 2>/dev/null
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
need_folder MOEPROF_SOURCES "$sources/moeprof"
cp -r moeprof analyzers reports benchmarks "$sources/moeprof/" || exit 1
cd "$sources/moeprof" || exit 1
# shellcheck disable=SC2016 # the arguments are the inner shell's
as_node=(unshare --uts sh -c 'hostname node0 && exec "$@"' sh)
unshare --uts hostname node0 2>/dev/null || as_node=()
"${as_node[@]}" "$python" benchmarks/gpu/captures.py run "$sources/captures" "$@"
status=$?
for log in "$sources"/captures/*/log.txt; do
  [ -f "$log" ] || continue
  [ -f "$(dirname "$log")/answers.json" ] || { echo "== $log" && tail -n 25 "$log"; }
done
if compgen -G "$sources/captures/*/answers.json" >/dev/null; then
  tar -czf "$archive.part" -C "$sources" captures && mv -- "$archive.part" "$archive" || exit 1
fi
exit "$status"
