"""The checkpoints that make_fixtures.py records besides Llama's and Mistral's: a case or two of each architecture.

name: (model class, config, options of make_fixtures.py). Heads are 4 with 2 keys, so that tp 4 has keys on several ranks.
"""

import transformers as hf
from stand_ins import BaiChuanForCausalLM, BaichuanConfig, BaichuanForCausalLM, DeciLMForCausalLM, NemotronNasConfig

SMALL = dict(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=128, bos_token_id=1, eos_token_id=2, pad_token_id=None,
)  # fmt: skip
MICRO = {"rows": 4}
QWEN_EXPERTS = ("mlp", "gate_proj", "up_proj", "down_proj")


def small(**changes):
    return {**SMALL, **changes}


def gemma3_of_transformers_4(config):
    """The same config as transformers 4 wrote it."""
    ropes = config.pop("rope_parameters")
    config["rope_theta"] = ropes["full_attention"].pop("rope_theta")
    config["rope_local_base_freq"] = ropes["sliding_attention"]["rope_theta"]
    config["rope_scaling"] = ropes["full_attention"]
    del config["layer_types"]
    config.pop("_sliding_window_pattern", None)
    config["sliding_window_pattern"] = 3
    config["torch_dtype"] = config.pop("dtype")
    return config


def nemotron_nas_of_its_blocks(config):
    """What the blocks say is null at the top."""
    config["num_key_value_heads"] = None
    del config["intermediate_size"]
    return config


def without_layer_types(config):
    del config["layer_types"]
    return config


def attention(queries_per_key=None, linear=False):
    return dict(n_heads_in_group=queries_per_key, no_op=not (queries_per_key or linear), replace_with_linear=linear,
                num_sink_tokens=None, sparsify=None, unshifted_sink=False,
                use_prefill_window_in_sink_attention=False, window_length=None)  # fmt: skip


def ffn(linear=False, **size):
    return dict(**size, no_op=not (size or linear), replace_with_linear=linear, sparsify=None)


# Models with output_router_logits: the loss has the balance of the experts, with a coefficient that shows in gradients.
TINY = small(vocab_size=24, hidden_size=16, intermediate_size=6)
ROUTERS = {"expert_names": QWEN_EXPERTS, "lengths": (13,), "rows": 4, "padded_rows": 4}

CASES = {
    "qwen2_tied": (
        hf.Qwen2ForCausalLM, hf.Qwen2Config(**small(vocab_size=77), tie_word_embeddings=True), MICRO),
    "qwen2_window5": (
        hf.Qwen2ForCausalLM,
        hf.Qwen2Config(**small(num_hidden_layers=3, num_key_value_heads=4), use_sliding_window=True, sliding_window=5,
                       max_window_layers=1), {"padded": True}),
    "qwen3_head_dim12": (
        hf.Qwen3ForCausalLM, hf.Qwen3Config(**small(vocab_size=53), head_dim=12, tie_word_embeddings=True), MICRO),
    "qwen3_bias_window": (
        hf.Qwen3ForCausalLM,
        hf.Qwen3Config(**small(), head_dim=8, attention_bias=True, use_sliding_window=True, sliding_window=4,
                       max_window_layers=1), {"padded": True}),
    "ministral3_yarn": (
        hf.Ministral3ForCausalLM,
        hf.Ministral3Config(**small(), head_dim=12, sliding_window=None, rope_parameters=dict(
            rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=5, beta_fast=32.0,
            beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.3)), {**MICRO, "padded": True, "packed": True}),
    "gemma3_softcap": (
        hf.Gemma3ForCausalLM,
        hf.Gemma3TextConfig(**small(vocab_size=71, num_hidden_layers=3, pad_token_id=0), head_dim=12, sliding_window=6,
                            query_pre_attn_scalar=20, final_logit_softcapping=2.5, attn_logit_softcapping=1.5,
                            layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
        {**MICRO, "padded": True, "packed": True, "norm_centre": 0}),
    "gemma3_old_untied": (
        hf.Gemma3ForCausalLM,
        hf.Gemma3TextConfig(**small(num_hidden_layers=3, num_key_value_heads=1, pad_token_id=0), head_dim=8,
                            sliding_window=4, attention_bias=True, tie_word_embeddings=False,
                            layer_types=["sliding_attention", "sliding_attention", "full_attention"],
                            rope_parameters={"full_attention": dict(rope_type="linear", rope_theta=5e5, factor=4.0),
                                             "sliding_attention": dict(rope_type="default", rope_theta=2e3)}),
        {"norm_centre": 0, "rewrite_config": gemma3_of_transformers_4}),
    "phi_partial": (
        hf.PhiForCausalLM, hf.PhiConfig(**small(vocab_size=59, num_key_value_heads=4)), MICRO),
    "phi_qknorm": (
        hf.PhiForCausalLM,
        hf.PhiConfig(**small(hidden_size=40), qk_layernorm=True, partial_rotary_factor=0.4, hidden_act="gelu"),
        {"padded": True}),
    "phi3_gqa": (
        hf.Phi3ForCausalLM, hf.Phi3Config(**small(vocab_size=61), sliding_window=9), MICRO),
    "phi3_longrope": (
        hf.Phi3ForCausalLM,
        hf.Phi3Config(**small(num_key_value_heads=4, max_position_embeddings=56), original_max_position_embeddings=14,
                      tie_word_embeddings=True, rope_parameters=dict(
                          rope_type="longrope", rope_theta=1e4, partial_rotary_factor=0.75,
                          short_factor=[1.0, 1.1, 1.3], long_factor=[1.5, 2.0, 3.5])), {"padded": True}),
    "baichuan2": (
        BaichuanForCausalLM, BaichuanConfig(**small(vocab_size=65, num_key_value_heads=4, pad_token_id=0)), MICRO),
    "baichuan1": (
        BaiChuanForCausalLM, BaichuanConfig(**small(num_key_value_heads=4, pad_token_id=0)), {}),
    "mixtral": (
        hf.MixtralForCausalLM, hf.MixtralConfig(**small(intermediate_size=20), num_local_experts=4, sliding_window=9),
        {**MICRO, "expert_names": ("block_sparse_moe", "w1", "w3", "w2")}),
    "qwen3_moe": (
        hf.Qwen3MoeForCausalLM,
        hf.Qwen3MoeConfig(**small(num_hidden_layers=3), moe_intermediate_size=18, num_experts=5, num_experts_per_tok=2,
                          norm_topk_prob=True, mlp_only_layers=[1]), {**MICRO, "expert_names": QWEN_EXPERTS}),
    "qwen3_moe_unnormalized": (
        hf.Qwen3MoeForCausalLM,
        hf.Qwen3MoeConfig(**small(num_key_value_heads=4), moe_intermediate_size=12, num_experts=4,
                          num_experts_per_tok=3, decoder_sparse_step=2), {"expert_names": QWEN_EXPERTS}),
    "routers/mixtral": (
        hf.MixtralForCausalLM,
        hf.MixtralConfig(**TINY, num_local_experts=4, output_router_logits=True, router_aux_loss_coef=0.5),
        {**ROUTERS, "padded": True, "expert_names": ("block_sparse_moe", "w1", "w3", "w2")}),
    "routers/qwen3_moe": (
        hf.Qwen3MoeForCausalLM,
        hf.Qwen3MoeConfig(**{**TINY, "num_hidden_layers": 3}, head_dim=4, moe_intermediate_size=5, num_experts=5,
                          num_experts_per_tok=2, norm_topk_prob=True, mlp_only_layers=[1], output_router_logits=True,
                          router_aux_loss_coef=0.3), ROUTERS),
    "qwen2_moe": (
        hf.Qwen2MoeForCausalLM,
        hf.Qwen2MoeConfig(**small(), moe_intermediate_size=18, shared_expert_intermediate_size=20, num_experts=5,
                          num_experts_per_tok=2), {**MICRO, "padded": True, "packed": True, "expert_names": QWEN_EXPERTS}),
    "qwen2_moe_window": (
        hf.Qwen2MoeForCausalLM,
        hf.Qwen2MoeConfig(**small(num_hidden_layers=4, num_key_value_heads=4), moe_intermediate_size=14,
                          shared_expert_intermediate_size=12, num_experts=6, num_experts_per_tok=3, norm_topk_prob=True,
                          qkv_bias=False, decoder_sparse_step=2, mlp_only_layers=[3], use_sliding_window=True,
                          sliding_window=5, max_window_layers=3),
        {"expert_names": QWEN_EXPERTS, "rewrite_config": without_layer_types}),
    "routers/qwen2_moe": (
        hf.Qwen2MoeForCausalLM,
        hf.Qwen2MoeConfig(**{**TINY, "num_hidden_layers": 3}, moe_intermediate_size=5, shared_expert_intermediate_size=7,
                          num_experts=5, num_experts_per_tok=2, norm_topk_prob=True, mlp_only_layers=[1],
                          output_router_logits=True, router_aux_loss_coef=0.4), ROUTERS),
    "decilm": (
        DeciLMForCausalLM,
        NemotronNasConfig(**small(hidden_size=16, num_hidden_layers=5), block_configs=[
            dict(attention=attention(2), ffn=ffn(ffn_mult=2.0)),
            dict(attention=attention(), ffn=ffn(intermediate_size=40)),
            dict(attention=attention(linear=True), ffn=ffn()),
            dict(attention=attention(4), ffn=ffn(linear=True)),
            dict(attention=attention(1), ffn=ffn(intermediate_size=24))]),
        {**MICRO, "rewrite_config": nemotron_nas_of_its_blocks}),
}  # fmt: skip
