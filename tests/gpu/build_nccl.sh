#!/usr/bin/env bash
# build_nccl.sh SOURCE OUT: builds NCCL from its sources (github.com/NVIDIA/nccl, 2.30 or later) as a small libnccl.so.2
# in the folder OUT: only the collectives and dtypes that moonshard uses, over rings (run it with NCCL_ALGO=RING), for one
# architecture (CUDA_ARCH, default 90). Changes files of SOURCE. With NCCL_MULTI_RANK_GPU_ENABLE=1 its ranks may share a
# GPU, which the NCCL that comes with LibTorch refuses.
set -euo pipefail
source=$(realpath "$1") out=$(realpath -m "$2") arch=${CUDA_ARCH:-90}
mkdir -p "$out"
# The kernels of symmetric memory, which moonshard does not use, take most of the build: one of each kind is left.
sed -i 's/^all_reds = .*/all_reds = ["sum"]/; s/^all_tys = .*/all_tys = ["f32"]/' "$source/src/device/symmetric/generate.py"
# The headers of another NCCL, installed beside CUDA, must not come before these, which therefore come before NCCL's
# installed ones, and among those are the headers of DOCA.
ln -sfn ../../../../transport/net_ib/gdaki/doca-gpunetio/include "$source/src/include/nccl_device/gin/gdaki/doca_gpunetio"
printf '#!/bin/sh\nexec g++ -I%s/src/include "$@"\n' "$source" >"$out/g++"
chmod +x "$out/g++"
types="(f32|f64|bf16|f16|i32|i64|u8)"
make -C "$source" -j"${MOONSHARD_JOBS:-$(nproc)}" src.build CXX="$out/g++" CUDA_HOME="${CUDA_HOME:-/usr/local/cuda}" \
  BUILDDIR="$out/build" NVCC_GENCODE="-gencode=arch=compute_$arch,code=sm_$arch" \
  ONLY_FUNCS="AllReduce (Sum|MinMax) $types RING *|ReduceScatter Sum $types RING *|AllGather RING *|Broadcast RING *|SendRecv"
cp -L "$out/build/lib/libnccl.so.2" "$out/libnccl.so.2"
