#include "engine/graph/size_rules/operand_checks.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <string>

#include "engine/graph/size_rules/dims.h"
#include "engine/graph/size_rules/rules.h"
#include "engine/graph/size_rules/size_rules.h"

namespace moonshard::graph {

namespace {
using Kind = SizeConflict::Kind;
}  // namespace

void TakeNoTwoShards(NodeSizes& n) {
  if (n.in_conflict()) return;
  // A shard of heads may be split into two dims, with the same elements. Operands that are sharded along one dim each
  // must be sharded along the same one.
  int sharded = 0;
  bool split = false;
  ForEachTensor(n, [&](const std::string& /*key*/, const LocalTensor& one) {
    const auto dims = std::ranges::count_if(one.dims, &LocalDim::is_sharded);
    if (dims > 0) ++sharded;
    split = split || dims > 1;
  });
  if (sharded < 2 || split) return;
  for (const LocalTensor& made : n.results) {
    const auto first = std::ranges::find_if(made.dims, &LocalDim::is_sharded);
    if (!made.known || first == made.dims.end()) continue;
    const auto second = std::find_if(first + 1, made.dims.end(), [](const LocalDim& dim) { return dim.is_sharded(); });
    if (second == made.dims.end()) continue;
    RefuseTwoShards(n, *first, *second);
    return;
  }
}

void TakeNoShardValues(NodeSizes& n) {
  static const std::set<std::string, std::less<>> kValues = {"alpha", "beta",   "correction", "diagonal", "fill_value",
                                                             "index", "k",      "ord",        "p",        "s",
                                                             "scale", "shifts", "value"};
  const SizeRule rule = SizeRuleOf(n.node().target);
  if (n.in_conflict() || rule == rules::Nothing) return;
  const auto refuse = [&](const std::string& name, const LocalNumber& number) {
    LocalDim dim;
    dim.origin = number.origin;
    const std::optional<double> full = AsFloat(number.full_value());
    const std::optional<double> local = AsFloat(number.local_value());
    const bool computed = number.computed_from_shard;
    const std::string values = !full || !local ? ""
                               : computed      ? " (" + NumberText(*local) + " instead of " + NumberText(*full) + ")"
                                               : " (" + SizeText(number) + ")";
    n.Conflict(computed ? Kind::kComputed : Kind::kFollowsShard,
               "its argument '" + name + "' is " + (computed ? "computed from " : "") + "the size of a shard" + values +
                   " and is used as a value, so the result differs from the full model",
               local, full, &dim);
  };
  const auto check = [&](const std::string& name, const ProgramArgument& argument) {
    if (argument.kind != ProgramArgument::Kind::kValue || n.IsTensor(argument)) return;
    if (rule != rules::Elementwise && !n.IsFloat(argument) && !kValues.contains(name)) return;
    if (const LocalNumber number = n.NumberOf(argument); number.follows_shard()) refuse(name, number);
  };
  for (const auto& [name, argument] : n.node().inputs) {
    check(name, argument);
    for (const ProgramArgument& element : argument.elements) check(name, element);
  }
}

}  // namespace moonshard::graph
