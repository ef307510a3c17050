-- A first plan for DeepseekOcr2ForConditionalGeneration, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
-- "by rows": linear layers whose use is unknown are sharded along the rows of the weight; their outputs are gathered.
-- "by channels": the output channels of a convolution are sharded, and its output gathered.
local transformer <const> = require "transformer"
local experts <const> = require "experts"
local opt <const> = options { sequence_parallel = false, loss_parallel = false }
local residual <const> = opt.sequence_parallel and shard(1) or replicate  -- the hidden states between blocks
local logits <const> = opt.loss_parallel and shard(-1) or replicate
local stream <const> = { residual = residual, logits = logits, stable = false }
local text <const> = config.text_config
local n_heads <const> = text.num_attention_heads
local n_kv_heads <const> = text.num_key_value_heads

return plan {
  api = 1,
  -- sure: the embedding: its 128 rows are the vocabulary; ids whose row is on another rank give zeros
  at("model.embed_tokens", vocab_rowwise {}),
  -- replicated: not recognized
  at("model", replicated()),
  at("model.sam_model", replicated()),
  -- Within these layers, the hidden states are sharded along the sequence.
  transformer.stack("model.layers", { residual = residual }),
  -- sure: norms over all 64 features of the hidden states
  at("model.layers.*.{input,post_attention}_layernorm", norm_on(residual)),
  -- sure: 4 heads of 16 features, 2 heads for keys and values
  transformer.heads_fit("model.layers.*.self_attn", n_heads, n_kv_heads),
  at("model.layers.*.self_attn.q_proj", colwise { input = residual, heads = n_heads }),
  at("model.layers.*.self_attn.{k,v}_proj", colwise { input = residual, heads = n_kv_heads }),
  at("model.layers.*.self_attn.o_proj", rowwise { output = residual }),
  -- sure: 64 features to 96 and back
  at("model.layers.*.mlp.{gate,up}_proj", colwise { input = residual }),
  at("model.layers.*.mlp.down_proj", rowwise { output = residual }),
  -- sure: 4 experts of 32 features, each expert sharded
  experts.block("model.layers.1.mlp", stream, { shared = "shared_experts" }),
  -- Within these layers, the hidden states are sharded along the sequence.
  transformer.stack("model.qwen2_model.model.model.layers", { residual = residual }),
  -- sure: norms over all 64 features of the hidden states
  at("model.qwen2_model.model.model.layers.*.{input,post_attention}_layernorm", norm_on(residual)),
  -- sure: 4 heads of 16 features, 2 heads for keys and values
  transformer.heads_fit("model.qwen2_model.model.model.layers.*.self_attn", n_heads, n_kv_heads),
  at("model.qwen2_model.model.model.layers.*.self_attn.q_proj", colwise { input = residual, heads = n_heads }),
  at("model.qwen2_model.model.model.layers.*.self_attn.{k,v}_proj", colwise { input = residual, heads = n_kv_heads }),
  at("model.qwen2_model.model.model.layers.*.self_attn.o_proj", rowwise { output = residual }),
  -- sure: 64 features to 96 and back
  at("model.qwen2_model.model.model.layers.*.mlp.{gate,up}_proj", colwise { input = residual }),
  at("model.qwen2_model.model.model.layers.*.mlp.down_proj", rowwise { output = residual }),
  -- sure: norms over all 64 features of the hidden states
  at("model.sam_model.blocks.*.{norm1,norm2}", replicated()),
  -- replicated or by rows: attn is not sharded between heads: how attn uses the heads is unknown; other layers may
  -- use the output of this module, so attention is replicated in all layers
  at("model.sam_model.blocks.*.attn.{proj,qkv}", colwise { output = replicate }),
  at("model.sam_model.blocks.*.attn", replicated()),
  -- sure: 64 features to 96 and back
  at("model.sam_model.blocks.*.mlp.lin1", colwise {}),
  at("model.sam_model.blocks.*.mlp.lin2", rowwise {}),
  -- sure: the norm after the last layer
  at("model.qwen2_model.model.model.norm", replicated()),
  at("model.norm", replicated()),
  -- sure: the head: logits over the 128 tokens of the vocabulary
  at("lm_head", colwise { output = logits }),
  -- guess: the head: logits over the 256 tokens of the vocabulary
  at("model.qwen2_model.query_1024", colwise { output = logits }),
  -- guess: the head: logits over the 144 tokens of the vocabulary
  at("model.qwen2_model.query_768", colwise { output = logits }),
  -- by channels: a convolution with one group
  at("model.sam_model.patch_embed.proj", transformer.channels(2)),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = { "model.layers.*", "model.qwen2_model.model.model.layers.*", "model.sam_model.blocks.*" } },
  -- replicated: 4 modules without a rule; the first is model.sam_model.neck.*
  default(replicated()),
}
