#!/bin/bash
# Builds the grouped GEMM alone, without CMake: build.sh OUT_FOLDER -> OUT_FOLDER/libgrouped_gemm.so
set -eu
native=$(cd "$(dirname "$0")/../.." && pwd)
out=$1
nvcc=${NVCC:-/usr/local/cuda/bin/nvcc}
cuda=$(dirname "$(dirname "$nvcc")")
mkdir -p "$out"
pids=()
for source in "$native"/gpu/grouped_gemm/*.cu; do
  "$nvcc" -gencode=arch=compute_90a,code=sm_90a -std=c++17 -O3 -lineinfo -I"$native" \
    -Werror all-warnings -Xcompiler=-Wall,-Wextra,-fPIC,-fvisibility=hidden \
    -c "$source" -o "$out/$(basename "$source").o" &
  pids+=($!)
done
for source in launch launch_parts launch_plain raw tensor_map; do
  g++ -std=c++17 -O2 -Wall -Wextra -Werror -fPIC -fvisibility=hidden -I"$native" \
    -isystem "$cuda/include" -c "$native/gpu/grouped_gemm/$source.cc" -o "$out/$source.cc.o" &
  pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid"; done
"$nvcc" -shared -cudart static -Xlinker -z,defs -o "$out/libgrouped_gemm.so" "$out"/*.o
