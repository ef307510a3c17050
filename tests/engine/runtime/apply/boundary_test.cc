// Boundaries at work: an exception in a forward, whatever steps stand around it, leaves the model usable and says where
// it was; observers see calls in order.
#include <catch2/catch.hpp>

#include <stdexcept>
#include <string>
#include <typeinfo>
#include <vector>

#include <torch/types.h>
#include <torch/utils.h>

#include "engine/runtime/apply/parallelize.h"
#include "tests/engine/runtime/fsdp/net.h"
#include "tests/support/ranks.h"

namespace moonshard::test {
namespace {

struct Sections {
  std::string mesh;
  std::string data_parallel;  // "", "fsdp", "ddp"
  bool recompute = false;
  bool precision = false;
};

Plan PlanOfSections(const Sections& sections) {
  Plan plan = NetRules();
  if (!sections.data_parallel.empty()) {
    plan.data_parallel.emplace().shards = sections.data_parallel == "fsdp";
    if (sections.data_parallel == "fsdp") plan.data_parallel->wrap = {{"layer_*"}};
  }
  if (sections.recompute) plan.recompute.emplace_back().modules = {{"layer_*"}};
  if (sections.precision) {
    plan.precision.emplace().parameters = "float32";
    plan.precision->outputs = "float64";
    plan.kept_dtypes.push_back({{"layer_0"}, "float64"});
  }
  return plan;
}

at::Tensor IdsOfRank(int64_t rank) { return (torch::arange(10) * 3 + rank).remainder(kVocabulary).view({2, 5}); }

// Logits and gradients of one step.
std::vector<at::Tensor> StepOf(ParallelModel<Net>& model, const at::Tensor& ids) {
  for (const at::Tensor& parameter : model.parameters()) parameter.mutable_grad() = at::Tensor();
  const at::Tensor logits = model.forward(ids);
  torch::sin(logits).sum().backward();
  std::vector<at::Tensor> out = {logits.detach()};
  for (const at::Tensor& parameter : model.parameters()) out.push_back(parameter.grad().clone());
  return out;
}

TEST_CASE("an exception in forward leaves the model usable, whatever steps are around it") {
  for (const Sections& sections : {Sections{"tp=2", "", false, false}, Sections{"dp=2", "fsdp", false, false},
                                   Sections{"dp=2", "ddp", false, true}, Sections{"tp=2", "", true, false},
                                   Sections{"dp=2,tp=2", "fsdp", true, true}}) {
    DYNAMIC_SECTION(sections.mesh << " " << sections.data_parallel << (sections.recompute ? " recompute" : "")
                                  << (sections.precision ? " precision" : "")) {
      RunRanks(sections.mesh, [&](DeviceMesh& mesh) {
        const Plan plan = PlanOfSections(sections);
        const at::Tensor ids = IdsOfRank(mesh.coordinate(MeshAxis::kDpShard));
        auto model = Parallelize(MakeNet({}), plan, mesh);
        auto untouched = Parallelize(MakeNet({}), plan, mesh);
        for (int step = 0; step < 2; ++step) {
          model.net()->layers[1]->throws = true;
          std::string what;
          try {
            model.forward(ids);
          } catch (const std::exception& error) {
            what = error.what();
            Expect(typeid(error) == typeid(std::runtime_error), "the exception's type");
          }
          // Of a layer that no step surrounds, the root is the innermost boundary.
          const bool of_layer = model.net()->layers[1]->boundary() != nullptr;
          Expect(what == std::string("planted in forward\nin the call of ") + (of_layer ? "'layer_1'" : "the model"),
                 "the message: " + what);
          model.net()->layers[1]->throws = false;
          const std::vector<at::Tensor> got = StepOf(model, ids);
          const std::vector<at::Tensor> want = StepOf(untouched, ids);
          for (size_t i = 0; i < got.size(); ++i) ExpectEqual(got[i], want[i], "tensor " + std::to_string(i));
        }
      });
    }
  }
}

struct Trace final : CallObserver {
  explicit Trace(const CompiledPlan& plan) : plan(plan) {}
  void Began(size_t module) override { lines.push_back("began " + plan.tree->modules()[module].path); }
  void Ended(size_t module) override { lines.push_back("ended " + plan.tree->modules()[module].path); }
  void Entered(size_t module, std::span<const TensorSlot> /*arguments*/) override {
    lines.push_back("entered " + plan.tree->modules()[module].path);
  }
  void Exited(size_t module) override { lines.push_back("exited " + plan.tree->modules()[module].path); }
  void Made(size_t module, std::span<const TensorSlot> /*results*/) override {
    lines.push_back("made " + plan.tree->modules()[module].path);
  }
  void Left(size_t module, std::span<const TensorSlot> /*results*/) override {
    lines.push_back("left " + plan.tree->modules()[module].path);
  }
  const CompiledPlan& plan;
  std::vector<std::string> lines;
};

TEST_CASE("an observer sees a call from its beginning to its end, and the inside of a recomputed one again") {
  auto model = Parallelize(MakeNet({}), PlanOfSections({"tp=1", "", true, false}), DeviceMesh::Recording(MeshShape()));
  Trace trace(model.applied().plan());
  model.applied().Watch(trace);
  const at::Tensor logits = model.forward(IdsOfRank(0));
  const auto of_layer = [&] {
    std::vector<std::string> out;
    for (const std::string& line : trace.lines) {
      if (line.ends_with(" layer_1")) out.push_back(line);
    }
    return out;
  };
  CHECK(of_layer() == std::vector<std::string>{"began layer_1", "entered layer_1", "made layer_1", "exited layer_1",
                                               "left layer_1", "ended layer_1"});
  trace.lines.clear();
  logits.sum().backward();
  CHECK(of_layer() == std::vector<std::string>{"entered layer_1", "made layer_1", "exited layer_1"});
  model.applied().Unwatch(trace);
  trace.lines.clear();
  model.forward(IdsOfRank(0));
  CHECK(trace.lines.empty());
  CHECK(model.net()->layers[1]->up->boundary() == nullptr);
}

}  // namespace
}  // namespace moonshard::test
