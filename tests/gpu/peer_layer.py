#!/usr/bin/env python3
"""The layer of `bench_layer PAIRS gpu` under PyTorch's parallelize_module: rank 0 of tp=8, with collectives that return at
once (the process group "fake").

    peer_layer.py STEPS TOKENS ...      prints JSON: milliseconds of forward and backward, by number of tokens
"""

import json
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding


def main() -> None:
    steps, lengths = int(sys.argv[1]), [int(word) for word in sys.argv[2:]]
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    mesh = init_device_mesh("cuda", (8,), mesh_dim_names=("tp",))
    config = LlamaConfig(hidden_size=4096, intermediate_size=14336, num_hidden_layers=1, num_attention_heads=32,
                         num_key_value_heads=8, vocab_size=64, attn_implementation="sdpa")
    with torch.device("cuda"):
        layer = LlamaDecoderLayer(config, 0).to(torch.bfloat16)
        rotary = LlamaRotaryEmbedding(config)
    plan: dict[str, object] = {f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"}
    plan |= {"mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel(),
             "self_attn.o_proj": RowwiseParallel(), "mlp.down_proj": RowwiseParallel()}
    parallelize_module(layer, mesh, plan)
    figures = {}
    for tokens in lengths:
        x = torch.full((1, tokens, 4096), 0.1, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        position = rotary(x, torch.arange(tokens, device="cuda").unsqueeze(0))
        times = []
        for step in range(steps + 20):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            out = layer(x, position_embeddings=position)
            (out[0] if isinstance(out, tuple) else out).sum().backward()
            torch.cuda.synchronize()
            if step >= 20:
                times.append((time.perf_counter() - begin) * 1000)
        figures[str(tokens)] = sorted(times)[len(times) // 2]
    print(json.dumps({"ms": figures, "torch": torch.__version__}))


if __name__ == "__main__":
    main()
