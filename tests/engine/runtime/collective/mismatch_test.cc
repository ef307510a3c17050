// Ranks that bring different things to one collective: an error on every rank that says what each brought, never an
// abort, a hang or swapped data; and the group is usable afterwards.
#include <catch2/catch.hpp>

#include <ATen/ATen.h>

#include "engine/runtime/collective/axis_group.h"
#include "tests/support/ranks.h"

namespace moonshard {
namespace {

using test::Expect;
using test::RunRanks;

const CollectiveLabel& Layer() {
  static const CollectiveLabel label("model.layers.0 (plan.lua:3)");
  return label;
}
const CollectiveLabel& Other() {
  static const CollectiveLabel label("model.layers.1 (plan.lua:4)");
  return label;
}

void AllReduce(AxisGroup& group, const at::Tensor& tensor, const CollectiveLabel& label = Layer()) {
  group.AllReduce(tensor, {Direction::kForward, &label, tensor.sizes(), 0, -1});
}
void AllGather(AxisGroup& group, const at::Tensor& tensor, int64_t mismatched_size = -1) {
  const std::vector<int64_t> full = {tensor.size(0) * group.size()};
  group.AllGather(tensor, {Direction::kForward, &Layer(), full, 0, mismatched_size});
}

struct Case {
  const char* what;
  std::function<void(AxisGroup&, bool odd)> run;  // odd: this rank does the other thing
  std::vector<const char*> said;                  // in the error of every rank
};

const std::vector<Case>& Cases() {
  static const std::vector<Case> cases = {
      {"shape",
       [](AxisGroup& g, bool odd) {
         AllReduce(g, at::ones({2, odd ? 4 : 3}));
       },
       {"all_reduce (forward, collective 0) of Float [2, 3]", "of Float [2, 4]", "model.layers.0 (plan.lua:3)"}},
      {"number of dims",
       [](AxisGroup& g, bool odd) {
         AllReduce(g, odd ? at::ones({6}) : at::ones({6, 1}));
       },
       {"Float [6, 1]", "Float [6]"}},
      {"more than five dims",
       [](AxisGroup& g, bool odd) {
         AllReduce(g, at::ones({1, 1, 1, 1, 2, odd ? 5 : 3}));
       },
       {"all_reduce"}},
      {"dtype",
       [](AxisGroup& g, bool odd) { AllReduce(g, at::ones({2}, odd ? at::kDouble : at::kFloat)); },
       {"Float [2]", "Double [2]"}},
      {"kind",
       [](AxisGroup& g, bool odd) { odd ? AllGather(g, at::ones({2})) : AllReduce(g, at::ones({2 * g.size()})); },
       {"all_reduce", "all_gather"}},
      {"order",
       [](AxisGroup& g, bool odd) { AllReduce(g, at::ones({2}), odd ? Other() : Layer()); },
       {"model.layers.0 (plan.lua:3)", "model.layers.1 (plan.lua:4)"}},
      {"a shard that is not this rank's",
       [](AxisGroup& g, bool odd) { AllGather(g, at::ones({2}), odd ? 7 : -1); },
       {"a shard of size 7, which is not the size that the layout gives this rank"}},
      {"inputs",
       [](AxisGroup& g, bool odd) {
         g.StartCheckInputs(CollectiveLabel(odd ? "Float [2, 9], none" : "Float [2, 8], none"), Layer());
         g.FinishCheck();
       },
       {"different inputs", "Float [2, 8], none", "Float [2, 9], none"}},
  };
  return cases;
}

TEST_CASE("every mismatch is an error on every rank") {
  for (const char* mesh_text : {"tp=2", "tp=4"}) {
    for (const Case& test_case : Cases()) {
      INFO(test_case.what);
      RunRanks(mesh_text, [&](DeviceMesh& mesh) {
        const auto group = AxisGroup::Make(mesh, MeshAxis::kTp);
        std::string text;
        try {
          test_case.run(*group, group->rank() == group->size() - 1);
        } catch (const PlanError& error) {
          Expect(error.diagnostics()[0].finding == Finding::kCollectiveMismatch, error.what());
          text = error.what();
        }
        for (const char* said : test_case.said) {
          Expect(text.find(said) != std::string::npos, std::string("no '") + said + "' in: " + text);
        }
        Expect(text.find("rank " + std::to_string(group->size() - 1) + ":") != std::string::npos,
               "the rank that is alone: " + text);
        AllReduce(*group, at::ones({2}));  // the ranks are still in step
      });
    }
  }
}

TEST_CASE("equal inputs of ranks that have issued different numbers of collectives are an error with the numbers") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    const auto group = AxisGroup::Make(mesh, MeshAxis::kTp);
    const auto error_of = [](const auto& call) -> std::string {
      try {
        call();
      } catch (const PlanError& error) {
        return error.what();
      }
      return "";
    };
    const auto check_inputs = [&] {
      group->StartCheckInputs(CollectiveLabel("Float [2, 8]"), Layer());
      group->FinishCheck();
    };
    const std::string first = error_of([&] { group->rank() == 0 ? AllReduce(*group, at::ones({2})) : check_inputs(); });
    Expect(first.find("the inputs of a call") != std::string::npos, first);
    const std::string second = error_of(check_inputs);
    Expect(second.find("rank 0: Float [2, 8], collectives before the call: 1") != std::string::npos, second);
    Expect(second.find("rank 1: Float [2, 8], collectives before the call: 0") != std::string::npos, second);
  });
}

TEST_CASE("only the first collectives are compared, and a mismatched size later is still an error here") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    const auto group = AxisGroup::Make(mesh, MeshAxis::kTp, {CheckOptions::Mode::kFirst, 1});
    AllReduce(*group, at::ones({2}));
    // Different labels on data of one shape: c10d cannot tell, and neither is it asked to.
    AllReduce(*group, at::ones({2}), group->rank() == 0 ? Layer() : Other());
    bool refused = false;
    try {
      AllGather(*group, at::ones({2}), 7);
    } catch (const PlanError& error) {
      refused = error.diagnostics()[0].finding == Finding::kCollectiveMismatch;
    }
    Expect(refused, "no data is exchanged for a shard that does not fit");
  });
}

}  // namespace
}  // namespace moonshard
