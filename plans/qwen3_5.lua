-- qwen3_5.lua: Qwen3.5 and Qwen3-Next, text alone or with images, with or without experts. Most layers have a gated
-- delta net in place of attention.
-- `linear_heads`: false: projections of the delta net are sharded and gathered, so that every rank computes all heads;
-- true: its heads are sharded too, without gathers (the forward of the model must support a subset of heads).
local transformer <const> = require "transformer"
local experts <const> = require "experts"
local opt <const> = options {
  sequence_parallel = false, loss_parallel = false, stable = false, linear_heads = false, expert_parallel = false,
}
local stream <const> = transformer.stream(opt)
local residual <const> = stream.residual
local text <const> = transformer.text_model()
local layer <const> = text.prefix .. ".layers.*."
local sparse <const> = experts.layers(text.prefix .. ".layers", "mlp.gate")
-- Qwen3-Next has two projections, whose rows are ordered by key head.
local by_head <const> = model:has(layer .. "linear_attn.in_proj_qkvz")

local function gathered(path)
  local projections <const> = by_head and "{in_proj_qkvz,in_proj_ba}" or "{in_proj_qkv,in_proj_z,in_proj_b,in_proj_a}"
  return {
    at(path, replicated()),
    at(path .. "." .. projections, colwise { input = residual, output = replicate }),
    at(path .. ".{conv1d,norm}", replicated()),
    at(path .. ".out_proj", colwise { input = replicate, output = residual }),
  }
end

local function in_heads(path)
  local c <const> = text.config
  local n_keys <const>, n_values <const> = c.linear_num_key_heads, c.linear_num_value_heads
  local keys <const>, values <const> = n_keys * c.linear_key_head_dim, n_values * c.linear_value_head_dim
  local parts <const>, heads <const> = { keys, keys, values }, { n_keys, n_keys, n_values }
  return {
    divides(mesh.tp, n_keys, "key heads of " .. path),
    at(path, style { name = "delta_net", params = { dt_bias = shard(0), A_log = shard(0) } }),
    by_head and at(path .. ".{in_proj_qkvz,in_proj_ba}", colwise { input = residual, heads = n_keys }),
    not by_head and {
      at(path .. ".in_proj_qkv", transformer.fused_colwise { input = residual, sizes = parts, heads = heads }),
      at(path .. ".{in_proj_z,in_proj_b,in_proj_a}", colwise { input = residual, heads = n_values }),
    },
    at(path .. ".conv1d", style { name = "channels", params = { weight = packed(0, parts, { heads = heads }) } }),
    at(path .. ".norm", transformer.head_norm()),
    at(path .. ".out_proj", transformer.block_end(stream)),
  }
end

return plan {
  api = 1,
  transformer.ends(stream, { prefix = text.prefix, head = text.head, merged = text.merged }),
  at(layer .. "{input,post_attention}_layernorm", norm_on(residual)),
  -- Each query head is followed by its gate.
  transformer.attention(layer .. "self_attn", stream, {
    heads = text.config.num_attention_heads,
    kv_heads = text.config.num_key_value_heads,
    norms = "{q,k}_norm",
  }),
  (opt.linear_heads and in_heads or gathered)(layer .. "linear_attn"),
  model:has(layer .. "mlp.down_proj") and transformer.mlp(layer .. "mlp", stream),
  sparse and experts.block(sparse .. ".mlp", stream, {
    size = text.config.moe_intermediate_size,
    shared = "shared_expert",
    shared_gate = "shared_expert_gate",
    count = text.config.num_experts,
    expert_parallel = opt.expert_parallel,
  }),
  at("model.visual.patch_embed.proj", transformer.channels(3), { optional = true }),
  model:has("model.visual.blocks.**") and transformer.tower("model.visual.blocks.*", stream, {
    heads = config.vision_config.num_heads,
    attention = "attn",
    out = "proj",
    qkv = "qkv",
    hidden = config.vision_config.hidden_size,
    up = "linear_fc1",
    down = "linear_fc2",
  }),
  model:has("model.visual.merger.linear_fc2") and {
    at("model.visual.merger.norm", replicated()),
    transformer.mlp("model.visual.merger", { residual = replicate, stable = stream.stable }, { up = "linear_fc1", down = "linear_fc2" }),
  },
  text.merged and default(replicated()),
}
