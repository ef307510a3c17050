"""What the reference (NeMo Automodel 0.7.0) shards in each family: path of a module -> the tensor dim of its weight.

Column-wise cuts a linear layer's weight and bias along dim 0, row-wise its weight along dim 1, and the vocabulary
embedding's weight along dim 0. A name with "*" is one path component, as the reference matches it. What is not here it
leaves whole.
"""

COLUMN, ROW, VOCABULARY = "column", "row", "vocabulary"


def ends(prefix="model", embed="embed_tokens", head="lm_head"):
    return {f"{prefix}.{embed}": VOCABULARY, head: COLUMN}


def attention(path, out="o_proj"):
    return {f"{path}.{name}_proj": COLUMN for name in "qkv"} | {f"{path}.{out}": ROW}


def mlp(path):
    return {f"{path}.gate_proj": COLUMN, f"{path}.up_proj": COLUMN, f"{path}.down_proj": ROW}


def decoder(prefix="model", head="lm_head"):
    layer = f"{prefix}.layers.*"
    return ends(prefix, head=head) | attention(f"{layer}.self_attn") | mlp(f"{layer}.mlp")


TEXT = "model.language_model"
# Also what the reference falls back to, in "default": the tree decides how much of it matches.
FUSED = {"model.layers.*.self_attn.qkv_proj": COLUMN, "model.layers.*.mlp.gate_up_proj": COLUMN}
LLAMA = decoder() | FUSED
PHI = (
    ends()
    | attention("model.layers.*.self_attn", out="dense")
    | {"model.layers.*.mlp.fc1": COLUMN, "model.layers.*.mlp.fc2": ROW}
)
# The fused query, key and value are cut along their inputs, so that every rank has all heads.
PHI3 = ends() | {
    "model.layers.*.self_attn.qkv_proj": ROW,
    "model.layers.*.self_attn.o_proj": COLUMN,
    "model.layers.*.mlp.gate_up_proj": COLUMN,
    "model.layers.*.mlp.down_proj": ROW,
}
LINEAR_ATTENTION = {
    f"{TEXT}.layers.*.linear_attn.{name}": COLUMN
    for name in ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj")
}
QWEN3_5_VLM = {k: v for k, v in decoder(TEXT).items() if k != "lm_head"} | LINEAR_ATTENTION
WAN = {
    "condition_embedder.text_embedder.linear_1": COLUMN,
    "condition_embedder.text_embedder.linear_2": ROW,
    "condition_embedder.time_embedder.linear_1": COLUMN,
    "condition_embedder.time_embedder.linear_2": ROW,
    "condition_embedder.time_proj": COLUMN,
    "blocks.*.ffn.net.0.proj": COLUMN,
    "blocks.*.ffn.net.2": ROW,
    "proj_out": ROW,
}

PLANS = {
    "baichuan": mlp("model.layers.*.mlp"),
    "decilm": LLAMA,
    "deepseek_v3": LLAMA,
    "falcon_h1": ends() | attention("model.layers.*.self_attn") | mlp("model.layers.*.feed_forward"),
    "gemma3": LLAMA,
    "gemma3_classification": decoder(head="score"),
    "gemma3_vlm": decoder(TEXT),
    "gemma4": decoder(TEXT),
    # The head is tied: its plan leaves it out and takes the embedding's pieces.
    "gemma4_e": decoder(TEXT) | {f"{TEXT}.embed_tokens_per_layer": VOCABULARY},
    "gemma4_text": LLAMA,
    "glm": LLAMA,
    "glm4": LLAMA,
    "llama": LLAMA,
    "llama_classification": decoder(head="score"),
    "llama_fused": LLAMA,
    "llama_interleaved": LLAMA,
    "llama_tied": LLAMA,
    "ministral3": LLAMA,
    "mistral": LLAMA,
    "mistral3": decoder(TEXT),
    "mixtral": LLAMA,
    "muse_glimmer": LLAMA | {"model.layers.*.self_attn.output_gate_proj": COLUMN},
    "nemotron_h": {"lm_head": COLUMN, "model.layers.2.mixer.up_proj": COLUMN, "model.layers.2.mixer.down_proj": ROW},
    "nemotron_labs_diffusion": decoder("encoder", head="diffusion_head"),
    "nemotron_nas": LLAMA,
    "olmo": LLAMA,
    "phi": PHI,
    "phi3": PHI3,
    "qwen2": LLAMA,
    "qwen2_moe": LLAMA,
    "qwen3": LLAMA,
    "qwen3_classification": decoder(head="score"),
    # Registered, but it raises for the class of text alone; this is what its plan for the other one says.
    "qwen3_5": {k.replace(TEXT, "model"): v for k, v in QWEN3_5_VLM.items()},
    "qwen3_5_vlm": QWEN3_5_VLM,
    "qwen3_moe": LLAMA,
    "smollm3": LLAMA,
    **dict.fromkeys(("bart", "bert", "deepseek_v2", "deepseek_v32", "dots1", "falcon", "glm4_moe", "gpt2", "gpt_neox", "gpt_oss",
                     "llama4", "minicpm3", "minimax_m2", "olmo2", "olmoe", "opt", "qwen3_next", "t5", "whisper"), LLAMA),
    "llama4_vlm": decoder("language_model.model", head="language_model.lm_head"),
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl"), decoder(TEXT)),
    "wan": WAN,
}  # fmt: skip
