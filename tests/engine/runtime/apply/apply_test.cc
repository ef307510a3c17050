// A small model of the user's own, on thread ranks: what apply changes and what it refuses. Exact: integers in float64.
#include <catch2/catch.hpp>

#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "engine/plan/compile/local_shape.h"
#include "engine/runtime/apply/local_shard.h"
#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/nn/autocast.h"
#include "engine/runtime/nn/defer_init.h"
#include "engine/runtime/nn/embedding.h"
#include "engine/runtime/nn/hook.h"
#include "engine/runtime/nn/linear.h"
#include "engine/runtime/nn/norm.h"
#include "engine/runtime/sharded_model/clip_grad_norm.h"
#include "engine/runtime/sharded_model/state.h"
#include "tests/support/ranks.h"
#include "tests/support/styles.h"

namespace moonshard::test {
namespace {

// x [B, T, 6] -> [B, T, 6]; `up` has 10 features, which 4 ranks share unevenly.
struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    gate = register_module("gate", nn::Linear(torch::nn::LinearOptions(6, 10)));
    up = register_module("up", nn::Linear(torch::nn::LinearOptions(6, 10)));
    down = register_module("down", nn::Linear(torch::nn::LinearOptions(10, 6)));
  }
  at::Tensor forward(const at::Tensor& x) { return down(gate(x) * up(x)); }
  nn::Linear gate = nullptr;
  nn::Linear up = nullptr;
  nn::Linear down = nullptr;
};
MOONSHARD_MODULE(Block);

// ids [B, T] -> [B, T, 4].
struct GatherImpl : torch::nn::Module {
  GatherImpl() { table = register_module("table", nn::Embedding(torch::nn::EmbeddingOptions(9, 4))); }
  at::Tensor forward(const at::Tensor& ids) { return table(ids); }
  nn::Embedding table = nullptr;
};
MOONSHARD_MODULE(Gather);

Block MakeBlock() {
  Block block;
  const torch::NoGradGuard no_grad;
  int64_t seed = 1;
  for (at::Tensor& p : block->parameters()) {
    p.set_data((torch::arange(p.numel(), torch::kFloat64).reshape(p.sizes()) * seed).remainder(7) - 3);
    ++seed;
  }
  return block;
}

at::Tensor Input() { return (torch::arange(2 * 5 * 6, torch::kFloat64) * 3).remainder(5).reshape({2, 5, 6}) - 2; }

Plan BlockPlan(bool sequence_parallel) {
  const Placement residual = sequence_parallel ? Layout::Shard(1) : Layout::Replicate();
  Plan plan = PlanOfRules("block", {{"{gate,up}", ColwiseStyle(residual)}, {"down", RowwiseStyle(residual)}});
  for (size_t i = 0; i < plan.rules.size(); ++i) {
    plan.rules[i].source = {"block.lua", static_cast<int>(i) + 1, 0, 0, ""};
  }
  return plan;
}

// What the unsharded block gives: output, input gradient, parameter gradients by name.
struct ExpectedStep {
  at::Tensor output;
  at::Tensor input_grad;
  std::map<std::string, at::Tensor> grads;
  double norm = 0;
};

ExpectedStep Unsharded(int backwards) {
  Block block = MakeBlock();
  at::Tensor x = Input().requires_grad_();
  ExpectedStep expected;
  for (int i = 0; i < backwards; ++i) {
    expected.output = block(x);
    (expected.output * expected.output.detach().remainder(3)).sum().backward();
  }
  expected.input_grad = x.grad();
  double sum = 0;
  for (const auto& entry : block->named_parameters()) {
    expected.grads[entry.key()] = entry.value().grad();
    sum += entry.value().grad().pow(2).sum().item<double>();
  }
  expected.norm = std::sqrt(sum);
  return expected;
}

void CompareWithUnsharded(const std::string& mesh_text, bool sequence_parallel, int backwards) {
  const ExpectedStep expected = Unsharded(backwards);
  RunRanks(mesh_text, [&](DeviceMesh& mesh) {
    auto model = Parallelize(MakeBlock(), BlockPlan(sequence_parallel), mesh);
    // Under sequence parallelism a rank brings and takes a shard of the sequence.
    const Placement residual = sequence_parallel ? Layout::Shard(1) : Layout::Replicate();
    const std::vector<std::vector<Interval>> own = LocalIntervals({2, 5, 6}, residual, mesh.shape(), mesh.rank());
    at::Tensor x = SliceShard(Input(), own).requires_grad_();
    for (int i = 0; i < backwards; ++i) {
      const at::Tensor y = model.forward(x);
      ExpectEqual(y.detach(), SliceShard(expected.output, own), "output");
      (y * y.detach().remainder(3)).sum().backward();
    }
    ExpectEqual(x.grad(), SliceShard(expected.input_grad, own), "input gradient");
    for (const LiveParameter& p : model.applied().parameters()) {
      ExpectEqual(GatherFull(model, p, p.tensor.grad()), expected.grads.at(p.path), "gradient of " + p.path);
    }
    Expect(std::abs(GradNorm(model) - expected.norm) < 1e-9 * expected.norm, "gradient norm");
  });
}

TEST_CASE("a sharded block is the block, bit for bit") {
  const std::string mesh = GENERATE("tp=1", "tp=2", "tp=3", "tp=4");
  const bool sequence_parallel = GENERATE(false, true);
  const int backwards = GENERATE(1, 3);
  CAPTURE(mesh, sequence_parallel, backwards);
  CompareWithUnsharded(mesh, sequence_parallel, backwards);
}

TEST_CASE("ranks that are given other integers are told") {
  RunRanks("tp=2", [&](DeviceMesh& mesh) {
    Plan plan;
    Rule table;
    table.pattern = "table";
    table.style.name = "replicated";
    table.style.inputs = {Redistribution{Layout::Replicate(), Layout::Replicate()}};
    table.source = {"gather.lua", 1, 0, 0, ""};
    plan.rules.push_back(table);
    auto model = Parallelize(Gather(), plan, mesh, {.initial = InitialValues::kUnchecked});
    const at::Tensor ids = torch::arange(6).reshape({2, 3});
    model.forward(ids);
    model.forward(ids + 1);
    std::string text;
    try {
      model.forward(mesh.rank() == 0 ? ids : ids.flip(1));
    } catch (const PlanError& error) {
      Expect(error.diagnostics()[0].finding == Finding::kCollectiveMismatch, error.what());
      text = error.what();
    }
    Expect(text.find("different inputs") != std::string::npos &&
               text.find("Long [2, 3], hash of the integers") != std::string::npos,
           "every rank says it: " + text);
    model.forward(ids);  // the ranks are still in step
  });
}

TEST_CASE("parameters keep their identity and hold shards") {
  RunRanks("tp=2", [&](DeviceMesh& mesh) {
    Block block = MakeBlock();
    const void* impl = block->up->weight.unsafeGetTensorImpl();
    const at::Tensor full = block->up->weight.detach().clone();
    auto model = Parallelize(block, BlockPlan(false), mesh);
    Expect(block->up->weight.unsafeGetTensorImpl() == impl, "the member is the same tensor");
    Expect(block->named_parameters()["up.weight"].unsafeGetTensorImpl() == impl, "so is the registered one");
    Expect(block->up->weight.requires_grad(), "it still requires a gradient");
    Expect(block->up->weight.storage().nbytes() == size_t{5} * 6 * 8, "it keeps no memory of the whole");
    ExpectEqual(block->up->weight.detach(), full.narrow(0, 5 * mesh.rank(), 5), "its shard");
    ExpectEqual(FullState(model).at("up.weight"), full, "gathered again");
    torch::optim::SGD optimizer(model.parameters(), 1.0);
    model.forward(Input()).sum().backward();
    const at::Tensor before = block->up->weight.detach().clone();
    optimizer.step();
    ExpectEqual(block->up->weight.detach(), before - block->up->weight.grad(), "the optimizer steps the member");
  });
}

TEST_CASE("deferred parameters get storage for this rank's shard only") {
  RunRanks("tp=2", [&](DeviceMesh& mesh) {
    Block block = nullptr;
    {
      const nn::DeferInit defer;
      block = Block();
    }
    Expect(block->up->weight.is_meta(), "no storage before");
    auto model = Parallelize(block, BlockPlan(false), mesh);
    Expect(block->up->weight.is_cpu() && block->up->weight.size(0) == 5, "a shard after");
    Expect(block->up->weight.is_leaf() && block->up->weight.requires_grad(), "trainable");
  });
}

TEST_CASE("clipping scales every gradient by the whole norm") {
  const ExpectedStep expected = Unsharded(1);
  RunRanks("tp=4", [&](DeviceMesh& mesh) {
    auto model = Parallelize(MakeBlock(), BlockPlan(false), mesh);
    const at::Tensor y = model.forward(Input());
    (y * y.detach().remainder(3)).sum().backward();
    Expect(std::abs(ClipGradNorm(model, 1.0) - expected.norm) < 1e-9 * expected.norm, "the norm before");
    Expect(std::abs(GradNorm(model) - 1.0) < 1e-6, "the norm after");
  });
}

std::string WhatIsThrown(const std::function<void()>& run) {
  try {
    run();
  } catch (const PlanError& error) {
    return error.what();
  }
  return "nothing";
}

TEST_CASE("what cannot be applied leaves the model whole") {
  RunRanks("tp=2", [&](DeviceMesh& mesh) {
    Block block = MakeBlock();
    Plan plan = BlockPlan(false);
    plan.rules[1].style.after = {"bias", "weight"};  // a Linear cannot hold back its weight
    const std::string text = WhatIsThrown([&] { Parallelize(block, plan, mesh); });
    Expect(text.find("cannot leave parameter 'weight' out of its forward") != std::string::npos, text);
    ExpectEqual(block(Input()), MakeBlock()(Input()), "output after a refused plan");
    for (const auto& entry : block->named_parameters()) {
      Expect(entry.value().numel() == MakeBlock()->named_parameters()[entry.key()].numel(), entry.key() + " is whole");
    }
    Parallelize(block, BlockPlan(false), mesh);
    const std::string again = WhatIsThrown([&] { Parallelize(block, BlockPlan(false), mesh); });
    Expect(again.find("a plan has been applied to this model before") != std::string::npos, again);
  });
}

// Fails when a plan is applied: while the modules are asked, or when its parameter takes over its shard.
struct UnwillingImpl : torch::nn::Module {
  explicit UnwillingImpl(bool asked) : asked_(asked) {
    weight = register_parameter("weight", asked ? torch::ones({6, 10}, torch::kFloat64)
                                                : torch::ones({6, 10}, torch::kFloat64).requires_grad_() * 1);
    bias = register_parameter("bias", torch::ones({6}, torch::kFloat64));
  }
  at::Tensor forward(const at::Tensor& x) { return torch::linear(x, weight, bias); }
  bool HoldBack(std::string_view) {
    if (asked_) throw std::runtime_error("unwilling");
    return true;
  }
  void ReleaseBack(std::string_view) {}
  at::Tensor weight;
  at::Tensor bias;

 private:
  bool asked_;
};
MOONSHARD_MODULE(Unwilling);

// Counts how often it is asked to leave its bias out.
struct AskedImpl : torch::nn::Module {
  AskedImpl() {
    weight = register_parameter("weight", torch::arange(6 * 4096, torch::kFloat32).sin().view({6, 4096}));
    bias = register_parameter("bias", torch::arange(6, torch::kFloat32).cos());
  }
  at::Tensor forward(const at::Tensor& x) { return torch::linear(x, weight, asked > 0 ? at::Tensor() : bias); }
  bool HoldBack(std::string_view) { return ++asked > 0; }
  void ReleaseBack(std::string_view) { --asked; }
  at::Tensor weight;
  at::Tensor bias;
  int asked = 0;
};
MOONSHARD_MODULE(Asked);

struct AskedBlockImpl : torch::nn::Module {
  AskedBlockImpl() { down = register_module("down", Asked()); }
  at::Tensor forward(const at::Tensor& x) { return down(x); }
  Asked down = nullptr;
};
MOONSHARD_MODULE(AskedBlock);

// A product with a bias rounds otherwise than a product to which the bias is added.
TEST_CASE("a bias is left out of the forward only where the output is reduced") {
  Plan plan = PlanOfRules("bias", {{"down", RowwiseStyle(Layout::Replicate())}});
  plan.rules[0].style.inputs = {Redistribution{Layout::Replicate(), Layout::Shard(-1)}};
  plan.data_parallel.emplace().shards = false;  // ddp, which leaves parameters as they are
  for (const char* mesh_text : {"tp=1", "dp=2", "tp=2"}) {
    const bool reduced = std::string(mesh_text) == "tp=2";
    RunRanks(mesh_text, [&](DeviceMesh& mesh) {
      AskedBlock model;
      const at::Tensor x = torch::arange(10 * 4096, torch::kFloat32).cos().view({2, 5, 4096});
      const at::Tensor expected = model(x);
      const at::Tensor out = Parallelize(model, plan, mesh).forward(x);
      Expect(model->down->asked == (reduced ? 1 : 0), "the bias is left out");
      Expect(reduced ? at::allclose(out, expected, 1e-4, 1e-3) : at::equal(out, expected), "the output");
      const nn::Autocast autocast(c10::kCPU, torch::kBFloat16);
      Expect(model(x).scalar_type() == torch::kBFloat16, "the type under autocast");
    });
  }
  for (const bool as_if_tp : {false, true}) {
    AskedBlock model;
    Parallelize(model, plan, DeviceMesh::Recording(MeshShape(), 0, c10::kCPU, as_if_tp));
    CHECK(model->down->asked == (as_if_tp ? 1 : 0));
  }
}

struct UneasyBlockImpl : torch::nn::Module {
  explicit UneasyBlockImpl(bool asked) {
    block = register_module("block", MakeBlock());
    last = register_module("last", Unwilling(asked));
  }
  at::Tensor forward(const at::Tensor& x) { return block(x); }
  Block block = nullptr;
  Unwilling last = nullptr;
};
MOONSHARD_MODULE(UneasyBlock);

TEST_CASE("what fails while a plan is applied leaves the model whole") {
  for (const bool asked : {true, false}) {
    RunRanks("tp=2", [&](DeviceMesh& mesh) {
      UneasyBlock model(asked);
      const at::Tensor first = model->block->up->weight;
      model->block->up->weight.mutable_grad() = torch::ones({10, 6}, torch::kFloat64);
      Plan plan = PlanOfRules("block", {{"block.{gate,up}", ColwiseStyle(Layout::Replicate())},
                                        {"{block.down,last}", RowwiseStyle(Layout::Replicate())}});
      bool threw = false;
      try {
        Parallelize(model, plan, mesh);
      } catch (const PlanError& error) {
        Expect(false, error.what());
      } catch (const std::exception&) {
        threw = true;
      }
      Expect(threw, "the last module fails");
      ExpectEqual(model(Input()), MakeBlock()(Input()), "output afterwards");
      Expect(model->block->up->weight.is_same(first) && first.grad().size(0) == 10, "the same tensor and gradient");
      for (const auto& entry : model->block->named_parameters()) {
        ExpectEqual(entry.value().detach(), MakeBlock()->named_parameters()[entry.key()].detach(), entry.key());
      }
    });
  }
}

TEST_CASE("ranks with different plans all fail with the difference, and nothing is sharded") {
  const std::vector<RankFailure> failures = RunRanksFailing("tp=2", [&](DeviceMesh& mesh) {
    Block block = MakeBlock();
    try {
      Parallelize(block, BlockPlan(mesh.rank() == 1), mesh);
    } catch (const PlanError&) {
      Expect(block->up->weight.size(0) == 10, "whole after the disagreement");
      throw;
    }
  });
  REQUIRE(failures.size() == 2);
  for (const RankFailure& failure : failures) CHECK(failure.text.find("MS0502") != std::string::npos);
}

TEST_CASE("ranks with different inputs all fail before a collective could hang or abort") {
  const std::vector<RankFailure> failures = RunRanksFailing("tp=2", [&](DeviceMesh& mesh) {
    auto model = Parallelize(MakeBlock(), BlockPlan(false), mesh);
    model.forward(torch::zeros({1, mesh.rank() == 0 ? 4 : 5, 6}, torch::kFloat64));
  });
  REQUIRE(failures.size() == 2);
  for (const RankFailure& failure : failures) CHECK(failure.text.find("MS0507") != std::string::npos);
}

struct BypassImpl : torch::nn::Module {
  BypassImpl() { fc = register_module("fc", nn::Linear(4, 4)); }
  at::Tensor forward(const at::Tensor& x) { return fc->torch::nn::LinearImpl::forward(x); }
  nn::Linear fc = nullptr;
};
MOONSHARD_MODULE(Bypass);

TEST_CASE("a sharded module that is used around its call is found") {
  RunRanks("tp=2", [&](DeviceMesh& mesh) {
    Plan plan = BlockPlan(false);
    plan.rules.resize(1);
    plan.rules[0].pattern = "fc";
    auto model = Parallelize(Bypass(), plan, mesh, {.initial = InitialValues::kUnchecked});
    Expect(model.applied().Findings().front().finding == Finding::kUnusedHook, "before the first step");
    model.forward(torch::ones({2, 4})).sum().backward();
    const Diagnostics findings = model.applied().Findings();
    Expect(findings.size() == 1 && findings.front().finding == Finding::kBypassedHook, ToText(findings));
  });
}

struct ScaledImpl : torch::nn::Module {
  explicit ScaledImpl(const at::Tensor& shared) { weight = register_parameter("weight", shared); }
  at::Tensor forward(const at::Tensor& x) { return torch::linear(x, weight) * 2; }
  at::Tensor weight;
};
MOONSHARD_MODULE(Scaled);

struct TwinsImpl : torch::nn::Module {
  TwinsImpl() {
    shared = register_module("shared", nn::Linear(torch::nn::LinearOptions(4, 4).bias(false)));
    own = register_module("own", Scaled(shared->weight));
  }
  at::Tensor forward(const at::Tensor& x) { return own(x); }
  nn::Linear shared = nullptr;
  Scaled own = nullptr;
};
MOONSHARD_MODULE(Twins);

TEST_CASE("a module whose tensors another module of the same style uses is not one that was bypassed") {
  RunRanks("tp=2", [&](DeviceMesh& mesh) {
    Plan plan = BlockPlan(false);
    plan.rules.resize(1);
    plan.rules[0].pattern = "{shared,own}";
    auto model = Parallelize(Twins(), plan, mesh, {.initial = InitialValues::kUnchecked});
    model.forward(torch::ones({2, 4})).sum().backward();
    Expect(model.applied().Findings().empty(), ToText(model.applied().Findings()));
  });
}

TEST_CASE("a tie by assignment, which leaves the registered parameter behind, is found") {
  RunRanks("tp=2", [&](DeviceMesh& mesh) {
    Block block = MakeBlock();
    block->up->weight = block->gate->weight;
    const std::string text = WhatIsThrown([&] { Parallelize(block, BlockPlan(false), mesh); });
    Expect(text.find("error[MS0509]: member 'weight' of 'up' is not the tensor that is registered") == 0, text);
    block->up->TieWeight(block->gate->weight);
    auto model = Parallelize(block, BlockPlan(false), mesh);
    Expect(model.applied().parameters().size() == 5, "tied once");
    Expect(block->up->weight.is_same(block->gate->weight), "still one tensor");
  });
}

TEST_CASE("a style that cannot be run yet is refused, not half run") {
  RunRanks("tp=2", [&](DeviceMesh& mesh) {
    Block block = MakeBlock();
    Plan plan = BlockPlan(false);
    plan.rules[0].style.missing = "the exchange of tokens";
    const std::string text = WhatIsThrown([&] { Parallelize(block, plan, mesh); });
    Expect(text.find("cannot be run yet: the exchange of tokens") != std::string::npos, text);
    Expect(text.find("block.lua:1") != std::string::npos, text);
    Expect(block->up->weight.size(0) == 10, "whole after the refusal");
  });
}

TEST_CASE("an ordinary LibTorch layer under a rule is refused with the suggested fix") {
  struct PlainImpl : torch::nn::Module {
    PlainImpl() { fc = register_module("fc", torch::nn::Linear(4, 4)); }
    at::Tensor forward(const at::Tensor& x) { return fc(x); }
    torch::nn::Linear fc = nullptr;
  };
  RunRanks("tp=2", [&](DeviceMesh& mesh) {
    Plan plan = BlockPlan(false);
    plan.rules.resize(1);
    plan.rules[0].pattern = "fc";
    auto net = std::make_shared<PlainImpl>();
    const std::string text = WhatIsThrown([&] { ParallelizeModule(*net, plan, mesh); });
    Expect(text.find("use moonshard::nn::Linear in place of torch::nn::") != std::string::npos, text);
    Expect(text.find("block.lua:1") != std::string::npos, text);
  });
}

}  // namespace
}  // namespace moonshard::test
