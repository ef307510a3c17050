#!/usr/bin/env python3
"""Exports a small model of each model type of transformers, and compares results with eager mode.

    survey.py OUT.tsv [--class C...] [--types T...]          one process per type; OUT.tsv grows line by line
                      [--timeout SECONDS]
                      [--engine MOONSHARD] [--keep FOLDER]   also in the engine: on one rank, and sharded on two
                      [--suggested]                          also under the plan that `moonshard suggest` writes
                      [--seed N] [--padding] [--set NAME=NUMBER ...]   other weights and inputs; padded rows; other sizes
    survey.py --summary OUT.tsv                              a summary of the table, and its exceptions, as Markdown
    survey.py --config TYPE FOLDER                           writes the small config.json that the survey uses

A class is the suffix of the name of an auto class of transformers, AutoModelFor...: CausalLM (the default), MaskedLM,
Seq2SeqLM, SpeechSeq2Seq, ImageClassification, SequenceClassification, ZeroShotImageClassification, CTC,
AudioClassification, ImageTextToText.

The columns are: class; type; result of the program in Python (`bits`: bitwise equal; a number: the largest relative
difference of outputs and gradients; otherwise the error); engine: the same for `moonshard eval` with a checkpoint that
save_pretrained wrote; plan: `chosen` (the plan that the engine chooses by itself: shipped, the config's own, or derived
from the modules) or `suggest`; tp2: the same for `moonshard eval` with this plan and --mesh tp=2; share: the fraction
of parameter elements in sharded tensors; suggested: the largest difference under the plan that `moonshard suggest`
writes, run on each number of ranks up to 4 of which suggest says that check passes, or the first that fails; nodes: the number of nodes; symbolic: the number of parameters with a symbolic
dim; operators: those that are not PyTorch's own; lengths: the valid sizes of the second dim; reason: errors and notes.
"""

import argparse
import contextlib
import copy
import dataclasses
import importlib.metadata
import inspect
import json
import multiprocessing
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
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
    "moe_latent_size": None, "image_size": 64,
}  # fmt: skip
_TEXT = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
_DECODER = {**_TEXT, "model_type": "bert", "is_decoder": True, "add_cross_attention": True}
# Sizes of types that the sizes above do not fit.
OWN: dict[str, dict[str, Any]] = {
    **{name: {"num_hidden_layers": 4} for name in (
        "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next", "llama4_text", "jamba", "lfm2", "minimax",
        "olmo_hybrid", "recurrent_gemma")},
    "kimi_linear": {"layer_types": ["linear_attention", "full_attention"], "linear_head_dim": 16, "linear_num_heads": 4},
    "": {"intermediate_size": 16},  # the adaptor of Fun-ASR
    "kyutai_speech_to_text": {"pad_token_id": 3, "audio_pad_token_id": 4, "audio_bos_token_id": 5},
    "moonshine_streaming": {"num_key_value_heads": 4}, "mimi": {"upsample_groups": 64},
    "shieldgemma2": {"yes_token_index": 5, "no_token_index": 6},
    "falcon_mamba": {"num_attention_heads": None},
    "zamba2": {"num_hidden_layers": 6, "mamba_expand": 2, "mamba_headdim": 16, "mamba_ngroups": 1, "n_mamba_heads": 8,
               "num_key_value_heads": 4, "attention_hidden_size": 128, "attention_head_dim": 32, "layers_block_type": ["mamba", "mamba", "hybrid", "mamba", "mamba", "hybrid"]},
    "bamba": {"mamba_n_heads": 8, "mamba_expand": 1, "attn_layer_indices": [1]},
    "nemotron_h": {"num_hidden_layers": 4, "layers_block_type": ["mamba", "moe", "attention", "mlp"]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"], "shared_intermediate_size": 32},
    "mamba2": {"num_heads": 16, "head_dim": 8, "expand": 2, "n_groups": 2},
    # Its layers draw seeds for dropout while they run.
    "reformer": {"axial_pos_embds": False, "is_decoder": True, "hidden_dropout_prob": 0.0,
                 "lsh_attention_probs_dropout_prob": 0.0, "local_attention_probs_dropout_prob": 0.0},
    "gemma3n_text": {"altup_num_inputs": 2, "num_hidden_layers": 5, "layer_types": None, "intermediate_size": 96},
    "esm": {"vocab_size": 128, "pad_token_id": 1}, "esmc": {"num_key_value_heads": 4}, "roc_bert": {"pronunciation_vocab_size": 32, "shape_vocab_size": 32, "pronunciation_embed_dim": 16, "shape_embed_dim": 16},
    "luke": {"entity_vocab_size": 64, "entity_emb_size": 32}, "swinv2": {"num_heads": [2, 4], "depths": [1, 1], "embed_dim": 32}, "donut-swin": {"num_heads": [2, 4], "depths": [1, 1], "embed_dim": 32},
    "swin": {"num_heads": [2, 4], "depths": [1, 1], "embed_dim": 32},
    # Their sparse attention is used for longer sequences only.
    **{name: {"attention_type": "original_full"} for name in ("big_bird", "bigbird_pegasus")},
    "encoder-decoder": {"encoder": {**_TEXT, "model_type": "bert"}, "decoder": _DECODER},
    "vision-encoder-decoder": {"encoder": {**_TEXT, "model_type": "vit", "image_size": 32, "patch_size": 8}, "decoder": _DECODER},
    "speech-encoder-decoder": {"encoder": {**_TEXT, "model_type": "wav2vec2", "conv_dim": [32, 32], "conv_kernel": [3, 3],
                                           "conv_stride": [2, 2], "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 16,
                                           "num_conv_pos_embedding_groups": 4}, "decoder": _DECODER},
    "xlnet": {"d_head": 16},
    "deepseek_v2": {"num_experts_per_tok": 2},
    **{name: {"head_dim": 16, "num_key_value_heads": 2} for name in (
        "hunyuan_v1_dense", "hunyuan_v1_moe", "ministral", "nemotron")},
    **{name: {"backbone_hidden_size": 64, "text_config": {
        "model_type": name.replace("assistant", "text"), "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 32,
        "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}}
       for name in ("gemma4_assistant", "gemma4_unified_assistant")},
    **{name: {"head_dim": 16, "global_head_dim": 32, "num_key_value_heads": 2} for name in (
        "gemma4_text", "gemma4_unified_text")},
    "git_vision_model": {"image_size": 16, "patch_size": 8},
    "cohere_compass_text": {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2,
                            "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [3, 3, 2]},
        "full_attention": None}},
    "layoutlmv3": {"coordinate_size": 8, "shape_size": 16}, "lilt": {"hidden_size": 96}, "mistral4": {"head_dim": 24},
    "xmod": {"default_language": "en_XX"}, "blip_2_qformer": {"use_qformer_text_input": True},
    "whisper": {"max_source_positions": 32}, "audio-spectrogram-transformer": {"max_length": 128},
    "wav2vec2-bert": {"vocab_size": 64}, "wav2vec2-conformer": {"vocab_size": 64},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 1e4},
             "ffn_config": {"hidden_size": 64, "ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2}},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 8},
    "lfm2_moe": {"num_hidden_layers": 4, "layer_types": ["conv", "full_attention", "conv", "full_attention"]},
    "zaya": {"num_experts_per_tok": 1},
    "zamba": {"num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
              "attention_hidden_size": 128, "attention_head_dim": 32, "num_key_value_heads": 4, "n_mamba_heads": 2},
}  # fmt: skip


# Inputs besides the usual ones.
INPUTS: dict[str | tuple[str, str], list[str]] = {
    "git": ["input_ids", "pixel_values", "labels"],
    "blip": ["pixel_values", "input_ids", "labels"],
    # Their encoders index the mask, also if there is none.
    **{name: ["input_ids", "attention_mask", "decoder_input_ids", "labels"] for name in ("longt5", "switch_transformers")},
    **{name: ["input_features", "attention_mask"] for name in ("parakeet_ctc", "lasr_ctc")},
    **{name: ["input_features", "attention_mask", "decoder_input_ids", "labels"] for name in ("canary", "cohere_asr")},
    ("ImageClassification", "shieldgemma2"): ["input_ids", "attention_mask"],  # classifies by two tokens, without labels
    # Their loss takes a branch on the values of the labels.
    **{("SequenceClassification", name): ["input_ids"] for name in ("deberta", "deberta-v2")},
}


def _options(task: str, model_type: str, model: Any, padding: bool) -> Any:
    """`padding`: with a mask of which the last row has padding, where the model takes one and its inputs are usual."""
    import hugging_face
    from export_program import Options

    inputs = INPUTS.get((task, model_type), INPUTS.get(model_type))
    if padding and inputs is None and "attention_mask" in inspect.signature(model.forward).parameters:
        usual = hugging_face.default_inputs(model)
        if "input_ids" in usual and "attention_mask" not in usual:
            inputs = [usual[0], "attention_mask", *usual[1:]]
    return Options(inputs=inputs)


def class_of(model_type: str, auto: str) -> Any:
    """The model class that an auto class of transformers has for a type; the first of several."""
    import transformers

    model = getattr(transformers, auto)._model_mapping[transformers.CONFIG_MAPPING[model_type]]
    return model[0] if isinstance(model, tuple) else model


def small_config(model_type: str, auto: str = "AutoModelForCausalLM") -> Any:
    """The default config of a type with the sizes above, also in its sub-configs; only a sub-config if the model takes
    it. `auto` is the auto class of transformers that has the model of the type."""
    import transformers

    whole = transformers.CONFIG_MAPPING[model_type]
    model = class_of(model_type, auto)
    part = model.config_class in whole.sub_configs.values()
    config = _small(model.config_class if part else whole)
    config.architectures = [model.__name__]
    if auto == "AutoModelForMaskedLM" and getattr(config, "is_decoder", False):
        config.is_decoder = False
    if auto == "AutoModelForSequenceClassification":  # decoders classify the last token of a row that is no padding
        for one in (config, *(getattr(config, name, None) for name in config.sub_configs)):
            if one is not None and getattr(one, "pad_token_id", 0) is None:
                one.pad_token_id = 0
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = 1
    return config


def _small(config_class: type) -> Any:
    import torch

    own = OWN.get(config_class.model_type, {})
    try:
        default = config_class()
    except ValueError:  # its sub-configs have any type, and no default
        default = config_class(**copy.deepcopy(own))  # it removes fields of its argument
    known = {**SIZES, **copy.deepcopy(own)}
    values = {name: value for name, value in known.items() if name in own or _is_number(default, name)}
    for name in default.sub_configs:
        part = getattr(default, name, None)
        if part is not None and name not in values:
            values[name] = _small(type(part)).to_dict()
    if _is_number(default, "kv_lora_rank") and "num_key_value_heads" in values:
        values["num_key_value_heads"] = values.get("num_attention_heads", 4)
    if _is_number(default, "qk_rope_head_dim") and getattr(default, "head_dim", None) == default.qk_rope_head_dim:
        values["head_dim"] = values["qk_rope_head_dim"]
    config = config_class(**values)
    config.architectures = None
    config.dtype = torch.float32
    return config


def _is_number(config: Any, name: str) -> bool:
    """Whether the config has a number with this name that can be set."""
    if isinstance(getattr(type(config), name, None), property):
        return False
    try:
        return isinstance(getattr(config, name, None), int | float)
    except Exception:  # it may differ by layer
        return False


def survey_one(task: str, model_type: str, engine: str | None = None, keep: str | None = None,
               suggested: bool = False, seed: int = 0, padding: bool = False) -> dict[str, Any]:  # fmt: skip
    """One row of the table: the model of a type in the auto class AutoModelFor`task`."""
    import torch
    import transformers

    import hugging_face
    from export_program import check_model, export_model

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    auto = "AutoModelFor" + task
    row: dict[str, Any] = {"class": task, "type": model_type}
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(keep or temporary) / task / model_type
        folder.mkdir(parents=True, exist_ok=True)
        try:
            model = hugging_face.build(small_config(model_type, auto), torch.float32)
            hugging_face.randomise(model, seed)
            model.save_pretrained(folder)
        except Exception as error:
            return {**row, "result": "no small model", "reason": _reason(error)}
        try:
            options = _options(task, model_type, model, padding)
            exported = export_model(folder, options)
        except Exception as error:
            return {**row, "result": "not exported", "reason": _reason(error)}
        row |= _described(exported)
        try:
            worst = max(one.worst for one in check_model(folder, options, exported))
        except Exception as error:
            return {**row, "result": "does not run", "reason": _reason(error)}
        row["result"] = _number(worst)
        if not engine:
            return row
        try:
            _expect(folder, exported, options, seed)
            found = survey_engine(engine, folder, suggested)
        except Exception as error:
            found = {"engine": "does not run", "reason": _reason(error)}
    reasons = [one for one in (row["reason"], found.pop("reason", "")) if one]
    return {**row, **found, "reason": "; ".join(reasons)}


def _described(exported: Any) -> dict[str, Any]:
    from export_program import operators

    description = exported.description
    second = [one["ranges"] for name, one in description["valid"].items()
              if description["symbols"][name]["dim"] == 1 and one["ranges"] != [[1, one["tried"]]]]  # fmt: skip
    parameters = [one for one in description["tensors"].values() if one["kind"] == "parameter"]
    return {
        "nodes": sum(1 for _ in exported.program.graph.nodes),
        "symbolic": f"{sum('symbolic' in one for one in parameters)}/{len(parameters)}",
        "operators": [n for n in operators(exported.program) if not n.startswith(("aten::", "number::"))
                      and n not in ("higher_order::wrap_with_set_grad_enabled", "higher_order::cond")],
        "lengths": second[0][:4] if second else [],
        "reason": "; ".join([*description["notes"],
                             *(f"{name}: {one['reason']}" for name, one in description["weights"]["unsupported"].items())]),
    }  # fmt: skip


def _number(difference: float) -> str:
    return "bits" if difference == 0 else f"{difference:.1e}"


# --- In the engine ----------------------------------------------------------------------------------------------------
def survey_engine(engine: str, folder: pathlib.Path, suggested: bool) -> dict[str, Any]:
    """Compares the results of the engine with those in `folder` (`_expect`)."""
    from safetensors.torch import load_file

    expected = load_file(folder / "expected.safetensors")
    program = ["--program", str(folder / "program.pt2")]
    row: dict[str, Any] = {}
    try:
        row["engine"] = _number(_evaluate(engine, folder, program, expected))
    except RuntimeError as error:
        return {**row, "engine": "does not run", "reason": str(error)}
    plan: list[str] = []
    try:
        try:
            described = _moonshard(engine, "explain", folder, *program, "--mesh", "tp=2", "--json")
            row["plan"] = "chosen"
        except RuntimeError:
            plan = ["--plan", str(folder / "plan.lua")]
            _moonshard(engine, "suggest", folder / "program.pt2", "-o", plan[1], "--replace")
            described = _moonshard(engine, "explain", folder, *program, *plan, "--mesh", "tp=2", "--json")
            row["plan"] = "suggest"
        row["share"] = f"{_share(json.loads(described)):.2f}"
        row["tp2"] = _number(_evaluate(engine, folder, [*program, *plan, "--mesh", "tp=2"], expected))
    except RuntimeError as error:
        row |= {"tp2": "refused", "reason": str(error)}
    return {**row, "suggested": _suggested(engine, folder, program, expected)} if suggested else row


def _suggested(engine: str, folder: pathlib.Path, program: list[str], expected: dict[str, Any]) -> str:
    """ "tp=1,2,4: 1e-06", or "tp=4: " and the error of a run that suggest says would pass."""
    plan = folder / "suggested.lua"
    try:
        written = _verb(engine, "suggest", folder / "program.pt2", "-o", str(plan), "--replace").stderr
    except RuntimeError as error:
        return str(error)
    sizes = re.search(r"check passes on tp = ([0-9, ]+)", written)
    ranks = [size for size in sizes[1].split(", ") if int(size) <= 4] if sizes else []
    worst = 0.0
    for size in ranks:
        try:
            differs = _evaluate(engine, folder, [*program, "--plan", str(plan), "--mesh", f"tp={size}"], expected)
        except RuntimeError as error:
            return f"tp={size}: {error}"
        if differs > 1e-4:
            return f"tp={size}: {_number(differs)}"
        worst = max(worst, differs)
    return f"tp={','.join(ranks)}: {_number(worst)}"


def _expect(folder: pathlib.Path, exported: Any, options: Any, seed: int = 0) -> None:
    """Writes the program, inputs, and the results of transformers to `folder`, which has a checkpoint. The results are those
    in evaluation mode, because the engine draws other random numbers."""
    import torch
    from safetensors.torch import save_file

    import hugging_face
    from export_program import _field, broken_guards, export_model

    if not exported.description["options"].get("evaluates", True):
        exported = export_model(folder, dataclasses.replace(options, train=False))
    exported.save(folder / "program.pt2")
    config = hugging_face.load_config(folder)
    real = hugging_face.build(config, torch.float32, folder=folder).eval()
    names = [one["name"] for one in exported.description["inputs"]]
    outputs = [one["name"] for one in exported.description["outputs"]]
    for size in ((2, 12), (3, 17)):
        inputs, _ = hugging_face.example_inputs(real, [*names, *exported.description["fixed"]], *size, seed=3 + seed)
        if not broken_guards(exported.description, inputs):
            break
    with hugging_face.without_dropped_layers():
        torch.manual_seed(0)
        results = real(**inputs, **hugging_face.forward_options(real))
        try:
            if "loss" in outputs:
                results.loss.backward()
        except AssertionError:  # Reformer has gradients only in training mode
            real.zero_grad()
            results = real.train()(**inputs, **hugging_face.forward_options(real))
            results.loss.backward()
    expected = {name: _field(results, name) for name in outputs}
    expected |= {f"grad.{name}": p.grad for name, p in real.named_parameters() if p.grad is not None}
    save_file({name: inputs[name].contiguous() for name in names}, folder / "inputs.safetensors")
    expected = {name: one.detach().clone().contiguous() for name, one in expected.items()}
    save_file(expected, folder / "expected.safetensors")


def _moonshard(engine: str, verb: str, folder: pathlib.Path, *arguments: str) -> str:
    """The stdout of a verb."""
    return _verb(engine, verb, folder, *arguments).stdout


def _verb(engine: str, verb: str, folder: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess:
    """What a verb prints. Raises RuntimeError with the first finding if the verb fails."""
    # One thread, as for transformers here: sums over several threads are rounded differently.
    threads = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([engine, verb, str(folder), *arguments], capture_output=True, text=True, env=threads)
    if done.returncode:
        lines = [line.strip() for line in (done.stderr + done.stdout).splitlines()]
        found = [line for line in lines if "error" in line] or lines[-1:]
        raise RuntimeError(f"{verb}: {found[0][:300] if found else f'exit code {done.returncode}'}")
    return done


def _evaluate(engine: str, folder: pathlib.Path, arguments: list[str], expected: dict[str, Any]) -> float:
    """The largest difference of the engine's outputs and gradients from the expected ones."""
    from safetensors.torch import load_file

    from export_program import _difference

    out = folder / "out.safetensors"
    grads = ["--grads"] if "loss" in expected else []
    _moonshard(engine, "eval", folder, *arguments, "--input", str(folder / "inputs.safetensors"), "--output", str(out),
               *grads)  # fmt: skip
    got = load_file(out)
    extra = [name for name, one in got.items()
             if name.startswith("grad.") and name not in expected and one.numel() and one.abs().max() > 0]  # fmt: skip
    missing = [name for name in expected if name not in got]
    if extra or missing:
        raise RuntimeError(f"eval: outputs that only the engine or only the model has: {[*extra, *missing][:3]}")
    # A gradient that is zero up to rounding (of a key's bias under softmax) has no significant digits to compare.
    expected = {name: one for name, one in expected.items() if one.numel()}
    largest = max((one.abs().max().item() for name, one in expected.items() if name.startswith("grad.")), default=0.0)
    noise = {name for name, one in expected.items() if name.startswith("grad.") and one.abs().max() < 1e-6 * largest
             and got[name].abs().max() < 1e-6 * largest}  # fmt: skip
    return max(_difference(one, got[name]) for name, one in expected.items() if name not in noise)


def _share(described: dict[str, Any]) -> float:
    """The fraction of parameter elements, without buffers, in tensors of which a rank holds only a shard."""
    totals = described["totals"]
    return totals["sharded_params"] / max(totals["params"], 1)


# --- The table --------------------------------------------------------------------------------------------------------
# Reasons of exceptions, where the error message is not sufficient.
WHY: dict[str, str] = {
    **{name: "its inputs are hidden states, keys and values of another model, not only tokens" for name in (
        "gemma4_assistant", "gemma4_unified_assistant")},
    **{name: "its inputs are codes in rows of batch x codebooks; the survey makes no such example" for name in (
        "musicgen", "musicgen_melody")},
    **{name: "loops over the experts that the router chose; a graph cannot contain this loop" for name in (
        "dbrx", "longcat_flash")},
    "blt": "splits bytes into patches by the values of another model",
    "gemma3n": "its image tower needs the package timm; its text model is gemma3n_text",
    "reformer": "its layers set gradients inside their own backward, which the check in Python does not read; the engine's "
                "gradients differ by rounding, because the backward recomputes activations from later ones",
    "bloom": "its GELU defines its own backward; the graph has the backward of the operators of its forward",
    "yoso": "its attention defines its own backward, an estimate; the graph has the backward of the operators of its forward",
    **{name: "some gradients are at most a millionth of the largest one, sums of terms that nearly cancel; these differ by less "
             "than 1e-8" for name in ("canary", "cohere_asr", "levit")},
    "deepseek_v4": "the gradient of one scalar, 6e-05 where the largest is 0.4, is a sum of terms that nearly cancel; it differs "
                   "by 7e-09",
    **{name: "differs by rounding; the cause is not known" for name in (
        "align", "parakeet_ctc", "pp_lcnet", "wav2vec2-bert", "wav2vec2-conformer")},
    "dinat": "needs the package natten", "timm_wrapper": "needs the package PIL",
    "dia": "its decoder takes rows of codes; the survey makes no such example",
    "kyutai_speech_to_text": "takes rows of codes; the survey makes no such example",
    "granite_speech5_ctc": "its blocks of frames cannot be traced for a dynamic length",
    "sew-d": "does not run in transformers either: its backward needs a tensor that its forward overwrites",
    "videoprism": "takes videos; the survey makes no such example",
    "siglip2": "takes patches with their sizes; the survey makes no such example",
    "voxtral_realtime": "takes sound beside tokens; the survey makes no such example",
    "phimoe": "in training a factor of its routing defines its own backward, an estimate; the graph has the backward of "
              "the operators of its forward",
}  # fmt: skip


def summary(path: pathlib.Path) -> str:
    """How many types of each class export, run bitwise equal and are sharded, and each exception with its reason, as Markdown."""
    header, *lines = path.read_text().splitlines()
    versions = [line[1:].strip() for line in lines if line.startswith("#")]
    rows = [dict(zip(header.split("\t"), line.split("\t"))) for line in lines if not line.startswith("#")]
    tasks = list(dict.fromkeys(row["class"] for row in rows))
    table = [_counts([row for row in rows if row["class"] == task]) for task in tasks]
    if len(tasks) > 1:
        tasks, table = [*tasks, "all"], [*table, _counts(rows)]
    out = [*versions, "", "| | " + " | ".join(tasks) + " |", "|---" * (len(tasks) + 1) + "|"]
    out += [f"| {name} | " + " | ".join(counts[name] for counts in table) + " |" for name in table[0]]
    out += ["", "Exceptions:", "", "| class | type | what | reason |", "|---|---|---|---|"]
    for row in sorted(rows, key=lambda row: (tasks.index(row["class"]), row["type"])):
        what = _exceptions(row)
        if what:
            own = re.sub(r"\S*/site-packages/", "", row.get("reason", "")).replace("|", "/")
            reason = own if row["result"] == "no small model" else WHY.get(row["type"]) or own
            out.append(f"| {row['class']} | {row['type']} | {'; '.join(what)} | {reason} |")
    little = [f"{row['type']} {row['share']}" for row in rows if row["share"] and float(row["share"]) < LITTLE]
    out += ["", f"Less than {LITTLE:.0%} of parameters in sharded tensors, the rest replicated: " + ", ".join(little or ["none"])]
    return "\n".join(out)


def _counts(rows: list[dict[str, str]]) -> dict[str, str]:
    """The numbers of types, by the name of a row of the table."""
    exported = [row for row in rows if row["result"] not in ("no small model", "not exported", "crashed")]
    sharded = [row for row in exported if _class(row["tp2"]) in ("bits", "within 1e-4")]
    worst = max((float(row["tp2"]) for row in sharded if row["tp2"] != "bits"), default=0.0)

    def equal(column: str) -> str:
        bits = sum(row[column] == "bits" for row in exported)
        close = sum(_class(row[column]) == "within 1e-4" for row in exported)
        return f"{bits}, {close} more within 1e-4" if close else str(bits)

    suggested = [row["suggested"] for row in rows if row.get("suggested")]
    held = sum(bool(re.fullmatch(r"tp=[0-9,]+: (bits|[0-9.]+e[-+][0-9]+)", one)) for one in suggested)
    return {
        "types": str(len(rows)),
        "can be exported": str(len(exported)),
        "program in Python: bitwise equal to transformers": equal("result"),
        "engine, one rank: bitwise equal": equal("engine"),
        "engine, tp=2: within 1e-4 (worst)": f"{len(sharded)} ({worst:.0e})",
        "of these with a plan that the engine chooses by itself": str(sum(row["plan"] == "chosen" for row in sharded)),
        "of these with at least half of the parameters in sharded tensors": str(sum(float(row["share"]) >= 0.5 for row in sharded)),
        **({"suggested plans: right on all ranks that they claim": f"{held} of {len(suggested)}"} if suggested else {}),
    }


LITTLE = 0.1


def _exceptions(row: dict[str, str]) -> list[str]:
    """Deviations from: bitwise equal in Python and on one rank, within 1e-4 on two ranks, attention sharded."""
    if not _is_number_text(row["result"]):
        return [row["result"]]
    what = [f"{name}: {row[column]}" for name, column in (("Python", "result"), ("engine", "engine"))
            if row[column] != "bits"]  # fmt: skip
    if row["tp2"] and _class(row["tp2"]) not in ("bits", "within 1e-4"):
        what.append(f"tp=2: {row['tp2']}")
    if row["type"] in WHY and not what:
        what.append(f"tp=2: {row['share']} in sharded tensors")
    return what


def _is_number_text(value: str) -> bool:
    return value == "bits" or bool(re.fullmatch(r"[0-9.]+e[-+][0-9]+|inf", value))


def _class(value: str) -> str:
    if value == "bits" or not _is_number_text(value):
        return value
    return "within 1e-4" if float(value) <= 1e-4 else "other numbers"


def _reason(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


COLUMNS = ("class", "type", "result", "engine", "plan", "tp2", "share", "suggested", "nodes", "symbolic", "operators", "lengths", "reason")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path, nargs="?")
    parser.add_argument("--class", nargs="+", dest="tasks", metavar="CLASS", default=["CausalLM"])
    parser.add_argument("--types", nargs="+")
    parser.add_argument("--timeout", type=int, default=300)
    parser.add_argument("--engine", metavar="MOONSHARD", help="the moonshard program, to run the exports too")
    parser.add_argument("--keep", metavar="FOLDER", help="directory in which to keep the models that the engine ran")
    parser.add_argument("--suggested", action="store_true")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and inputs")
    parser.add_argument("--padding", action="store_true", help="rows with padding, and a mask that tells it")
    parser.add_argument("--set", nargs="+", dest="sizes", metavar="NAME=NUMBER", default=[], help="sizes of the configs")
    parser.add_argument("--summary", action="store_true")
    parser.add_argument("--update", action="store_true", help="keep the rows of OUT.tsv that are not made anew")
    parser.add_argument("--config", nargs=2, metavar=("TYPE", "FOLDER"))
    given = parser.parse_args()
    if given.summary:
        print(summary(given.out))
        return
    SIZES.update({name: int(number) for name, number in (one.split("=") for one in given.sizes)})
    if given.config:
        small_config(given.config[0], "AutoModelFor" + given.tasks[0]).save_pretrained(given.config[1])
        return
    import torch  # noqa: F401  imported once, for all children
    import transformers

    import export_program  # noqa: F401
    import hugging_face  # noqa: F401

    known = {task: getattr(transformers, "AutoModelFor" + task)._model_mapping._model_mapping for task in given.tasks}
    rows = [(task, one) for task in given.tasks for one in given.types or known[task] if one in known[task]]
    kept = []
    if given.update and given.out.exists():
        lines = given.out.read_text().splitlines()
        kept = [line for line in lines[1:] if line[0] != "#" and tuple(line.split("\t")[:2]) not in rows]
    with given.out.open("w") as table:
        print(*COLUMNS, sep="\t", file=table)
        print(_versions(), *kept, sep="\n", file=table, flush=True)
        for task, model_type in rows:
            row = _run(task, model_type, given)
            cells = (row.get(column, "") for column in COLUMNS)
            print(*map(_cell, cells), sep="\t", file=table, flush=True)


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _versions() -> str:
    return "# " + ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("transformers", "torch"))


def _run(task: str, model_type: str, given: argparse.Namespace) -> dict[str, Any]:
    """One row, made by a child process, which has imported everything and may crash."""
    row = {"class": task, "type": model_type}
    receiver, sender = multiprocessing.get_context("fork").Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_send_row, args=(sender, task, model_type, given))
    child.start()
    sender.close()
    try:
        if not receiver.poll(given.timeout):
            return {**row, "result": "not exported", "reason": f"not done after {given.timeout} s"}
        return receiver.recv()
    except EOFError:
        child.join()
        return {**row, "result": "crashed", "reason": f"exit code {child.exitcode}"}
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.join()


def _send_row(sender: Any, task: str, model_type: str, given: argparse.Namespace) -> None:
    os.setpgid(0, 0)  # so that its own children end with it
    try:
        row = survey_one(task, model_type, given.engine, given.keep, given.suggested, given.seed, given.padding)
    except Exception as error:
        row = {"class": task, "type": model_type, "result": "crashed", "reason": _reason(error)}
    sender.send(row)


if __name__ == "__main__":
    main()
