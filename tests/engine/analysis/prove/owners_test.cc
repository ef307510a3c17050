// Modules whose features one rank owns: each step runs on one rank and on two, its numbers are compared, and the types
// must not call a wrong one proven or a right one faulty.
#include <catch2/catch.hpp>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/analysis/prove/type_scope.h"
#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/nn/hook.h"
#include "engine/runtime/nn/linear.h"
#include "engine/runtime/sharded_model/state.h"
#include "tests/engine/analysis/prove/planned_model.h"
#include "tests/engine/analysis/prove/step.h"
#include "tests/support/ranks.h"
#include "tests/support/styles.h"

namespace moonshard::test {
namespace {

constexpr int64_t kStream = 4;
constexpr int64_t kOwned = 8;

struct OwnedBlockImpl;
using OwnedBody = std::function<at::Tensor(OwnedBlockImpl& block, const at::Tensor& x)>;

struct OwnedBlockImpl : torch::nn::Module {
  explicit OwnedBlockImpl(OwnedBody f) : body(std::move(f)) {
    const auto linear = [&](const char* name, int64_t in, int64_t out) {
      return register_module(name, nn::Linear(torch::nn::LinearOptions(in, out)));
    };
    up = linear("up", kStream, kOwned);
    gate = linear("gate", kStream, kOwned);
    other = linear("other", kStream, kOwned);
    down = linear("down", kOwned, kStream);
    other_down = linear("other_down", kOwned, kStream);
    b = register_parameter("b", torch::full({1}, 0.3));
  }
  at::Tensor forward(const at::Tensor& x) { return body(*this, x); }
  OwnedBody body;
  nn::Linear up = nullptr;
  nn::Linear gate = nullptr;
  nn::Linear other = nullptr;
  nn::Linear down = nullptr;
  nn::Linear other_down = nullptr;
  at::Tensor b;
};
MOONSHARD_MODULE(OwnedBlock);

struct OwnedNetImpl : torch::nn::Module {
  explicit OwnedNetImpl(const OwnedBody& body) {
    before = register_module("before", nn::Linear(torch::nn::LinearOptions(kStream, kStream)));
    block = register_module("block", OwnedBlock(body));
  }
  at::Tensor forward(const at::Tensor& x) { return block(before(x)).pow(2).mean(); }
  nn::Linear before = nullptr;
  OwnedBlock block = nullptr;
};

using BlockStyles = std::map<std::string, Style>;

// up, gate and down on rank 0, the other projections on rank 1. Each `down` leaves terms, which the block's output
// sums.
BlockStyles OwnedStyles() {
  const auto up = [](int64_t owner) {
    Style style = ColwiseStyle();
    style.params = {{"weight", Layout::Owned(0, owner)}, {"bias", Layout::Owned(0, owner)}};
    style.inputs = {Redistribution{Layout::Shared(), Layout::Shared()}};
    style.outputs = {Redistribution{Layout::Owned(-1, owner), Layout::Owned(-1, owner)}};
    return style;
  };
  const auto down = [](int64_t owner) {
    Style style = RowwiseStyle();
    style.params = {{"weight", Layout::Owned(1, owner)}, {"bias", Layout::Replicate()}};
    style.inputs = {Redistribution{Layout::Owned(-1, owner), Layout::Owned(-1, owner)}};
    style.outputs = {Redistribution{Layout::Partial(), Layout::Replicate()}};
    return style;
  };
  Style block;
  block.name = "block";
  block.params = {{"b", Layout::Shared()}};
  block.inputs = {Redistribution{Layout::Replicate(), Layout::Shared()}};
  return {{"block", block},       {"block.up", up(0)},     {"block.gate", up(0)},
          {"block.other", up(1)}, {"block.down", down(0)}, {"block.other_down", down(1)}};
}

// With the terms of both down projections left to the block, which sums its result.
void SumOfBlock(BlockStyles& styles) {
  for (const char* name : {"block.down", "block.other_down"})
    styles[name].outputs = {Redistribution{Layout::Partial(), Layout::Partial()}};
  styles["block"].outputs = {Redistribution{Layout::Partial(), Layout::Replicate()}};
}

// With the sum in the block and no bias.
void TermsOfBlock(BlockStyles& styles) {
  SumOfBlock(styles);
  for (const char* name : {"block.down", "block.other_down"}) styles[name].after.clear();
}

struct OwnerCase {
  const char* name;
  bool right;   // by numbers
  bool proven;  // only what is right
  OwnedBody body;
  std::function<void(BlockStyles& styles)> change = {};
  bool bias = false;  // of the down projections
};

std::shared_ptr<OwnedNetImpl> OwnedNet(const OwnerCase& one) {
  static std::mutex seeds;
  const std::lock_guard lock(seeds);
  torch::manual_seed(3);
  auto net = std::make_shared<OwnedNetImpl>(one.body);
  OwnedBlock& block = net->block;
  if (!one.bias) {
    const torch::nn::LinearOptions options = torch::nn::LinearOptions(kOwned, kStream).bias(false);
    block->down = block->replace_module("down", nn::Linear(options));
    block->other_down = block->replace_module("other_down", nn::Linear(options));
  }
  net->to(at::kDouble);
  return net;
}

std::shared_ptr<AppliedPlan> ApplyOwners(OwnedNetImpl& net, const OwnerCase& one, const DeviceMesh& mesh) {
  BlockStyles styles = OwnedStyles();
  if (one.change) one.change(styles);
  return ParallelizeModule(net, PlanOfRules("owners", {styles.begin(), styles.end()}), mesh);
}

at::Tensor OwnedInput() { return at::linspace(-1, 1, 24, at::kDouble).view({2, 3, kStream}); }

// The loss, and the gradients of all parameters.
std::map<std::string, at::Tensor> OwnedNumbers(const OwnerCase& one, const DeviceMesh& mesh) {
  const auto net = OwnedNet(one);
  const auto applied = ApplyOwners(*net, one, mesh);
  const at::Tensor loss = net->forward(OwnedInput());
  loss.backward();
  std::map<std::string, at::Tensor> out{{"loss", loss.detach()}};
  for (const LiveParameter& parameter : applied->parameters()) {
    const at::Tensor full = GatherFull(*applied, parameter, parameter.tensor.grad());
    if (full.defined()) out[parameter.path] = full.detach();
  }
  return out;
}

// What differs on two ranks from one rank; "": nothing.
std::string OwnedDifference(const OwnerCase& one) {
  std::map<std::string, at::Tensor> full;
  std::mutex mutex;
  std::string differs;
  RunRanks("tp=1", [&](DeviceMesh& mesh) { full = OwnedNumbers(one, mesh); });
  const auto failures = RunRanksFailing(
      "tp=2",
      [&](DeviceMesh& mesh) {
        const std::map<std::string, at::Tensor> made = OwnedNumbers(one, mesh);
        const std::lock_guard lock(mutex);
        for (const auto& [name, value] : full) {
          const auto found = made.find(name);
          const bool same = found != made.end() && found->second.sizes() == value.sizes() &&
                            at::allclose(found->second, value, 1e-8, 1e-10);
          if (!same) differs += name + " ";
        }
      },
      std::chrono::seconds(20));
  return failures.empty() ? differs : failures.front().text.substr(0, failures.front().text.find('\n'));
}

Proof ProveOwners(const OwnerCase& one) {
  return ProveAtTwoSizes(MeshShape::Parse("tp=2").ValueOrThrow(),
                         [&](const DeviceMesh& mesh, const TypeOptions& options) {
                           const auto net = OwnedNet(one);
                           const auto applied = ApplyOwners(*net, one, mesh);
                           TypeScope scope(*applied, options);
                           try {
                             const at::Tensor loss = net->forward(OwnedInput());
                             scope.Loss(loss);
                             loss.backward();
                           } catch (const c10::Error& error) {
                             scope.Stopped(error.what_without_backtrace());
                           }
                           return scope.Finish();
                         });
}

at::Tensor Gated(OwnedBlockImpl& block, const at::Tensor& x) { return at::silu(block.gate(x)) * block.up(x); }

TEST_CASE("what one rank owns is proven where its numbers are those of one rank") {
  const std::vector<OwnerCase> cases = {
      {"a gated mlp", true, true, [](OwnedBlockImpl& m, const at::Tensor& x) { return m.down(Gated(m, x)); }},
      {"a bias that is added after the sum",
       true,
       true,
       [](OwnedBlockImpl& m, const at::Tensor& x) { return m.down(Gated(m, x)); },
       {},
       true},
      {"a residual around the sum", true, true,
       [](OwnedBlockImpl& m, const at::Tensor& x) { return x + m.down(Gated(m, x)); },
       [](BlockStyles& styles) {
         styles["block"].inputs = {Redistribution{Layout::Replicate(), Layout::Replicate()}};
         for (const char* name : {"block.up", "block.gate"})
           styles[name].inputs = {Redistribution{Layout::Replicate(), Layout::Shared()}};
       }},
      {"a residual whose gradient is not summed", false, false,
       [](OwnedBlockImpl& m, const at::Tensor& x) { return x + m.down(Gated(m, x)); }},
      {"two mlps of two owners, summed together", true, true,
       [](OwnedBlockImpl& m, const at::Tensor& x) { return m.down(Gated(m, x)) + m.other_down(m.other(x).exp()); },
       TermsOfBlock},
      {"two mlps of two owners, joined", true, true,
       [](OwnedBlockImpl& m, const at::Tensor& x) {
         return at::cat({m.down(Gated(m, x)), m.other_down(m.other(x).exp())}, 1);
       },
       TermsOfBlock},
      {"a parameter times what is owned", true, true,
       [](OwnedBlockImpl& m, const at::Tensor& x) { return m.down(Gated(m, x) * m.b); }},
      {"a sum over what is owned", true, true,
       [](OwnedBlockImpl& m, const at::Tensor& x) { return Gated(m, x).exp().sum(-1); },
       [](BlockStyles& styles) {
         styles["block"].outputs = {Redistribution{Layout::Partial(), Layout::Replicate()}};
       }},
      {"parts of what is owned, in another order", true, false,
       [](OwnedBlockImpl& m, const at::Tensor& x) {
         const std::vector<at::Tensor> parts = Gated(m, x).chunk(2, -1);
         return m.down(at::cat({parts[1] * 2, parts[0]}, -1));
       }},
      {"a softmax of what is owned", true, true,
       [](OwnedBlockImpl& m, const at::Tensor& x) { return m.down(m.up(x).softmax(-1)); }},
      {"a mean of what is owned", true, false,
       [](OwnedBlockImpl& m, const at::Tensor& x) {
         const at::Tensor h = m.up(x);
         return m.down(h - h.mean(-1, /*keepdim=*/true));
       }},
      {"a nonlinear function of terms", false, false,
       [](OwnedBlockImpl& m, const at::Tensor& x) { return m.down(Gated(m, x)).sigmoid(); }, TermsOfBlock},
      {"a nonlinear function of terms, of a softmax of what is owned", false, false,
       [](OwnedBlockImpl& m, const at::Tensor& x) { return m.down(m.up(x).softmax(-1)).sigmoid(); }, TermsOfBlock},
      {"a nonlinear function of a sum over what is owned", false, false,
       [](OwnedBlockImpl& m, const at::Tensor& x) { return m.up(x).softmax(-1).pow(2).sum(-1).cos(); },
       [](BlockStyles& styles) {
         styles["block"].outputs = {Redistribution{Layout::Partial(), Layout::Replicate()}};
       }},
      {"a bias on all ranks", false, false, [](OwnedBlockImpl& m, const at::Tensor& x) { return m.down(Gated(m, x)); },
       [](BlockStyles& styles) {
         styles["block.down"].after.clear();
         styles["block.down"].params["bias"] = Layout::Shared();
       },
       true},
      {"a bias on all ranks, behind a softmax of what is owned", false, false,
       [](OwnedBlockImpl& m, const at::Tensor& x) { return m.down(m.up(x).softmax(-1)); },
       [](BlockStyles& styles) {
         styles["block.down"].after.clear();
         styles["block.down"].params["bias"] = Layout::Shared();
       },
       true},
      {"a parameter added to terms", false, false,
       [](OwnedBlockImpl& m, const at::Tensor& x) { return m.down(Gated(m, x)) + m.b; }, TermsOfBlock},
      {"a residual beside terms", false, false,
       [](OwnedBlockImpl& m, const at::Tensor& x) { return x + m.down(Gated(m, x)); }, TermsOfBlock},
      {"a product of terms of two owners", false, false,
       [](OwnedBlockImpl& m, const at::Tensor& x) { return m.down(Gated(m, x)) * m.other_down(m.other(x)); },
       TermsOfBlock},
      {"terms joined with a replicated tensor", false, false,
       [](OwnedBlockImpl& m, const at::Tensor& x) {
         return at::cat({m.down(m.up(x).softmax(-1)), x}, 1);
       },
       TermsOfBlock},
      {"terms that are declared replicated", false, false,
       [](OwnedBlockImpl& m, const at::Tensor& x) { return m.down(m.up(x).softmax(-1)); },
       [](BlockStyles& styles) {
         styles["block.down"].after.clear();
         styles["block.down"].outputs = {Redistribution{Layout::Replicate(), Layout::Replicate()}};
       }},
      {"the gradient of the input is not summed", false, false,
       [](OwnedBlockImpl& m, const at::Tensor& x) { return m.down(Gated(m, x)); },
       [](BlockStyles& styles) {
         styles["block"].inputs = {Redistribution{Layout::Replicate(), Layout::Replicate()}};
         for (const char* name : {"block.up", "block.gate"})
           styles[name].inputs = {Redistribution{Layout::Replicate(), Layout::Replicate()}};
       }},
      {"the gradient of a parameter is not summed", false, false,
       [](OwnedBlockImpl& m, const at::Tensor& x) { return m.down(Gated(m, x) * m.b); },
       [](BlockStyles& styles) {
         styles["block"].params = {{"b", Layout::Replicate()}};
       }},
      {"the gradient of a parameter is not summed, behind a softmax of what is owned", false, false,
       [](OwnedBlockImpl& m, const at::Tensor& x) { return m.down(m.up(x).softmax(-1) * m.b); },
       [](BlockStyles& styles) {
         styles["block"].params = {{"b", Layout::Replicate()}};
       }},
      {"a mean by the number of features that the rank has", false, false,
       [](OwnedBlockImpl& m, const at::Tensor& x) {
         const at::Tensor h = m.up(x);
         return m.down(h) / static_cast<double>(h.size(-1));
       },
       TermsOfBlock},
      {"what another rank has", false, false,
       [](OwnedBlockImpl& m, const at::Tensor& x) { return m.other_down(Gated(m, x)); }},
  };
  for (const OwnerCase& one : cases) {
    const std::string differs = OwnedDifference(one);
    const Proof proof = ProveOwners(one);
    INFO(one.name << "\nnumbers: " << differs << "\n" << ToText(proof));
    CHECK(differs.empty() == one.right);
    CHECK(proof.holds() == one.proven);
    CHECK((!one.right || proof.faults.empty()));
  }
}

struct OwnedPlan {
  const char* model;
  const char* mesh;
  bool right;
  bool proven;
  const char* rules;
};

TEST_CASE("plans with owners are proven where their numbers are those of one rank") {
  constexpr const char* kStyles = R"(
local function own(d) return shard(d, { owner = 0 }) end
local function up(input)
  return style { name = "up", params = { weight = own(0), bias = own(0) }, inputs = { { input, shared } },
                 outputs = { { own(-1), own(-1) } } }
end
local function down(output)
  return style { name = "down", params = { weight = own(1) }, after = { "bias" }, inputs = { { own(-1), own(-1) } },
                 outputs = { { partial, output } } }
end
local layer <const> = "model.layers.*."
)";
  constexpr const char* kExperts = R"(at(layer .. "block_sparse_moe.experts.{0,1}.{w1,w3}", up(shared)),
    at(layer .. "block_sparse_moe.experts.{0,1}.w2", down(partial)))";
  const std::vector<OwnedPlan> plans = {
      {"qwen2_moe", "tp=2", true, true,
       R"(at(layer .. "mlp.shared_expert.{gate,up}_proj", up(shared)),
          at(layer .. "mlp.shared_expert.down_proj", down(partial)))"},
      {"mixtral", "tp=2", true, true, kExperts},
      {"mixtral", "dp=2,tp=2", true, true, kExperts},
      {"llama_gqa", "tp=4", true, true,
       R"(at(layer .. "mlp.{gate,up}_proj", up(replicate)), at(layer .. "mlp.down_proj", down(replicate)))"},
      {"phi3_gqa", "tp=2", true, true,
       R"(at(layer .. "mlp.gate_up_proj", up(replicate)), at(layer .. "mlp.down_proj", down(replicate)))"},
      {"llama_bias", "tp=2", true, true,
       R"(at(layer .. "mlp.{gate,up}_proj", up(replicate)), at(layer .. "mlp.down_proj", down(replicate)))"},
      {"llama_bias", "tp=2", false, false,
       R"(at(layer .. "mlp.{gate,up}_proj", up(replicate)),
          at(layer .. "mlp.down_proj", style { name = "d", params = { weight = own(1), bias = replicate },
             inputs = { { own(-1), own(-1) } }, outputs = { { partial, replicate } } }))"},
  };
  for (const OwnedPlan& one : plans) {
    PlannedModel model;
    model.folder = RecordedModel(one.model);
    model.mesh = one.mesh;
    model.prelude = kStyles;
    model.rules = one.rules;
    const Verdict verdict = Judge(model);
    INFO(model.Name() << ": " << one.rules << "\nnumbers: " << verdict.numbers << "; operators: " << verdict.ops << "\n"
                      << verdict.text);
    CHECK(verdict.right == one.right);
    CHECK((verdict.proof == Verdict::Proof::kHolds) == one.proven);
    CHECK((!one.right || verdict.ops_agree.value_or(true)));
  }
}

}  // namespace
}  // namespace moonshard::test
