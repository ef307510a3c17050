-- gemma3.lua: Gemma 3, text alone or with images. Four norms per layer, and norms on the query and key heads. The
-- embedding's scale multiplies every term of its sum. The layers of the vision tower are sharded; its pooling and the
-- projector are replicated.
local transformer <const> = require "transformer"
local stream <const> = transformer.stream(options { sequence_parallel = false, loss_parallel = false, stable = false, context = "", inputs = "whole" })
local text <const> = transformer.text_model()
local layer <const> = text.prefix .. ".layers.*."
local tower <const> = text.merged and transformer.first("", {
  "model.vision_tower.encoder.layers", "vision_tower.encoder.layers", "vision_tower.vision_model.encoder.layers",
  "model.model.vision_tower.encoder.layers",
})

return plan {
  api = 1,
  transformer.ends(stream, { prefix = text.prefix, head = text.head, merged = text.merged }),
  at(layer .. "{input,post_attention,pre_feedforward,post_feedforward}_layernorm", norm_on(stream.residual)),
  transformer.attention(layer .. "self_attn", stream, {
    heads = text.config:get("num_attention_heads", 8),  -- files of 2025 omit values that are defaults in transformers
    kv_heads = text.config:get("num_key_value_heads", 4),
    norms = "{q,k}_norm",
  }),
  transformer.mlp(layer .. "mlp", stream),
  tower and transformer.tower(tower .. ".*", stream, { heads = config.vision_config:get("num_attention_heads", 12) }),
  tower and {
    at(string.gsub(tower, "encoder%.layers$", "embeddings.patch_embedding"), transformer.channels(2), { optional = true }),
    at(string.gsub(tower, "encoder%.layers$", "embeddings.position_embedding"), transformer.table(), { optional = true }),
  },
  text.merged and default(replicated()),
}
