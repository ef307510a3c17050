-- hugging_face.lua: the styles that transformers 5.18 registers for `tp_plan` and `ep_plan`, with their names and
-- meaning, and `at` with their comparison of names. `moonshard import` writes plans with them.
--
--   local hf <const> = require "hugging_face"
--   hf.at("layers.*.self_attn.q_proj", hf.colwise)
--
-- A key that names a parameter shards that parameter without redistributions; a key that names a module shards the
-- parameters that the module owns, and redistributes its inputs and outputs. Three things differ from transformers: the
-- gradient of a replicated parameter is summed once per backward, so that accumulation is right; siblings with the same
-- input share one all-reduce; and the bias of a packed weight is packed.

---@class hugging_face
local hf = {}

-- A rule of a Hugging Face plan: in the key `*` is one number and everything else is literal.
---@param key string    "layers.*.mlp.experts.gate_up_proj"
---@param style style   a style of this file
function hf.at(key, style)
  return at(numbered(key), style)
end

-- Whether the input and output embeddings are one tensor. transformers shards such an embedding by its rows, whatever
-- its plan declares.
---@param by_default boolean  the default of the configuration class
function hf.tied(by_default)
  return config:get("text_config", config):get("tie_word_embeddings", config:get("tie_word_embeddings", by_default))
end

-- Output features are dim -2 of a matrix and the only dim of a vector. The dim of experts precedes them.
local features <const> = { ["*"] = shard(-2) }
local vector <const> = { ["*"] = shard(0) }
local of_embedding <const> = { ["*"] = shard(1) }

local function colwise(name, output)
  return style {
    name = name,
    bare = true,
    params = features,
    vectors = vector,
    kinds = { Embedding = of_embedding },
    inputs = { { replicate, shared } },
    outputs = { { shard(-1), output } },
  }
end

hf.colwise = colwise("colwise", shard(-1))
hf.colwise_gather_output = colwise("colwise_gather_output", replicate)
hf.colwise_rep = colwise("colwise_rep", replicate)

local function rowwise(name, input)
  return style {
    name = name,
    bare = true,
    params = { ["*"] = shard(-1), bias = replicate },
    after = { "bias" },
    inputs = { { input, shard(-1) } },
    outputs = { { partial, replicate } },
    kinds = {
      Embedding = style {
        name = name,
        bare = true,
        params = { ["*"] = shard(0) },
        lookup = "masked",
        inputs = { { input, replicate } },
        outputs = { { partial, replicate } },
      },
    },
  }
end

hf.rowwise = rowwise("rowwise", shard(-1))
hf.rowwise_split_input = rowwise("rowwise_split_input", replicate)
hf.rowwise_rep = rowwise("rowwise_rep", replicate)
hf.embedding_rowwise = rowwise("embedding_rowwise", replicate)

-- Gate and up in one weight: each is sharded by itself, so that a rank has matching shards of both. The bias is packed
-- too: transformers shards the bias as one part, and adds the wrong half.
hf.packed_colwise = style {
  name = "packed_colwise",
  bare = true,
  params = { ["*"] = packed(-2, 2) },
  vectors = { ["*"] = packed(-1, 2) },
  inputs = { { replicate, shared } },
  outputs = { { packed(-1, 2), packed(-1, 2) } },
}

-- Applies to parameters only.
hf.packed_rowwise = style {
  name = "packed_rowwise",
  bare = true,
  params = { ["*"] = packed(-1, 2) },
  vectors = { ["*"] = replicate },
}

hf.sequence_parallel = style {
  name = "sequence_parallel",
  bare = true,
  params = { ["*"] = shared },
  inputs = { { shard(1), shard(1) } },
  outputs = { { shard(1), shard(1) } },
}

-- A replicated weight that each rank uses with its local heads: the gradient of a rank covers only these heads.
hf.replicated_with_grad_allreduce = style {
  name = "replicated_with_grad_allreduce",
  params = { ["*"] = shared },
}

hf.all_reduce = style {
  name = "all_reduce",
  bare = true,
  outputs = { { partial, replicate } },
}

-- Experts with sharded weights: (hidden states, ids of the chosen experts, their weights) -> a term of the sum.
hf.moe_tp_experts = style {
  name = "moe_tp_experts",
  bare = true,
  inputs = { { replicate, shared }, false, { replicate, shared } },
  outputs = { { partial, replicate } },
}

-- Full experts on each rank: the first dim, which is that of the experts, is sharded.
hf.grouped_gemm = style {
  name = "grouped_gemm",
  bare = true,
  params = { ["*"] = shard(0) },
}

hf.ep_router = style {
  name = "ep_router",
  bare = true,
  outputs = { false, { replicate, shared } },
  route = { of = "outputs", weights = 2, ids = 3 },
}

-- An expert that returns its input, among experts whose outputs are summed: every rank adds a fraction of the input.
hf.moe_identity_expert = style {
  name = "moe_identity_expert",
  bare = true,
  inputs = { { shared, partial } },
}

-- [latent, rope] features of latent attention: a colwise projection reads the latent features and sums their gradient;
-- the heads of every rank read the rope features, whose gradient must be summed too.
local text <const> = config:get("text_config", config)
local rope <const> = text:get("qk_rope_head_dim", nil)
hf.mla_kv_a_proj = style {
  name = "mla_kv_a_proj",
  bare = true,
  outputs = rope and { { replicate, shared_last(rope) } },
  missing = not rope and "config.json has no qk_rope_head_dim" or nil,
}

-- The router and the experts of the DeepGEMM kernel, which takes the ids of all experts and sends tokens to the ranks
-- that own the chosen experts. Without this kernel every rank has all tokens and adds the outputs of its own experts.
-- The numbers are the same, and there is a backward, which the kernel does not have.
hf.megamoe_router = style { name = "megamoe_router", bare = true }
hf.megamoe_experts = style {
  name = "megamoe_experts",
  bare = true,
  inputs = { { replicate, shared }, false, { replicate, shared } },
  outputs = { { partial, replicate } },
  route = { of = "inputs", ids = 2, weights = 3 },
}

return hf
