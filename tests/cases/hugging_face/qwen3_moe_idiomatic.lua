-- qwen3_moe/Qwen3MoeForCausalLM, adapted from release.json.
local hf <const> = require "hugging_face"
local text <const> = config:get("text_config", config)
local n_heads <const> = text.num_attention_heads
local n_kv_heads <const> = text:get("num_key_value_heads", n_heads)
local base <const> = options { base = "model." }.base  -- path of the base model

return plan {
  api = 1,
  lenient = true,  -- the plan is for all models of its type, so some rules may match no module
  hf.tied(false) and at(base .. "embed_tokens", vocab_rowwise {}),
  at(base .. "layers.*.mlp.down_proj", rowwise {}),
  at(base .. "layers.*.mlp.experts", hf.moe_tp_experts),
  at(base .. "layers.*.mlp.experts.down_proj", shard(-1)),
  at(base .. "layers.*.mlp.experts.gate_up_proj", packed(-2, 2)),
  at(base .. "layers.*.mlp.{gate,up}_proj", colwise {}),
  at(base .. "layers.*.self_attn.{k,q}_norm.weight", shared),
  at(base .. "layers.*.self_attn.{k,v}_proj", colwise { heads = n_kv_heads }),
  at(base .. "layers.*.self_attn.o_proj", rowwise { heads = n_heads }),
  at(base .. "layers.*.self_attn.q_proj", colwise { heads = n_heads }),
  at("lm_head", colwise { output = replicate }),
}
