#!/usr/bin/env bash
# bundle.sh BUILD OUT: gathers in OUT what run.sh needs on a machine with a GPU: stripped programs and test binaries of
# the build folder BUILD, both plug-ins, the shared libraries that a plain Ubuntu 24.04 lacks, recorded models, and with
# MOONSHARD_GPU_NCCL=FILE a libnccl.so.2 that lets ranks share a card.
set -euo pipefail
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$1 out=$2
rm -rf "$out"
mkdir -p "$out"/{bin,lib,models}

for program in moonshard moonshard-run libmoonshard_nccl.so libmoonshard_loss_cuda.so tests/engine/test_mesh_gpu \
  tests/engine/test_loss_gpu tests/bench/bench_layer; do
  strip --strip-unneeded -o "$out/bin/$(basename "$program")" "$build/$program"
done

# Libraries of LibTorch come with it, and those of the C and C++ compilers are part of every system.
for program in "$out"/bin/*; do ldd "$program" 2>/dev/null || true; done |
  awk '$3 ~ /^\// && $3 !~ /\/(torch|nvidia)\// {print $3}' | sort -u |
  grep -Ev '/(libc|libm|libdl|librt|libpthread|libutil|libstdc\+\+|libgcc_s|ld-linux[^/]*)\.so' |
  while read -r library; do cp -L "$library" "$out/lib/"; done
gcc -O2 -Wall -shared -fPIC "$source/tests/gpu/count_synchronisations.c" -o "$out/lib/libcount_synchronisations.so" -ldl -lpthread

for model in llama_gqa llama_bias llama_bf16_yarn llama_tied_llama3 baichuan1 gemma3_softcap mistral_window8 mixtral \
  ministral3_yarn phi3_longrope phi_qknorm qwen2_tied qwen2_window5 qwen3_bias_window qwen3_moe; do
  cp -r "$source/tests/parity/$model" "$out/models/"
done
for program in "$source"/tests/parity/programs/*/program.pt2; do
  folder=$(dirname "$program")
  mkdir -p "$out/programs/$(basename "$folder")"
  cp "$folder"/{config.json,inputs.safetensors,model.safetensors,program.pt2} "$out/programs/$(basename "$folder")/"
done
cp -r "$source/tests/parity/examples" "$out/"
if [[ -n ${MOONSHARD_GPU_NCCL:-} ]]; then
  mkdir "$out/nccl"
  strip --strip-unneeded -o "$out/nccl/libnccl.so.2" "$MOONSHARD_GPU_NCCL"
fi
git -C "$source" describe --always --dirty >"$out/commit"
cp "$source"/tests/gpu/{run.sh,items.py,peer_layer.py,peer_train.py} "$out/"
size=$(tar -C "$(dirname "$out")" -c "$(basename "$out")" | gzip | wc -c)
printf '%s: %d MiB, %d MiB compressed\n' "$out" "$(du -sm "$out" | cut -f1)" "$((size >> 20))"
