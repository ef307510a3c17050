-- A first plan for MixtralForCausalLM, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
-- Context parallelism: "ring" on cp=2,tp=2, which sends at most half of the bytes. What a rank sends for attention
-- in a step of one sequence of 32768 tokens: "ulysses" sends 4.00 MiB; "ring" sends 2.00 KiB. A ring needs
-- attention that supports it: the reference models, or a class with SetRing, and no fused kernel. For other
-- attention: --context ulysses.
local transformer <const> = require "transformer"
local experts <const> = require "experts"
local opt <const> = options { sequence_parallel = false, loss_parallel = false, context = "ring" }
local stream <const> = transformer.stream { sequence_parallel = opt.sequence_parallel, loss_parallel = opt.loss_parallel,
                                            stable = false, context = opt.context }
local residual <const> = stream.residual  -- the hidden states between blocks
local n_heads <const> = config.num_attention_heads
local n_kv_heads <const> = config.num_key_value_heads

return plan {
  api = 1,
  -- sure: the embedding: its 64 rows are the vocabulary; ids whose row is on another rank give zeros
  at("model.embed_tokens", transformer.embedding(stream)),
  -- sure: norms over all 32 features of the hidden states
  at("model.layers.*.{input,post_attention}_layernorm", norm_on(residual)),
  -- sure: 4 heads of 8 features, 2 heads for keys and values
  transformer.heads_fit("model.layers.*.self_attn", n_heads, n_kv_heads, stream),
  at("model.layers.*.self_attn.q_proj",
     transformer.column(stream, { input = residual, heads = n_heads, attention = true })),
  at("model.layers.*.self_attn.{k,v}_proj",
     transformer.column(stream, { input = residual, heads = n_kv_heads, attention = true })),
  at("model.layers.*.self_attn.o_proj",
     transformer.block_end(stream, shard(-1), n_heads, n_kv_heads, transformer.window())),
  -- sure: 4 experts of 20 features, each expert sharded
  experts.block("model.layers.*.block_sparse_moe", stream, { up = "w{1,3}", down = "w2" }),
  -- sure: the norm after the last layer
  at("model.norm", norm_on(residual)),
  -- sure: the head: logits over the 64 tokens of the vocabulary
  at("lm_head", transformer.column(stream, { input = residual, output = stream.logits })),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = "model.layers.*" },
}
