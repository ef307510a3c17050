#!/usr/bin/env python3
"""Exports a small model of each causal language model that transformers has, and compares its numbers with eager's.

    survey.py OUT.tsv [--types T...] [--timeout SECONDS]     one process a type; OUT.tsv grows line by line
    survey.py --config TYPE FOLDER                           writes the small config.json that the survey uses

The columns are: type, result (`bits`: equal to the bit; a number: largest relative difference of outputs and gradients;
else what went wrong), nodes, how many parameters have a symbolic dim, operators that are not PyTorch's own, lengths of
the second dim that hold, the reason.
"""

import argparse
import json
import pathlib
import subprocess
import sys
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parent))

# Sizes of small models. Rows of stacked experts have multiples of 16 bytes, heads divide by 2 and 4.
SIZES: dict[str, Any] = {
    "vocab_size": 128, "hidden_size": 64, "n_embd": 64, "d_model": 64, "dim": 64, "embed_dim": 64, "n_embed": 64,
    "word_embed_proj_dim": 64, "intermediate_size": 96, "ffn_hidden_size": 96, "n_inner": 96, "ffn_dim": 96,
    "decoder_ffn_dim": 96, "encoder_ffn_dim": 96, "d_ff": 96, "feed_forward_proj_dim": 96, "num_hidden_layers": 2,
    "n_layer": 2, "num_layers": 2, "decoder_layers": 2, "encoder_layers": 2, "n_layers": 2, "num_attention_heads": 4,
    "n_head": 4, "n_heads": 4, "num_heads": 4, "decoder_attention_heads": 4, "encoder_attention_heads": 4,
    "num_key_value_heads": 2, "num_kv_heads": 2, "head_dim": 16, "attention_head_dim": 16, "d_kv": 16,
    "global_head_dim": 16, "swa_head_dim": 16, "v_head_dim": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "qk_head_dim": 24, "q_lora_rank": 24, "kv_lora_rank": 16, "max_position_embeddings": 256, "n_positions": 256,
    "n_ctx": 256, "max_target_positions": 256, "moe_intermediate_size": 32, "expert_ffn_hidden_size": 32,
    "shared_expert_intermediate_size": 32, "moe_shared_expert_intermediate_size": 32, "intermediate_size_mlp": 96,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4, "num_experts_per_tok": 2,
    "num_experts_per_token": 2, "moe_topk": 2, "moe_top_k": 2, "moe_k": 2, "top_k_experts": 2, "n_group": 2,
    "topk_group": 1, "first_k_dense_replace": 1, "num_dense_layers": 1, "sliding_window": 8, "attention_window": 8,
    "attention_chunk_size": 8, "linear_num_key_heads": 4, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
    "linear_value_head_dim": 16, "mamba_d_ssm": 64, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 2,
    "mamba_d_state": 16, "mamba_num_heads": 8, "mamba_head_dim": 8, "n_groups": 2, "ssm_state_size": 16,
    "mamba_expand": 1, "state_size": 16, "time_step_rank": 8, "mamba_dt_rank": 8, "chunk_size": 16,
    "mamba_chunk_size": 16, "attention_hidden_size": 64, "lru_width": 64, "rotary_dim": 8, "index_head_dim": 16,
    "index_n_heads": 4, "index_topk": 8, "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 128,
    "num_kv_shared_layers": 0, "laurel_rank": 8, "embedding_size": 64, "bottleneck_size": 16, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "kda_num_heads": 4, "kda_head_dim": 16, "decoder_start_token_id": 1,
    "moe_latent_size": None,
}  # fmt: skip
# What the sizes above do not fit.
OWN: dict[str, dict[str, Any]] = {
    **{name: {"num_hidden_layers": 4} for name in (
        "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next", "llama4_text", "jamba", "lfm2", "lfm2_moe", "minimax",
        "kimi_linear", "olmo_hybrid", "recurrent_gemma")},
    "falcon_mamba": {"num_attention_heads": None}, "zamba": {"num_hidden_layers": 6},
    "zamba2": {"num_hidden_layers": 6, "mamba_expand": 2, "mamba_headdim": 16, "mamba_ngroups": 1, "n_mamba_heads": 8,
               "num_key_value_heads": 4, "layers_block_type": ["mamba", "mamba", "hybrid", "mamba", "mamba", "hybrid"]},
    "bamba": {"mamba_n_heads": 8, "mamba_expand": 1, "attn_layer_indices": [1]},
    "nemotron_h": {"num_hidden_layers": 4, "layers_block_type": ["mamba", "moe", "attention", "mlp"]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"], "shared_intermediate_size": 32},
    "mamba2": {"num_heads": 16, "head_dim": 8, "expand": 2, "n_groups": 2},
    "reformer": {"axial_pos_embds": False, "is_decoder": True},
    "gemma3n_text": {"altup_num_inputs": 2, "num_hidden_layers": 5, "layer_types": None, "intermediate_size": 96},
    "xlnet": {"d_head": 16}, "deepseek_v2": {"num_experts_per_tok": 2},
}  # fmt: skip


def small_config(model_type: str) -> Any:
    """The default config of a type with the sizes above, its parts as well."""
    import transformers

    return _small(transformers.CONFIG_MAPPING[model_type])


def _small(config_class: type) -> Any:
    default = config_class()
    known = {**SIZES, **OWN.get(default.model_type, {})}
    values = {name: value for name, value in known.items()
              if name in OWN.get(default.model_type, {}) or _is_number(default, name)}  # fmt: skip
    for name in default.sub_configs:
        part = getattr(default, name, None)
        if part is not None:
            values[name] = _small(type(part)).to_dict()
    if getattr(default, "kv_lora_rank", None) and "num_key_value_heads" in values:
        values["num_key_value_heads"] = values.get("num_attention_heads", 4)
    if getattr(default, "qk_rope_head_dim", None) and getattr(default, "head_dim", None) == default.qk_rope_head_dim:
        values["head_dim"] = values["qk_rope_head_dim"]
    config = config_class(**values)
    config.architectures = None
    config.dtype = "float32"
    return config


def _is_number(config: Any, name: str) -> bool:
    """Whether the config has such a number, which can be set."""
    if isinstance(getattr(type(config), name, None), property):
        return False
    try:
        return isinstance(getattr(config, name, None), int | float)
    except AttributeError:  # it may differ by layer
        return False


def survey_one(model_type: str) -> dict[str, Any]:
    """A line of the table."""
    import torch
    import transformers

    from export_program import Options, check_model, export_model

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    row: dict[str, Any] = {"type": model_type}
    try:
        config = small_config(model_type)
        transformers.AutoModelForCausalLM._model_mapping[type(config)]._from_config(small_config(model_type))
    except Exception as error:
        return {**row, "result": "no small model", "reason": _reason(error)}
    try:
        options = Options()
        exported = export_model(config, options)
    except Exception as error:
        return {**row, "result": "not exported", "reason": _reason(error)}
    description = exported.description
    parameters = [one for one in description["tensors"].values() if one["kind"] == "parameter"]
    row |= {
        "nodes": sum(1 for _ in exported.program.graph.nodes),
        "symbolic": f"{sum('symbolic' in one for one in parameters)}/{len(parameters)}",
        "operators": [n for n in description["operators"] if not n.startswith(("aten::", "number::"))
                      and n != "higher_order::wrap_with_set_grad_enabled"],
        "lengths": next((one["ranges"][:4] for one in description["valid"].values()
                         if one["dim"] == 1 and one["ranges"] != [[1, one["tried"]]]), []),
        "reason": "; ".join([*description["notes"], *map(": ".join, description["weights"]["unsupported"].items())]),
    }  # fmt: skip
    try:
        worst = max(one.worst for one in check_model(small_config(model_type), options, exported))
    except Exception as error:
        return {**row, "result": "does not run", "reason": _reason(error)}
    return {**row, "result": "bits" if worst == 0 else f"{worst:.1e}"}


def _reason(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


COLUMNS = ("type", "result", "nodes", "symbolic", "operators", "lengths", "reason")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path, nargs="?")
    parser.add_argument("--types", nargs="+")
    parser.add_argument("--timeout", type=int, default=300)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--config", nargs=2, metavar=("TYPE", "FOLDER"))
    given = parser.parse_args()
    if given.one:
        print(json.dumps(survey_one(given.one)))
        return
    if given.config:
        small_config(given.config[0]).save_pretrained(given.config[1])
        return
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    with given.out.open("w") as table:
        print(*COLUMNS, sep="\t", file=table, flush=True)
        for model_type in given.types or MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
            row = _run(model_type, given.timeout)
            cells = (row.get(column, "") for column in COLUMNS)
            print(
                *(cell if isinstance(cell, str) else json.dumps(cell) for cell in cells),
                sep="\t",
                file=table,
                flush=True,
            )


def _run(model_type: str, timeout: int) -> dict[str, Any]:
    try:
        done = subprocess.run(
            [sys.executable, __file__, "--one", model_type], capture_output=True, text=True, timeout=timeout
        )
    except subprocess.TimeoutExpired:
        return {"type": model_type, "result": "not exported", "reason": f"not done after {timeout} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {
            "type": model_type,
            "result": "crashed",
            "reason": " ".join(done.stderr.strip().splitlines()[-1:])[:300],
        }
    return json.loads(lines[-1])


if __name__ == "__main__":
    main()
