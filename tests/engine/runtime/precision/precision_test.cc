// precision and keep_dtype: parameters stored in float64 and used in float32, on thread ranks, against the same model
// cast by hand on one rank.
#include <catch2/catch.hpp>

#include <map>
#include <string>
#include <vector>

#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/sharded_model/state.h"
#include "tests/engine/runtime/fsdp/net.h"
#include "tests/support/predicted.h"
#include "tests/support/ranks.h"
#include "tests/support/rounding.h"

namespace moonshard::test {
namespace {

constexpr const char* kKept = "layer_1";

at::Tensor Ids(int64_t r) { return (torch::arange(10) * (r + 2) + r).remainder(kVocabulary).view({2, 5}); }

at::Tensor LossOf(const at::Tensor& logits, int64_t r) {
  return (torch::log_softmax(logits.to(torch::kFloat64), -1) *
          torch::cos(torch::arange(logits.numel(), torch::kFloat64) + r).view_as(logits))
      .sum();
}

Plan PlanOf(const std::string& section, bool keep, const std::string& reduce) {
  Plan plan = NetRules();
  if (!section.empty()) {
    plan.data_parallel.emplace().shards = section == "fsdp";
    if (section == "fsdp") plan.data_parallel->wrap = {{"layer_*"}};
  }
  plan.precision.emplace().parameters = "float32";
  plan.precision->reduce = reduce;
  plan.precision->outputs = "float64";
  if (keep) plan.kept_dtypes.push_back({{kKept}, "float64"});
  return plan;
}

// The gradients of one rank's inputs on a model whose parameters were cast by hand, in the dtype that they were used
// in.
std::map<std::string, at::Tensor> ByHand(int64_t r, bool keep, at::Tensor& logits) {
  Net net = MakeNet({});
  net->to(torch::kFloat32);
  if (keep) {
    const torch::NoGradGuard no_grad;
    Net exact = MakeNet({});
    net->layers[1]->to(torch::kFloat64);
    const auto from = exact->layers[1]->named_parameters();
    for (const auto& entry : net->layers[1]->named_parameters()) entry.value().copy_(from[entry.key()]);
  }
  at::Tensor x = net->embed(Ids(r));
  for (size_t i = 0; i < 3; ++i) {
    const bool exact = keep && i == 1;
    x = net->layers[i](exact ? x.to(torch::kFloat64) : x).to(torch::kFloat32);
  }
  logits = net->head(x).to(torch::kFloat64);
  LossOf(logits, r).backward();
  std::map<std::string, at::Tensor> grads;
  for (const auto& entry : net->named_parameters()) grads[entry.key()] = entry.value().grad();
  return grads;
}

// What was computed in float32 twice, by kernels that may add in other orders: two sums of at most kVocabulary terms a
// layer and as many on the way back. (That sums between ranks are in the dtype that the plan says, their bytes show,
// below.)
const double kRounding = RoundingBound({.terms = kVocabulary, .depth = 16});

double Difference(const at::Tensor& got, const at::Tensor& want) {
  return ((got - want).abs().max() / want.abs().max()).item<double>();
}

struct Setup {
  std::string mesh;
  std::string section;
};

TEST_CASE("parameters are used in the dtype that precision says and stay in their own") {
  for (const Setup& setup :
       {Setup{"tp=1", ""}, Setup{"tp=1", "fsdp"}, Setup{"dp=2", "fsdp"}, Setup{"dp=3", "fsdp"}, Setup{"dp=2", "ddp"}}) {
    for (const bool keep : {false, true}) {
      for (const char* reduce : {"", "float64"}) {
        DYNAMIC_SECTION(setup.mesh << " " << setup.section << (keep ? " with a module kept" : "") << " sums in "
                                   << reduce) {
          RunRanks(setup.mesh, [&](DeviceMesh& mesh) {
            const int64_t ranks = mesh.shape().world_size();
            auto model = Parallelize(MakeNet({}), PlanOf(setup.section, keep, reduce), mesh);
            const at::Tensor logits = model.forward(Ids(mesh.rank()));
            Expect(logits.scalar_type() == torch::kFloat64, "the outputs' dtype");
            LossOf(logits, mesh.rank()).backward();
            at::Tensor by_hand;
            ByHand(mesh.rank(), keep, by_hand);
            Expect(Difference(logits.detach(), by_hand.detach()) <= kRounding, "the logits");
            const at::Tensor exact = MakeNet({})->forward(Ids(mesh.rank())).detach();
            Expect(Difference(logits.detach(), exact) > 1e-10, "the logits are rounded to float32 on their way");
            std::map<std::string, at::Tensor> want;
            for (int64_t r = 0; r < ranks; ++r) {
              at::Tensor unused;
              for (const auto& [path, grad] : ByHand(r, keep, unused)) {
                at::Tensor& sum = want[path];
                const at::Tensor term = grad.to(torch::kFloat64) / static_cast<double>(ranks);
                sum = sum.defined() ? sum + term : term;
              }
            }
            for (const LiveParameter& p : model.applied().parameters()) {
              Expect(p.tensor.scalar_type() == torch::kFloat64 && p.tensor.is_leaf(), p.path + " stays as it was");
              const at::Tensor grad = GatherFull(model, p, p.tensor.grad());
              Expect(grad.scalar_type() == torch::kFloat64, p.path + ": dtype of the gradient");
              const double error = Difference(grad, want[p.path]);
              Expect(error <= kRounding, p.path + " differs by " + std::to_string(error));
            }
          });
        }
      }
    }
  }
}

TEST_CASE("under precision the collectives are those predicted") {
  RunRanks("dp=2,tp=2", [&](DeviceMesh& mesh) {
    auto model = Parallelize(MakeNet({}), PlanOf("fsdp", true, "float64"), mesh);
    const auto step = [&] { LossOf(model.forward(Ids(0)), 0).backward(); };
    step();
    model.applied().ClearCounts();
    step();
    ExpectPredicted(model.applied(), mesh.rank(), Tokens{2, 5});
  });
}

TEST_CASE("a step in bfloat16 moves float32 parameters") {
  RunRanks("dp=2", [&](DeviceMesh& mesh) {
    Net net = MakeNet({});
    net->to(torch::kFloat32);
    Plan plan = PlanOf("fsdp", false, "float32");
    plan.precision->parameters = "bfloat16";
    auto model = Parallelize(net, plan, mesh);
    torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(1e-3));
    const double before = LossOf(model.forward(Ids(0)), 0).item<double>();
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      LossOf(model.forward(Ids(0)), 0).backward();
      optimizer.step();
    }
    Expect(LossOf(model.forward(Ids(0)), 0).item<double>() < before - 1e-3, "the loss falls");
  });
}

}  // namespace
}  // namespace moonshard::test
