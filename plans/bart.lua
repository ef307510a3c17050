-- bart.lua: stacks of layers as in BART: an encoder and a decoder (BART, mBART, Pegasus, Marian, Blenderbot, M2M-100,
-- Whisper), or a decoder alone (OPT, XGLM, BioGPT). The features of position tables and the output channels of
-- Whisper's convolutions are sharded, and their outputs gathered.
local transformer <const> = require "transformer"
local stream <const> = transformer.stream(options { sequence_parallel = false, loss_parallel = false, stable = false })
local residual <const> = stream.residual

assert(residual == replicate or config:get("model_type", "") ~= "opt",
       "sequence_parallel: OPT's mlp merges rows and tokens into one dim, which cannot be sharded along the sequence; leave it off")

-- The stacks: path of the list of layers, and heads.
local heads <const> = config:get("num_attention_heads", config:get("attention_heads", false))
local stacks <const> = {}
for _, one in ipairs {
  { "model.encoder.layers", config:get("encoder_attention_heads", heads) },
  { "model.decoder.layers", config:get("decoder_attention_heads", heads) },
  { "biogpt.layers", heads },
  { "model.layers", heads },
} do
  if model:has(one[1] .. ".0.fc1") then table.insert(stacks, { layers = one[1], heads = one[2] }) end
end

local function rules(stack)
  local layer <const> = stack.layers .. ".*"
  return {
    transformer.beside(string.gsub(stack.layers, "%.layers$", ""), { "embed_tokens", "shared", "conv1", "conv2" },
                       { "embed_positions" }),
    transformer.stack(stack.layers, stream),
    at(layer .. ".{self_attn,final,encoder_attn}_layer_norm", norm_on(residual), { optional = true }),
    transformer.attention(layer .. ".self_attn", stream, { heads = stack.heads, out = "out_proj" }),
    model:has(layer .. ".encoder_attn.q_proj") and transformer.attention(layer .. ".encoder_attn", stream, {
      heads = stack.heads,
      out = "out_proj",
      source = replicate,
    }),
    transformer.mlp(layer, stream, { up = "fc1", down = "fc2" }),
  }
end

-- Logits are the output of the head plus a bias over the full vocabulary, in models with an encoder.
local logits <const> = model:has("model.encoder.**") and replicate or stream.logits
assert(logits == stream.logits, "loss_parallel: the logits of this model have a bias that is not sharded; leave it off")

local blocks <const>, wrapped <const> = {}, {}
for _, stack in ipairs(stacks) do
  table.insert(blocks, rules(stack))
  table.insert(wrapped, stack.layers .. ".*")
end

return plan {
  api = 1,
  at("{model,biogpt}.{shared,embed_tokens}", vocab_rowwise {}, { optional = true }),
  at("model.{encoder,decoder}.embed_tokens", vocab_rowwise {}, { optional = true }),
  blocks,
  at("model.encoder.{conv1,conv2}", transformer.channels(1), { optional = true }),
  at("{lm_head,proj_out,output_projection}", colwise { output = logits }, { optional = true }),
  fsdp { wrap = wrapped },
  default(replicated()),
}
