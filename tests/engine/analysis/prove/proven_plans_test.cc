// Right plans that are hard to prove. Each is proven, is right by numbers, and agrees with one rank operator by
// operator.
#include <catch2/catch.hpp>

#include "tests/engine/analysis/prove/planned_model.h"

namespace moonshard::test {
namespace {

struct RightPlan {
  const char* what;
  const char* model;
  const char* mesh;
  const char* option;   // of the plan; "": none
  const char* context;  // on a mesh with cp
  const char* rules;
};

constexpr int64_t kRingTokens = 12;  // as many as a ring shards evenly

const std::vector<RightPlan> kPlans = {
    {"one head a rank, whose gradient a transposition has moved", "programs/t5", "tp=4", "", "", ""},
    {"one head a rank, of a bias", "programs/gpt_oss", "tp=4", "", "", ""},
    {"a write into what differs between data-parallel ranks", "programs/deepseek_v3", "dp=2,tp=2", "", "", ""},
    {"other operators of a name than with one rank", "programs/deepseek_v3", "tp=2", "stable", "", ""},
    {"gradients in another order than with one rank", "programs/deepseek_v3", "tp=4", "sequence_parallel", "", ""},
    {"a ring that runs again, where one rank keeps its attention", "phi3_gqa", "cp=2,tp=2", "", "plain_ring",
     R"(recompute { "model.layers.*", keep = { "attention" } })"},
    {"a wrong layout on cp, where a boundary moves along tp alone", "llama_gqa", "cp=2,tp=2", "", "plain_ring",
     R"(at("model.layers.0.self_attn.q_proj", style { name = "q", params = { weight = shard(0) },
           inputs = { { on { tp = replicate, cp = partial }, on { tp = shared, cp = partial } } },
           outputs = { { on { tp = shard(-1), cp = shard(1) }, on { tp = shard(-1), cp = shard(1) } } } }))"},
};

TEST_CASE("right plans that are hard to prove are proven") {
  for (const RightPlan& one : kPlans) {
    PlannedModel model;
    model.folder = RecordedModel(one.model);
    model.mesh = one.mesh;
    if (*one.option != 0) model.options[one.option] = true;
    model.context = one.context;
    if (!model.context.empty()) model.tokens = kRingTokens;
    model.rules = one.rules;
    const Verdict verdict = Judge(model);
    INFO(one.what << ": " << model.Name() << "\nnumbers: " << verdict.numbers << "; operators: " << verdict.ops << "\n"
                  << verdict.text);
    CHECK(verdict.right);
    CHECK(verdict.proof == Verdict::Proof::kHolds);
    CHECK(verdict.ops_agree.value_or(true));
  }
}

}  // namespace
}  // namespace moonshard::test
