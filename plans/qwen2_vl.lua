-- qwen2_vl.lua: Qwen2-VL and Qwen2.5-VL: a Qwen2 decoder with images as a second input. The layers of the vision tower
-- and the mlp that merges its patches are sharded too.
local transformer <const> = require "transformer"
local stream <const> = transformer.stream(options { sequence_parallel = false, loss_parallel = false, stable = false })
local text <const> = transformer.text_model()
local layer <const> = text.prefix .. ".layers.*."
local visual <const> = transformer.first("", { "model.visual", "visual" })
local blocks <const> = visual .. ".blocks.*"
local gated <const> = model:has(blocks .. ".mlp.gate_proj")

return plan {
  api = 1,
  transformer.ends(stream, { prefix = text.prefix, head = text.head, merged = text.merged }),
  at(layer .. "{input,post_attention}_layernorm", norm_on(stream.residual)),
  transformer.attention(layer .. "self_attn", stream, {
    heads = text.config.num_attention_heads,
    kv_heads = text.config:get("num_key_value_heads", text.config.num_attention_heads),
  }),
  transformer.mlp(layer .. "mlp", stream),
  transformer.tower(blocks, stream, {
    heads = config.vision_config.num_heads,
    attention = "attn",
    out = "proj",
    qkv = "qkv",
    hidden = config.vision_config:get("embed_dim", config.vision_config.hidden_size),
    up = gated and "{gate,up}_proj" or "fc1",
    down = gated and "down_proj" or "fc2",
  }),
  transformer.mlp(visual .. ".merger.mlp", { residual = replicate, stable = stream.stable }, { up = "0", down = "2" }),
  at(visual .. ".patch_embed.proj", transformer.channels(3)),
  default(replicated()),
}
