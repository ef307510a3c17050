#include "engine/graph/size_rules/late_parameters.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "engine/graph/size_rules/partial_sums.h"
#include "engine/graph/size_rules/rules.h"
#include "engine/graph/size_rules/size_rules.h"

namespace moonshard::graph {

namespace {
using Kind = SizeConflict::Kind;
}  // namespace

namespace {

// Whether the operand `key` is a bias that the operator adds as it is along the last dim of its result.
bool IsLastBias(const NodeSizes& n, std::string_view key) {
  const std::string_view name = PlainName(n.node().target);
  if (name == "linear") return key == "bias";
  if (name != "addmm" || key != "self") return false;
  const ProgramArgument* factor = n.Find("beta");
  return factor == nullptr || AsFloat(n.NumberOf(*factor).full_value()) == 1;
}

// Whether the operator copies the operand or some of its rows: addition of a row to each is the same before and after.
bool MovesRows(const NodeSizes& n, const LocalTensor& operand) {
  static const std::set<std::string_view> kCopies = {"to",     "_to_copy", "contiguous",      "clone",
                                                     "detach", "alias",    "lift_fresh_copy", "lift_fresh"};
  static const std::set<std::string_view> kViews = {"view",    "reshape",   "_unsafe_view", "_reshape_alias",
                                                    "flatten", "unflatten", "unsqueeze",    "squeeze",
                                                    "view_as", "reshape_as"};
  static const std::set<std::string_view> kMoves = {"transpose", "permute", "slice", "narrow", "select"};
  const std::string_view name = PlainName(n.node().target);
  if (kCopies.contains(name)) return !n.LosesFractions();
  if (name == "dropout") {
    const ProgramArgument* trains = n.Find("train");
    const ProgramArgument* p = n.Find("p");
    return (trains != nullptr && trains->kind == ProgramArgument::Kind::kBool && trains->integer == 0) ||
           (p != nullptr && AsFloat(n.NumberOf(*p).full_value()) == 0);
  }
  const size_t rank = operand.dims.size();
  const std::vector<int64_t>& made = n.FullSizes(0);
  if (rank == 0 || made.empty()) return false;
  if (kViews.contains(name)) return made.back() == operand.dims.back().full;
  if (!kMoves.contains(name)) return false;
  if (name == "permute") {
    const auto order = n.Numbers("dims");
    return order && order->size() == rank &&
           (*order->back().full == -1 || *order->back().full == static_cast<int64_t>(rank) - 1);
  }
  if (name == "transpose") {
    const auto a = n.Dim("dim0", rank);
    const auto b = n.Dim("dim1", rank);
    return a && b && (*a == *b || (*a + 1 != rank && *b + 1 != rank));
  }
  const auto dim = n.Find("dim") != nullptr ? n.Dim("dim", rank) : std::optional<size_t>(0);
  return dim && *dim + 1 != rank;
}

// Whether the operator adds something else to the operand `key`.
bool AddsTo(const NodeSizes& n, std::string_view key, const LocalTensor& operand) {
  const std::string_view name = PlainName(n.node().target);
  const ProgramArgument* factor = n.Find("alpha");
  const bool once = key == "self" || factor == nullptr || AsFloat(n.NumberOf(*factor).full_value()) == 1;
  const std::vector<int64_t>& made = n.FullSizes(0);
  const bool adds = (name == "add" && once) || (name == "sub" && key == "self");
  return adds && !operand.dims.empty() && !made.empty() && made.back() == operand.dims.back().full;
}

}  // namespace

void TakeLate(NodeSizes& n) {
  if (n.in_conflict() || SizeRuleOf(n.node().target) == rules::Nothing) return;
  std::vector<uint32_t> lacks;
  int32_t lacks_at = LocalDim::kNone;
  const auto late = [&](uint32_t value, const std::string& why) {
    n.Conflict(Kind::kLate, "it " + why, std::nullopt, std::nullopt, nullptr);
    n.conflict->parameter = static_cast<int32_t>(value);
  };
  const auto take = [&](const std::string& key, const ProgramArgument& argument, bool first) {
    const LocalTensor* one = n.TensorOf(argument);
    if (one == nullptr) return;
    if (one->late && !IsLastBias(n, key))
      late(argument.value, "reads the parameter otherwise than as the bias of a linear operator");
    if (one->late && lacks_at < 0) lacks_at = static_cast<int32_t>(n.index());
    if (one->late) lacks.push_back(argument.value);
    const bool reads_shape = TakesShapeOnly(n.node().target) && !n.node().target.ends_with('_');
    if (one->lacks.empty() || reads_shape) return;
    const bool keeps = (first && MovesRows(n, *one)) || AddsTo(n, key, *one);
    if (!keeps) late(one->lacks.front(), "changes a tensor after the parameter was added to it");
    lacks.insert(lacks.end(), one->lacks.begin(), one->lacks.end());
    if (lacks_at < 0) lacks_at = one->lacks_at;
  };
  for (size_t i = 0; i < n.node().inputs.size(); ++i) {
    const auto& [key, argument] = n.node().inputs[i];
    take(key, argument, i == 0);
    for (const ProgramArgument& element : argument.elements) take(key, element, false);
  }
  for (LocalTensor& made : n.results) {
    made.lacks = lacks;
    made.lacks_at = lacks_at;
  }
}

}  // namespace moonshard::graph
