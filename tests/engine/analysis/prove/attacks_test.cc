// Plans as an attacker writes them who wants a wrong step to be called proven: other elements under the same word,
// sums that are made twice or not at all, places that are right on one rank. Whether each is right is for the numbers
// to say: what is wrong is not proven, what is right has no fault.
#include <catch2/catch.hpp>

#include <array>
#include <iostream>

#include "tests/engine/analysis/prove/planned_model.h"

namespace moonshard::test {
namespace {

struct Attack {
  const char* model;
  const char* mesh;
  const char* option;  // of the plan; "": none
  const char* rules;
};

// Styles that the rules below are written with.
constexpr const char* kStyles = R"(
local function up(rows, input, output)
  return style { name = "up", params = { weight = rows(0), bias = rows(0) }, inputs = { input or { replicate, shared } },
                 outputs = { output or { rows(-1), rows(-1) } } }
end
local function down(columns, input, output)
  return style { name = "down", params = { weight = columns(1) }, after = { "bias" },
                 inputs = { input or { columns(-1), columns(-1) } }, outputs = { output or { partial, replicate } } }
end
local function two(d) return packed(d, 2) end
local function three(d) return packed(d, 3) end
local function four(d) return packed(d, 4) end
local function first(d) return shard(d, { owner = 0 }) end
local function heads(n) return function(d) return shard(d, { heads = n }) end end
local gathered <const> = { shard(-1), replicate }
local layer <const> = "model.layers.*."
)";

const std::vector<Attack> kAttacks = {
    // Llama: what its projections hold.
    {"llama_gqa", "tp=2", "", R"(at(layer .. "mlp.{gate,up}_proj", up(two)), at(layer .. "mlp.down_proj", down(two)))"},
    {"llama_gqa", "tp=4", "",
     R"(at(layer .. "mlp.{gate,up}_proj", up(three)), at(layer .. "mlp.down_proj", down(three)))"},
    {"llama_gqa", "tp=2", "",
     R"(at(layer .. "mlp.{gate,up}_proj", up(two)), at(layer .. "mlp.down_proj", down(four)))"},
    {"llama_gqa", "tp=2", "",
     R"(at(layer .. "mlp.{gate,up}_proj", up(heads(12))), at(layer .. "mlp.down_proj", down(heads(4))))"},
    {"llama_gqa", "tp=2", "",
     R"(at(layer .. "self_attn.{q,k,v}_proj", up(two)), at(layer .. "self_attn.o_proj", down(two)))"},
    {"llama_gqa", "tp=2", "", R"(at(layer .. "self_attn.{q,k,v}_proj", up(two)))"},
    {"llama_gqa", "tp=2", "", R"(at(layer .. "self_attn.{k,v}_proj", up(two)))"},
    {"llama_gqa", "tp=2", "", R"(at(layer .. "self_attn.v_proj", up(two)))"},
    {"llama_gqa", "tp=2", "", R"(at(layer .. "self_attn.{v,o}_proj", up(two)))"},
    {"llama_gqa", "tp=8", "",
     R"(at(layer .. "self_attn.{q,k,v}_proj", up(heads(4), nil, { shard(-1, { heads = 4 }), replicate })), at(layer .. "self_attn.o_proj", rowwise { input = replicate }))"},
    {"llama_gqa", "tp=8", "",
     R"(at(layer .. "self_attn.{k,v}_proj", up(heads(4), nil, { shard(-1, { heads = 4 }), replicate })), at(layer .. "self_attn.q_proj", up(heads(8), nil, { shard(-1), replicate })), at(layer .. "self_attn.o_proj", rowwise { input = replicate }))"},
    {"llama_gqa", "tp=8", "", R"(at(layer .. "self_attn.{k,v}_proj", up(heads(1))))"},
    {"llama_gqa", "tp=2", "",
     R"(at(layer .. "self_attn.q_proj", up(shard, nil, { shard(-1), replicate })), at(layer .. "self_attn.{k,v}_proj", up(shard, nil, gathered)), at(layer .. "self_attn.o_proj", rowwise { input = replicate }))"},
    {"llama_gqa", "tp=2", "",
     R"(at(layer .. "self_attn.{q,k,v}_proj", up(shard, nil, gathered)), at(layer .. "self_attn.o_proj", replicated()))"},
    {"llama_gqa", "tp=2", "",
     R"(at(layer .. "self_attn.{q,k,v}_proj", up(shard, nil, { shard(-1), shared })), at(layer .. "self_attn.o_proj", replicated()))"},
    {"llama_gqa", "tp=2", "", R"(at(layer .. "mlp.down_proj", down(shard, nil, { partial, shard(1) })))"},
    {"llama_gqa", "tp=2", "sequence_parallel",
     R"(at(layer .. "mlp.down_proj", down(shard, nil, { partial, shard(0) })))"},
    {"llama_gqa", "tp=2", "",
     R"(at("model.embed_tokens", style { name = "e", params = { weight = two(0) }, lookup = "masked", outputs = { { partial, replicate } } }))"},
    {"llama_gqa", "tp=2", "",
     R"(at("model.embed_tokens", style { name = "e", params = { weight = shard(0, { heads = 1 }) }, lookup = "masked", outputs = { { partial, replicate } } }))"},
    {"llama_gqa", "tp=2", "",
     R"(at("model.embed_tokens", style { name = "e", params = { weight = two(1) }, outputs = { { two(-1), replicate } } }))"},
    {"llama_gqa", "tp=2", "",
     R"(at("model.embed_tokens", style { name = "e", params = { weight = two(1) }, outputs = { gathered } }))"},
    {"llama_gqa", "tp=2", "", R"(at("lm_head", up(two, nil, gathered)))"},
    {"llama_gqa", "tp=2", "", R"(at("lm_head", up(two, nil, { two(-1), replicate })))"},
    {"llama_gqa", "tp=2", "", R"(at("lm_head", up(shard, { replicate, replicate }, gathered)))"},
    {"llama_gqa", "tp=2", "", R"(at("model.norm", style { name = "n", params = { weight = shared } }))"},
    {"llama_gqa", "tp=2", "",
     R"(at(layer .. "input_layernorm", style { name = "n", params = { weight = replicate }, outputs = { { replicate, shared } } }))"},
    {"llama_gqa", "tp=2", "",
     R"(at(layer .. "mlp.{gate,up}_proj", up(first)), at(layer .. "mlp.down_proj", down(first)))"},
    {"llama_gqa", "tp=2", "", R"(at(layer .. "mlp.down_proj", down(first)))"},
    {"llama_gqa", "tp=2", "", R"(at("lm_head", up(first, nil, { shard(-1, { owner = 0 }), replicate })))"},
    {"llama_bias", "tp=2", "",
     R"(at(layer .. "mlp.down_proj", style { name = "d", params = { weight = shard(1), bias = replicate }, inputs = { { shard(-1), shard(-1) } }, outputs = { { partial, replicate } } }))"},
    {"llama_bias", "tp=2", "",
     R"(at(layer .. "mlp.gate_proj", style { name = "g", params = { weight = shard(0), bias = two(0) }, inputs = { { replicate, shared } }, outputs = { { shard(-1), shard(-1) } } }))"},
    {"llama_bias", "tp=2", "", R"(at(layer .. "mlp.{gate,up}_proj.bias", two(0)))"},
    {"llama_tied_llama3", "tp=2", "", R"(at("lm_head", up(two, nil, { two(-1), replicate })))"},
    {"llama_tied_llama3", "tp=2", "", R"(at("lm_head", replicated()))"},
    {"llama_vocab331", "tp=2", "", R"(at("lm_head", up(heads(1), nil, { shard(-1, { heads = 1 }), replicate })))"},
    // Norms of heads, gated and fused ones.
    {"qwen3_head_dim12", "tp=2", "",
     R"(at(layer .. "self_attn.{q,k}_norm", style { name = "n", params = { weight = replicate } }))"},
    {"qwen3_head_dim12", "tp=2", "",
     R"(at(layer .. "self_attn.{q,k}_norm", style { name = "n", params = { weight = shard(0) } }))"},
    {"qwen3_head_dim12", "tp=4", "",
     R"(at(layer .. "self_attn.k_norm", style { name = "n", params = { weight = replicate } }))"},
    {"phi_qknorm", "tp=2", "",
     R"(at(layer .. "self_attn.{q,k,v}_proj", up(two)), at(layer .. "self_attn.dense", down(two)))"},
    {"phi3_gqa", "tp=2", "", R"(at(layer .. "self_attn.qkv_proj", up(shard)))"},
    {"phi3_gqa", "tp=2", "",
     R"(at(layer .. "self_attn.qkv_proj", up(function(d) return packed(d, { 16, 32, 16 }) end)))"},
    {"phi3_gqa", "tp=2", "",
     R"(at(layer .. "self_attn.qkv_proj", up(function(d) return packed(d, { 32, 32 }, { heads = { 4, 4 } }) end)))"},
    {"phi3_gqa", "tp=4", "",
     R"(at(layer .. "self_attn.qkv_proj", up(function(d) return packed(d, { 32, 16, 16 }, { heads = { 4, 2, 1 } }) end)))"},
    {"phi3_gqa", "tp=4", "",
     R"(at(layer .. "self_attn.qkv_proj", up(function(d) return packed(d, { 32, 16, 16 }) end)))"},
    {"phi3_gqa", "tp=2", "", R"(at(layer .. "mlp.gate_up_proj", up(shard)))"},
    {"baichuan2", "tp=2", "", R"(at(layer .. "self_attn.W_pack", up(four)))"},
    {"baichuan1", "tp=2", "", R"(at(layer .. "self_attn.W_pack", up(shard)))"},
    {"gemma3_softcap", "tp=2", "",
     R"(at(layer .. "self_attn.{q,k,v}_proj", up(two)), at(layer .. "self_attn.o_proj", down(two)))"},
    // Experts.
    {"mixtral", "tp=2", "",
     R"(at(layer .. "block_sparse_moe.experts.*.{w1,w3}", up(two, { shared, shared })), at(layer .. "block_sparse_moe.experts.*.w2", down(shard, nil, { partial, partial })))"},
    {"mixtral", "tp=2", "", R"(at(layer .. "block_sparse_moe.experts.*.w1", up(two, { shared, shared })))"},
    {"mixtral", "tp=2", "", R"(at(layer .. "block_sparse_moe.gate", replicated()))"},
    {"mixtral", "tp=2", "expert_parallel",
     R"(at(layer .. "block_sparse_moe.experts.{0,1}.w2", style { name = "d", params = { weight = shard(1, { owner = 1 }) }, outputs = { { partial, partial } } }))"},
    {"mixtral", "tp=4", "expert_parallel",
     R"(at("model.layers.1.block_sparse_moe.experts.2.w2", style { name = "d", params = { weight = shard(1, { owner = 1 }) }, inputs = { { shard(-1, { owner = 1 }), shard(-1, { owner = 1 }) } }, outputs = { { partial, partial } } }))"},
    {"mixtral", "dp=2,tp=2", "expert_parallel", R"(keep_dtype("model.layers.*.block_sparse_moe", "float64"))"},
    {"programs/mixtral", "tp=2", "",
     R"(at(layer .. "mlp.experts", style { name = "e", params = { gate_up_proj = shard(1), down_proj = shard(2) }, inputs = { { replicate, shared }, false, { replicate, shared } }, outputs = { { partial, replicate } } }))"},
    {"programs/mixtral", "tp=2", "",
     R"(at(layer .. "mlp.experts", style { name = "e", params = { gate_up_proj = packed(1, 4), down_proj = shard(2) }, inputs = { { replicate, shared }, false, { replicate, shared } }, outputs = { { partial, replicate } } }))"},
    {"programs/mixtral", "tp=2", "",
     R"(at(layer .. "mlp.experts", style { name = "e", params = { gate_up_proj = packed(1, 2), down_proj = packed(2, 2) }, inputs = { { replicate, shared }, false, { replicate, shared } }, outputs = { { partial, replicate } } }))"},
    {"programs/mixtral", "tp=2", "",
     R"(at(layer .. "mlp.experts", style { name = "e", params = { gate_up_proj = packed(1, 2), down_proj = shard(2) }, inputs = { { replicate, shared }, false, false }, outputs = { { partial, replicate } } }))"},
    {"programs/mixtral", "tp=2", "",
     R"(at(layer .. "mlp.experts", style { name = "e", params = { ["*"] = shard(0) }, inputs = { { replicate, shared }, false, { replicate, shared } }, outputs = { { partial, replicate } } }))"},
    // GPT-2: projections stored [in, out].
    {"programs/gpt2", "tp=2", "",
     R"(at("transformer.h.*.attn.c_attn", style { name = "t", params = { weight = shard(1), bias = shard(0) }, inputs = { { replicate, shared } }, outputs = { { shard(-1), shard(-1) } } }))"},
    {"programs/gpt2", "tp=2", "",
     R"(at("transformer.h.*.attn.c_attn", style { name = "t", params = { weight = packed(1, 3), bias = shard(0) }, inputs = { { replicate, shared } }, outputs = { { packed(-1, 3), packed(-1, 3) } } }))"},
    {"programs/gpt2", "tp=2", "", R"(at("transformer.h.*.attn.c_attn", style { name = "t", params = { weight = packed(1, 6), bias = packed(0, 6) }, inputs = { { replicate, shared } }, outputs = { { packed(-1, 6), packed(-1, 6) } } }))"},
    {"programs/gpt2", "tp=2", "",
     R"(at("transformer.h.*.mlp.c_fc", style { name = "t", params = { weight = packed(1, 2), bias = packed(0, 2) }, inputs = { { replicate, shared } }, outputs = { { packed(-1, 2), packed(-1, 2) } } }))"},
    {"programs/gpt2", "tp=2", "",
     R"(at("transformer.wpe", style { name = "w", params = { weight = shard(1) }, outputs = { { shard(-1), replicate } } }))"},
    {"programs/gpt2", "tp=2", "", R"(at("transformer.wpe", style { name = "w", params = { weight = shared } }))"},
    {"programs/gpt2", "tp=2", "",
     R"(at("transformer.wpe", style { name = "w", params = { weight = shard(0) }, lookup = "masked", outputs = { { partial, replicate } } }))"},
    // Delta nets and state spaces: convolutions of channels.
    {"programs/qwen3_5", "tp=2", "linear_heads",
     R"(at(layer .. "linear_attn.conv1d", style { name = "c", params = { weight = shard(0) } }))"},
    {"programs/qwen3_5", "tp=2", "linear_heads",
     R"(at(layer .. "linear_attn.conv1d", style { name = "c", params = { weight = packed(0, 6) } }))"},
    {"programs/qwen3_5", "tp=2", "linear_heads",
     R"(at(layer .. "linear_attn.in_proj_qkv", up(shard)), at(layer .. "linear_attn.conv1d", style { name = "c", params = { weight = shard(0) } }))"},
    {"programs/qwen3_5", "tp=2", "linear_heads", R"(at(layer .. "linear_attn.{in_proj_a,in_proj_b}", up(two)))"},
    {"programs/qwen3_5", "tp=2", "linear_heads",
     R"(at(layer .. "linear_attn", style { name = "d", params = { dt_bias = two(0), A_log = shard(0) } }))"},
    {"programs/qwen3_5", "tp=2", "linear_heads",
     R"(at(layer .. "linear_attn", style { name = "d", params = { dt_bias = shard(0), A_log = two(0) } }))"},
    {"programs/qwen3_5", "tp=2", "linear_heads", R"(at(layer .. "linear_attn.in_proj_z", up(two)))"},
    {"programs/qwen3_5", "tp=2", "",
     R"(at(layer .. "self_attn.{q,k,v}_proj", up(two)), at(layer .. "self_attn.o_proj", down(two)))"},
    {"programs/falcon_h1", "tp=2", "",
     R"(at(layer .. "mamba.conv1d", style { name = "c", params = { weight = shard(0), bias = shard(0) } }))"},
    {"programs/falcon_h1", "tp=2", "", R"(at(layer .. "mamba.out_proj", rowwise { input = replicate }))"},
    {"programs/falcon_h1", "tp=2", "", R"(at(layer .. "mamba.in_proj", up(shard, nil, gathered)))"},
    {"programs/falcon_h1", "tp=2", "", R"(at(layer .. "mamba.in_proj", up(two, nil, gathered)))"},
    {"programs/falcon_h1", "tp=2", "", R"(at(layer .. "self_attn.{k,v}_proj", up(two)))"},
    {"programs/falcon_h1", "tp=2", "", R"(at(layer .. "feed_forward.gate_proj", up(two)))"},
    // Latent attention.
    {"programs/deepseek_v3", "tp=2", "",
     R"(at(layer .. "self_attn.kv_a_proj_with_mqa", style { name = "l", outputs = { { replicate, shared_last(4) } } }))"},
    {"programs/deepseek_v3", "tp=2", "",
     R"(at(layer .. "self_attn.kv_a_proj_with_mqa", style { name = "l", outputs = { { replicate, shared_last(8) } } }))"},
    {"programs/deepseek_v3", "tp=2", "", R"(at(layer .. "self_attn.kv_b_proj", up(two, { shared, shared })))"},
    {"programs/deepseek_v3", "tp=2", "", R"(at(layer .. "self_attn.q_b_proj", up(two, { shared, shared })))"},
    {"programs/deepseek_v3", "tp=2", "", R"(at(layer .. "self_attn.{q_b,kv_b}_proj", up(two, { shared, shared })))"},
    {"programs/deepseek_v3", "tp=2", "",
     R"(at(layer .. "self_attn.{q_b,kv_b}_proj", up(two, { shared, shared })), at(layer .. "self_attn.o_proj", down(two)))"},
    {"programs/deepseek_v3", "tp=4", "", R"(at(layer .. "self_attn.kv_b_proj", up(heads(2), { shared, shared })))"},
    {"programs/deepseek_v3", "tp=2", "", R"(at(layer .. "self_attn.{q_a,kv_a}_layernorm", replicated()))"},
    // T5: a bias of the scores from a table of heads, keys of another stream.
    {"programs/t5", "tp=2", "",
     R"(at("*.block.*.layer.*.*Attention.{q,k,v}", colwise {}), at("*.block.*.layer.*.*Attention.o", rowwise {}), at("*.block.0.layer.0.SelfAttention.relative_attention_bias", style { name = "b", params = { weight = shard(1) }, outputs = { { shard(-1), shard(-1) } } }))"},
    {"programs/t5", "tp=2", "",
     R"(at("*.block.*.layer.*.*Attention.{q,k,v}", colwise {}), at("*.block.*.layer.*.*Attention.o", rowwise {}), at("*.block.0.layer.0.SelfAttention.relative_attention_bias", style { name = "b", params = { weight = two(1) }, outputs = { { two(-1), two(-1) } } }))"},
    {"programs/t5", "tp=2", "",
     R"(at("*.block.*.layer.*.*Attention.{q,k,v}", up(two)), at("*.block.*.layer.*.*Attention.o", down(two)), at("*.block.0.layer.0.SelfAttention.relative_attention_bias", style { name = "b", params = { weight = shard(1) }, outputs = { { shard(-1), shard(-1) } } }))"},
    {"programs/t5", "tp=2", "",
     R"(at("*.block.*.layer.1.EncDecAttention.{k,v}", up(two)), at("*.block.*.layer.1.EncDecAttention.q", colwise {}), at("*.block.*.layer.1.EncDecAttention.o", rowwise {}))"},
    {"programs/t5", "tp=2", "",
     R"(at("*.block.*.layer.1.EncDecAttention.{q,k,v}", up(shard, { replicate, replicate })), at("*.block.*.layer.1.EncDecAttention.o", rowwise {}))"},
    {"programs/t5", "tp=2", "",
     R"(at("*.block.*.layer.*.DenseReluDense.wi", up(two)), at("*.block.*.layer.*.DenseReluDense.wo", rowwise {}))"},
    // Sinks, gates in pairs, routers of one expert.
    {"programs/gpt_oss", "tp=2", "", R"(at(layer .. "self_attn.sinks", two(0)))"},
    {"programs/gpt_oss", "tp=2", "", R"(at(layer .. "self_attn.sinks", shared))"},
    {"programs/gpt_oss", "tp=2", "",
     R"(at(layer .. "mlp.experts", style { name = "e", params = { gate_up_proj = shard(2), gate_up_proj_bias = shard(1), down_proj = shard(1) }, inputs = { { replicate, shared }, false, { replicate, shared } }, outputs = { { partial, replicate } } }))"},
    {"programs/gpt_oss", "tp=2", "",
     R"(at(layer .. "mlp.experts", style { name = "e", params = { gate_up_proj = packed(2, 2), gate_up_proj_bias = packed(1, 2), down_proj = shard(1) }, inputs = { { replicate, shared }, false, { replicate, shared } }, outputs = { { partial, replicate } } }))"},
    {"programs/llama4", "tp=2", "", R"(at(layer .. "feed_forward.gate_proj", up(two)))"},
    {"programs/olmo2", "tp=2", "",
     R"(at(layer .. "self_attn.{q,k}_norm", style { name = "n", params = { weight = shard(0) } }))"},
    {"programs/olmo2", "tp=2", "",
     R"(at(layer .. "self_attn.{q,k,v}_proj", up(shard)), at(layer .. "self_attn.{q,k}_norm", style { name = "n", params = { weight = shard(0) }, inputs = { { shard(-1), shard(-1) } }, outputs = { { shard(-1), shard(-1) } } }))"},
    // A bias that the module uses before its end; sizes that follow values, run twice; a module recomputed beside
    // others.
    {"programs/gpt_oss", "tp=2", "", R"(at(layer .. "mlp.router", style { name = "r", after = { "bias" } }))"},
    {"mixtral", "tp=2", "", R"(recompute { "model.layers.*" })"},
    {"qwen3_moe", "tp=4", "", R"(recompute { "model.layers.*", keep = { "attention" } })"},
    {"llama_gqa", "tp=2", "", R"(recompute { "model.layers.*.self_attn" })"},
    {"llama_gqa", "tp=2", "sequence_parallel", R"(recompute { "model.layers.*.mlp" })"},
    {"programs/qwen2_5_vl", "dp=2,tp=2", "", ""},
    // Rows of the three parts of a fused projection.
    {"programs/qwen2_5_vl", "tp=2", "", R"(at("model.visual.blocks.*.attn.qkv", up(shard)))"},
    {"programs/qwen2_5_vl", "tp=2", "",
     R"(at("model.visual.blocks.*.attn.qkv", up(function(d) return packed(d, 6) end)))"},
    {"programs/qwen2_5_vl", "tp=2", "", R"(at("model.visual.blocks.*.attn.proj", down(two)))"},
    {"programs/qwen2_5_vl", "tp=2", "",
     R"(at("model.visual.blocks.*.attn.qkv", up(function(d) return packed(d, 6) end)), at("model.visual.blocks.*.attn.proj", down(two)))"},
    // A value that every rank has, as the one head of all ranks: its gradient is made of terms.
    {"phi_qknorm", "tp=2", "", R"(at("lm_head", up(shard, { shard(-1, { heads = 1 }), shared }, gathered)))"},
    {"llama_gqa", "tp=2", "", R"(at("lm_head", up(shard, { shard(-1, { heads = 1 }), shared }, gathered)))"},
};

TEST_CASE("plans that are made to deceive are not proven unless they are right") {
  int64_t refused = 0;
  std::map<std::string, int64_t> table;
  size_t number = 0;
  for (const Attack& one : kAttacks) {
    PlannedModel model;
    model.folder = RecordedModel(one.model);
    model.mesh = one.mesh;
    if (*one.option != 0) model.options[one.option] = true;
    model.prelude = kStyles;
    model.rules = one.rules;
    const Verdict verdict = Judge(model);
    INFO(number << " " << model.Name() << ": " << one.rules << "\nnumbers: " << verdict.numbers
                << "; operators: " << verdict.ops << "\n"
                << verdict.text);
    constexpr std::array kNames = {"refused", "faults", "unproven", "proven"};
    const std::string proof = kNames[static_cast<size_t>(verdict.proof)];
    std::cout << number++ << " " << model.Name() << ": "
              << (verdict.refused() ? ""
                  : verdict.right   ? "right, "
                                    : "wrong, ")
              << proof << "; " << verdict.numbers << "\n";
    if (verdict.refused()) {
      ++refused;
      CHECK(verdict.text.find("error[MS01") == std::string::npos);  // that of the language: the row itself is no plan
      continue;
    }
    ++table[(verdict.right ? "right, " : "wrong, ") + proof];
    CHECK_FALSE((!verdict.right && verdict.proof == Verdict::Proof::kHolds));
    CHECK_FALSE((verdict.right && verdict.proof == Verdict::Proof::kFaults));
    CHECK((!verdict.right || verdict.ops_agree.value_or(true)));
  }
  std::cout << kAttacks.size() << " plans, refused: " << refused;
  for (const auto& [what, count] : table) std::cout << "; " << what << ": " << count;
  std::cout << "\n";
}

}  // namespace
}  // namespace moonshard::test
