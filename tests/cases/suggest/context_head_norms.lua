-- A first plan for Qwen3ForCausalLM, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
-- Context parallelism: "ulysses" on cp=2, since a ring would not send half of the bytes or less. What a rank sends
-- for attention in a step of one sequence of 32768 tokens: "ulysses" sends 9.00 MiB; "ring" sends 9.00 MiB.
local transformer <const> = require "transformer"
local opt <const> = options { sequence_parallel = false, loss_parallel = false, context = "ulysses" }
local stream <const> = transformer.stream { sequence_parallel = opt.sequence_parallel, loss_parallel = opt.loss_parallel,
                                            stable = false, context = opt.context }
local residual <const> = stream.residual  -- the hidden states between blocks
local n_heads <const> = config.num_attention_heads
local n_kv_heads <const> = config.num_key_value_heads

return plan {
  api = 1,
  -- sure: the embedding: its 53 rows are the vocabulary; ids whose row is on another rank give zeros
  at("model.embed_tokens", transformer.embedding(stream)),
  -- sure: norms over all 32 features of the hidden states
  at("model.layers.*.{input,post_attention}_layernorm", norm_on(residual)),
  -- sure: 4 heads of 12 features, 2 heads for keys and values
  transformer.heads_fit("model.layers.*.self_attn", n_heads, n_kv_heads, stream),
  at("model.layers.*.self_attn.q_proj",
     transformer.column(stream, { input = residual, heads = n_heads, attention = true })),
  at("model.layers.*.self_attn.{k,v}_proj",
     transformer.column(stream, { input = residual, heads = n_kv_heads, attention = true })),
  at("model.layers.*.self_attn.{k,q}_norm", transformer.head_norm()),
  at("model.layers.*.self_attn.o_proj",
     transformer.block_end(stream, shard(-1), n_heads, n_kv_heads, transformer.window())),
  -- sure: 32 features to 48 and back
  at("model.layers.*.mlp.{gate,up}_proj", transformer.column(stream, { input = residual })),
  at("model.layers.*.mlp.down_proj", transformer.block_end(stream)),
  -- sure: the norm after the last layer
  at("model.norm", norm_on(residual)),
  -- sure: the head: logits over the 53 tokens of the vocabulary
  at("lm_head", transformer.column(stream, { input = residual, output = stream.logits })),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = "model.layers.*" },
}
