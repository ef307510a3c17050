#!/usr/bin/env python3
"""Makes the program fixtures: small Hugging Face checkpoints, the exported program of each, and what transformers computes.

    make_programs.py [OUT [CASE...]]      needs torch, transformers and safetensors (./dev fixtures); default: this folder

Each folder OUT/CASE holds config.json, model.safetensors, program.pt2 (engine/models/program/export), inputs.safetensors
(the program's inputs by name) and expected.safetensors: what the program returns by the names of its outputs, and grad.<parameter>
of the loss. Weights are random, norms and biases too. Everything is float32 on the CPU, computed by the eager model with the
attention that was exported.
"""

import json
import pathlib
import sys
import zipfile

import torch
import transformers
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "engine" / "models" / "program" / "export"))

import export_program  # noqa: E402
import hugging_face  # noqa: E402

SMALL = dict(vocab_size=48, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=4, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2)  # fmt: skip
GROUPED = {**SMALL, "num_key_value_heads": 2}
LATENT = dict(q_lora_rank=16, kv_lora_rank=8, qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=8)

CASES: dict[str, tuple[str, dict]] = {
    "deepseek_v3": ("deepseek_v3", {**SMALL, **LATENT, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1,
                                    "topk_group": 1, "moe_intermediate_size": 16, "first_k_dense_replace": 1,
                                    "n_shared_experts": 1}),
    "falcon_h1": ("falcon_h1", {**GROUPED, "mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1,
                                "mamba_d_state": 8, "mamba_chunk_size": 8}),
    "nemotron_h": ("nemotron_h", {**GROUPED, "layers_block_type": ["mamba", "attention", "mlp"], "mamba_num_heads": 4,
                                  "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 8, "chunk_size": 8,
                                  "head_dim": 8}),
    "qwen3_5": ("qwen3_5_text", {**GROUPED, "head_dim": 8, "layer_types": ["linear_attention", "full_attention"],
                                 "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 4,
                                 "linear_num_value_heads": 4}),
    "qwen3_5_moe": ("qwen3_5_moe_text", {**GROUPED, "head_dim": 8, "layer_types": ["linear_attention", "full_attention"],
                                         "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 4,
                                         "linear_num_value_heads": 4, "num_experts": 4, "num_experts_per_tok": 2,
                                         "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}),
    "gpt_oss": ("gpt_oss", {**GROUPED, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8}),
    "llama4": ("llama4_text", {**GROUPED, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 1,
                               "intermediate_size_mlp": 48, "moe_layers": [1], "attention_chunk_size": 16}),
    "glm4_moe": ("glm4_moe", {**GROUPED, "head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1,
                              "topk_group": 1, "moe_intermediate_size": 16, "first_k_dense_replace": 1}),
    "olmo2": ("olmo2", GROUPED),
    "gpt2": ("gpt2", dict(vocab_size=48, n_embd=32, n_layer=2, n_head=4, n_positions=64, n_inner=48, resid_pdrop=0.0,
                          embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=2)),
    "t5": ("t5", dict(vocab_size=48, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, dropout_rate=0.0,
                      decoder_start_token_id=0, pad_token_id=0, eos_token_id=1)),
    "qwen2_5_vl": ("qwen2_5_vl", {}),
    "llama": ("llama", GROUPED),
    "mixtral": ("mixtral", {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}),
}  # fmt: skip


def shrunk_vl(config: transformers.PretrainedConfig) -> None:
    """Qwen2.5-VL: two layers of text and of vision."""
    text, vision = config.text_config, config.vision_config
    for name, value in {**GROUPED, "image_token_id": 5}.items():
        setattr(text, name, value)
    text.rope_parameters = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
    text.layer_types = ["full_attention"] * 2
    for name, value in dict(depth=2, hidden_size=32, intermediate_size=48, num_heads=4, out_hidden_size=32, patch_size=4,
                            spatial_merge_size=2, window_size=16, fullatt_block_indexes=[1]).items():
        setattr(vision, name, value)
    config.image_token_id, config.video_token_id, config.vision_start_token_id = 5, 6, 7


def random_values(model: torch.nn.Module) -> None:
    """Norms and biases away from ones and zeros, everything of a size that keeps numbers moderate."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() < 2:
                parameter.add_(0.1 * noise)
            else:
                parameter.copy_(0.15 * noise)


def slim(path: pathlib.Path) -> None:
    """Leaves out what nothing reads: stack traces of the model's Python, and the example inputs."""
    with zipfile.ZipFile(path) as archive:
        entries = [(info, archive.read(info)) for info in archive.infolist() if "/sample_inputs/" not in info.filename]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for info, data in entries:
            if info.filename.endswith("models/model.json"):
                data = json.dumps(without_traces(json.loads(data)), separators=(",", ":")).encode()
            archive.writestr(zipfile.ZipInfo(info.filename), data)


def without_traces(value):
    if isinstance(value, dict):
        return {k: without_traces(v) for k, v in value.items() if k not in ("stack_trace", "torch_fn")}
    return [without_traces(v) for v in value] if isinstance(value, list) else value


def make(out: pathlib.Path, case: str) -> None:
    kind, changes = CASES[case]
    config = transformers.AutoConfig.for_model(kind, **changes)
    if case == "qwen2_5_vl":
        shrunk_vl(config)
    folder = out / case
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    model = hugging_face.build(config, torch.float32)
    random_values(model)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    program = folder / "program.pt2"
    exported = export_program.export_model(folder, export_program.Options(dtype="float32"), program)
    slim(program)

    real = hugging_face.build(hugging_face.load_config(folder), torch.float32, folder=folder).train()
    names = [one["name"] for one in exported.description["inputs"]]
    inputs, _ = hugging_face.example_inputs(real, [*names, *exported.description["fixed"]], 4, 12, seed=3)
    results = real(**inputs, **hugging_face.forward_options(real))
    results.loss.backward()
    expected = {name: results[name] for name in ("loss", "logits") if name in results}
    expected |= {f"grad.{name}": p.grad for name, p in real.named_parameters() if p.grad is not None}
    save_file({name: inputs[name].contiguous() for name in names}, folder / "inputs.safetensors")
    save_file({name: one.detach().float().contiguous() for name, one in expected.items()}, folder / "expected.safetensors")
    sizes = {path.name: path.stat().st_size // 1024 for path in folder.iterdir()}
    print(case, float(results.loss), exported.description["notes"], sizes, flush=True)


def main() -> None:
    torch.set_num_threads(1)  # as the tests run them: sums of several threads have another order
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    for case in sys.argv[2:] or CASES:
        try:
            make(out, case)
        except Exception as error:  # noqa: BLE001
            print(case, "FAILED", type(error).__name__, str(error)[:300])


if __name__ == "__main__":
    main()
