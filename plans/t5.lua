-- t5.lua: T5, MT5, UMT5: an encoder and a decoder whose attention adds a bias per distance and head. The table of
-- biases is in the first block of each stack (in all blocks of UMT5) and is sharded between the heads.
local transformer <const> = require "transformer"
local stream <const> = transformer.stream(options { sequence_parallel = false, loss_parallel = false, stable = false })
local n_heads <const> = config.num_heads
local stacks <const> = model:has("decoder.**") and "{encoder,decoder}" or "encoder"
local block <const> = stacks .. ".block.*.layer.*"

-- `source`: the layout of the hidden states for keys and values, if not the stream's.
local function attention(path, source)
  return transformer.attention(path, stream, { heads = n_heads, q = "q", kv = "{k,v}", out = "o", source = source })
end

return plan {
  api = 1,
  at("{shared,encoder.embed_tokens,decoder.embed_tokens}", vocab_rowwise {}, { optional = true }),
  transformer.stack("encoder.block", stream),
  model:has("decoder.**") and transformer.stack("decoder.block", stream),
  at(block .. ".layer_norm", norm_on(stream.residual)),
  attention(block .. ".SelfAttention"),
  model:has(block .. ".EncDecAttention.q") and attention("decoder.block.*.layer.*.EncDecAttention", replicate),
  at(block .. ".SelfAttention.relative_attention_bias", style {
    name = "head_table",  -- a column for each head
    heads = n_heads,
    params = { weight = shard(1) },
    outputs = { { shard(-1), shard(-1) } },
  }),
  transformer.mlp(block .. ".DenseReluDense", stream, {
    up = model:has(block .. ".DenseReluDense.wi_0") and "wi_{0,1}" or "wi",
    down = "wo",
  }),
  at(stacks .. ".final_layer_norm", replicated()),
  at("lm_head", colwise { output = stream.logits }, { optional = true }),
  fsdp { wrap = model:has("decoder.**") and { "encoder.block.*", "decoder.block.*" } or "encoder.block.*" },
  default(replicated()),
}
