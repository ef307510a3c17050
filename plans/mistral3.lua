-- mistral3.lua: Mistral Small 3.1 and later: a Mistral or Ministral decoder with images as a second input. The layers
-- of the vision tower are sharded; the projector is replicated.
local transformer <const> = require "transformer"
local stream <const> = transformer.stream(options { sequence_parallel = false, loss_parallel = false, stable = false })
local text <const> = transformer.text_model()
local layer <const> = text.prefix .. ".layers.*."
local tower <const> = transformer.first("", { "model.vision_tower.transformer.layers", "vision_tower.transformer.layers" })

return plan {
  api = 1,
  transformer.ends(stream, { prefix = text.prefix, head = text.head, merged = text.merged }),
  at(layer .. "{input,post_attention}_layernorm", norm_on(stream.residual)),
  transformer.attention(layer .. "self_attn", stream, {
    heads = text.config.num_attention_heads,
    kv_heads = text.config:get("num_key_value_heads", text.config.num_attention_heads),
  }),
  transformer.mlp(layer .. "mlp", stream),
  tower and transformer.tower(tower .. ".*", stream, {
    heads = config.vision_config:get("num_attention_heads", 16),
    attention = "attention",
    out = "o_proj",
    mlp = "feed_forward",
    up = "{gate,up}_proj",
    down = "down_proj",
  }),
  tower and {
    at(string.gsub(tower, "transformer%.layers$", "patch_conv"), transformer.channels(2)),
    transformer.beside(string.gsub(tower, "%.transformer%.layers$", ""), { "patch_conv" }),
  },
  default(replicated()),
}
