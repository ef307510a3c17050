-- qwen3_moe/Qwen3MoeForCausalLM, expert parallel, from release.json: a Hugging Face plan with Hugging Face's meaning.
local hf <const> = require "hugging_face"
-- Path of the base model within the model.
local base <const> = options { base = "model." }.base

return plan {
  api = 1,
  lenient = true,
  hf.at(base .. "layers.*.mlp.experts", hf.moe_tp_experts),
  hf.at(base .. "layers.*.mlp.experts.down_proj", hf.grouped_gemm),
  hf.at(base .. "layers.*.mlp.experts.gate_up_proj", hf.grouped_gemm),
  hf.at(base .. "layers.*.mlp.gate", hf.ep_router),
}
