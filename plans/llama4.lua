-- llama4.lua: Llama 4, text alone or with images. Layers have an mlp, or experts in one module that is called with the
-- tokens of all experts (weights as [experts, in, out], gate before up), and a shared mlp beside them.
local transformer <const> = require "transformer"
local experts <const> = require "experts"
local stream <const> = transformer.stream(options { sequence_parallel = false, loss_parallel = false, stable = false })
local text <const> = transformer.text_model()
local layers <const> = text.prefix .. ".layers"
local block <const> = layers .. ".*.feed_forward"
local sparse <const> = experts.layers(layers, "feed_forward.router")
local size <const> = text.config.intermediate_size
local tower <const> = transformer.first("", { "vision_model", "model.vision_model" })

local function with_experts(path)
  if stream.stable then return experts.replicated(path, stream) end
  return {
    experts.gathered(path, stream),
    at(path .. ".router", replicated()),
    at(path .. ".experts", style {
      name = "experts",
      params = { gate_up_proj = packed(2, { size, size }), down_proj = shard(1) },
      inputs = { { replicate, shared } },
      outputs = { { partial, replicate } },
    }),
    at(path .. ".shared_expert.{gate,up}_proj", colwise {}),
    at(path .. ".shared_expert.down_proj", rowwise {}),
  }
end

-- The tower of images, the mlp behind it and the projector. `path`: of the tower.
local function images(path)
  local own <const> = { residual = replicate, stable = stream.stable }
  local projector <const> = string.gsub(path, "vision_model$", "multi_modal_projector.linear_1")
  return {
    at(path .. ".patch_embedding.linear", colwise { output = replicate }),
    transformer.tower(path .. ".model.layers.*", stream, { heads = config.vision_config.num_attention_heads, out = "o_proj" }),
    transformer.mlp(path .. ".vision_adapter.mlp", own, { up = "fc1", down = "fc2" }),
    at(projector, colwise { output = replicate }),
  }
end

return plan {
  api = 1,
  transformer.ends(stream, { prefix = text.prefix, head = text.head, merged = text.merged }),
  at(layers .. ".*.{input,post_attention}_layernorm", norm_on(stream.residual)),
  transformer.attention(layers .. ".*.self_attn", stream, {
    heads = text.config.num_attention_heads,
    kv_heads = text.config.num_key_value_heads,
  }),
  model:has(block .. ".down_proj") and transformer.mlp(block, stream),
  sparse and with_experts(sparse .. ".feed_forward"),
  tower and images(tower),
  text.merged and default(replicated()),
}
