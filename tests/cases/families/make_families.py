#!/usr/bin/env python3
"""Makes a small member of every family: NAME.json with its config.json, the shapes of its parameters, and for each one
that the reference shards (reference.py) the tensor dim and the local shape of rank 0 of 2 and of 4.

    {"options": {"fused": "contiguous"}, "config": {...}, "dtype": "BF16", "tensors": {"model.norm.weight": [64], ...},
     "reference": {"lm_head.weight": {"dim": 0, "2": [32, 64], "4": [16, 64]}, ...}}

Trees are those of transformers' classes on the meta device. What transformers has no class for is made by hand after
the published checkpoints. A name with "_file" is the same model under the names that its checkpoint files have.

    make_families.py [FOLDER]      needs torch and transformers; recorded with torch 2.11, transformers 5.18
"""

import fnmatch
import json
import pathlib
import re
import sys

import torch
import transformers as hf
from reference import PLANS, ROW

SIZES = dict(vocab_size=72, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=8,
             num_key_value_heads=4, bos_token_id=1, eos_token_id=2, pad_token_id=0)  # fmt: skip
HEADS = SIZES | {"head_dim": 8}
VISION = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2)
PIXTRAL = VISION | dict(model_type="pixtral", head_dim=16, image_size=32, patch_size=8)
DELTA = dict(linear_num_key_heads=4, linear_num_value_heads=8, linear_key_head_dim=8, linear_value_head_dim=8)
KINDS = dict(layer_types=["sliding_attention", "full_attention"])
LATENT = dict(q_lora_rank=24, kv_lora_rank=16, qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=8)
EXPERTS = dict(n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, first_k_dense_replace=1)
LLAMA4 = HEADS | dict(intermediate_size_mlp=96, num_local_experts=4, interleave_moe_layer_step=2)
GEMMA4 = HEADS | KINDS | dict(hidden_size_per_layer_input=0)


def gemma4(**text):
    return hf.Gemma4ForConditionalGeneration, hf.Gemma4Config(text_config=GEMMA4 | text, vision_config=None)


STACKS = dict(vocab_size=72, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=8,
              decoder_attention_heads=8, encoder_ffn_dim=96, decoder_ffn_dim=96, bos_token_id=1, eos_token_id=2,
              pad_token_id=0, decoder_start_token_id=1, tie_word_embeddings=False)  # fmt: skip
GPT2 = dict(vocab_size=72, n_embd=64, n_layer=2, n_head=8, n_positions=64, tie_word_embeddings=False)

CLASSES = {
    "bart": (hf.BartForConditionalGeneration, hf.BartConfig(**STACKS)),
    "bert": (hf.BertLMHeadModel, hf.BertConfig(
        **SIZES, is_decoder=True, tie_word_embeddings=False, max_position_embeddings=64)),
    "deepseek_v2": (hf.DeepseekV2ForCausalLM, hf.DeepseekV2Config(
        **SIZES | {"num_key_value_heads": 8} | LATENT | EXPERTS, n_group=2, topk_group=1)),
    "deepseek_v3": (hf.DeepseekV3ForCausalLM, hf.DeepseekV3Config(
        **SIZES | {"num_key_value_heads": 8} | LATENT | EXPERTS, n_group=2, topk_group=1)),
    "deepseek_v32": (hf.DeepseekV32ForCausalLM, hf.DeepseekV32Config(
        **SIZES | {"num_key_value_heads": 8} | LATENT | EXPERTS, n_group=2, topk_group=1, index_head_dim=8,
        index_n_heads=4)),
    "falcon_h1": (hf.FalconH1ForCausalLM, hf.FalconH1Config(
        **HEADS, mamba_d_ssm=64, mamba_n_heads=8, mamba_d_head=8, mamba_n_groups=1, mamba_d_state=16)),
    "dots1": (hf.Dots1ForCausalLM, hf.Dots1Config(
        **HEADS | EXPERTS, n_shared_experts=1, n_group=2, topk_group=1)),
    "falcon": (hf.FalconForCausalLM, hf.FalconConfig(
        **{k: v for k, v in SIZES.items() if not k.startswith(("intermediate", "num_key"))}, num_kv_heads=4,
        new_decoder_architecture=True, alibi=False, bias=False, tie_word_embeddings=False)),
    "gemma3": (hf.Gemma3ForCausalLM, hf.Gemma3TextConfig(**HEADS)),
    "gemma3_classification": (hf.Gemma3TextForSequenceClassification, hf.Gemma3TextConfig(**HEADS, num_labels=4)),
    "gemma3_vlm": (hf.Gemma3ForConditionalGeneration, hf.Gemma3Config(
        text_config=HEADS, vision_config=VISION | dict(image_size=28, patch_size=14))),
    "gemma4": gemma4(attention_k_eq_v=True, per_layer_config={"01": {"head_dim": 16}}),
    "gemma4_e": gemma4(num_hidden_layers=4, hidden_size_per_layer_input=16, vocab_size_per_layer_input=72,
                       num_kv_shared_layers=2, layer_types=KINDS["layer_types"] * 2),
    "gemma4_text": (hf.Gemma4ForCausalLM, hf.Gemma4TextConfig(**GEMMA4)),
    "glm": (hf.GlmForCausalLM, hf.GlmConfig(**HEADS)),
    "glm4": (hf.Glm4ForCausalLM, hf.Glm4Config(**HEADS)),
    "glm4_moe": (hf.Glm4MoeForCausalLM, hf.Glm4MoeConfig(**HEADS | EXPERTS, n_group=2, topk_group=1, use_qk_norm=True)),
    "gpt2": (hf.GPT2LMHeadModel, hf.GPT2Config(**GPT2)),
    "gpt_neox": (hf.GPTNeoXForCausalLM, hf.GPTNeoXConfig(**SIZES, tie_word_embeddings=False)),
    "gpt_oss": (hf.GptOssForCausalLM, hf.GptOssConfig(**HEADS, num_local_experts=4)),
    "llama": (hf.LlamaForCausalLM, hf.LlamaConfig(**SIZES)),
    "llama_classification": (hf.LlamaForSequenceClassification, hf.LlamaConfig(**SIZES, num_labels=2)),
    "llama_tied": (hf.LlamaForCausalLM, hf.LlamaConfig(
        **SIZES, tie_word_embeddings=True, attention_bias=True, mlp_bias=True)),
    "llama4": (hf.Llama4ForCausalLM, hf.Llama4TextConfig(**LLAMA4)),
    "llama4_vlm": (hf.Llama4ForConditionalGeneration, hf.Llama4Config(
        text_config=LLAMA4, tie_word_embeddings=False, vision_config=VISION | dict(
            image_size=32, patch_size=8, projector_input_dim=64, projector_output_dim=64, vision_output_dim=64))),
    "minicpm3": (hf.MiniCPM3ForCausalLM, hf.MiniCPM3Config(**SIZES | {"num_key_value_heads": 8} | LATENT)),
    "minimax_m2": (hf.MiniMaxM2ForCausalLM, hf.MiniMaxM2Config(**HEADS, num_local_experts=4, num_experts_per_tok=2)),
    "ministral3": (hf.Ministral3ForCausalLM, hf.Ministral3Config(**HEADS)),
    "mistral": (hf.MistralForCausalLM, hf.MistralConfig(**SIZES)),
    "mistral3": (hf.Mistral3ForConditionalGeneration, hf.Mistral3Config(
        text_config=HEADS | {"model_type": "mistral"}, vision_config=PIXTRAL, tie_word_embeddings=False)),
    "mixtral": (hf.MixtralForCausalLM, hf.MixtralConfig(**SIZES, num_local_experts=4)),
    "olmo": (hf.OlmoForCausalLM, hf.OlmoConfig(**SIZES)),
    "olmo2": (hf.Olmo2ForCausalLM, hf.Olmo2Config(**SIZES)),
    "olmoe": (hf.OlmoeForCausalLM, hf.OlmoeConfig(**SIZES, num_experts=4, num_experts_per_tok=2)),
    "opt": (hf.OPTForCausalLM, hf.OPTConfig(
        vocab_size=72, hidden_size=64, ffn_dim=96, num_hidden_layers=2, num_attention_heads=8, word_embed_proj_dim=64,
        max_position_embeddings=64, tie_word_embeddings=False)),
    "phi": (hf.PhiForCausalLM, hf.PhiConfig(**SIZES, qk_layernorm=True)),
    "phi3": (hf.Phi3ForCausalLM, hf.Phi3Config(**SIZES)),
    "qwen2": (hf.Qwen2ForCausalLM, hf.Qwen2Config(**SIZES)),
    "qwen2_moe": (hf.Qwen2MoeForCausalLM, hf.Qwen2MoeConfig(
        **SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=32,
        mlp_only_layers=[0])),
    "qwen2_vl": (hf.Qwen2VLForConditionalGeneration, hf.Qwen2VLConfig(
        text_config=SIZES, tie_word_embeddings=False, vision_config=dict(
            depth=1, embed_dim=32, hidden_size=64, num_heads=4, mlp_ratio=2, patch_size=4))),
    "qwen2_5_vl": (hf.Qwen2_5_VLForConditionalGeneration, hf.Qwen2_5_VLConfig(
        text_config=SIZES, tie_word_embeddings=False, vision_config=dict(
            depth=1, hidden_size=32, intermediate_size=48, num_heads=4, out_hidden_size=64, patch_size=4))),
    "qwen3": (hf.Qwen3ForCausalLM, hf.Qwen3Config(**HEADS)),
    "qwen3_classification": (hf.Qwen3ForSequenceClassification, hf.Qwen3Config(**HEADS, num_labels=2)),
    "qwen3_5": (hf.Qwen3_5ForCausalLM, hf.Qwen3_5TextConfig(**HEADS | {"num_hidden_layers": 4}, **DELTA)),
    "qwen3_5_vlm": (hf.Qwen3_5ForConditionalGeneration, hf.Qwen3_5Config(
        text_config=HEADS | {"num_hidden_layers": 4} | DELTA,
        vision_config=dict(depth=1, hidden_size=32, num_heads=2, intermediate_size=48, out_hidden_size=64,
                           patch_size=4))),
    "qwen3_moe": (hf.Qwen3MoeForCausalLM, hf.Qwen3MoeConfig(
        **HEADS, num_experts=4, moe_intermediate_size=32, mlp_only_layers=[0])),
    "qwen3_next": (hf.Qwen3NextForCausalLM, hf.Qwen3NextConfig(
        **HEADS | {"num_hidden_layers": 4} | DELTA, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
        shared_expert_intermediate_size=32)),
    "smollm3": (hf.SmolLM3ForCausalLM, hf.SmolLM3Config(**SIZES)),
    "t5": (hf.T5ForConditionalGeneration, hf.T5Config(
        vocab_size=72, d_model=64, d_kv=8, d_ff=96, num_layers=2, num_heads=8, tie_word_embeddings=False)),
    "whisper": (hf.WhisperForConditionalGeneration, hf.WhisperConfig(
        **STACKS, num_mel_bins=16, max_source_positions=24, max_target_positions=24)),
}  # fmt: skip


def linear(path, rows, columns):
    return {f"{path}.weight": [rows, columns]}


def norm(path, size=64):
    return {f"{path}.weight": [size]}


def attention_of(path, kv_heads=4):
    rows = {"q": 64, "k": 8 * kv_heads, "v": 8 * kv_heads, "o": 64}
    return {f"{path}.{name}_proj.weight": [n, 64] for name, n in rows.items()}


def mlp_of(path, size=96):
    return linear(f"{path}.gate_proj", size, 64) | linear(f"{path}.up_proj", size, 64) | linear(f"{path}.down_proj", 64, size)


def ends_of(prefix="model", embed="embed_tokens", last="norm", head="lm_head"):
    return linear(f"{prefix}.{embed}", 72, 64) | norm(f"{prefix}.{last}") | linear(head, 72, 64)


def layers_of(prefix, *parts):
    """Llama's layers, each of the parts a function of the layer's path."""
    out = {}
    for i in range(2):
        layer = f"{prefix}.layers.{i}"
        out |= norm(f"{layer}.input_layernorm") | norm(f"{layer}.post_attention_layernorm")
        for part in parts:
            out |= part(layer)
    return out


def llama_layer(layer):
    return attention_of(f"{layer}.self_attn") | mlp_of(f"{layer}.mlp")


def llama_fused():
    """Query, key and value, and gate and up, as one projection each: names and shapes of NeMo's Llama."""

    def fused(layer):
        return (linear(f"{layer}.self_attn.qkv_proj", 128, 64) | linear(f"{layer}.self_attn.o_proj", 64, 64)
                | linear(f"{layer}.mlp.gate_up_proj", 192, 64) | linear(f"{layer}.mlp.down_proj", 64, 96))  # fmt: skip

    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": False}
    return config, ends_of() | layers_of("model", fused)


def llama_interleaved():
    return llama_fused()


def baichuan():
    def attention(layer):
        return linear(f"{layer}.self_attn.W_pack", 192, 64) | linear(f"{layer}.self_attn.o_proj", 64, 64)

    config = {"architectures": ["BaichuanForCausalLM"], "model_type": "baichuan", "tie_word_embeddings": False}
    return config, ends_of() | layers_of("model", attention, lambda layer: mlp_of(f"{layer}.mlp"))


def decilm():
    config = {"architectures": ["DeciLMForCausalLM"], "model_type": "deci", "num_key_value_heads_per_layer": [4, 8]}
    tensors = ends_of() | layers_of("model", lambda layer: mlp_of(f"{layer}.mlp"))
    return config, tensors | attention_of("model.layers.0.self_attn") | attention_of("model.layers.1.self_attn", 8)


def nemotron_nas():
    """Layers: all; no attention; linear attention and linear mlp; fewer key heads and no mlp."""

    def block(group=None, attention="heads", ffn="mlp"):
        return {
            "attention": {"n_heads_in_group": group, "no_op": attention == "none", "replace_with_linear": attention == "linear"},
            "ffn": {"ffn_mult": None, "no_op": ffn == "none", "replace_with_linear": ffn == "linear"},
        }  # fmt: skip

    p = "model.layers."
    tensors = ends_of() | norm(p + "0.input_layernorm") | attention_of(p + "0.self_attn")
    tensors |= norm(p + "0.post_attention_layernorm") | mlp_of(p + "0.mlp")
    tensors |= norm(p + "1.post_attention_layernorm") | mlp_of(p + "1.mlp", 48)
    tensors |= norm(p + "2.input_layernorm") | linear(p + "2.self_attn.linear_attn", 64, 64)
    tensors |= norm(p + "2.post_attention_layernorm") | linear(p + "2.mlp.linear_mlp", 64, 64)
    tensors |= norm(p + "3.input_layernorm") | attention_of(p + "3.self_attn", kv_heads=8)
    config = {
        "architectures": ["DeciLMForCausalLM"], "model_type": "nemotron-nas", "tie_word_embeddings": False,
        "num_hidden_layers": 4, "num_key_value_heads": None,
        "block_configs": [block(2), block(attention="none"), block(attention="linear", ffn="linear"), block(1, ffn="none")],
    }  # fmt: skip
    return config, tensors


def nemotron_labs_diffusion():
    config = {"architectures": ["NemotronLabsDiffusionModel"], "model_type": "nemotron_labs_diffusion"}
    return config, ends_of("encoder", head="diffusion_head") | layers_of("encoder", llama_layer)


def muse_glimmer():
    config = {"architectures": ["MuseGlimmerForCausalLM"], "model_type": "muse_glimmer"}
    gate = lambda layer: linear(f"{layer}.self_attn.output_gate_proj", 64, 64)  # noqa: E731
    return config, ends_of() | layers_of("model", llama_layer, gate)


def nemotron_h():
    """Mamba, attention, mlp and experts, as NVIDIA's checkpoints have them, under the names of transformers' class."""
    p = "model.layers."
    tensors = ends_of(embed="embeddings", last="norm_f")
    for i in range(4):
        tensors |= norm(f"{p}{i}.norm")
    mixer = p + "0.mixer"
    tensors |= {f"{mixer}.{name}": [8] for name in ("dt_bias", "A_log", "D")}
    tensors |= {f"{mixer}.conv1d.weight": [128, 1, 4], f"{mixer}.conv1d.bias": [128]}
    tensors |= linear(f"{mixer}.in_proj", 200, 64) | norm(f"{mixer}.norm") | linear(f"{mixer}.out_proj", 64, 64)
    tensors |= attention_of(p + "1.mixer")
    tensors |= linear(p + "2.mixer.up_proj", 96, 64) | linear(p + "2.mixer.down_proj", 64, 96)
    mixer = p + "3.mixer"
    tensors |= {f"{mixer}.experts.up_proj": [4, 32, 64], f"{mixer}.experts.down_proj": [4, 64, 32]}
    tensors |= linear(f"{mixer}.gate", 4, 64)
    tensors |= linear(f"{mixer}.shared_experts.up_proj", 32, 64) | linear(f"{mixer}.shared_experts.down_proj", 64, 32)
    config = {"architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "num_hidden_layers": 4,
              "hybrid_override_pattern": "M*-E"}  # fmt: skip
    return config, tensors


def wan():
    """Names and shapes of diffusers' WanTransformer3DModel, with biases where it has them."""

    def biased(path, rows, columns):
        return linear(path, rows, columns) | {f"{path}.bias": [rows]}

    tensors = {"patch_embedding.weight": [64, 16, 1, 2, 2], "patch_embedding.bias": [64], "scale_shift_table": [1, 2, 64]}
    embedder = "condition_embedder."
    tensors |= biased(embedder + "time_embedder.linear_1", 64, 32) | biased(embedder + "time_embedder.linear_2", 64, 64)
    tensors |= biased(embedder + "time_proj", 384, 64)
    tensors |= biased(embedder + "text_embedder.linear_1", 64, 48) | biased(embedder + "text_embedder.linear_2", 64, 64)
    for i in range(2):
        block = f"blocks.{i}."
        for attention in ("attn1", "attn2"):
            for name in ("to_q", "to_k", "to_v", "to_out.0"):
                tensors |= biased(f"{block}{attention}.{name}", 64, 64)
            tensors |= norm(f"{block}{attention}.norm_q") | norm(f"{block}{attention}.norm_k")
        tensors |= {f"{block}norm2.weight": [64], f"{block}norm2.bias": [64], f"{block}scale_shift_table": [1, 6, 64]}
        tensors |= biased(block + "ffn.net.0.proj", 96, 64) | biased(block + "ffn.net.2", 64, 96)
    tensors |= biased("proj_out", 64, 64)
    return {"_class_name": "WanTransformer3DModel", "num_attention_heads": 8, "attention_head_dim": 8}, tensors


HAND_MADE = [baichuan, decilm, llama_fused, llama_interleaved, muse_glimmer, nemotron_h, nemotron_labs_diffusion, nemotron_nas, wan]

# Options of the plan that the family is resolved with.
OPTIONS = {"llama_fused": {"fused": "contiguous"}, "llama_interleaved": {"fused": "interleaved"}}

# Names in checkpoint files where they differ from the modules': (expression, replacement), the first that fits.
LANGUAGE_MODEL = [(r"^model\.language_model\.", "language_model.model."), (r"^lm_head", "language_model.lm_head"),
                  (r"^model\.", "")]  # fmt: skip
RENAMED = {
    "gemma3_vlm": LANGUAGE_MODEL,
    "mistral3": LANGUAGE_MODEL,
    "mixtral": [(r"\.mlp\.", ".block_sparse_moe.")],
    "nemotron_h": [(r"^model\.", "backbone.")],
    "qwen2_moe": [],
    "qwen3_moe": [],
    "deepseek_v3": [],
}
EXPERT_NAMES = {"mixtral": ("w1", "w3", "w2")}


def in_file(name, tensors):
    out = {}
    for path, shape in tensors.items():
        for expression, replacement in RENAMED[name]:
            if re.search(expression, path):
                path = re.sub(expression, replacement, path)
                break
        if ".experts." not in path:
            out[path] = shape
            continue
        prefix, stacked = path.rsplit(".", 1)
        gate, up, down = EXPERT_NAMES.get(name, ("gate_proj", "up_proj", "down_proj"))
        for expert in range(shape[0]):
            if stacked == "down_proj":
                out |= linear(f"{prefix}.{expert}.{down}", *shape[1:])
            elif stacked == "up_proj":
                out |= linear(f"{prefix}.{expert}.{up}", *shape[1:])
            else:
                out |= linear(f"{prefix}.{expert}.{gate}", shape[1] // 2, shape[2])
                out |= linear(f"{prefix}.{expert}.{up}", shape[1] // 2, shape[2])
    return out


def in_older_config(name, config):
    """Gemma 3's first files leave out what the class has as its default."""
    if name != "gemma3_vlm":
        return config
    left_out = ("num_attention_heads", "num_key_value_heads", "tie_word_embeddings")
    text = {k: v for k, v in config["text_config"].items() if k not in left_out}
    return {k: v for k, v in config.items() if k not in left_out} | {"text_config": text}


def matches(pattern, path):
    parts, names = pattern.split("."), path.split(".")
    return len(parts) == len(names) and all(map(fnmatch.fnmatchcase, names, parts))


def piece(shape, dim, ranks):
    """Local shape of rank 0: torch.chunk's first piece."""
    return [-(-size // ranks) if i == dim else size for i, size in enumerate(shape)]


def with_tied_head(config, tensors):
    """The head too, where it is the embedding and so no parameter of its own."""
    heads = [path for path in tensors if path.endswith(("lm_head.weight", "score.weight"))]
    tied = config.get("tie_word_embeddings", config.get("model_type") == "gemma3")
    embeddings = [s for path, s in tensors.items() if path.endswith("embed_tokens.weight")]
    if heads or not tied or not embeddings:
        return tensors
    return tensors | {"lm_head.weight": embeddings[0]}


def sharded(plan, tensors):
    out = {}
    for path, shape in sorted(tensors.items()):
        module, parameter = path.rsplit(".", 1) if "." in path else ("", path)
        for pattern, kind in plan.items():
            if parameter not in ("weight", "bias") or not matches(pattern, module):
                continue
            if kind == ROW and parameter == "bias":
                continue
            dim = 1 if kind == ROW else 0
            out[path] = {"dim": dim, "2": piece(shape, dim, 2), "4": piece(shape, dim, 4)}
    return out


def write(folder, name, config, tensors, plan):
    data = {"options": OPTIONS.get(name, {}), "config": config, "dtype": "BF16", "tensors": tensors, "reference": sharded(plan, with_tied_head(config, tensors))}
    text = "{\n" + ",\n".join(
        f' "{key}": ' + (json.dumps(value, sort_keys=True) if key == "dtype" else
                         "{\n" + ",\n".join(f'  {json.dumps(k)}: {json.dumps(v, sort_keys=True)}' for k, v in sorted(value.items())) + "\n }")
        for key, value in data.items()) + "\n}\n"  # fmt: skip
    (folder / f"{name}.json").write_text(text)


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    made = {}
    for name, (cls, config) in CLASSES.items():
        with torch.device("meta"):
            model = cls(config)
        config.architectures = [cls.__name__]
        fields = json.loads(config.to_json_string(use_diff=True))
        fields.pop("transformers_version", None)
        made[name] = (fields, {path: list(p.shape) for path, p in model.named_parameters()})
    for make in HAND_MADE:
        config, tensors = make()
        made[make.__name__] = ({**({} if make is wan else SIZES), **config}, tensors)
    for name, (config, tensors) in made.items():
        write(folder, name, config, tensors, PLANS[name])
        if name in RENAMED:
            plan = {"lm_head": PLANS[name]["lm_head"]}  # a tied head has its module's name
            for pattern, kind in PLANS[name].items():
                plan |= {p.rsplit(".", 1)[0]: kind for p in in_file(name, {pattern + ".weight": [1, 1]})}
            write(folder, f"{name}_file", in_older_config(name, config), in_file(name, tensors), plan)


if __name__ == "__main__":
    main()
