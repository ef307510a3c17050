#!/usr/bin/env python3
"""Makes the adapter fixtures: what PEFT computes with LoRA adapters of checkpoints in tests/parity.

Each folder under tests/parity/adapters/ has the files that PEFT saves, and what it computed with them in float64 for
`inputs_1` of the checkpoint:

    adapter_config.json, adapter_model.safetensors
    expected.safetensors     logits float64 [B, T, V], loss float64 [], grad.<tensor of adapter_model> float64

B is random too: zeros would hide A.

`experts` has a factor for each projection of each expert, as PEFT saved them for models with a list of experts. PEFT
reads these files into factors of its stacked experts, [gate; up] and down: A [rank * experts, in], B [out, rank *
experts] with an index rank * experts + expert. `experts_stacked` has such factors, as PEFT saves them; expected.safetensors
has their gradients as factors of single experts, where both projections of [gate; up] have the same A.

targets.json has the default targets of PEFT by model_type: a list of names, or an expression.

    make_adapters.py [FOLDER]   needs torch, transformers, safetensors and peft; recorded with torch 2.11,
                                transformers 5.18, peft 0.21.
"""

import json
import pathlib
import sys

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

# name: (checkpoint in tests/parity, LoraConfig)
CASES = {
    "all_linear": ("llama_gqa", dict(
        r=4, lora_alpha=6, rank_pattern={"down_proj": 2}, alpha_pattern={"k_proj": 3},
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"],
    )),
    "packed": ("phi3_gqa", dict(r=2, lora_alpha=3, target_modules=["qkv_proj", "gate_up_proj"])),
    "rslora": ("llama_gqa", dict(r=3, lora_alpha=5, use_rslora=True, target_modules=["q_proj", "down_proj"])),
    "tokens": ("llama_vocab331", dict(
        r=3, lora_alpha=5, alpha_pattern={"embed_tokens": 4}, target_modules=["embed_tokens", "up_proj"],
    )),
    "tokens_tied": ("qwen2_tied", dict(r=3, lora_alpha=4, target_modules=["embed_tokens", "v_proj"])),
    "experts_stacked": ("mixtral", dict(
        r=2, lora_alpha=3, rank_pattern={"mlp.experts.down_proj": 3}, alpha_pattern={"mlp.experts.down_proj": 5},
        target_modules=["q_proj"], target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
    )),
}  # fmt: skip


# Adapters of listed experts.
LISTED = {
    "experts": ("mixtral", dict(r=3, lora_alpha=4, target_modules=["w1", "w2", "w3", "v_proj"])),
}


def base_of(folder, checkpoint):
    return AutoModelForCausalLM.from_pretrained(
        folder / checkpoint, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager"
    )


def base_config(folder, checkpoint):
    return json.loads((folder / checkpoint / "config.json").read_text())


def make(folder, case, checkpoint, options):
    torch.manual_seed(list(CASES).index(case))
    model = get_peft_model(base_of(folder, checkpoint), LoraConfig(**options))
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = (0.2 * torch.randn(parameter.shape)).double()
    expected = step(folder / checkpoint, model)
    if "target_parameters" in options:
        unstack(expected, base_config(folder, checkpoint)["num_local_experts"], fused=False)
    target = folder / "adapters" / case
    model.save_pretrained(target, save_embedding_layers=False)
    (target / "README.md").unlink()
    write_config(target, json.loads((target / "adapter_config.json").read_text()))
    save_file(expected, target / "expected.safetensors")


def write_config(target, config):
    config["base_model_name_or_path"] = None  # a path of the machine
    for key in ("target_modules", "target_parameters"):
        config[key] = sorted(config[key]) if config.get(key) else config.get(key)
    (target / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def step(checkpoint, model):
    inputs = load_file(checkpoint / "inputs_1.safetensors")
    logits = model(input_ids=inputs["input_ids"], use_cache=False).logits
    # The loss of transformers is in float32.
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), inputs["labels"][:, 1:].flatten())
    loss.backward()
    expected = {"logits": logits.detach(), "loss": loss.detach()}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            expected["grad." + name.replace(".default", "")] = parameter.grad
    return expected


# Replaces the gradients of factors of stacked experts by those of factors of each expert. `fused`: factor A of [gate;
# up] has the rows of gate and then those of up for each expert, and B is block-diagonal; else both have the same A.
def unstack(expected, experts, fused):
    for name in [name for name in expected if ".mlp.experts." in name]:
        grad = expected.pop(name)
        block, factor = name.split(".mlp.experts.")
        first = "lora_A" in factor
        grad = grad.unflatten(0, (experts, -1)) if first else grad.unflatten(1, (-1, experts)).permute(2, 0, 1)
        for expert in range(experts):
            of = f"{block}.block_sparse_moe.experts.{expert}."
            end = f".{'lora_A' if first else 'lora_B'}.weight"
            one = grad[expert]
            if "base_layer" not in factor:
                expected[of + "w2" + end] = one.contiguous()
            elif not fused and first:
                expected[of + "w1_and_w3" + end] = one.contiguous()
            else:
                halves = [half.chunk(2, 1)[i] if fused else half for i, half in enumerate(one.chunk(2))] if not first \
                    else one.chunk(2)
                for projection, half in zip(("w1", "w3"), halves):
                    expected[of + projection + end] = half.contiguous()


# An adapter of listed experts, which PEFT reads and does not write.
def make_listed(folder, case, checkpoint, options):
    torch.manual_seed(100 + list(LISTED).index(case))
    config = base_config(folder, checkpoint)
    hidden, size = config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"]
    sizes = {"w1": (hidden, size), "w3": (hidden, size), "w2": (size, hidden),
             "v_proj": (hidden, config["num_key_value_heads"] * hidden // heads)}  # fmt: skip
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        block = f"base_model.model.model.layers.{layer}."
        paths = [f"block_sparse_moe.experts.{e}.{w}" for e in range(config["num_local_experts"]) for w in ("w1", "w2", "w3")]
        for path in [*paths, "self_attn.v_proj"]:
            fan_in, fan_out = sizes[path.rsplit(".", 1)[1]]
            tensors[block + path + ".lora_A.weight"] = 0.2 * torch.randn(options["r"], fan_in)
            tensors[block + path + ".lora_B.weight"] = 0.2 * torch.randn(fan_out, options["r"])
    target = folder / "adapters" / case
    target.mkdir(parents=True, exist_ok=True)
    save_file(tensors, target / "adapter_model.safetensors")
    LoraConfig(**options).save_pretrained(target)
    write_config(target, json.loads((target / "adapter_config.json").read_text()))
    model = PeftModel.from_pretrained(base_of(folder, checkpoint), target, is_trainable=True)
    model = model.double()
    expected = step(folder / checkpoint, model)
    unstack(expected, config["num_local_experts"], fused=True)
    save_file(expected, target / "expected.safetensors")


if __name__ == "__main__":
    here = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent
    for case, (checkpoint, options) in CASES.items():
        make(here, case, checkpoint, options)
    for case, (checkpoint, options) in LISTED.items():
        make_listed(here, case, checkpoint, options)
    targets = json.dumps(TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING, indent=2, sort_keys=True)
    (here / "adapters" / "targets.json").write_text(targets + "\n")
