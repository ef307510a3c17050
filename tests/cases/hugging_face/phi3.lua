-- phi3/Phi3ForCausalLM, from release.json: a Hugging Face plan with Hugging Face's meaning.
local hf <const> = require "hugging_face"
-- Path of the base model within the model.
local base <const> = options { base = "model." }.base

return plan {
  api = 1,
  lenient = true,
  hf.tied(false) and hf.at(base .. "embed_tokens", hf.embedding_rowwise),
  hf.at(base .. "layers.*.mlp.down_proj", hf.rowwise_split_input),
  hf.at(base .. "layers.*.mlp.gate_up_proj", hf.colwise_gather_output),
  hf.at(base .. "layers.*.self_attn.o_proj", hf.rowwise_split_input),
  hf.at(base .. "layers.*.self_attn.qkv_proj", hf.colwise_gather_output),
  hf.at("lm_head", hf.colwise_gather_output),
}
