// Ranks that call different fsdp units of equal size: every one of them ends with an error that names the units, also
// where the ranks do not compare their collectives, and the next step is exact.
#include "engine/runtime/fsdp/unit_stamp.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/types.h>

#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/nn/hook.h"
#include "engine/runtime/nn/linear.h"
#include "engine/runtime/sharded_model/state.h"
#include "tests/support/predicted.h"
#include "tests/support/ranks.h"
#include "tests/support/styles.h"

namespace moonshard::test {
namespace {

constexpr int64_t kWidth = 6;
constexpr size_t kExperts = 4;

// Experts of equal size, whose results are added to the stream in order. A rank may leave out some of them, or have no
// gradient for some.
struct ExpertsImpl : torch::nn::Module {
  ExpertsImpl() {
    stem = register_module("stem", nn::Linear(torch::nn::LinearOptions(kWidth, kWidth)));
    for (size_t i = 0; i < kExperts; ++i) {
      experts.emplace_back(register_module("expert_" + std::to_string(i),
                                           nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false))));
    }
    int64_t seed = 1;
    for (at::Tensor& p : parameters()) {
      p.set_data((torch::arange(p.numel(), torch::kFloat64).reshape(p.sizes()) * seed++).remainder(5) - 2);
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = stem(x);
    for (size_t i = 0; i < kExperts; ++i) {
      if (skipped.contains(i)) continue;
      const at::Tensor z = experts[i](y);
      y = y + (detached.contains(i) ? z.detach() : z);
    }
    return y;
  }
  nn::Linear stem = nullptr;
  std::vector<nn::Linear> experts;
  std::set<size_t> skipped;
  std::set<size_t> detached;
};
MOONSHARD_MODULE(Experts);

Plan PlanOfExperts(DataParallel::Reshard reshard, int64_t prefetch, int64_t ranks = 0) {
  Style full;
  full.name = "whole";
  Plan plan = PlanOfRules("experts", {{"{stem,expert_*}", full}});
  DataParallel section;
  section.wrap = {{"expert_*"}};
  section.reshard = reshard;
  section.reshard_ranks = ranks;
  section.prefetch_forward = section.prefetch_backward = prefetch;
  section.source.line = 9;
  plan.data_parallel = section;
  return plan;
}

at::Tensor InputOf(int64_t rank) {
  return (torch::arange(2 * kWidth, torch::kFloat64) * (rank + 2)).remainder(3).reshape({2, kWidth}) - 1;
}

void StepOf(ParallelModel<Experts>& model, int64_t rank) { model.forward(InputOf(rank)).sum().backward(); }

// The gradients of a step of all ranks, in which no expert is left out.
void ExpectExactStep(ParallelModel<Experts>& model, const DeviceMesh& mesh) {
  Experts full;
  const int64_t ranks = mesh.shape().world_size();
  for (int64_t r = 0; r < ranks; ++r) (full(InputOf(r)).sum() / static_cast<double>(ranks)).backward();
  model.net()->zero_grad();
  StepOf(model, mesh.rank());
  const auto want = full->named_parameters();
  for (const LiveParameter& p : model.applied().parameters()) {
    const at::Tensor got = GatherFull(model, p, p.tensor.grad());
    Expect(torch::allclose(got, want[p.path].grad(), 1e-12, 1e-12), "gradient of " + p.path);
  }
}

struct Mistake {
  std::string what;
  DataParallel::Reshard reshard = DataParallel::Reshard::kAlways;
  int64_t prefetch = 0;
  size_t expert = 0;      // that some ranks leave out
  bool backward = false;  // in the backward only
  std::string says;
  std::string first;  // the unit of the ranks that leave out nothing
  std::string other;  // of those that do
  int64_t neighbours = 0;
};

std::vector<Mistake> Mistakes() {
  using R = DataParallel::Reshard;
  const std::string gather = "gather the parameters of different units";
  const std::string sum = "sum the gradients of different units";
  return {
      {"skipped in forward", R::kAlways, 0, 1, false, gather, "expert_1", "expert_2"},
      {"skipped in forward, full until the backward", R::kNever, 0, 0, false, gather, "expert_0", "expert_1"},
      {"without a gradient", R::kAlways, 0, 2, true, gather, "expert_2", "expert_1"},
      {"gradients alone", R::kNever, 0, 2, true, sum, "expert_2", "expert_1"},
      {"gathered ahead", R::kAlways, 1, 2, false, gather, "expert_2", "expert_1"},
      {"two gathered ahead", R::kAlways, 2, 2, false, gather, "expert_2", "expert_1"},
      {"without a gradient, among neighbours", R::kSome, 0, 2, true, gather, "expert_2", "expert_1", 2},
      {"gathered ahead among neighbours", R::kSome, 1, 2, false, gather, "expert_2", "expert_1", 2},
  };
}

TEST_CASE("a unit that only some ranks call is an error on every rank, and the next step is exact") {
  for (const std::string mesh_text : {"dp=2", "dp=3", "dp=4"}) {
    for (const Mistake& mistake : Mistakes()) {
      if (mistake.neighbours > 0 && mesh_text != "dp=4") continue;
      DYNAMIC_SECTION(mesh_text << ", " << mistake.what) {
        RunRanks(mesh_text, [&](DeviceMesh& mesh) {
          ApplyOptions options;
          options.check.mode = CheckOptions::Mode::kNever;
          auto model = Parallelize(Experts(), PlanOfExperts(mistake.reshard, mistake.prefetch, mistake.neighbours),
                                   mesh, options);
          for (int i = 0; i < 2; ++i) ExpectExactStep(model, mesh);
          // Every second rank of neighbours, so that each pair of them disagrees.
          const bool leaves_out =
              mistake.neighbours > 0 ? mesh.rank() % 2 == 1 : mesh.rank() == mesh.shape().world_size() - 1;
          std::set<size_t>& left_out = mistake.backward ? model.net()->detached : model.net()->skipped;
          if (leaves_out) left_out = {mistake.expert};
          std::string text;
          try {
            StepOf(model, mesh.rank());
          } catch (const PlanError& error) {
            Expect(error.diagnostics()[0].finding == Finding::kCollectiveMismatch, error.what());
            text = error.what();
          }
          for (const std::string& part : {mistake.says, "unit '" + mistake.first + "' (line 9)",
                                          "unit '" + mistake.other + "' (line 9)", std::string("wrap the block")}) {
            Expect(text.find(part) != std::string::npos, "no \"" + part + "\" in: " + text);
          }
          const std::string own = "at: unit '" + (leaves_out ? mistake.other : mistake.first) + "'";
          Expect(text.find(own) != std::string::npos, "no \"" + own + "\" in: " + text);
          left_out.clear();
          ExpectExactStep(model, mesh);
        });
      }
    }
  }
}

TEST_CASE("a unit that no rank calls is no error, and the collectives are those predicted") {
  for (const auto reshard : {DataParallel::Reshard::kAlways, DataParallel::Reshard::kNever}) {
    RunRanks("dp=3", [&](DeviceMesh& mesh) {
      auto model = Parallelize(Experts(), PlanOfExperts(reshard, 1), mesh);
      ExpectExactStep(model, mesh);
      model.applied().ClearCounts();
      StepOf(model, mesh.rank());
      ExpectPredicted(model.applied(), mesh.rank(), Tokens{1, 2});
      model.net()->skipped = {1};
      for (int i = 0; i < 2; ++i) StepOf(model, mesh.rank());
      model.net()->skipped.clear();
      model.net()->detached = {2};
      for (int i = 0; i < 2; ++i) StepOf(model, mesh.rank());
    });
  }
}

std::string ErrorOf(const std::function<void()>& compare) {
  try {
    compare();
  } catch (const PlanError& error) {
    return error.what();
  }
  return "";
}

void ExpectParts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) Expect(text.find(part) != std::string::npos, "no \"" + part + "\" in: " + text);
}

TEST_CASE("a stamp survives every dtype, and the sum over any number of ranks") {
  const auto labels = std::make_shared<std::vector<std::string>>();
  for (int i = 0; i < 20000; ++i) labels->push_back("unit " + std::to_string(i));
  for (const auto dtype :
       {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf, at::kInt, at::kByte, at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
    RunRanks("dp=2", [&](DeviceMesh& mesh) {
      const auto group = AxisGroup::Make(mesh, MeshAxis::kDpShard);
      const auto stamp = [&](size_t unit) { return UnitStamp(unit, labels).Make(dtype); };
      const auto gathered = [&](size_t own, size_t other) {
        const at::Tensor all = at::stack({stamp(own).to(at::kFloat), stamp(other).to(at::kFloat)}).to(dtype);
        std::string text = ErrorOf([&] { UnitStamp(own, labels).CompareGathered(all, stamp(own), *group); });
        Expect(UnitStamp::GatheredAlike(all, stamp(own)).item<bool>() == text.empty(), "as on a GPU");
        return text;
      };
      for (size_t unit : {0, 1, 255, 256, 257, 19999}) {
        Expect(gathered(unit, unit).empty(), "equal stamps differ");
        for (size_t other : {0, 2, 254, 19998}) {
          if (unit == other) continue;
          ExpectParts(gathered(unit, other),
                      {"rank 0: unit " + std::to_string(unit) + ";", "rank 1: unit " + std::to_string(other) + "\n"});
        }
      }
      if (at::elementSize(dtype) == 1) return;  // no sums
      // Added one after the other, as a ring does: in bfloat16 a sum of ones stays at 256.
      const auto summed = [&](size_t own, const std::vector<std::pair<size_t, int>>& units) {
        at::Tensor sums = at::zeros({UnitStamp::kElements}, dtype);
        for (const auto& [unit, ranks] : units) {
          for (int i = 0; i < ranks; ++i) sums = sums + stamp(unit);
        }
        std::string text = ErrorOf([&] { UnitStamp(own, labels).CompareSums(sums, *group); });
        Expect(UnitStamp::SummedAlike(sums).item<bool>() == text.empty(), "as on a GPU");
        return text;
      };
      for (int ranks : {1, 2, 3, 300, 1000}) {
        Expect(summed(77, {{77, ranks}}).empty(), "the sum of equal stamps differs");
        ExpectParts(summed(77, {{77, ranks}, {3, 1}}), {"unit 77;", "another rank: unit 3\n"});
        ExpectParts(summed(3, {{77, ranks}, {3, 1}}), {"unit 3;", "another rank: unit 77\n"});
        ExpectParts(summed(0, {{0, 1}, {1, ranks}, {2, 1}}), {"unit 0;", "not the same on all other ranks"});
      }
    });
  }
}

}  // namespace
}  // namespace moonshard::test
