-- nemotron_h.lua: Nemotron-H. A layer is one mixer: Mamba, attention, an mlp or experts.
-- `all_heads`: every rank computes all heads of attention, with replicated weights. `mamba_heads`: as in falcon_h1.lua.
local transformer <const> = require "transformer"
local experts <const> = require "experts"
local token_mixers <const> = require "mixers"
local opt <const> = options({
  sequence_parallel = false, loss_parallel = false, stable = false, all_heads = false, expert_parallel = false,
  mamba_heads = false,
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
  mamba and token_mixers.mamba2(mamba, stream, {
    heads = config:get("mamba_num_heads", 128),
    groups = config:get("n_groups", 8),
    state = config:get("ssm_state_size", 128),
    norm = "norm",
    by_heads = opt.mamba_heads,
  }),
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
