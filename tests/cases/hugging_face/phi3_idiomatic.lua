-- phi3/Phi3ForCausalLM, adapted from release.json.
local hf <const> = require "hugging_face"
local base <const> = options { base = "model." }.base  -- path of the base model

return plan {
  api = 1,
  lenient = true,  -- the plan is for all models of its type, so some rules may match no module
  hf.tied(false) and at(base .. "embed_tokens", vocab_rowwise {}),
  at(base .. "layers.*.mlp.down_proj", rowwise { input = replicate }),
  at(base .. "layers.*.mlp.gate_up_proj", colwise { output = replicate }),
  at(base .. "layers.*.self_attn.o_proj", rowwise { input = replicate }),
  at(base .. "layers.*.self_attn.qkv_proj", colwise { output = replicate }),
  at("lm_head", colwise { output = replicate }),
}
