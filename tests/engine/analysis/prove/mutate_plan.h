// PlanMutator: a plan with something else in it, somewhere. What it makes may be right by chance, refused, or wrong
// without anyone noticing: plan_fuzz_test.cc finds out. Changes are of one kind each, so that two of a plan can be of
// two kinds:
//
//   layout     another layout, head count, packing or owner of a parameter, an input or an output
//   rule       a rule deleted, a style swapped with another rule's, a lookup, a route, a parameter added after the sum
//   narrower   a layout or a rule changed for one layer, or for one of the projections that a pattern names
//   option     a style of the same plan under other options
//   section    fsdp, ddp, recompute, precision, dtypes that are kept
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "engine/plan/plan/plan.h"

namespace moonshard::test {

enum class Mutation : uint8_t { kLayout, kRule, kNarrower, kOption, kSection };
inline constexpr int kMutations = 5;
const char* ToString(Mutation mutation);

// The same generator gives the same changes on every machine: it is used by its raw numbers alone.
class PlanMutator {
 public:
  // `other`: the plan under other options; may be null. It outlives the mutator. `axis`: the mesh axis of the layouts
  // that change.
  explicit PlanMutator(uint64_t seed, const Plan* other = nullptr, MeshAxis axis = MeshAxis::kTp)
      : random_(seed), other_(other), axis_(axis) {}

  // What was changed, for people: "rule 3 (model.layers.*.mlp.down_proj): params.weight: shard(1) -> packed(1,2)". "":
  // no change of this kind was found.
  std::string Mutate(Plan& plan, Mutation mutation);
  size_t Below(size_t end) { return static_cast<size_t>(random_() % end); }

 private:
  Layout& On(Placement& placement) const { return placement[axis_]; }
  Layout AnyLayout();
  bool Change(Layout& layout);
  std::string ChangeOneOf(std::map<std::string, Placement>& placements, const std::string& what);
  std::string ChangeLayout(Rule& rule);
  std::string ChangeRule(Plan& plan, size_t at);
  std::string ChangeNarrower(Plan& plan, size_t at);
  std::string ChangeOption(Rule& rule);
  std::string ChangeSection(Plan& plan);
  std::string ChangeRedistribution(std::vector<std::optional<Redistribution>>& list, const std::string& what);

  std::mt19937_64 random_;
  const Plan* other_;
  MeshAxis axis_;
};

}  // namespace moonshard::test
