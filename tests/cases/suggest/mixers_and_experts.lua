-- A first plan for HybridForCausalLM, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
-- "by rows": linear layers whose use is unknown are sharded along the rows of the weight; their outputs are gathered.
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
  -- sure: the embedding: its 96 rows are the vocabulary; ids whose row is on another rank give zeros
  at("model.embed_tokens", vocab_rowwise {}),
  -- Within these layers, the hidden states are sharded along the sequence.
  transformer.stack("model.layers", { residual = residual }),
  at("model.layers.*.mamba", gathered),
  -- sure: norms over all 64 features of the hidden states
  at("model.layers.*.{input,post_attention}_layernorm", norm_on(residual)),
  -- replicated or by rows: mamba is not sharded by features: how mamba uses the features is unknown
  at("model.layers.*.mamba.{in,out,x}_proj", colwise { output = replicate }),
  at("model.layers.*.mamba.conv1d", replicated()),
  -- sure: 64 features to 160 and back
  at("model.layers.*.mlp.{gate,up}_proj", colwise { input = residual }),
  at("model.layers.*.mlp.down_proj", rowwise { output = residual }),
  -- sure: 8 heads of 8 features, 4 heads for keys and values
  transformer.heads_fit("model.layers.*.self_attn", n_heads, n_kv_heads),
  at("model.layers.*.self_attn.q_proj", colwise { input = residual, heads = n_heads }),
  at("model.layers.*.self_attn.{k,v}_proj", colwise { input = residual, heads = n_kv_heads }),
  at("model.layers.*.self_attn.o_proj", rowwise { output = residual }),
  -- sure: 4 experts of 48 features, each expert sharded
  experts.block("model.layers.{2,3}.mlp",
     stream, { gate = "router.gate", up = "w{1,3}", down = "w2", shared = "shared_experts", shared_up = "{gate,up}_proj", shared_down = "down_proj" }),
  at("model.layers.*.mlp.expert_bias", replicate),
  -- sure: the norm after the last layer
  at("model.norm", replicated()),
  -- sure: the head: logits over the 96 tokens of the vocabulary
  at("lm_head", colwise { output = logits }),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = "model.layers.*" },
}
