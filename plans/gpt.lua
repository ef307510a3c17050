-- gpt.lua: decoders of the GPT line: GPT-2, GPT-Neo, GPT-NeoX, GPT-J, CodeGen, GPT-BigCode (StarCoder), Falcon, BLOOM.
-- They differ in the names of the modules, which are read from the model, and in the order of a fused query, key and
-- value, which config.json decides.
local transformer <const> = require "transformer"
local stream <const> = transformer.stream(options { sequence_parallel = false, loss_parallel = false, stable = false })
local first <const> = transformer.first
local residual <const> = stream.residual
local kind <const> = config:get("model_type", "")
local heads <const> = config:get("num_attention_heads", config:get("n_head", config:get("num_heads", false)))
local hidden <const> = config:get("hidden_size", config:get("n_embd", false))

-- Checkpoints of the model without a head have no prefix.
local layers <const> = assert(first("", { "transformer.h", "gpt_neox.layers", "h", "layers" }), "no layers at transformer.h, gpt_neox.layers, h or layers")
local prefix <const> = string.match(layers, "^(.*)%.") or ""
local embedding <const> = first(prefix, { "wte", "word_embeddings", "embed_in", "tokens_embed" })
local head <const> = first("", { "embed_out", "score" }) or "lm_head"
local one <const> = layers .. ".0"
local layer <const> = layers .. ".*"

-- Path of the attention modules within a layer, and the projections in them.
local attention <const> = first(one, { "attn.attention", "attn", "attention", "self_attention" })
local qkv <const> = first(one .. "." .. attention, { "c_attn", "query_key_value", "qkv_proj" })
local out <const> = first(one .. "." .. attention, { "c_proj", "out_proj", "dense" })
local up <const> = first(one .. ".mlp", { "c_fc", "fc_in", "dense_h_to_4h" })
local down <const> = first(one .. ".mlp", { "c_proj", "fc_out", "dense_4h_to_h" })

-- GPT-2's Conv1D stores its weights as [in, out].
local transposed <const> = kind == "gpt2" or kind == "openai-gpt"

-- Models in which every rank computes all heads: ALiBi computes slopes for all heads outside of attention; a single key
-- head is taken from the fused features by sizes of the full model; CodeGen's fused features are four groups of heads.
local grouped <const> = config:get("new_decoder_architecture", false)
local single <const> = (kind == "falcon" or kind == "gpt_bigcode") and not grouped and config:get("multi_query", true)
local all_heads <const> = kind == "bloom" or kind == "codegen" or config:get("alibi", false) or single

return plan {
  api = 1,
  at((prefix == "" and "" or prefix .. ".") .. embedding, vocab_rowwise {}),
  transformer.beside(prefix, { embedding, head }, { "wpe" }),
  transformer.stack(layers, stream),
  at(layer .. "." .. first(one, { "ln_1", "input_layernorm", "ln_attn" }), norm_on(residual)),
  at(layer .. ".{ln_2,ln_mlp,post_attention_layernorm}", norm_on(residual), { optional = true }),
  transformer.attention(layer .. "." .. attention, stream, {
    heads = heads,
    kv_heads = grouped and config:get("num_kv_heads", heads) or heads,
    fused = qkv and (transposed and "contiguous" or "interleaved"),
    qkv = qkv,
    out = out,
    head_dim = hidden // heads,
    transposed = transposed,
    all_heads = all_heads and kind == "gpt_bigcode",  -- its program takes sizes from the weights
    gathered = all_heads and kind ~= "gpt_bigcode",
  }),
  transformer.mlp(layer .. ".mlp", stream, { up = up, down = down, transposed = transposed }),
  at(head, colwise { output = stream.logits }, { optional = true }),
  fsdp { wrap = layer },
  default(replicated()),
}
