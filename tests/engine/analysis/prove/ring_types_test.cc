// The types along cp of attention on a ring: recorded models are proven, and what is wrong around a ring (the positions
// of another rank, a gradient that is not summed, labels of the wrong tokens, no ring) is a fault at its module.
#include <catch2/catch.hpp>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <torch/nn/functional/loss.h>
#include <torch/types.h>

#include "dsl/language/eval/load_plan.h"
#include "dsl/planning/choose/choose_plan.h"
#include "engine/analysis/prove/type_scope.h"
#include "engine/plan/resolve/resolve_plan.h"
#include "engine/runtime/apply/applied_plan.h"
#include "engine/runtime/apply/live_tree.h"
#include "engine/runtime/intercept/region.h"
#include "engine/runtime/nn/defer_init.h"
#include "engine/runtime/nn/embedding.h"
#include "engine/runtime/nn/hook.h"
#include "engine/runtime/nn/linear.h"
#include "engine/runtime/sharded_model/load.h"
#include "tests/engine/analysis/prove/step.h"
#include "tests/support/paths.h"
#include "tests/support/ranks.h"
#include "tests/support/styles.h"

namespace moonshard::test {
namespace {

// Of the recorded 13, of which the last of four ranks has one: the sharded dim of one element is ambiguous. And where
// tp shards the tokens of cp again, a rank without peers does not know which they are.
constexpr int64_t kTokensOfEqualShards = 12;

// On a Recording mesh; `change` is called for a mesh with cp, of a plan with ddp.
ShardedModel LoadOnRing(const std::string& name, const DeviceMesh& mesh, bool sequence_parallel,
                        const std::string& context, const std::function<void(CompiledPlan&)>& change) {
  const std::filesystem::path folder = SourcePath("tests/parity/" + name);
  const JsonValue config = ReadConfig(folder);
  ShardedModel out;
  {
    const nn::DeferInit defer;
    out.model = MakeCausalLm(config).ValueOrThrow();
  }
  const LiveTree live = ReadLiveTree(*out.model.module).ValueOrThrow();
  PlanInputs inputs;
  inputs.config = config;
  inputs.mesh = mesh.shape();
  inputs.model = live.tree.get();
  inputs.options["context"] = context;
  inputs.options["sequence_parallel"] = sequence_parallel;
  Plan plan = LoadPlanFile(SelectPlan(config).ValueOrThrow(), inputs).ValueOrThrow();
  if (change) plan.data_parallel.emplace().shards = false;
  CompiledPlan compiled =
      ResolvePlan(std::make_shared<const Plan>(std::move(plan)), live.tree, mesh.shape()).ValueOrThrow();
  if (change && mesh.shape().size(MeshAxis::kCp) > 1) {
    change(compiled);
    CompileSteps(compiled);
  }
  out.applied = AppliedPlan::Apply(live, std::move(compiled), mesh, {.deferred_type = at::kFloat});
  Expect(LoadCheckpoint(*out.applied, Checkpoint::Open(folder.string()).ValueOrThrow()).empty(),
         "the checkpoint fits without a warning");
  return out;
}

Proof ProveOnRing(const std::string& name, const std::string& mesh, bool sequence_parallel, int64_t rank,
                  const std::string& context, const std::function<void(CompiledPlan&)>& change = {}) {
  const NamedTensors inputs = ReadTensors(SourcePath("tests/parity/" + name + "/inputs_1.safetensors"));
  return ProveAtTwoSizes(
      MeshShape::Parse(mesh).ValueOrThrow(),
      [&](const DeviceMesh& at, const TypeOptions& options) {
        return ProveStep(LoadOnRing(name, at, sequence_parallel, context, change), inputs, options,
                         sequence_parallel || mesh == "cp=4" || context == "ulysses_ring" ? kTokensOfEqualShards : 0);
      },
      {}, rank);
}

TEST_CASE("recorded models are proven on a ring") {
  for (const char* name : {"llama_gqa", "qwen3_head_dim12", "gemma3_softcap", "mistral_window8", "phi3_gqa",
                           "phi_partial", "ministral3_yarn"}) {
    for (const auto& [mesh, sequence_parallel, last] :
         {std::tuple("cp=2", false, 1), std::tuple("cp=4", false, 3), std::tuple("cp=2,tp=2", false, 3),
          std::tuple("cp=2,tp=2", true, 3)}) {
      for (const int64_t rank : {0, last}) {
        const Proof proof = ProveOnRing(name, mesh, sequence_parallel, rank, "ring");
        INFO(name << " on " << mesh << (sequence_parallel ? " sequence parallel" : "") << ", rank " << rank << "\n"
                  << ToText(proof));
        CHECK(proof.holds());
        CHECK(proof.sizes_compared);
      }
    }
  }
}

TEST_CASE("recorded models are proven on a ring of plain chunks") {
  for (const char* name : {"llama_gqa", "mistral_window8"}) {
    for (const auto& [mesh, sequence_parallel] : {std::pair("cp=2", false), std::pair("cp=2,tp=2", true)}) {
      const Proof proof = ProveOnRing(name, mesh, sequence_parallel, 1, "plain_ring");
      INFO(name << " on " << mesh << "\n" << ToText(proof));
      CHECK(proof.holds());
      CHECK(proof.sizes_compared);
    }
  }
}

// Between the exchanges of heads the outer factor shards the tokens and the inner one the heads.
TEST_CASE("recorded models are proven on two factors of cp") {
  for (const char* name : {"llama_gqa", "qwen3_head_dim12", "gemma3_softcap", "phi3_gqa"}) {
    for (const auto& [mesh, last] : {std::pair("cp=2x2", 3), std::pair("cp=2x2,tp=2", 7)}) {
      for (const int64_t rank : {0, last}) {
        const Proof proof = ProveOnRing(name, mesh, false, rank, "ulysses_ring");
        INFO(name << " on " << mesh << ", rank " << rank << "\n" << ToText(proof));
        CHECK(proof.holds());
        CHECK(proof.sizes_compared);
      }
    }
  }
}

// Copies the layouts of the module at `path` for `change` alone.
void ChangeLayouts(CompiledPlan& plan, const std::string& path, const std::function<void(ModuleLayouts&)>& change) {
  const auto m = static_cast<size_t>(plan.tree->Find(path));
  plan.layouts.push_back(plan.LayoutsOf(m));
  change(plan.layouts.back());
  plan.layouts_of[m] = static_cast<uint32_t>(plan.layouts.size()) - 1;
}

TEST_CASE("a gradient that is not summed over the ring's ranks is a fault of its parameter") {
  struct Row {
    std::string model;
    std::string mesh;
    std::string context;
    std::string path;
  };
  const std::vector<Row> rows = {
      {"llama_gqa", "cp=2", "ring", "model.layers.1.input_layernorm"},
      {"llama_gqa", "cp=2x2", "ulysses_ring", "model.layers.1.input_layernorm"},
      {"mixtral", "cp=2", "ring", "model.layers.1.block_sparse_moe.gate"},
      {"mixtral", "cp=2", "ulysses", "model.layers.1.block_sparse_moe.experts.2.w2"},
  };
  for (const Row& row : rows) {
    const Proof proof = ProveOnRing(row.model, row.mesh, false, 0, row.context, [&](CompiledPlan& plan) {
      ChangeLayouts(plan, row.path, [](ModuleLayouts& layouts) {
        for (Placement& placement : layouts.params) placement[MeshAxis::kCp] = Layout::Replicate();
      });
    });
    INFO(row.model << " on " << row.mesh << "\n" << ToText(proof));
    REQUIRE_FALSE(proof.faults.empty());
    CHECK(proof.faults.front().path.starts_with(row.path));
    CHECK(proof.faults.front().axis == MeshAxis::kCp);
  }
}

// The late chunk of a group is not behind the early one. The first ranks of the groups have early chunks alone.
TEST_CASE("tokens of two factors that are gathered in another order are a fault at the module that gathers them") {
  for (const int64_t rank : {1, 3}) {
    const Proof proof = ProveOnRing("llama_gqa", "cp=2x2", false, rank, "ulysses_ring", [](CompiledPlan& plan) {
      ChangeLayouts(plan, "lm_head",
                    [](ModuleLayouts& layouts) { layouts.outputs.front()->from[MeshAxis::kCp] = Layout::Shard(1); });
    });
    INFO(rank << "\n" << ToText(proof));
    CHECK_FALSE(proof.holds());
    REQUIRE_FALSE(proof.faults.empty());
    CHECK(proof.faults.front().path == "lm_head");
    CHECK(proof.faults.front().axis == MeshAxis::kCp);
  }
}

constexpr int64_t kHeadsOnRing = 2;
constexpr int64_t kWidthOnRing = 8;
constexpr int64_t kIdsOnRing = 12;
constexpr int64_t kTokensOnRing = 8;

// What is wrong around the ring of a host's own attention.
enum class RingFault {
  kNone,
  kPositionsOfAnotherRank,  // the slice has the right size, and is declared
  kLongerSlice,             // one position more than the rank's, of which all but one are used
  kNotASlice,               // a copy of the rank's positions, scaled
  kUndeclaredSlice,         // right numbers, by a slice of its own
  kPositionsFromZero,       // every rank counts its tokens from 0
  kNoRing,                  // attends to its own tokens
  kNoAttention,             // each token attends to itself
  kShiftedLabels,           // the next token of a rank's own tokens, without those of the next rank
};

struct HostAttentionImpl : torch::nn::Module {
  explicit HostAttentionImpl(RingFault f) : fault(f) {
    q = register_module("q", nn::Linear(torch::nn::LinearOptions(kWidthOnRing, kWidthOnRing)));
    k = register_module("k", nn::Linear(torch::nn::LinearOptions(kWidthOnRing, kWidthOnRing)));
    v = register_module("v", nn::Linear(torch::nn::LinearOptions(kWidthOnRing, kWidthOnRing)));
    o = register_module("o", nn::Linear(torch::nn::LinearOptions(kWidthOnRing, kWidthOnRing)));
  }
  bool SetRing(std::shared_ptr<const AttentionRing> given) {
    ring = std::move(given);
    return true;
  }
  at::Tensor Positions(int64_t length) const {
    at::Tensor all = at::arange(1, length + 1, at::kFloat).view({1, 1, length, 1});
    if (ring == nullptr) return all;
    const AttentionRing::Tokens own = ring->OwnTokens(length).front();
    const auto declared = [&](int64_t first, int64_t count) {
      Region region("positions", "", MeshAxis::kCp);
      at::Tensor slice = all.narrow(2, first, count);
      region.DeclareSlice(all, slice, slice, Layout::Shard(2));
      return slice;
    };
    switch (fault) {
      case RingFault::kPositionsOfAnotherRank: return declared(own.first == 0 ? own.count : 0, own.count);
      case RingFault::kLongerSlice: return declared(0, own.count + 1).narrow(2, 0, own.count);
      case RingFault::kNotASlice: {
        Region region("positions", "", MeshAxis::kCp);
        at::Tensor slice = all.narrow(2, own.first, own.count) * 2;
        region.DeclareSlice(all, slice, slice, Layout::Shard(2));
        return slice;
      }
      case RingFault::kUndeclaredSlice: return all.narrow(2, own.first, own.count);
      case RingFault::kPositionsFromZero: return at::arange(1, own.count + 1, at::kFloat).view({1, 1, own.count, 1});
      default: return ring->OwnShard(all, -2);
    }
  }
  at::Tensor forward(const at::Tensor& x, int64_t length) {
    const auto heads = [](const at::Tensor& flat) {
      return flat.view({flat.size(0), flat.size(1), kHeadsOnRing, -1}).transpose(1, 2);
    };
    const at::Tensor positions = Positions(length);
    const at::Tensor queries = heads(q(x)) * positions;
    const at::Tensor keys = heads(k(x)) * positions;
    const at::Tensor values = heads(v(x));
    at::Tensor mixed = values;
    if (ring == nullptr || fault == RingFault::kNoRing) {
      mixed = at::scaled_dot_product_attention(queries, keys, values, {}, 0, /*is_causal=*/true);
    } else if (fault != RingFault::kNoAttention) {
      mixed = ring->Attend(queries, keys, values, length, {.scale = 1 / std::sqrt(4.0)});
    }
    return x + o(mixed.transpose(1, 2).flatten(2));
  }
  nn::Linear q = nullptr, k = nullptr, v = nullptr, o = nullptr;
  std::shared_ptr<const AttentionRing> ring;
  RingFault fault;
};
MOONSHARD_MODULE(HostAttention);

struct HostNetImpl : torch::nn::Module {
  explicit HostNetImpl(RingFault fault) {
    embed = register_module("embed", nn::Embedding(torch::nn::EmbeddingOptions(kIdsOnRing, kWidthOnRing)));
    attention = register_module("attention", HostAttention(fault));
    head = register_module("head", nn::Linear(torch::nn::LinearOptions(kWidthOnRing, kIdsOnRing).bias(false)));
  }
  at::Tensor forward(const at::Tensor& ids) { return head(attention(embed(ids), ids.size(1))); }
  nn::Embedding embed = nullptr;
  HostAttention attention = nullptr;
  nn::Linear head = nullptr;
};
MOONSHARD_MODULE(HostNet);

Plan HostPlan(const MeshShape& mesh, bool own_logits, const Layout& tokens) {
  Placement own;
  own[MeshAxis::kCp] = mesh.size(MeshAxis::kCp) > 1 ? tokens : Layout::Replicate();
  const auto style = [](const char* name, const Placement& from, const Placement& in, const Placement& out,
                        const Placement& to) {
    Style made;
    made.name = name;
    made.inputs.emplace_back(Redistribution{from, in});
    made.outputs.emplace_back(Redistribution{out, to});
    return made;
  };
  Style ring = style("ring", own, own, own, own);
  ring.ring = Ring{.heads = kHeadsOnRing, .kv_heads = kHeadsOnRing};
  Plan plan = PlanOfRules("ring", {{"embed", style("embed", Placement(), own, own, own)},
                                   {"attention.{q,k,v}", style("own", own, own, own, own)},
                                   {"attention.o", ring},
                                   {"head", style("head", own, own, own, own_logits ? own : Placement())}});
  plan.data_parallel.emplace().shards = false;
  return plan;
}

Proof ProveHost(const std::string& mesh_text, RingFault fault, int64_t rank, const Layout& tokens = Layout::Shard(1)) {
  return ProveAtTwoSizes(
      MeshShape::Parse(mesh_text).ValueOrThrow(),
      [&](const DeviceMesh& mesh, const TypeOptions& options) {
        HostNet net(fault);
        const LiveTree live = ReadLiveTree(*net).ValueOrThrow();
        const bool shifted = fault == RingFault::kShiftedLabels;
        CompiledPlan compiled =
            ResolvePlan(std::make_shared<const Plan>(HostPlan(mesh.shape(), shifted, tokens)), live.tree, mesh.shape())
                .ValueOrThrow();
        const auto applied = AppliedPlan::Apply(live, std::move(compiled), mesh, {});
        const at::Tensor ids = at::arange(2 * kTokensOnRing).remainder(kIdsOnRing).view({2, kTokensOnRing});
        TypeScope scope(*applied, options);
        try {
          const at::Tensor logits = net->forward(ids);
          at::Tensor labels = ids.clone();
          if (shifted && net->attention->ring != nullptr) labels = net->attention->ring->OwnShard(labels, 1);
          const int64_t length = logits.size(1) - 1;
          const at::Tensor loss = torch::nn::functional::cross_entropy(logits.narrow(1, 0, length).flatten(0, 1),
                                                                       labels.narrow(1, 1, length).flatten());
          scope.Loss(loss);
          loss.backward();
        } catch (const c10::Error& error) {
          scope.Stopped(error.what_without_backtrace());
        }
        return scope.Finish();
      },
      {}, rank);
}

TEST_CASE("a host's own attention is proven on a ring") {
  for (const auto& [mesh, last] : {std::pair("cp=2", 1), std::pair("cp=4", 3), std::pair("dp=2,cp=2", 3)}) {
    for (const int64_t rank : {0, last}) {
      for (const Layout& tokens : {Layout::Shard(1), Layout::Zigzag(1)}) {
        const Proof proof = ProveHost(mesh, RingFault::kNone, rank, tokens);
        INFO(mesh << ", rank " << rank << ", " << tokens.ToText() << "\n" << ToText(proof));
        CHECK(proof.holds());
      }
    }
  }
}

TEST_CASE("what is wrong around a ring of early and late chunks is a fault, on every rank") {
  for (const auto& [fault, path] :
       {std::pair(RingFault::kNoRing, "attention"), std::pair(RingFault::kShiftedLabels, "")}) {
    for (const int64_t rank : {0, 1}) {
      const Proof proof = ProveHost("cp=2", fault, rank, Layout::Zigzag(1));
      INFO(static_cast<int>(fault) << " on rank " << rank << "\n" << ToText(proof));
      CHECK_FALSE(proof.holds());
      REQUIRE_FALSE(proof.faults.empty());
      CHECK(proof.faults.front().path == path);
      CHECK(proof.faults.front().axis == MeshAxis::kCp);
    }
  }
}

TEST_CASE("what is wrong around a ring is a fault at its module, on every rank") {
  const std::vector<std::pair<RingFault, std::string>> rows = {
      {RingFault::kPositionsOfAnotherRank, "attention"},
      {RingFault::kLongerSlice, "attention"},
      {RingFault::kNotASlice, "attention"},
      {RingFault::kUndeclaredSlice, "attention"},
      {RingFault::kPositionsFromZero, "attention"},
      {RingFault::kNoRing, "attention"},
      {RingFault::kShiftedLabels, ""},
  };
  for (const auto& [fault, path] : rows) {
    for (const int64_t rank : {0, 1}) {
      const Proof proof = ProveHost("cp=2", fault, rank);
      INFO(static_cast<int>(fault) << " on rank " << rank << "\n" << ToText(proof));
      CHECK_FALSE(proof.holds());
      REQUIRE_FALSE(proof.faults.empty());
      CHECK(proof.faults.front().path == path);
      CHECK(proof.faults.front().axis == MeshAxis::kCp);
    }
  }
}

// One rank attends and the ranks of cp do not: no layout is wrong.
TEST_CASE("a forward that attends on one rank alone is not proven") {
  const Proof proof = ProveHost("cp=2", RingFault::kNoAttention, 1);
  INFO(ToText(proof));
  CHECK_FALSE(proof.holds());
  REQUIRE_FALSE(proof.sizes_not_compared.empty());
  CHECK(proof.sizes_not_compared.front().find("'attention'") != std::string::npos);
}

}  // namespace
}  // namespace moonshard::test
