// First values, groups of an optimizer and the search for what is not finite, on a small model under a plan by hand.
#include <catch2/catch.hpp>

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>

#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/nn/defer_init.h"
#include "engine/runtime/nn/hook.h"
#include "engine/runtime/nn/linear.h"
#include "engine/runtime/nn/norm.h"
#include "engine/runtime/sharded_model/initialize.h"
#include "engine/runtime/sharded_model/state.h"
#include "engine/train/optim/adamw.h"
#include "engine/train/optim/finite.h"
#include "tests/support/ranks.h"

namespace moonshard::test {
namespace {

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    norm = register_module("norm", nn::RMSNorm(nn::RMSNormOptions(6)));
    offset = register_module("offset", nn::RMSNorm(nn::RMSNormOptions(6).unit_offset(true)));
    up = register_module("up", nn::Linear(torch::nn::LinearOptions(6, 10)));
    down = register_module("down", nn::Linear(torch::nn::LinearOptions(10, 6)));
  }
  at::Tensor forward(const at::Tensor& x) { return down(up(offset(norm(x)))); }
  nn::RMSNorm norm = nullptr;
  nn::RMSNorm offset = nullptr;
  nn::Linear up = nullptr;
  nn::Linear down = nullptr;
};
MOONSHARD_MODULE(Block);

// up by rows and down by columns over tp; with `fsdp` every parameter in shards over dp_shard on top.
Plan BlockPlan(bool fsdp) {
  const auto rule = [](const std::string& pattern, Layout weight, Layout from, Layout to, Layout makes, Layout leaves) {
    Rule out;
    out.pattern = pattern;
    out.style.name = pattern;
    if (weight.dim == 0) out.style.params["bias"] = Placement(weight);
    out.style.params["weight"] = Placement(std::move(weight));
    out.style.inputs.emplace_back(Redistribution{Placement(std::move(from)), Placement(std::move(to))});
    out.style.outputs.emplace_back(Redistribution{Placement(std::move(makes)), Placement(std::move(leaves))});
    return out;
  };
  Plan plan;
  plan.name = "block";
  const Layout last = Layout::Shard(-1);
  plan.rules.push_back(rule("up", Layout::Shard(0), Layout::Replicate(), Layout::Shared(), last, last));
  plan.rules.push_back(rule("down", Layout::Shard(1), last, last, Layout::Partial(), Layout::Replicate()));
  plan.rules.back().style.after = {"bias"};
  Rule norms;
  norms.pattern = "{norm,offset}";
  norms.style.name = "replicated";
  plan.rules.push_back(norms);
  if (fsdp) plan.data_parallel = DataParallel{};
  return plan;
}

using Full = std::map<std::string, at::Tensor>;

Full Initialized(const std::string& shape, uint64_t seed, c10::ScalarType type = c10::kFloat) {
  Full out;
  std::mutex mutex;
  RunRanks(shape, [&](DeviceMesh& mesh) {
    Block block = nullptr;
    {
      const nn::DeferInit defer;
      block = Block();
    }
    ApplyOptions options;
    options.deferred_type = type;
    auto model = Parallelize(block, BlockPlan(mesh.shape().size(MeshAxis::kDpShard) > 1), mesh, options);
    Initialize(model, seed);
    Full full = FullState(model);
    const std::lock_guard lock(mutex);
    if (mesh.rank() == 0) out = std::move(full);
  });
  return out;
}

TEST_CASE("a sharded model starts as the whole one does, to the bit, whatever the mesh") {
  const Full alone = Initialized("tp=1", 3);
  REQUIRE(alone.size() == 6);
  for (const char* shape : {"tp=2", "tp=4", "dp=2", "dp=3,tp=2"}) {
    const Full sharded = Initialized(shape, 3);
    for (const auto& [path, tensor] : alone) {
      INFO(shape << " " << path);
      CHECK(at::equal(sharded.at(path), tensor));
    }
  }
  CHECK(at::equal(alone.at("norm.weight"), at::ones({6})));
  CHECK(at::equal(alone.at("offset.weight"), at::zeros({6})));
  CHECK(at::equal(alone.at("up.bias"), at::zeros({10})));
  CHECK_FALSE(at::equal(alone.at("up.weight").flatten(), alone.at("down.weight").flatten()));
  CHECK(alone.at("up.weight").abs().max().item<double>() < 0.1);
  CHECK_FALSE(at::equal(Initialized("tp=1", 4).at("up.weight"), alone.at("up.weight")));
  CHECK(at::equal(Initialized("tp=2", 3, c10::kDouble).at("up.weight"), alone.at("up.weight").to(c10::kDouble)));
}

TEST_CASE("vectors do not decay, and every group takes the rate") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    auto model = Parallelize(Block(), BlockPlan(false), mesh, {.initial = InitialValues::kUnchecked});
    AdamW optimizer = MakeAdamW(model, torch::optim::AdamWOptions(1e-3).weight_decay(0.5));
    Expect(optimizer.param_groups().size() == 2, "two groups");
    const auto decay = [&](size_t group) {
      return static_cast<const torch::optim::AdamWOptions&>(optimizer.param_groups()[group].options()).weight_decay();
    };
    Expect(decay(0) == 0.5 && decay(1) == 0, "matrices alone decay");
    Expect(optimizer.param_groups()[0].params().size() == 2, "two matrices");
    Expect(optimizer.param_groups()[1].params().size() == 4, "two norms and two biases");
    SetLearningRate(optimizer, 0.25);
    for (const auto& group : optimizer.param_groups()) Expect(group.options().get_lr() == 0.25, "the rate");
  });
}

TEST_CASE("the fused step is the step of torch::optim::AdamW, and either continues the other") {
  const auto options = torch::optim::AdamWOptions(1e-2).weight_decay(0.1).betas({0.8, 0.9}).eps(1e-6);
  std::vector<std::vector<at::Tensor>> sets;
  for (int run = 0; run < 3; ++run) {
    std::vector<at::Tensor>& set = sets.emplace_back();
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      set.push_back(at::sin(at::arange(24, type)).view({4, 6}).requires_grad_());
      set.push_back(at::cos(at::arange(24, type)).view({4, 6}).requires_grad_());
    }
  }
  // The plain step, the fused one, and both in turn.
  std::vector<AdamW> optimizers;
  optimizers.reserve(sets.size());
  for (const auto& set : sets) optimizers.emplace_back(set, options);
  for (int step = 0; step < 6; ++step) {
    for (size_t run = 0; run < sets.size(); ++run) {
      for (size_t i = 0; i < sets[run].size(); ++i) {
        at::Tensor& parameter = sets[run][i];
        // The third parameter has no gradient in the first steps: its moments begin later.
        if (i == 2 && step < 2) continue;
        parameter.mutable_grad() = at::sin(parameter.detach() * 3 + step);
      }
      if (run == 0 || (run == 2 && step % 2 == 0)) {
        optimizers[run].step();  // on a CPU that of torch::optim::AdamW
      } else {
        optimizers[run].FusedStep();
      }
    }
  }
  for (size_t run = 1; run < sets.size(); ++run) {
    for (size_t i = 0; i < sets[run].size(); ++i) {
      const double tolerance = sets[run][i].scalar_type() == at::kDouble ? 1e-12 : 2e-6;
      CHECK((sets[run][i] - sets[0][i]).abs().max().item<double>() < tolerance);
    }
  }
  CHECK((sets[0][0] - at::sin(at::arange(24, at::kFloat)).view({4, 6})).abs().max().item<double>() > 1e-2);
}

TEST_CASE("steps that the device skips leave no trace, whether the host knows of them at once or later") {
  const auto options = torch::optim::AdamWOptions(1e-2).weight_decay(0.1).betas({0.8, 0.9}).eps(1e-6);
  // Settled after as many further steps; 0: at once.
  for (const size_t later : {0, 1, 3}) {
    std::vector<std::vector<at::Tensor>> sets;
    for (int run = 0; run < 2; ++run) {
      sets.push_back({at::sin(at::arange(24, at::kDouble)).requires_grad_(),
                      at::cos(at::arange(24, at::kDouble)).requires_grad_()});
    }
    AdamW plain(sets[0], options);
    AdamW ahead(sets[1], options);
    const std::vector<bool> skipped = {false, true, false, true, true, false, false, true};
    size_t settled = 0;
    for (size_t step = 0; step < skipped.size(); ++step) {
      for (const auto& set : sets) {
        for (size_t i = 0; i < set.size(); ++i) {
          const at::Tensor& parameter = set[i];
          // The second parameter gets a gradient in the third step, and its number of steps is another.
          if (i == 1 && step < 2) continue;
          at::Tensor gradient = at::sin(at::arange(24, at::kDouble) * 3 + static_cast<double>(step));
          if (skipped[step]) gradient = gradient / 0.0;
          parameter.mutable_grad() = gradient;
        }
      }
      if (!skipped[step]) plain.FusedStep();
      ahead.FusedStepUnless(at::full({}, skipped[step] ? 1 : 0, at::kFloat));
      while (step + 1 - settled > later) ahead.Settle(skipped[settled++]);
    }
    while (settled < skipped.size()) ahead.Settle(skipped[settled++]);
    for (size_t i = 0; i < 2; ++i) {
      INFO("settled " << later << " steps later, parameter " << i);
      CHECK(at::equal(sets[0][i], sets[1][i]));
      const auto steps = [&](AdamW& optimizer) {
        const auto& state = optimizer.state().at(optimizer.param_groups()[0].params()[i].unsafeGetTensorImpl());
        return static_cast<const torch::optim::AdamWParamState&>(*state).step();
      };
      CHECK(steps(plain) == steps(ahead));
      CHECK(steps(ahead) == (i == 0 ? 4 : 3));
    }
  }
}

TEST_CASE("the optimizer of adapters has the factors of the active adapter, which Initialize leaves as they are") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    Plan plan = BlockPlan(false);
    for (const char* name : {"active", "other"}) {
      Adapter& adapter = plan.adapters.emplace_back();
      adapter.name = name;
      adapter.modules = {{"{up,down}"}};
      adapter.rank = 2;
    }
    auto model = Parallelize(Block(), plan, mesh, {.initial = InitialValues::kUnchecked});
    const AdamW optimizer = MakeAdamW(model, torch::optim::AdamWOptions(1e-3).weight_decay(0.5));
    Expect(optimizer.param_groups()[0].params().size() == 4, "two factors of two modules");
    Expect(optimizer.param_groups()[1].params().empty(), "no frozen norm or bias");
    for (const at::Tensor& factor : optimizer.param_groups()[0].params()) {
      Expect(factor.requires_grad() && std::ranges::count(factor.sizes(), 2) > 0, "a factor");
    }
    const auto at_start = FullState(model);
    Initialize(model, 5);
    for (const auto& [path, tensor] : FullState(model)) {
      if (path.find(".lora_") != std::string::npos) Expect(at::equal(tensor, at_start.at(path)), path);
    }
    Expect(at_start.at("up.lora_A.active").count_nonzero().item<int64_t>() > 0, "A is drawn");
    Expect(at_start.at("up.lora_B.active").count_nonzero().item<int64_t>() == 0, "B is zero");
  });
}

TEST_CASE("the first number that is none is found on every rank, wherever it lies") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    auto model = Parallelize(Block(), BlockPlan(false), mesh, {.initial = InitialValues::kUnchecked});
    const World world(mesh);
    Expect(FindNonFinite(model, world).path.empty(), "no gradient yet");
    const auto local = LocalState(model);
    for (const LiveParameter& parameter : model.applied().parameters()) {
      at::Tensor handle = parameter.tensor;
      handle.mutable_grad() = at::zeros_like(handle);
    }
    Expect(FindNonFinite(model, world).path.empty(), "all finite");
    const at::NoGradGuard no_grad;
    at::Tensor up = model.net()->up->weight;
    if (mesh.rank() == 1) up.mutable_grad()[0][0] = std::numeric_limits<double>::infinity();
    const NonFinite gradient = FindNonFinite(model, world);
    Expect(gradient.path == "up.weight" && !gradient.in_parameter, "a gradient: " + gradient.path);
    at::Tensor norm = model.net()->norm->weight;
    if (mesh.rank() == 0) norm[2] = std::numeric_limits<double>::quiet_NaN();
    const NonFinite parameter = FindNonFinite(model, world);
    Expect(parameter.path == "norm.weight" && parameter.in_parameter, "a parameter: " + parameter.path);
  });
}

}  // namespace
}  // namespace moonshard::test
