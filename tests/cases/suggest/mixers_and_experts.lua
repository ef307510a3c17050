-- A first plan for HybridForCausalLM, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare numbers before you rely on it.
-- "by rows": linear layers whose use is unknown hold shards of their rows, and their outputs are gathered.
local transformer <const> = require "transformer"
local experts <const> = require "experts"
local opt <const> = options { sequence_parallel = false, loss_parallel = false }
local residual <const> = opt.sequence_parallel and shard(1) or replicate  -- the hidden states between blocks
local logits <const> = opt.loss_parallel and shard(-1) or replicate
local stream <const> = { residual = residual, logits = logits, stable = false }
local n_heads <const> = config.num_attention_heads
local n_kv_heads <const> = config.num_key_value_heads

-- A block that gets all tokens, since its modules are not understood.
local gathered <const> = style {
  name = "gathered",
  inputs = { { residual, replicate } },
  outputs = { { replicate, residual } },
}

return plan {
  api = 1,
  -- sure: the embedding: its 96 rows are the vocabulary; ids of rows that another rank has count as zero
  at("model.embed_tokens", vocab_rowwise {}),
  -- The hidden states are shards of the sequence within these layers.
  transformer.stack("model.layers", { residual = residual }),
  at("model.layers.*.mamba", gathered),
  -- sure: norms over all 64 features of the hidden states
  at("model.layers.*.{input,post_attention}_layernorm", norm_on(residual)),
  -- replicated or by rows: mamba is not sharded by features: the use of features in mamba is unknown
  at("model.layers.*.mamba.{in,out}_proj", colwise { output = replicate }),
  at("model.layers.*.mamba.{conv1d,x_proj}", replicated()),
  -- sure: 64 features to 160 and back
  at("model.layers.*.mlp.{gate,up}_proj", colwise { input = residual }),
  at("model.layers.*.mlp.down_proj", rowwise { output = residual }),
  -- sure: 8 heads of 8 features, 4 of them for keys and values
  transformer.heads_fit("model.layers.*.self_attn", n_heads, n_kv_heads),
  at("model.layers.*.self_attn.q_proj", colwise { input = residual, heads = n_heads }),
  at("model.layers.*.self_attn.{k,v}_proj", colwise { input = residual, heads = n_kv_heads }),
  at("model.layers.*.self_attn.o_proj", rowwise { output = residual }),
  -- sure: 4 experts of 48 features, each sharded
  experts.block("model.layers.{2,3}.mlp",
     stream, { gate = "router.gate", up = "w{1,3}", down = "w2", shared = "shared_experts", shared_up = "{gate,up}_proj", shared_down = "down_proj" }),
  at("model.layers.*.mlp.expert_bias", replicate),
  -- sure: the norm after the last layer
  at("model.norm", replicated()),
  -- sure: the head: logits of 96 tokens
  at("lm_head", colwise { output = logits }),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = "model.layers.*" },
}
