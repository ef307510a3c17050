#!/usr/bin/env python3
"""Makes a Llama checkpoint of 2.1 GB in bfloat16, with arbitrary small weights, in two files. Needs no package.

    make_checkpoint.py FOLDER
"""

import json
import pathlib
import random
import struct
import sys

LAYERS, HIDDEN, WIDE, HEADS, KV_HEADS, VOCAB, FILES = 16, 2048, 8192, 32, 8, 32000, 2
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": WIDE,
    "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "vocab_size": VOCAB,
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu",
    "max_position_embeddings": 2048, "dtype": "bfloat16",
}  # fmt: skip


def tensors():
    kv = HIDDEN // HEADS * KV_HEADS
    yield "model.embed_tokens.weight", [VOCAB, HIDDEN]
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", [HIDDEN]
        yield prefix + "self_attn.q_proj.weight", [HIDDEN, HIDDEN]
        yield prefix + "self_attn.k_proj.weight", [kv, HIDDEN]
        yield prefix + "self_attn.v_proj.weight", [kv, HIDDEN]
        yield prefix + "self_attn.o_proj.weight", [HIDDEN, HIDDEN]
        yield prefix + "post_attention_layernorm.weight", [HIDDEN]
        yield prefix + "mlp.gate_proj.weight", [WIDE, HIDDEN]
        yield prefix + "mlp.up_proj.weight", [WIDE, HIDDEN]
        yield prefix + "mlp.down_proj.weight", [HIDDEN, WIDE]
    yield "model.norm.weight", [HIDDEN]
    yield "lm_head.weight", [VOCAB, HIDDEN]


def small_bfloat16(elements):
    """Values of about +-0.01: any low byte, sign by the high byte."""
    generator = random.Random(elements)
    block = bytearray()
    for _ in range(min(elements, 65536)):
        block += bytes((generator.randrange(256), generator.choice((0x3C, 0xBC))))
    return (bytes(block) * (elements // (len(block) // 2) + 1))[: 2 * elements]


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2))
    everything, weight_map = list(tensors()), {}
    for number in range(FILES):
        name = f"model-{number + 1:05d}-of-{FILES:05d}.safetensors"
        part = everything[number * len(everything) // FILES : (number + 1) * len(everything) // FILES]
        header, offset = {}, 0
        for tensor, shape in part:
            size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
            header[tensor] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
            offset += size
            weight_map[tensor] = name
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(folder / name, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for tensor, _ in part:
                begin, end = header[tensor]["data_offsets"]
                file.write(small_bfloat16((end - begin) // 2))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    ids = [[(7 * i) % VOCAB for i in range(16)]]
    (folder / "input.json").write_text(json.dumps({"input_ids": ids}))


main()
