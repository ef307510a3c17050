#!/usr/bin/env python3
"""Makes a folder of Llama 3.1 405B's shape: config.json, index and headers; no weight. For `moonshard explain`.

    make_405b.py FOLDER
"""

import json
import pathlib
import struct
import sys

LAYERS, HIDDEN, WIDE, KV, VOCAB, FILES = 126, 16384, 53248, 8 * 128, 128256, 191
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": WIDE,
    "num_hidden_layers": LAYERS, "num_attention_heads": 128, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": VOCAB, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": False,
    "attention_bias": False, "mlp_bias": False, "hidden_act": "silu", "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}  # fmt: skip


def tensors():
    yield "model.embed_tokens.weight", [VOCAB, HIDDEN]
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", [HIDDEN]
        yield prefix + "self_attn.q_proj.weight", [HIDDEN, HIDDEN]
        yield prefix + "self_attn.k_proj.weight", [KV, HIDDEN]
        yield prefix + "self_attn.v_proj.weight", [KV, HIDDEN]
        yield prefix + "self_attn.o_proj.weight", [HIDDEN, HIDDEN]
        yield prefix + "post_attention_layernorm.weight", [HIDDEN]
        yield prefix + "mlp.gate_proj.weight", [WIDE, HIDDEN]
        yield prefix + "mlp.up_proj.weight", [WIDE, HIDDEN]
        yield prefix + "mlp.down_proj.weight", [HIDDEN, WIDE]
    yield "model.norm.weight", [HIDDEN]
    yield "lm_head.weight", [VOCAB, HIDDEN]


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2))
    everything = list(tensors())
    weight_map = {}
    for number in range(FILES):
        name = f"model-{number + 1:05d}-of-{FILES:05d}.safetensors"
        header, offset = {}, 0
        for tensor, shape in everything[number * len(everything) // FILES : (number + 1) * len(everything) // FILES]:
            size = 2
            for dim in shape:
                size *= dim
            header[tensor] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
            offset += size
            weight_map[tensor] = name
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        (folder / name).write_bytes(struct.pack("<Q", len(text)) + text)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


main()
