-- qwen3_moe/Qwen3MoeForCausalLM, expert parallel, adapted from release.json.
local hf <const> = require "hugging_face"
local base <const> = options { base = "model." }.base  -- path of the base model

return plan {
  api = 1,
  lenient = true,  -- the plan is for all models of its type, so some rules may match no module
  at(base .. "layers.*.mlp.experts", hf.moe_tp_experts),
  at(base .. "layers.*.mlp.experts.{down,gate_up}_proj", shard(0)),
  at(base .. "layers.*.mlp.gate", hf.ep_router),
}
