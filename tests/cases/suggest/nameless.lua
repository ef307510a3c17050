-- A first plan for StrangeModel, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
local transformer <const> = require "transformer"
local opt <const> = options { sequence_parallel = false, loss_parallel = false }
local residual <const> = opt.sequence_parallel and shard(1) or replicate  -- the hidden states between blocks
local logits <const> = opt.loss_parallel and shard(-1) or replicate
local n_heads <const> = config.num_heads
local n_kv_heads <const> = config.num_kv_heads

return plan {
  api = 1,
  -- sure: the embedding: its 96 rows are the vocabulary; ids whose row is on another rank give zeros
  at("net.tok", vocab_rowwise { output = residual }),
  -- sure: norms over all 64 features of the hidden states
  at("net.stage.*.{mid,pre}_norm", norm_on(residual)),
  -- guess: 8 heads of 16 features, 2 heads for keys and values; found by shapes alone
  transformer.heads_fit("net.stage.*.mix", n_heads, n_kv_heads),
  at("net.stage.*.mix.d", colwise { input = residual, heads = n_heads }),
  at("net.stage.*.mix.{b,c}", colwise { input = residual, heads = n_kv_heads }),
  at("net.stage.*.mix.a", rowwise { output = residual }),
  -- guess: 64 features to 200 and back; found by shapes alone
  at("net.stage.*.wide.{x,y}", colwise { input = residual }),
  at("net.stage.*.wide.z", rowwise { output = residual }),
  -- sure: the norm after the last layer
  at("net.last_norm", norm_on(residual)),
  -- sure: the head: logits over the 96 tokens of the vocabulary
  at("net.unembed", colwise { input = residual, output = logits }),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = "net.stage.*" },
}
