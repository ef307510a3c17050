// `verify`: right plans pass, and a planted fault is found at the module that has it, in the direction it shows in.
#include <catch2/catch.hpp>

#include <filesystem>
#include <string>

#include "engine/core/base/json.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"
#include "tests/support/programs.h"

namespace moonshard::test {
namespace {

using Catch::Contains;
namespace fs = std::filesystem;

Outcome Verify(const std::string& model, const Words& more) {
  Words words = {"verify", kParity + model};
  words.insert(words.end(), more.begin(), more.end());
  return RunExecutable(ExecutablePath(), words);
}

TEST_CASE("the shipped plans are verified") {
  const auto [model, mesh, option] = GENERATE(table<std::string, std::string, std::string>({
      {"llama_gqa", "tp=2", "sequence_parallel=false"},
      {"llama_gqa", "tp=8", "sequence_parallel=true"},
      {"llama_bias", "tp=4", "sequence_parallel=true"},
      {"llama_tied_llama3", "tp=2", "loss_parallel=true"},
      {"mistral_window8", "tp=4", "sequence_parallel=false"},
      {"llama_bias", "cp=2", "context=ulysses"},
      {"gemma3_softcap", "cp=2,tp=2", "context=ulysses"},
      {"phi3_gqa", "dp=2,cp=2", "context=ulysses"},
      {"llama_bias", "cp=3", "context=ring"},
      {"gemma3_softcap", "cp=2,tp=2", "context=ring"},
      {"mixtral", "cp=2", "context=ulysses"},
      {"mixtral", "cp=2", "context=ring"},
      {"mixtral", "cp=3", "context=ring"},
      {"mistral_window8", "cp=4", "context=ring"},
      {"mistral_window8", "cp=4", "context=plain_ring"},
      {"qwen3_head_dim12", "cp=4", "context=ring"},
      {"llama_bias", "cp=2x2", "context=ulysses_ring"},
      {"qwen3_head_dim12", "cp=2x2,tp=2", "context=ulysses_ring"},
      {"phi3_gqa", "cp=3x2", "context=ulysses_ring"},
      {"mixtral", "cp=2x2", "context=ulysses_ring"},
      {"mixtral", "ep=2", "exchange=true"},
      {"mixtral", "dp=2,ep=2", "exchange=true"},
      {"routers/mixtral", "ep=2,tp=2", "exchange=true"},
      {"routers/mixtral", "dp=2,tp=2", "sequence_parallel=true"},
  }));
  const Outcome done = Verify(model, {"--mesh", mesh, "--option", option});
  INFO(done.ToText());
  CHECK(done.code == 0);
  CHECK(done.err.empty());
  CHECK_THAT(done.out, Contains("verified"));
}

TEST_CASE("plans whose ranks pass their own tokens are verified, and their types proven") {
  const auto [model, mesh, context] = GENERATE(table<std::string, std::string, std::string>({
      {"llama_gqa", "cp=2,tp=2", "context=ring"},
      {"gemma3_softcap", "cp=4", "context=ulysses"},
      {"mixtral", "cp=2", "context=plain_ring"},
  }));
  for (const char* how : {"", "--types"}) {
    if (std::string(how) == "--types" && context != "context=ulysses") continue;
    Words words = {"--mesh", mesh, "--option", context, "--option", "inputs=own"};
    if (*how != 0) words.emplace_back(how);
    const Outcome done = Verify(model, words);
    INFO(done.ToText());
    CHECK(done.code == 0);
    CHECK(done.err.empty());
    CHECK_THAT(done.out, Contains(*how != 0 ? "proven" : "verified"));
  }
}

// Of 16 tokens a group has 8, of which a rank of tp or of the inner factor would have 4 as well: norms over heads have
// the tokens of the group, and an output before the exchange has the rank's own.
TEST_CASE("two factors of cp are verified where shards of tokens and of heads are of one size") {
  const Outcome done = Verify("qwen3_head_dim12", {"--mesh", "cp=2x2,tp=2", "--option", "context=ulysses_ring",
                                                   "--option", "sequence_parallel=true", "--tokens", "2,16"});
  INFO(done.ToText());
  CHECK(done.code == 0);
  CHECK_THAT(done.out, Contains("verified"));
}

TEST_CASE("experts are verified, whose outputs are terms of a sum") {
  const auto [mesh, option] = GENERATE(table<std::string, std::string>({
      {"tp=2", "expert_parallel=false"},
      {"tp=4", "expert_parallel=true"},
      {"tp=2", "sequence_parallel=true"},
      {"ep=2", "exchange=true"},
      {"ep=4,tp=2", "exchange=true"},
      {"cp=2", "context=ulysses"},
      {"cp=4", "context=ring"},
      {"cp=2,tp=2", "context=ring"},
  }));
  const Outcome full = Verify("qwen3_moe", {"--mesh", mesh, "--option", option});
  INFO(full.ToText());
  CHECK(full.code == 0);
  CHECK_THAT(full.out, Contains("verified") && !Contains("routing:"));
}

// How many tokens get other experts depends on the CPU's kernels (routing_test.cc has what is done with them).
TEST_CASE("experts are verified in a dtype in which their scores are nearly equal") {
  const auto [model, tokens, mesh] = GENERATE(table<std::string, std::string, std::string>(
      {{"qwen3_moe", "2,13", "tp=2"}, {"mixtral", "8,32", "tp=2"}, {"mixtral", "8,33", "cp=2"}}));
  const Outcome done =
      Verify(model, {"--mesh", mesh, "--option", "context=ring", "--dtype", "bfloat16", "--tokens", tokens});
  INFO(done.ToText());
  CHECK(done.code == 0);
  CHECK_THAT(done.out, Contains("verified"));
}

TEST_CASE("a planted fault is named") {
  struct Row {
    std::string plan;
    std::string model;
    Words options;
    std::string says;
    std::string mesh = "tp=2";
  };
  const Row row = GENERATE(values<Row>({
      {"dropped_all_reduce", "llama_gqa", {}, "the output of 'model.layers.1.self_attn.o_proj' differs"},
      {"bias_counted_twice", "llama_bias", {}, "the output of 'model.layers.0.mlp.down_proj' differs"},
      {"input_not_shared", "llama_gqa", {}, "the gradient of 'model.layers.1.post_attention_layernorm.weight' differs"},
      {"experts_not_summed", "qwen3_moe", {}, "the output of 'model.layers.0.mlp' differs"},
      {"norm_not_shared",
       "llama_gqa",
       {"--option", "sequence_parallel=true"},
       "the gradient of 'model.layers.1.input_layernorm.weight' differs"},
      {"context_wrong_heads",
       "llama_gqa",
       {"--option", "context=ulysses"},
       "the output of 'model.layers.1.self_attn.o_proj' differs",
       "cp=2"},
      {"exchange_drops",
       "mixtral",
       {"--option", "exchange=true"},
       "the output of 'model.layers.1.block_sparse_moe.experts' differs",
       "ep=2"},
      {"expert_of_other_features",
       "mixtral",
       {"--option", "context=ring"},
       "the output of 'model.layers.1.block_sparse_moe.experts.1.w2' differs",
       "cp=2,tp=2"},
      {"experts_not_summed",
       "qwen3_moe",
       {"--option", "exchange=true"},
       "the output of 'model.layers.0.mlp' differs",
       "ep=2,tp=2"},
  }));
  Words words = {"--mesh", row.mesh, "--plan", kPlanted + row.plan + ".lua"};
  words.insert(words.end(), row.options.begin(), row.options.end());
  const Outcome done = Verify(row.model, words);
  INFO(done.ToText());
  CHECK(done.code == 1);
  CHECK_THAT(done.err, Contains("error[MS0510]: " + row.says));
  CHECK_THAT(done.out, !Contains("verified"));
}

TEST_CASE("replicas whose gradients nothing reduces are not verified") {
  const ScratchFolder folder;
  const std::string plan = folder.Write("alone.lua", "return plan { api = 1, default(replicated()) }");
  for (const char* how : {"--tolerance=1", "--types"}) {
    const Outcome done = Verify("llama_gqa", {"--mesh", "dp=2", "--plan", plan, how});
    INFO(done.ToText());
    CHECK(done.code == 2);
    CHECK_THAT(done.err, Contains("error[MS0307]: nothing reduces gradients over mesh axis 'dp_shard'"));
    CHECK_THAT(done.out, !Contains("verified") && !Contains("proven"));
  }
  const std::string input = folder.Write("ids.json", "{\"input_ids\": [[1, 2, 3]]}");
  const Outcome forward = RunExecutable(ExecutablePath(), {"eval", kModel, "--mesh", "dp=2", "--plan", plan, "--input",
                                                           input, "--output", folder / "out.safetensors"});
  INFO(forward.ToText());
  CHECK(forward.code == 0);
  CHECK_THAT(forward.err, Contains("warning[MS0307]"));
}

TEST_CASE("a plan that recomputes layers and keeps the results of modules within them is verified") {
  const auto [model, kept, mesh, option] = GENERATE(table<std::string, std::string, std::string, std::string>({
      {"llama_gqa", "mlp", "tp=2", "sequence_parallel=true"},
      {"mixtral", "block_sparse_moe.experts", "ep=2", "exchange=true"},
      {"qwen2_moe", "mlp.experts", "ep=2", "exchange=true"},
  }));
  const ScratchFolder folder;
  const std::string family = model == "llama_gqa" ? "llama" : model;
  const std::string plan = folder.Write(
      "kept.lua", "return plan { extends \"" + family +
                      "\", recompute { \"model.layers.*\", keep_modules = \"model.layers.*." + kept + "\" } }");
  const Outcome done = Verify(model, {"--mesh", mesh, "--option", option, "--plan", plan});
  INFO(done.ToText());
  CHECK(done.code == 0);
  CHECK_THAT(done.out, Contains("verified"));
}

TEST_CASE("the tolerance is that of the dtype of computation, and finds the planted faults") {
  const ScratchFolder folder;
  const std::string plan = folder.Write(
      "narrow.lua",
      "return plan { extends \"llama\", precision { parameters = \"bfloat16\", reduce = \"float32\", outputs = "
      "\"float32\" }, keep_dtype(\"model.layers.*.input_layernorm\", \"float32\") }");
  const Outcome narrow = Verify("llama_gqa", {"--mesh", "tp=2", "--plan", plan});
  INFO(narrow.ToText());
  CHECK(narrow.code == 0);
  const Outcome strict = Verify("llama_gqa", {"--mesh", "tp=2", "--plan", plan, "--tolerance", "1e-4"});
  CHECK(strict.code == 1);
  CHECK_THAT(strict.err, Contains("required: at most 0.0001 (--tolerance)"));
  struct Row {
    std::string plan;
    std::string model;
    std::string option;
  };
  for (const Row& row : {Row{"dropped_all_reduce", "llama_gqa", "sequence_parallel=false"},
                         Row{"bias_counted_twice", "llama_bias", "sequence_parallel=false"},
                         Row{"input_not_shared", "llama_gqa", "sequence_parallel=false"},
                         Row{"norm_not_shared", "llama_gqa", "sequence_parallel=true"}}) {
    const Outcome done = Verify(row.model, {"--mesh", "tp=2", "--dtype", "bfloat16", "--option", row.option, "--plan",
                                            kPlanted + row.plan + ".lua"});
    INFO(done.ToText());
    CHECK(done.code == 1);
    CHECK_THAT(done.err, Contains("error[MS0510]") && Contains("required: at most 0.0938 (bfloat16)"));
  }
}

TEST_CASE("rowwise shards the rows of an embedding") {
  const ScratchFolder folder;
  for (const auto& [output, option] :
       {std::pair("replicate", "sequence_parallel=false"), std::pair("shard(1)", "sequence_parallel=true")}) {
    const std::string plan =
        folder.Write("rows.lua", std::string("return plan { extends \"llama\", at(\"model.embed_tokens\", rowwise { ") +
                                     "output = " + output + " }) }");
    const Outcome done = Verify("llama_gqa", {"--mesh", "tp=4", "--plan", plan, "--option", option});
    INFO(done.ToText());
    CHECK(done.code == 0);
    CHECK(done.err.empty());
  }
}

TEST_CASE("an operator that fails is a finding at the line of the plan, without a stack") {
  const ScratchFolder folder;
  const Outcome done = Verify("llama_gqa", {"--mesh", "tp=2", "--plan", kPlanted + "half_gathered.lua"});
  INFO(done.ToText());
  CHECK(done.code == 1);
  CHECK_THAT(done.err,
             Contains("error[MS0309]: the call fails: The size of tensor a") && Contains("at: model.layers.1.mlp"));
  CHECK_THAT(done.err, !Contains("frame #") && !Contains("Exception raised from"));
  const std::string plan = folder.Write(
      "one.lua", "return plan { extends \"llama\",\n at(\"model.layers.0.mlp.{gate,up}_proj\", replicated {}) }");
  const Outcome shapes = Verify("llama_gqa", {"--mesh", "tp=2", "--plan", plan});
  INFO(shapes.ToText());
  CHECK(shapes.code == 1);
  CHECK_THAT(shapes.err, Contains("warning[MS0314]: 'model.layers.0.mlp.down_proj' takes sharded features"));
  CHECK_THAT(shapes.err,
             Contains("plans/llama.lua:") &&
                 Contains("error[MS0309]: the call fails: mat1 and mat2 shapes cannot be multiplied (26x96 and") &&
                 Contains("at: model.layers.0.mlp.down_proj"));
  CHECK_THAT(shapes.err, !Contains("frame #"));
}

TEST_CASE("--types proves a plan on one process, without a weight") {
  const auto [model, mesh, option] = GENERATE(table<std::string, std::string, std::string>({
      {"llama_gqa", "tp=2", "sequence_parallel=true"},
      {"llama_gqa", "dp=2,tp=4", "sequence_parallel=false"},
      {"qwen3_moe", "tp=2", "expert_parallel=true"},
      {"routers/mixtral", "dp=2,tp=2", "sequence_parallel=true"},
      {"routers/qwen3_moe", "tp=2", "stable=true"},
  }));
  const Outcome done = Verify(model, {"--mesh", mesh, "--option", option, "--types", "--rank", "1"});
  INFO(done.ToText());
  CHECK(done.code == 0);
  CHECK_THAT(done.err, !Contains("error["));
  CHECK_THAT(done.out, Contains("faults 0, unproven 0") && Contains(": proven"));
}

TEST_CASE("--loss-scale declares what --types does not find out, and nothing else") {
  const Outcome done = Verify("llama_gqa", {"--mesh", "dp=2,tp=2", "--types", "--loss-scale", "sum"});
  INFO(done.ToText());
  CHECK(done.code == 0);
  CHECK_THAT(done.out, Contains(": proven") && !Contains("taken from the caller"));
}

TEST_CASE("--types proves a plan with adapters of experts, of which each has an owner") {
  const auto [model, target] = GENERATE(table<std::string, std::string>(
      {{"mixtral", "w2"}, {"mixtral", "w1+w3+q_proj"}, {"qwen3_moe", "experts.*.*_proj+mlp.gate"}}));
  const Outcome done = Verify(model, {"--mesh", "tp=2", "--option", "expert_parallel=true", "--lora",
                                      "rank=2,target=" + target, "--types", "--rank", "1"});
  INFO(done.ToText());
  CHECK(done.code == 0);
  CHECK_THAT(done.err, !Contains("error["));
  CHECK_THAT(done.out, Contains("faults 0, unproven 0") && Contains(": proven"));
}

TEST_CASE("--types checks the ids of an input file, of which the step has only the shapes") {
  const ScratchFolder folder;
  const std::string good = folder.Write("good.json", R"({"input_ids": [[1, 2, 3, 4], [5, 6, 7, 63]]})");
  const Outcome done = Verify("llama_gqa", {"--mesh", "tp=2", "--types", "--input", good});
  INFO(done.ToText());
  CHECK(done.code == 0);
  CHECK_THAT(done.out, Contains(": proven"));
  const std::string bad = folder.Write("bad.json", R"({"input_ids": [[1, 2, 3, 4], [5, 6, 7, 64]]})");
  const Outcome refused = Verify("llama_gqa", {"--mesh", "tp=2", "--types", "--input", bad});
  INFO(refused.ToText());
  CHECK(refused.code == 1);
  CHECK_THAT(refused.err, Contains("MS0508") && Contains("[1, 3] is 64\n"));
}

TEST_CASE("--types proves a plan that shards the sequence on cp") {
  const auto [model, mesh, sequence_parallel] = GENERATE(table<std::string, std::string, std::string>({
      {"llama_gqa", "cp=2", "false"},
      {"llama_gqa", "cp=4", "false"},
      {"llama_gqa", "dp=2,cp=2", "false"},
      {"llama_gqa", "cp=2,tp=2", "false"},
      {"llama_gqa", "cp=2,tp=2", "true"},
      {"qwen3_head_dim12", "cp=2,tp=2", "true"},
      {"gemma3_softcap", "cp=2,tp=2", "false"},
  }));
  const std::string context = GENERATE("ulysses", "ring", "plain_ring");
  const Outcome done = Verify(model, {"--mesh", mesh, "--option", "context=" + context, "--option",
                                      "sequence_parallel=" + sequence_parallel, "--types", "--rank", "1"});
  INFO(done.ToText());
  CHECK(done.code == 0);
  CHECK_THAT(done.err, !Contains("error["));
  CHECK_THAT(done.out, Contains("faults 0, unproven 0") && Contains(": proven"));
}

// What a ring computes is a region, whose operators are not checked: what goes in is.
TEST_CASE("--types does not prove a ring whose ranks of tp have other heads, terms, or gradients that nothing sums") {
  const std::string plan =
      GENERATE("ring_partial_queries.lua", "ring_other_keys.lua", "ring_lost_gradient.lua", "ring_shared_heads.lua");
  const Outcome done =
      Verify("llama_gqa", {"--mesh", "cp=2,tp=2", "--option", "context=ring", "--types", "--plan", kPlanted + plan});
  INFO(plan << "\n" << done.ToText());
  const bool right = plan == "ring_shared_heads.lua";
  CHECK((done.out.find(": proven") != std::string::npos) == right);
  CHECK((done.code == 1) == (plan == "ring_lost_gradient.lua"));
  if (!right) CHECK_THAT(done.ToText(), Contains("model.layers.1.self_attn"));
}

TEST_CASE("--types proves experts whose tokens are shards on cp, and --ops compares their operators") {
  const auto [model, mesh, context] = GENERATE(table<std::string, std::string, std::string>({
      {"mixtral", "cp=2", "ulysses"},
      {"mixtral", "cp=2", "ring"},
      {"qwen3_moe", "cp=2,tp=2", "ring"},
      {"qwen2_moe", "cp=2", "plain_ring"},
      {"mixtral", "cp=2x2", "ulysses_ring"},
  }));
  const Outcome types = Verify(model, {"--mesh", mesh, "--option", "context=" + context, "--types", "--rank", "1"});
  INFO(types.ToText());
  CHECK(types.code == 0);
  CHECK_THAT(types.out, Contains("faults 0, unproven 0") && Contains(": proven"));
  const Outcome operators = Verify(model, {"--mesh", mesh, "--option", "context=" + context, "--ops"});
  INFO(operators.ToText());
  CHECK(operators.code == 0);
  CHECK_THAT(operators.out, Contains("results compared"));
}

TEST_CASE("--types and --ops find experts on cp whose terms are not summed, at their block") {
  for (const std::string option : {"--types", "--ops"}) {
    const Outcome done = Verify("mixtral", {"--mesh", "cp=2,tp=2", "--option", "context=ring", option, "--plan",
                                            kPlanted + "expert_of_other_features.lua"});
    INFO(done.ToText());
    CHECK(done.code == 1);
    CHECK_THAT(done.err, Contains("error[MS0") && Contains("at: model.layers.1.block_sparse_moe"));
    CHECK_THAT(done.out, !Contains(": proven"));
  }
}

// Dims of one element, and ranks of cp with other numbers of tokens, or none.
TEST_CASE("--types finds no fault in right plans, whatever the numbers of rows and tokens") {
  struct Row {
    std::string model;
    std::string mesh;
    Words options;
    std::string tokens;
    bool proven = true;
  };
  const Row row = GENERATE(values<Row>({
      {"mixtral", "tp=2", {}, "1,3"},
      {"mixtral", "tp=2", {}, "1,1", false},
      {"llama_gqa", "tp=4", {}, "1,3"},
      {"llama_gqa", "tp=4", {"--option", "sequence_parallel=true"}, "1,1", false},
      {"llama_gqa", "cp=2", {"--option", "context=ulysses"}, "1,3"},
      {"llama_gqa", "cp=2", {"--option", "context=ring"}, "1,3", false},
      {"llama_gqa", "cp=2", {"--option", "context=ring"}, "1,1", false},
      {"llama_gqa", "cp=4", {"--option", "context=ulysses"}, "2,5", false},
      {"llama_gqa", "cp=2", {"--option", "context=ulysses", "--option", "inputs=own"}, "2,5"},
      {"llama_gqa", "cp=2", {"--option", "context=ring", "--option", "inputs=own"}, "3,7"},
      {"llama_gqa", "cp=2", {"--option", "context=plain_ring", "--option", "inputs=own"}, "2,5"},
  }));
  for (const std::string rank : {"0", "1"}) {
    Words words = {"--mesh", row.mesh, "--types", "--tokens", row.tokens, "--rank", rank};
    words.insert(words.end(), row.options.begin(), row.options.end());
    const Outcome done = Verify(row.model, words);
    INFO(done.ToText());
    CHECK(done.code == 0);
    CHECK_THAT(done.out, Contains("faults 0,"));
    CHECK_THAT(done.err, !Contains("error["));
    if (row.proven) CHECK_THAT(done.out, Contains(": proven"));
  }
}

TEST_CASE("--types proves plans that send tokens to experts on ep") {
  const auto [model, mesh, options] = GENERATE(table<std::string, std::string, Words>({
      {"mixtral", "ep=2", {}},
      {"mixtral", "ep=4,tp=2", {"--option", "sequence_parallel=true", "--rank", "5"}},
      {"qwen3_moe", "dp=2,ep=2", {"--rank", "3"}},
      {"qwen3_moe", "ep=3", {"--rank", "2"}},
  }));
  Words words = {"--mesh", mesh, "--option", "exchange=true", "--types"};
  words.insert(words.end(), options.begin(), options.end());
  const Outcome done = Verify(model, words);
  INFO(done.ToText());
  CHECK(done.code == 0);
  CHECK_THAT(done.out, Contains(": proven for"));
}

TEST_CASE("--types finds sums over ranks of the rows of a rank's own experts, at their module") {
  const auto [plan, mesh] = GENERATE(table<std::string, std::string>({
      {"exchange_sums_rows_over_dp", "dp=2,ep=2"},
      {"exchange_sums_rows_over_ep", "ep=2"},
      {"exchange_sums_inputs_over_ep", "ep=2"},
  }));
  const Outcome done =
      Verify("mixtral", {"--mesh", mesh, "--option", "exchange=true", "--types", "--plan", kPlanted + plan + ".lua"});
  INFO(plan << "\n" << done.ToText());
  CHECK(done.code == 1);
  CHECK_THAT(done.err, Contains("error[MS06") && Contains("at: model.layers.1.block_sparse_moe.experts.0"));
  CHECK_THAT(done.out, !Contains(": proven"));
}

TEST_CASE("--types does not prove rows of an owned expert that are summed before those of the others are") {
  const auto [plan, option] = GENERATE(table<std::string, std::string>({
      {"owned_terms_summed_twice", "expert_parallel=true"},
      {"owned_beside_summed", "expert_parallel=false"},
  }));
  const Words words = {"--mesh", "tp=2", "--option", option, "--tokens", "2,8", "--plan", kPlanted + plan + ".lua"};
  Words types = words;
  types.emplace_back("--types");
  const Outcome done = Verify("mixtral", types);
  INFO(plan << "\n" << done.ToText());
  CHECK_THAT(done.err, Contains("error[MS0601]") && Contains("is concatenated with"));
  CHECK_THAT(done.out, !Contains(": proven"));
  const Outcome numbers = Verify("mixtral", words);
  INFO(numbers.ToText());
  CHECK(numbers.code == 1);
}

TEST_CASE("--ops refuses losses of routers on ep") {
  const Outcome done = Verify("routers/mixtral", {"--mesh", "ep=2", "--option", "exchange=true", "--ops"});
  INFO(done.ToText());
  CHECK(done.code == 1);
  CHECK_THAT(done.err, Contains("error[MS0506]: --ops cannot compare the losses of routers on ep"));
}

TEST_CASE("--ops compares the operators of a plan that sends tokens to experts on ep") {
  const auto [model, mesh, option] = GENERATE(table<std::string, std::string, std::string>({
      {"mixtral", "ep=2", "sequence_parallel=false"},
      {"qwen3_moe", "ep=2,tp=2", "sequence_parallel=true"},
      {"qwen3_moe", "ep=4", "sequence_parallel=false"},
  }));
  const Outcome done = Verify(model, {"--mesh", mesh, "--option", "exchange=true", "--option", option, "--ops"});
  INFO(done.ToText());
  CHECK(done.code == 0);
  CHECK_THAT(done.out, Contains("results compared") && Contains(" of them of a rank's own experts"));
  CHECK_THAT(done.out, !Contains("operators: 0 results"));
}

TEST_CASE("--ops finds tokens that were not sent to their expert, behind the experts of their layer") {
  const Outcome done = Verify(
      "mixtral", {"--mesh", "ep=2", "--option", "exchange=true", "--ops", "--plan", kPlanted + "exchange_drops.lua"});
  INFO(done.ToText());
  CHECK(done.code == 1);
  CHECK_THAT(done.err, Contains("error[MS0510]") && Contains("at: model.layers.1"));
}

TEST_CASE("--ops refuses meshes of more axes than two") {
  const Outcome done = Verify("mixtral", {"--mesh", "dp=2,tp=2", "--ops"});
  INFO(done.ToText());
  CHECK(done.code != 0);
  CHECK_THAT(done.err, Contains("error[MS0308]: --ops supports only meshes of tp and one of the axes cp and ep"));
}

TEST_CASE("--types proves plans on two factors of cp, and --ops compares their operators") {
  const auto [model, mesh, option] = GENERATE(table<std::string, std::string, std::string>({
      {"llama_gqa", "cp=2x2", "sequence_parallel=false"},
      {"llama_gqa", "cp=3x2", "sequence_parallel=false"},
      {"llama_gqa", "cp=2x2,tp=2", "sequence_parallel=true"},
      {"phi3_gqa", "cp=2x2", "sequence_parallel=false"},
      {"qwen3_head_dim12", "cp=2x2,tp=2", "sequence_parallel=false"},
      {"gemma3_softcap", "cp=2x2,tp=2", "sequence_parallel=false"},
  }));
  Words words = {"--mesh", mesh, "--option", "context=ulysses_ring", "--option", option};
  const Outcome operators = [&] {
    Words all = words;
    all.emplace_back("--ops");
    return Verify(model, all);
  }();
  INFO(operators.ToText());
  CHECK(operators.code == 0);
  CHECK_THAT(operators.out, Contains("results compared") && !Contains("operators: 0 results"));
  for (const std::string rank : {"0", "3"}) {
    Words all = words;
    all.insert(all.end(), {"--types", "--rank", rank});
    const Outcome types = Verify(model, all);
    INFO(types.ToText());
    CHECK(types.code == 0);
    CHECK_THAT(types.out, Contains("faults 0, unproven 0") && Contains(": proven"));
  }
}

TEST_CASE("--types refuses numbers of tokens that two factors of cp do not divide, and one row") {
  const Words words = {"--mesh", "cp=2x2", "--option", "context=ulysses_ring", "--types", "--tokens"};
  const auto of_tokens = [&](const std::string& tokens) {
    Words all = words;
    all.push_back(tokens);
    return Verify("llama_gqa", all);
  };
  const Outcome row = of_tokens("1,8");
  INFO(row.ToText());
  CHECK(row.code == 1);
  CHECK_THAT(row.err, Contains("error[MS0506]: the layouts of a batch of one row cannot be checked"));
  const Outcome done = of_tokens("2,13");
  INFO(done.ToText());
  CHECK(done.code == 1);
  CHECK_THAT(done.err, Contains("error[MS0506]: the layouts of shards of other lengths cannot be checked") &&
                           Contains("13 tokens on cp=2x2") && Contains("a multiple of 4 tokens"));
}

TEST_CASE("--types refuses numbers of tokens that cp and the tp of sequence parallelism do not divide") {
  const auto of_tokens = [&](const std::string& context, const std::string& tokens) {
    return Verify("llama_gqa", {"--mesh", "cp=2,tp=2", "--option", "context=" + context, "--option",
                                "sequence_parallel=true", "--types", "--tokens", tokens});
  };
  for (const std::string tokens : {"2,10", "2,11"}) {
    const Outcome done = of_tokens("ring", tokens);
    INFO(done.ToText());
    CHECK(done.code == 1);
    CHECK_THAT(done.err, Contains("error[MS0506]: the layouts of shards of other lengths cannot be checked where cp "
                                  "and tp both shard the tokens") &&
                             Contains(" tokens on cp=2,tp=2") && Contains("a multiple of 4 tokens"));
  }
  for (const std::string context : {"ring", "ulysses"}) {
    const Outcome done = of_tokens(context, "2,12");
    INFO(done.ToText());
    CHECK(done.code == 0);
    CHECK_THAT(done.out, Contains("faults 0, unproven 0") && Contains(": proven"));
  }
}

TEST_CASE("--types and --ops find other heads on the inner factor of cp, at the module that computes with them") {
  for (const std::string option : {"--types", "--ops"}) {
    const Outcome done = Verify("llama_gqa", {"--mesh", "cp=2x2", "--option", "context=ulysses_ring", option, "--plan",
                                              kPlanted + "factors_wrong_heads.lua"});
    INFO(done.ToText());
    CHECK_THAT(done.err, Contains("at: model.layers.1.self_attn"));
    CHECK_THAT(done.out, !Contains(": proven"));
    CHECK((option == "--types" || done.code == 1));
  }
}

TEST_CASE("--types finds other heads on cp at the module that computes with them") {
  const Outcome done = Verify("llama_gqa", {"--mesh", "cp=2", "--option", "context=ulysses", "--types", "--plan",
                                            kPlanted + "context_wrong_heads.lua"});
  INFO(done.ToText());
  CHECK(done.code == 1);
  CHECK_THAT(done.err, Contains("error[MS06") && Contains("at: model.layers.1.self_attn"));
}

TEST_CASE("--ops compares the operators of a plan that shards the sequence on cp") {
  const auto [model, mesh, context] = GENERATE(table<std::string, std::string, std::string>({
      {"llama_gqa", "cp=2", "ulysses"},
      {"llama_gqa", "cp=2,tp=2", "ulysses"},
      {"gemma3_softcap", "cp=2,tp=2", "ulysses"},
      {"llama_gqa", "cp=2", "ring"},
      {"llama_gqa", "cp=4", "ring"},
      {"llama_gqa", "cp=2,tp=2", "ring"},
      {"gemma3_softcap", "cp=2,tp=2", "ring"},
      {"llama_gqa", "cp=2,tp=2", "plain_ring"},
  }));
  const Outcome done =
      Verify(model, {"--mesh", mesh, "--option", "context=" + context, "--option", "sequence_parallel=true", "--ops"});
  INFO(done.ToText());
  CHECK(done.code == 0);
  CHECK_THAT(done.out, Contains("results compared"));
  CHECK((mesh.find("tp") == std::string::npos || done.out.find("against the run at cp=1") != std::string::npos));
  const Outcome bad = Verify("llama_gqa", {"--mesh", "cp=2", "--option", "context=ulysses", "--ops", "--plan",
                                           kPlanted + "context_wrong_heads.lua"});
  INFO(bad.ToText());
  CHECK(bad.code == 1);
  CHECK_THAT(bad.err, Contains("error[MS0510]") && Contains("at: model.layers.1.self_attn"));
}

TEST_CASE("--types --json: whether the plan is proven, for which step, and what that rests on") {
  const Outcome good =
      Verify("qwen3_moe", {"--mesh", "dp=2,tp=2", "--option", "expert_parallel=true", "--types", "--json"});
  INFO(good.ToText());
  CHECK(good.code == 0);
  const JsonValue proof = ParseJson(good.out, "stdout").ValueOrThrow();
  CHECK(proof.Find("proven")->AsBool());
  CHECK(proof.Find("plan_hash")->AsString().size() == 32);
  CHECK(WriteJson(*proof.Find("findings"), 0) == "[]");
  CHECK(WriteJson(*proof.Find("unproven"), 0) == "[]");
  const JsonValue& scope = *proof.Find("scope");
  CHECK(WriteJson(*scope.Find("mesh"), 0) == R"({"dp_shard":2,"tp":2})");
  CHECK(WriteJson(*scope.Find("ranks"), 0) == "[0,1]");  // an expert has one owner
  CHECK(WriteJson(*scope.Find("inputs"), 0) == R"(["Long [2, 24]"])");
  CHECK(scope.Find("backward")->AsBool());
  CHECK(scope.Find("loss")->AsBool());
  CHECK(scope.Find("operators")->AsInt() > 500);
  std::map<std::string, JsonValue> assumed;
  for (const JsonValue& one : proof.Find("assumptions")->AsArray()) {
    CHECK(!one.Find("text")->AsString().empty());
    assumed[one.Find("kind")->AsString()] = one;
  }
  CHECK(WriteJson(*assumed.at("axes").Find("of"), 0) == R"(["dp_shard"])");
  CHECK(assumed.at("numbers").Find("of")->AsArray().size() == 4);
  CHECK(assumed.contains("regions"));
  CHECK_THAT(assumed.at("memory").Find("text")->AsString(), Contains("data_ptr"));

  const Outcome bad =
      Verify("llama_gqa", {"--mesh", "tp=2", "--types", "--json", "--plan", kPlanted + "dropped_all_reduce.lua"});
  INFO(bad.ToText());
  CHECK(bad.code == 1);
  const JsonValue wrong = ParseJson(bad.out, "stdout").ValueOrThrow();
  CHECK(!wrong.Find("proven")->AsBool());
  CHECK(wrong.Find("findings")->AsArray().front().Find("id")->AsString() == "MS0602");
}

// At tp=4 most have one head a rank.
TEST_CASE("--types proves the plans of exported programs, and --memory knows their operators") {
  size_t programs = 0;
  for (const auto& entry : fs::directory_iterator(SourcePath("tests/parity/programs"))) {
    const fs::path program = entry.path() / "program.pt2";
    if (!fs::exists(program)) continue;
    ++programs;
    for (const std::string mesh : {"tp=2", "tp=4"}) {
      Words words = {entry.path().string(), "--program", program.string(), "--mesh", mesh};
      const fs::path plan = entry.path() / "plan.lua";
      if (fs::exists(plan)) words.insert(words.end(), {"--plan", plan.string()});
      const auto run = [&](const char* verb, const char* how) {
        Words all = {verb};
        all.insert(all.end(), words.begin(), words.end());
        all.emplace_back(how);
        return RunExecutable(ExecutablePath(), all);
      };
      const Outcome proof = run("verify", "--types");
      INFO(entry.path().filename().string() << " " << mesh << "\n" << proof.ToText());
      CHECK(proof.code == 0);
      CHECK_THAT(proof.err, !Contains("error["));
      CHECK_THAT(proof.out, Contains(": proven"));
      const Outcome memory = run("explain", "--memory");
      INFO(memory.ToText());
      CHECK(memory.code == 0);
      CHECK_THAT(memory.out, Contains("at the peak"));
    }
  }
  CHECK(programs >= 14);
}

TEST_CASE("--types names the operator, the line and the suggested fix") {
  struct Row {
    std::string plan;
    std::string model;
    Words options;
    std::string says;
  };
  const Row row = GENERATE(values<Row>({
      {"dropped_all_reduce",
       "llama_gqa",
       {},
       "error[MS0602]: output 0 of 'model.layers.1.self_attn.o_proj' is partial"},
      {"bias_counted_twice",
       "llama_bias",
       {},
       "error[MS0601]: aten::addmm(replicate, shard(1), shard(0)) in 'model.layers.0.mlp.down_proj'"},
      {"input_not_shared", "llama_gqa", {}, "declare the replicated tensor shared"},
      {"norm_not_shared", "llama_gqa", {"--option", "sequence_parallel=true"}, "'model.layers.1.input_layernorm"},
  }));
  Words words = {"--mesh", "tp=2", "--types", "--plan", kPlanted + row.plan + ".lua"};
  words.insert(words.end(), row.options.begin(), row.options.end());
  const Outcome done = Verify(row.model, words);
  INFO(done.ToText());
  CHECK(done.code == 1);
  CHECK_THAT(done.err, Contains(row.says) && Contains(row.plan + ".lua:"));
  CHECK_THAT(done.out, !Contains(": proven"));
}

TEST_CASE("--types of a step that stops says where, and nothing of what could not be called any more") {
  const Outcome done = Verify("llama_gqa", {"--mesh", "tp=2", "--types", "--plan", kPlanted + "half_gathered.lua"});
  INFO(done.ToText());
  CHECK(done.code == 1);
  CHECK_THAT(done.err, Contains("in 'model.layers.1.mlp', forward: the operator itself fails: The size of tensor a") &&
                           Contains("help: the layout of an operand comes from aten::") &&
                           Contains("in 'model.layers.1.mlp.gate_proj'; change"));
  CHECK_THAT(done.err, !Contains("MS0504"));
}

TEST_CASE("--ops compares every operator with the unsharded run") {
  const Outcome good = Verify("llama_gqa", {"--mesh", "tp=2", "--option", "sequence_parallel=true", "--ops"});
  INFO(good.ToText());
  CHECK(good.code == 0);
  CHECK_THAT(good.out, Contains("results compared"));
  const Outcome bad = Verify("llama_gqa", {"--mesh", "tp=2", "--ops", "--plan", kPlanted + "dropped_all_reduce.lua"});
  INFO(bad.ToText());
  CHECK(bad.code == 1);
  CHECK_THAT(bad.err, Contains("error[MS0510]") && Contains("model.layers.1"));
}

TEST_CASE("--ops compares every operator of an exported program") {
  const std::string program = kParity + "programs/llama/program.pt2";
  const Outcome good = Verify("programs/llama", {"--program", program, "--mesh", "tp=2", "--ops"});
  INFO(good.ToText());
  CHECK(good.code == 0);
  CHECK_THAT(good.out, Contains("results compared"));
  const Outcome bad = Verify("programs/llama", {"--program", program, "--mesh", "tp=2", "--ops", "--plan",
                                                kPlanted + "dropped_all_reduce.lua"});
  INFO(bad.ToText());
  CHECK(bad.code == 2);  // its graph shows it before a rank is started
  CHECK_THAT(bad.err,
             Contains("error[MS0319]") && Contains("node 'linear_10' (aten::linear) makes the tensor partial"));
}

}  // namespace
}  // namespace moonshard::test
