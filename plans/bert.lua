-- bert.lua: encoders (and decoders) with BERT's layers: BERT, RoBERTa, XLM-RoBERTa, ELECTRA, CamemBERT, ERNIE and
-- others, at any path. If a head is tied to the embeddings, the rows of both are sharded. The features of the table of
-- positions are sharded, and its output is gathered; the table of types is replicated.
local transformer <const> = require "transformer"
local stream <const> = transformer.stream(options { sequence_parallel = false, loss_parallel = false, stable = false })
local residual <const> = stream.residual
local norm <const> = norm_on(residual)
local heads <const> = config.num_attention_heads

-- The list of layers: "bert.encoder.layer", or "encoder.layer" in a model without a head.
local query <const> = model:find("**.encoder.layer.0.attention.self.query")[1] or "encoder.layer.0."
local base <const> = string.sub(query, 1, string.find(query, "encoder.layer.0.", 1, true) - 1)
local inside <const> = base .. "encoder.layer"
local layer <const> = inside .. ".*"
local head <const> = transformer.first("", { "cls.predictions", "lm_head", "generator_lm_head" })
-- The last projection of the head: its `decoder`, or the head itself. Headers have no weight of a tied projection.
local logits <const> = head and (model:has(head .. ".decoder") and head .. ".decoder" or head)

local function block(name, source)
  local path <const> = layer .. "." .. name
  return model:has(path .. ".self.query") and {
    transformer.heads_fit(path, heads),
    at(path .. ".self.query", colwise { input = residual, heads = heads }),
    at(path .. ".self.{key,value}", colwise { input = source, heads = heads }),
    at(path .. ".output.dense", transformer.block_end(stream)),
    at(path .. ".{LayerNorm,ln,self_attn_layer_norm,output.LayerNorm}", norm, { optional = true }),
  }
end

return plan {
  api = 1,
  at(base .. "embeddings.word_embeddings", vocab_rowwise {}),
  transformer.beside(base .. "embeddings", { "word_embeddings" }, { "position_embeddings" }),
  transformer.stack(inside, stream),
  block("attention", residual),
  block("crossattention", replicate),
  at(layer .. ".intermediate.dense", colwise { input = residual }),
  at(layer .. ".output.dense", transformer.block_end(stream)),
  at(layer .. ".{LayerNorm,ln,output.LayerNorm,intermediate.LayerNorm}", norm, { optional = true }),
  logits and {
    logits ~= head and {
      transformer.beside(head, { "decoder" }),
      at(head .. ".bias", shard(0), { optional = true }),  -- the same tensor as the bias of its decoder
    },
    at(logits, colwise { output = stream.logits }),
  },
  fsdp { wrap = layer },
  default(replicated()),
}
