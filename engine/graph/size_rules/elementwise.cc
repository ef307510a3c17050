#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/graph/size_rules/dims.h"
#include "engine/graph/size_rules/partial_sums.h"
#include "engine/graph/size_rules/rules.h"

namespace moonshard::graph::rules {

namespace {

// Whatever is computed from terms of a sum is not what it is of the sum, or is terms again: linear operators or not, it
// takes a reduction over the ranks before it is the same on all of them.
bool AnyTerms(const std::vector<const LocalTensor*>& operands) {
  return std::ranges::any_of(operands, [](const LocalTensor* one) { return one->terms; });
}

}  // namespace

void Elementwise(NodeSizes& n) {
  const auto operands = n.Tensors();
  if (!operands || operands->empty()) return;
  std::optional<Dims> dims = Broadcast(n, *operands);
  if (!dims) return;
  n.Set(0, std::move(*dims), AnyTerms(*operands));
}

void BroadcastAll(NodeSizes& n) {
  const auto operands = n.Tensors();
  if (!operands || operands->empty()) return;
  const std::optional<Dims> dims = Broadcast(n, *operands);
  if (!dims) return;
  for (size_t i = 0; i < n.results.size() && i < operands->size(); ++i) n.Set(i, *dims, (*operands)[i]->terms);
}

void LikeFirst(NodeSizes& n) {
  const LocalTensor* first = n.node().inputs.empty() ? nullptr : n.TensorOf(n.node().inputs[0].second);
  if (first == nullptr) return;
  for (size_t i = 0; i < n.results.size(); ++i) {
    if (n.HasResult(i)) n.Set(i, first->dims, first->terms && !TakesShapeOnly(n.node().target));
  }
}

void Copy(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  const LocalTensor* source = n.Tensor("src");
  if (self == nullptr || source == nullptr) return;
  if (Broadcast(n, {self, source})) n.Set(0, self->dims, source->terms);
}

void PRelu(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  const LocalTensor* weight = n.Tensor("weight");
  if (self == nullptr || weight == nullptr) return;
  const bool one = std::ranges::all_of(weight->dims, [](const LocalDim& dim) { return dim.full == 1; });
  if (one ? AnySharded(weight->dims) : self->dims.size() < 2 || weight->dims.size() != 1) return;
  if (!one && !n.Agree(self->dims[1], weight->dims[0], "the channels of its input and of its weight")) return;
  n.Set(0, self->dims);
}

void Make(NodeSizes& n) {
  const auto sizes = n.Numbers("size");
  if (!sizes) return;
  Dims out;
  for (const LocalNumber& size : *sizes) out.push_back(n.Made(size));
  n.Set(0, std::move(out));
}

void Arange(NodeSizes& n) {
  for (const char* name : {"start", "end", "step"}) {
    if (n.Find(name) == nullptr) continue;
    const LocalNumber number = n.Number(name);
    if (!number.known()) {
      if (number.known_float() && !number.follows_shard()) continue;
      return;
    }
    if (!number.follows_shard()) continue;
    const LocalDim made = n.Made(number);
    n.Conflict(Kind::kFollowsShard,
               "its argument '" + std::string(name) + "' is " + (number.computed_from_shard ? "computed from " : "") +
                   "the size of a shard (" + SizeText(number) +
                   "), so every rank generates the same range instead of its own part of the full range",
               *number.local, *number.full, &made);
    return;
  }
  LocalDim made;
  made.full = made.local = n.FullSizes(0).empty() ? 1 : n.FullSizes(0)[0];
  const ProgramArgument* end = n.Find("end");
  const bool literal = end == nullptr || end->kind != ProgramArgument::Kind::kValue;
  if (literal && made.full > 1) made.integer_at = static_cast<int32_t>(n.index());
  n.Set(0, {made});
}

void OneHot(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  const LocalNumber classes = n.Number("num_classes", -1);
  if (self == nullptr || !classes.known() || *classes.full < 0) return;
  Dims out = self->dims;
  out.push_back(n.Made(classes));
  n.Set(0, std::move(out));
}

void Nothing(NodeSizes&) {}

}  // namespace moonshard::graph::rules
