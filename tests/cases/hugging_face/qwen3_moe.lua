-- qwen3_moe/Qwen3MoeForCausalLM, from release.json: a Hugging Face plan with Hugging Face's meaning.
local hf <const> = require "hugging_face"
-- Path of the base model within the model.
local base <const> = options { base = "model." }.base

return plan {
  api = 1,
  lenient = true,
  hf.tied(false) and hf.at(base .. "embed_tokens", hf.embedding_rowwise),
  hf.at(base .. "layers.*.mlp.down_proj", hf.rowwise),
  hf.at(base .. "layers.*.mlp.experts", hf.moe_tp_experts),
  hf.at(base .. "layers.*.mlp.experts.down_proj", hf.rowwise),
  hf.at(base .. "layers.*.mlp.experts.gate_up_proj", hf.packed_colwise),
  hf.at(base .. "layers.*.mlp.gate_proj", hf.colwise),
  hf.at(base .. "layers.*.mlp.up_proj", hf.colwise),
  hf.at(base .. "layers.*.self_attn.k_norm", hf.replicated_with_grad_allreduce),
  hf.at(base .. "layers.*.self_attn.k_proj", hf.colwise),
  hf.at(base .. "layers.*.self_attn.o_proj", hf.rowwise),
  hf.at(base .. "layers.*.self_attn.q_norm", hf.replicated_with_grad_allreduce),
  hf.at(base .. "layers.*.self_attn.q_proj", hf.colwise),
  hf.at(base .. "layers.*.self_attn.v_proj", hf.colwise),
  hf.at("lm_head", hf.colwise_gather_output),
}
