-- nemotron_h.lua: Nemotron-H. A layer is one mixer: Mamba (replicated), attention, an mlp or experts.
-- `all_heads`: every rank computes all heads, with replicated weights.
local transformer <const> = require "transformer"
local experts <const> = require "experts"
local opt <const> = options({
  sequence_parallel = false, loss_parallel = false, stable = false, all_heads = false, expert_parallel = false,
}, { whole_attention = "all_heads" })
local stream <const> = transformer.stream(opt)
local prefix <const> = model:has("backbone.norm_f") and "backbone" or "model"

-- The pattern of the mixers that have this part, or nil.
local function mixers(part)
  local layers <const> = experts.layers(prefix .. ".layers", "mixer." .. part)
  return layers and layers .. ".mixer"
end
local mamba <const>, attention <const>, mlp <const>, moe <const> = mixers("conv1d"), mixers("q_proj"), mixers("up_proj"), mixers("gate")

return plan {
  api = 1,
  transformer.ends(stream, { prefix = prefix, embed = "embeddings", norm = "norm_f" }),
  at(prefix .. ".layers.*.norm", norm_on(stream.residual)),
  mamba and {
    at(mamba, replicated { input = stream.residual, output = stream.residual }),
    at(mamba .. ".{conv1d,in_proj,norm,out_proj}", replicated()),
  },
  attention and transformer.attention(attention, stream, {
    heads = config.num_attention_heads,
    kv_heads = config:get("num_key_value_heads", config.num_attention_heads),
    all_heads = opt.all_heads,
  }),
  mlp and transformer.mlp(mlp, stream, { up = "up_proj" }),
  moe and experts.block(moe, stream, {
    fused = false,
    up = "up_proj",
    shared = "shared_experts",
    count = config:get("n_routed_experts", 0),
    expert_parallel = opt.expert_parallel,
  }),
}
