-- moe.lua: common decoders with experts: GLM-4.5, dots1, ERNIE 4.5, OLMoE, FlexOlmo, Mellum, Solar Open, EXAONE, Hunyuan
-- 3, MiniMax-M2, PhiMoE. Layers have an mlp, or experts with or without a shared mlp beside them.
local transformer <const> = require "transformer"
local experts <const> = require "experts"
local opt <const> = options {
  sequence_parallel = false, loss_parallel = false, stable = false, expert_parallel = false,
}
local stream <const> = transformer.stream(opt)
local n_heads <const> = config.num_attention_heads
local layers <const> = "model.layers"
local attention <const> = layers .. ".*.self_attn"

-- Names within a layer: the block with experts, and within the block the router and the shared mlp. `sparse`: the
-- pattern of the layers with a router.
local block <const> = transformer.first(layers .. ".*", { "block_sparse_moe", "mlp" })
local inside <const> = layers .. ".*." .. block
local gate <const> = model:has(inside .. ".router.gate") and "router.gate" or transformer.first(inside, { "gate", "router" })
local shared <const> = transformer.first(inside, { "shared_experts", "shared_expert", "shared_mlp" })
local sparse <const> = experts.layers(layers, block .. "." .. gate)
local named <const> = model:has(inside .. ".experts.0.w1")  -- as Mixtral names them

-- Norms on queries and keys take the mean over one head, or over all heads; a rank has only some of the heads.
local norm <const> = model:find(attention .. ".q_norm")[1]
local over_all <const> = norm
  and model:shape(norm .. ".weight")[1] ~= config:get("head_dim", config.hidden_size // n_heads)

return plan {
  api = 1,
  transformer.ends(stream),
  at(layers .. ".*.{input,post_attention,post_feedforward}_layernorm", norm_on(stream.residual), { optional = true }),
  transformer.further_tokens(layers .. ".*", stream),
  transformer.attention(attention, stream, {
    heads = n_heads,
    kv_heads = config:get("num_key_value_heads", n_heads),
    norms = norm and "{q,k}_norm",
    over_all = over_all,
  }),
  model:has(layers .. ".*.mlp.down_proj") and transformer.mlp(layers .. ".*.mlp", stream),
  at(inside .. ".gate.moe_statics", replicated(), { optional = true }),
  sparse and experts.block(sparse .. "." .. block, stream, {
    gate = gate,
    up = named and "{w1,w3}",
    down = named and "w2",
    size = config:get("moe_intermediate_size", config:get("intermediate_size", 0)),
    shared = shared,
    shared_gate = model:has(inside .. ".shared_expert_gate") and "shared_expert_gate",
    count = config:get("n_routed_experts", config:get("num_experts",
                                                      config:get("moe_num_experts", config:get("num_local_experts", 0)))),
    expert_parallel = opt.expert_parallel,
  }),
}
