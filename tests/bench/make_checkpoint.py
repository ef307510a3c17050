#!/usr/bin/env python3
"""Makes a folder of a Llama's shape in bfloat16. Needs no package.

    make_checkpoint.py FOLDER          2.2 GB in two files, with arbitrary small weights
    make_checkpoint.py FOLDER --405b   Llama 3.1 405B: config.json, index and headers without weights, for explain
"""

import json
import math
import pathlib
import random
import struct
import sys
import typing

class Shape(typing.NamedTuple):
    layers: int
    hidden: int
    wide: int
    heads: int
    kv_heads: int
    vocab: int
    rope_theta: float
    files: int

    def config(self):
        return {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": self.hidden,
            "intermediate_size": self.wide, "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads, "vocab_size": self.vocab, "rms_norm_eps": 1e-6,
            "rope_theta": self.rope_theta, "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False,
            "hidden_act": "silu", "max_position_embeddings": 131072, "dtype": "bfloat16",
        }  # fmt: skip

    def tensors(self):
        kv = self.hidden // self.heads * self.kv_heads
        yield "model.embed_tokens.weight", [self.vocab, self.hidden]
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}."
            yield prefix + "input_layernorm.weight", [self.hidden]
            yield prefix + "self_attn.q_proj.weight", [self.hidden, self.hidden]
            yield prefix + "self_attn.k_proj.weight", [kv, self.hidden]
            yield prefix + "self_attn.v_proj.weight", [kv, self.hidden]
            yield prefix + "self_attn.o_proj.weight", [self.hidden, self.hidden]
            yield prefix + "post_attention_layernorm.weight", [self.hidden]
            yield prefix + "mlp.gate_proj.weight", [self.wide, self.hidden]
            yield prefix + "mlp.up_proj.weight", [self.wide, self.hidden]
            yield prefix + "mlp.down_proj.weight", [self.hidden, self.wide]
        yield "model.norm.weight", [self.hidden]
        yield "lm_head.weight", [self.vocab, self.hidden]


TWO_GB = Shape(16, 2048, 8192, 32, 8, 32000, 10000.0, 2)
LLAMA_405B = Shape(126, 16384, 53248, 128, 8, 128256, 500000.0, 191)


def small_bfloat16(elements):
    """Values of about +-0.01: any low byte, sign by the high byte."""
    generator = random.Random(elements)
    block = bytearray()
    for _ in range(min(elements, 65536)):
        block += bytes((generator.randrange(256), generator.choice((0x3C, 0xBC))))
    return (bytes(block) * (elements // (len(block) // 2) + 1))[: 2 * elements]


def write(folder, shape, headers_only):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(shape.config(), indent=2))
    everything, weight_map = list(shape.tensors()), {}
    for number in range(shape.files):
        name = f"model-{number + 1:05d}-of-{shape.files:05d}.safetensors"
        part = everything[number * len(everything) // shape.files : (number + 1) * len(everything) // shape.files]
        header, offset = {}, 0
        for tensor, sizes in part:
            size = 2 * math.prod(sizes)
            header[tensor] = {"dtype": "BF16", "shape": sizes, "data_offsets": [offset, offset + size]}
            offset += size
            weight_map[tensor] = name
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(folder / name, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for tensor, sizes in [] if headers_only else part:
                file.write(small_bfloat16(math.prod(sizes)))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    ids = [[(7 * i) % shape.vocab for i in range(16)]]
    (folder / "input.json").write_text(json.dumps({"input_ids": ids}))


def main():
    headers_only = "--405b" in sys.argv[2:]
    write(pathlib.Path(sys.argv[1]), LLAMA_405B if headers_only else TWO_GB, headers_only)


if __name__ == "__main__":
    main()
