#!/usr/bin/env python3
"""Makes the adapter fixtures: what PEFT computes with LoRA adapters of checkpoints in tests/parity.

Each folder under tests/parity/adapters/ has the files that PEFT saves, and what it computed with them in float64 for
`inputs_1` of the checkpoint:

    adapter_config.json, adapter_model.safetensors
    expected.safetensors     logits float64 [B, T, V], loss float64 [], grad.<tensor of adapter_model> float64

B is random too: zeros would hide A.

targets.json has the default targets of PEFT by model_type: a list of names, or an expression.

    make_adapters.py [FOLDER]   needs torch, transformers, safetensors and peft; recorded with torch 2.11,
                                transformers 5.18, peft 0.21.
"""

import json
import pathlib
import sys

import torch
from peft import LoraConfig, get_peft_model
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
}  # fmt: skip


def make(folder, case, checkpoint, options):
    torch.manual_seed(sorted(CASES).index(case))
    base = AutoModelForCausalLM.from_pretrained(folder / checkpoint, dtype=torch.float64, attn_implementation="eager")
    model = get_peft_model(base, LoraConfig(**options))
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = (0.2 * torch.randn(parameter.shape)).double()
    inputs = load_file(folder / checkpoint / "inputs_1.safetensors")
    logits = model(input_ids=inputs["input_ids"], use_cache=False).logits
    # The loss of transformers is in float32.
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), inputs["labels"][:, 1:].flatten())
    loss.backward()
    expected = {"logits": logits.detach(), "loss": loss.detach()}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            expected["grad." + name.replace(".default", "")] = parameter.grad
    target = folder / "adapters" / case
    model.save_pretrained(target, save_embedding_layers=False)
    (target / "README.md").unlink()
    config = json.loads((target / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = None  # a path of the machine
    config["target_modules"] = sorted(config["target_modules"])
    (target / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    save_file(expected, target / "expected.safetensors")


if __name__ == "__main__":
    here = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent
    for case, (checkpoint, options) in CASES.items():
        make(here, case, checkpoint, options)
    targets = json.dumps(TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING, indent=2, sort_keys=True)
    (here / "adapters" / "targets.json").write_text(targets + "\n")
