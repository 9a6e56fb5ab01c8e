#!/bin/sh
# Captures every strategy on two GPUs from a neutral place, under a neutral host name, so that the
# profiles name no machine; leaves one archive: benchmarks/gpu_captures.sh ARCHIVE.tar.gz [--only …]
set -eu
archive=$(realpath -m "$1")
shift
python=${PYTHON:-python3.12}
sources=${MOEPROF_SOURCES:-/src}
if [ -e "$sources/moeprof" ] || [ -e "$sources/captures" ]; then
  echo "$sources: expected neither moeprof nor captures in it, found one; remove it or name another" \
    "folder in MOEPROF_SOURCES" >&2
  exit 2
fi
mkdir -p "$sources/moeprof"
cp -r moeprof analyzers reports benchmarks "$sources/moeprof/"
cd "$sources/moeprof"
as_node="unshare --uts sh -c 'hostname node0 && exec \"\$@\"' sh"
unshare --uts hostname node0 2>/dev/null || as_node=
status=0
eval "$as_node" '"$python" benchmarks/gpu_captures.py run "$sources/captures" "$@"' || status=$?
for log in "$sources"/captures/*/log.txt; do
  [ -f "$(dirname "$log")/answers.json" ] || { echo "== $log"; tail -n 25 "$log"; }
done
tar -czf "$archive" -C "$sources" captures
exit "$status"
