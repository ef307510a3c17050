#!/usr/bin/env python3
"""Makes the parity fixtures: small Hugging Face checkpoints with what transformers computes for them.

Each folder under tests/parity/ is a model folder in Hugging Face form plus, for each input, a pair of files:

    config.json, model.safetensors (or several files and model.safetensors.index.json)
    inputs_N.safetensors     input_ids int64 [B, T], labels int64 [B, T] (-100: not counted)
    expected_N.safetensors   logits float32 [B, T, V], loss float32 [], grad.<parameter> float32 (Hugging Face names)

`inputs_micro_1` and `inputs_micro_2` are two micro-batches, `expected_micro` has the gradient of the mean of their
losses, and no logits. Where input 1 has four rows, tests cut it into micro-batches themselves. `inputs_padded` has an attention_mask [B, T] and position_ids too (padding on the left); logits
where the mask is 0 mean nothing. `inputs_packed` has rows of several documents: position_ids that begin anew at each of
them, from which transformers finds them, document_ids [B, T] that say the same, and no label over a boundary. rope_cases.json holds configs with the rotary frequencies made of them. Weights are
random, norms and biases too, so that nothing is hidden by ones and zeros. Everything is computed in float32 on the CPU
with eager attention, so that the numbers do not depend on a fused kernel.

    make_fixtures.py [FOLDER [CASE...]]   needs torch, transformers and safetensors; recorded with torch 2.11,
                                          transformers 5.18. With cases, only those.
"""

import json
import pathlib
import sys

import torch
import transformers
from families import CASES as FAMILIES
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

SMALL = dict(
    vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=8,
    num_key_value_heads=4, max_position_embeddings=128, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2,
)  # fmt: skip
LLAMA3 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)  # fmt: skip
LONGROPE = dict(type="longrope", short_factor=[1.0, 1.05, 1.2, 1.4], long_factor=[1.5, 2.0, 3.5, 6.0])
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=16)

# Rotary parts of a config.json, old and new; what is made of them goes to rope_cases.json.
ROPE_CASES = [
    {},
    {"rope_theta": 500000.0},
    {"rope_theta": 1e6, "head_dim": 32, "rope_scaling": None},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 2e5}},
    {"rope_theta": 3e4, "rope_parameters": {"rope_type": "linear", "factor": 4.0}},
    {"rope_theta": 3e4, "rope_scaling": {"type": "linear", "factor": 3}},
    {"rope_theta": 5e5, "rope_scaling": {k: v for k, v in LLAMA3.items() if k != "rope_theta"}},
    {"rope_parameters": {k: v for k, v in LLAMA3.items() if k != "original_max_position_embeddings"}},
    {"rope_parameters": YARN},
    {"rope_parameters": {**YARN, "beta_fast": 20, "beta_slow": 2, "truncate": False}, "head_dim": 64},
    {"rope_parameters": {**YARN, "attention_factor": 0.75, "beta_fast": None}, "head_dim": 64},
    {"rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.2, "original_max_position_embeddings": 4096}},
    {"architectures": ["PhiForCausalLM"], "rope_theta": 2e4},
    {"architectures": ["PhiForCausalLM"], "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}},
    {"architectures": ["Phi3ForCausalLM"], "rope_scaling": LONGROPE, "original_max_position_embeddings": 32},
    {"architectures": ["Phi3ForCausalLM"], "rope_scaling": {**LONGROPE, "attention_factor": 0.5},
     "original_max_position_embeddings": 32, "rope_theta": 3e4, "length": 33},
    {"architectures": ["Phi3ForCausalLM"], "max_position_embeddings": 65536, "length": 4097,
     "rope_parameters": {**LONGROPE, "type": "su", "original_max_position_embeddings": 16}},
]

# name: (model class, config, options of this script)
CASES = {
    "llama_gqa": (LlamaForCausalLM, LlamaConfig(**SMALL), {"shards": "60KB", "micro_batches": True, "packed": True}),
    "llama_tied_llama3": (
        LlamaForCausalLM,
        LlamaConfig(**SMALL, tie_word_embeddings=True, rope_parameters=LLAMA3), {},
    ),
    "llama_bias": (
        LlamaForCausalLM,
        LlamaConfig(**{**SMALL, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32, "head_dim": 16,
                       "attention_bias": True, "mlp_bias": True, "intermediate_size": 50},
                    rope_parameters=dict(rope_type="linear", rope_theta=5000.0, factor=2.5)), {"old_config": True},
    ),
    "llama_vocab331": (
        LlamaForCausalLM,
        LlamaConfig(**{**SMALL, "vocab_size": 331, "hidden_size": 32, "num_attention_heads": 4,
                       "pad_token_id": 330, "hidden_act": "gelu_pytorch_tanh"}), {},
    ),
    "llama_bf16_yarn": (
        LlamaForCausalLM,
        LlamaConfig(**{**SMALL, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4,
                       "max_position_embeddings": 64}, rope_parameters=YARN), {"dtype": torch.bfloat16},
    ),
    "mistral_window8": (MistralForCausalLM, MistralConfig(**SMALL, sliding_window=8), {"padded": True, "packed": True}),
    **FAMILIES,
}  # fmt: skip


def randomise(model, norm_centre, generator):
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data = norm_centre + 0.3 * noise if name.endswith("norm.weight") else 0.2 * noise


def make_inputs(config, length, generator, rows=2):
    """Odd lengths have labels that are not counted; even ones have the ids themselves as labels."""
    ids = torch.randint(0, config.vocab_size, (rows, length), generator=generator)
    if config.pad_token_id is not None:
        ids[1, 3] = config.pad_token_id
    labels = ids.clone()
    if length % 2:
        labels[0, :3] = -100
        labels[1, -2] = -100
    return ids, labels


def run(model, ids, labels, **more):
    output = model(input_ids=ids, labels=labels, use_cache=False, **more)
    return output.logits.float(), output.loss.float()


def gradients(model):
    found = {f"grad.{name}": p.grad.float() for name, p in model.named_parameters()}
    names = getattr(model, "expert_names", None)
    for name in [name for name in found if ".mlp." in name and names]:
        for own_name, gradient in as_stored(name, found.pop(name), *names):
            found[own_name] = gradient
    return {name: gradient.contiguous() for name, gradient in found.items()}


def as_stored(name, stacked, block, gate, up, down):
    """Checkpoints name each expert's projections by themselves; transformers computes with all of them stacked."""
    prefix = name.split(".mlp.")[0] + "." + block
    if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        yield name.replace(name.split(".mlp.")[0] + ".mlp", prefix), stacked
        return
    for i, one in enumerate(stacked):
        if name.endswith("down_proj"):
            yield f"{prefix}.experts.{i}.{down}.weight", one
        else:
            for projection, part in zip((gate, up), one.chunk(2)):
                yield f"{prefix}.experts.{i}.{projection}.weight", part


def record(model, folder, name, ids, labels, unseen=None, **more):
    """`unseen`: inputs that the file has besides, which transformers does not take."""
    model.zero_grad(set_to_none=True)
    logits, loss = run(model, ids, labels, **more)
    loss.backward()
    save_file({"input_ids": ids, "labels": labels} | more | (unseen or {}), folder / f"inputs_{name}.safetensors")
    found = {"logits": logits.detach().contiguous(), "loss": loss.detach()} | gradients(model)
    save_file(found, folder / f"expected_{name}.safetensors")


def record_padded(model, folder, ids, labels, padding):
    """The second row has `padding` positions before its first token."""
    mask = torch.ones_like(ids)
    mask[1, :padding] = 0
    labels = labels.masked_fill(mask == 0, -100)
    labels[1, padding] = -100
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    record(model, folder, "padded", ids, labels, attention_mask=mask, position_ids=positions)


def record_packed(model, folder, ids, labels, lengths):
    """`lengths`: of the documents of each row."""
    positions = torch.stack([torch.cat([torch.arange(n) for n in row]) for row in lengths])
    documents = torch.stack([torch.cat([torch.full((n,), 3 * i) for i, n in enumerate(row)]) for row in lengths])
    labels = labels.masked_fill(positions == 0, -100)
    record(model, folder, "packed", ids, labels, {"document_ids": documents}, position_ids=positions)


def record_micro_batches(model, folder, inputs):
    model.zero_grad(set_to_none=True)
    losses = []
    for number, (ids, labels) in enumerate(inputs, start=1):
        _, loss = run(model, ids, labels)
        (loss / len(inputs)).backward()
        losses.append(loss.detach())
        save_file({"input_ids": ids, "labels": labels}, folder / f"inputs_micro_{number}.safetensors")
    save_file({"loss": torch.stack(losses).mean()} | gradients(model), folder / "expected_micro.safetensors")


def write_old_config(folder):
    """The same config as transformers 4 wrote it: rope_theta, rope_scaling, torch_dtype."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    rope["type"] = rope.pop("rope_type")
    config["rope_scaling"] = rope
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def rewrite_config(folder, change):
    path = folder / "config.json"
    path.write_text(json.dumps(change(json.loads(path.read_text())), indent=2, sort_keys=True) + "\n")


def make(folder, model_class, config, options):
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    generator = torch.Generator().manual_seed(2026)
    model = model_class(config)
    randomise(model, options.get("norm_centre", 1), generator)
    dtype = options.get("dtype", torch.float32)
    model = model.to(dtype)
    model.config.dtype = dtype
    model.save_pretrained(folder, max_shard_size=options.get("shards", "1GB"))
    (folder / "generation_config.json").unlink(missing_ok=True)
    if options.get("old_config"):
        write_old_config(folder)
    if "rewrite_config" in options:
        rewrite_config(folder, options["rewrite_config"])
    # Read again rather than converted back: .to(bfloat16) has rounded the rotary frequencies too.
    model = model_class.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").train()
    if "expert_names" in options:
        model.set_experts_implementation("eager")
        model.expert_names = options["expert_names"]
    for number, length in enumerate(options.get("lengths", (13, 16)), start=1):
        rows = options.get("rows", 2) if number == 1 else 2
        record(model, folder, number, *make_inputs(config, length, generator, rows))
    if options.get("padded"):
        record_padded(model, folder, *make_inputs(config, 14, generator, options.get("padded_rows", 2)), padding=5)
    if options.get("packed"):
        own = torch.Generator().manual_seed(2027)  # so that the other inputs do not depend on these
        record_packed(model, folder, *make_inputs(config, 22, own), lengths=[(5, 1, 16), (11, 11)])
    if options.get("micro_batches"):
        record_micro_batches(model, folder, [make_inputs(config, length, generator) for length in (16, 11)])


def write_rope_cases(path):
    cases = []
    for rope in ROPE_CASES:
        config = {**SMALL, "architectures": ["LlamaForCausalLM"], "pad_token_id": 0, **json.loads(json.dumps(rope))}
        length = config.pop("length", 1)
        model = getattr(transformers, config["architectures"][0])
        made = model(model.config_class.from_dict(json.loads(json.dumps(config)))).model.rotary_emb
        made(torch.zeros(1), torch.tensor([[length - 1]]))  # a rope that depends on the length takes it from here
        cases.append({"config": config, "length": length, "frequencies": made.inv_freq.tolist(),
                      "factor": made.attention_scaling})
    path.write_text(json.dumps(cases, indent=1, sort_keys=True) + "\n")


def main():
    transformers.utils.logging.disable_progress_bar()
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    cases = sys.argv[2:] or list(CASES)
    write_rope_cases(root / "rope_cases.json")
    for name in cases:
        model_class, config, options = CASES[name]
        make(root / name, model_class, config, options)
        for file in (root / name).iterdir():
            file.chmod(0o644)
        size = sum(file.stat().st_size for file in (root / name).iterdir())
        print(f"{name}: {size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
