#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/graph/size_rules/dims.h"
#include "engine/graph/size_rules/rules.h"

namespace moonshard::graph::rules {

void Reduce(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  if (self == nullptr) return;
  const size_t rank = self->dims.size();
  std::vector<bool> gone(rank, true);
  if (const auto dims = n.Numbers("dim"); dims && !dims->empty()) {
    gone.assign(rank, false);
    for (const LocalNumber& dim : *dims) {
      const int64_t at = *dim.full < 0 ? *dim.full + static_cast<int64_t>(rank) : *dim.full;
      if (at >= 0 && static_cast<size_t>(at) < rank) gone[static_cast<size_t>(at)] = true;
    }
  }
  const ProgramArgument* keep = n.Find("keepdim");
  const bool keeps = keep != nullptr && keep->kind == ProgramArgument::Kind::kBool && keep->integer != 0;
  Dims out;
  bool terms = self->terms;
  for (size_t i = 0; i < rank; ++i) {
    if (!gone[i]) {
      out.push_back(self->dims[i]);
    } else {
      if (keeps) out.emplace_back();
      if (!self->dims[i].is_sharded()) continue;
      if (n.node().target != "aten::sum" && n.node().target != "aten::nansum") {
        NeedsFullDim(n, self->dims[i]);
        return;
      }
      terms = true;
    }
  }
  for (size_t i = 0; i < n.results.size(); ++i) {
    if (n.HasResult(i) && n.FullSizes(i).size() == out.size()) n.Set(i, out, terms);
  }
}

void MaxOrMin(NodeSizes& n) { n.node().overload == "other" ? Elementwise(n) : Reduce(n); }

namespace {

// Results that depend on all elements along the dims that the argument `name` gives; no rank has all elements of a
// sharded dim.
void AlongDim(NodeSizes& n, const char* name, int64_t by_default) {
  const LocalTensor* self = n.node().inputs.empty() ? nullptr : n.TensorOf(n.node().inputs[0].second);
  if (self == nullptr) return;
  std::vector<int64_t> dims = {by_default};
  if (const ProgramArgument* given = n.Find(name); given != nullptr && given->kind != ProgramArgument::Kind::kNone) {
    const auto numbers = n.Numbers(name);
    if (!numbers) return;
    dims.clear();
    for (const LocalNumber& number : *numbers) dims.push_back(*number.full);
  }
  for (int64_t dim : dims) {
    if (dim < 0) dim += static_cast<int64_t>(self->dims.size());
    if (dim < 0 || static_cast<size_t>(dim) >= self->dims.size()) continue;
    const LocalDim& had = self->dims[static_cast<size_t>(dim)];
    if (!had.is_sharded()) continue;
    NeedsFullDim(n, had);
    return;
  }
  LikeFirst(n);
}

}  // namespace

void AlongGivenDim(NodeSizes& n) { AlongDim(n, "dim", -1); }

void AlongGivenDims(NodeSizes& n) {
  const LocalTensor* self = n.node().inputs.empty() ? nullptr : n.TensorOf(n.node().inputs[0].second);
  const auto dims = n.Numbers("dims");
  if (n.node().target == "aten::roll" && (!dims || dims->empty()) && self != nullptr) {
    // It rolls the flattened tensor.
    const auto sharded = std::ranges::find_if(self->dims, &LocalDim::is_sharded);
    if (sharded != self->dims.end()) {
      NeedsFullDim(n, *sharded);
      return;
    }
  }
  AlongDim(n, "dims", -1);
}

void Triangle(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  if (self == nullptr || self->dims.size() < 2) return;
  for (size_t i = self->dims.size() - 2; i < self->dims.size(); ++i) {
    if (!self->dims[i].is_sharded()) continue;
    NeedsFullDim(n, self->dims[i]);
    return;
  }
  LikeFirst(n);
}

void Diff(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  if (self == nullptr || self->dims.empty()) return;
  const size_t rank = self->dims.size();
  const auto dim = n.Find("dim") != nullptr ? n.Dim("dim", rank) : std::optional<size_t>(rank - 1);
  if (!dim || n.FullSizes(0).size() != rank) return;
  Dims out = self->dims;
  for (const char* name : {"prepend", "append"}) {
    const LocalTensor* more = n.Tensor(name);
    if (more == nullptr && n.Find(name) != nullptr) return;
    if (more == nullptr) continue;
    if (more->dims.size() != rank) return;
    for (size_t i = 0; i < rank; ++i) {
      if (i == *dim && more->dims[i].is_sharded()) return;
      if (i != *dim && !n.Agree(out[i], more->dims[i], "in a dim that must be equal, two operands")) return;
    }
  }
  if (out[*dim].is_sharded()) {
    NeedsFullDim(n, out[*dim]);
    return;
  }
  out[*dim] = Resized(out[*dim], n.FullSizes(0)[*dim], n.FullSizes(0)[*dim]);
  n.Set(0, std::move(out), self->terms);
}

void TopK(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  const LocalNumber k = n.Number("k");
  if (self == nullptr || !k.known() || self->dims.empty()) return;
  const auto dim = n.Find("dim") != nullptr ? n.Dim("dim", self->dims.size()) : self->dims.size() - 1;
  if (!dim) return;
  if (self->dims[*dim].is_sharded()) {
    NeedsFullDim(n, self->dims[*dim]);
    return;
  }
  Dims out = self->dims;
  out[*dim] = n.Made(k);
  for (size_t i = 0; i < n.results.size(); ++i) n.Set(i, out);
}

void CountInBins(NodeSizes& n) {
  const LocalNumber bins = n.Number("bins", 100);
  if (const LocalTensor* self = n.Tensor("self"); self != nullptr && AnySharded(self->dims)) {
    NeedsFullDim(n, *std::ranges::find_if(self->dims, &LocalDim::is_sharded));
    return;
  }
  if (bins.known()) n.Set(0, {n.Made(bins)});
}

void Norm(NodeSizes& n) {
  const LocalTensor* input = n.Tensor("input");
  const auto shape = n.Numbers("normalized_shape");
  if (input == nullptr || !shape || shape->size() > input->dims.size()) return;
  const size_t first = input->dims.size() - shape->size();
  for (size_t i = 0; i < shape->size(); ++i) {
    const LocalDim& had = input->dims[first + i];
    if (had.is_sharded()) {
      NeedsFullDim(n, had);
      return;
    }
    if (*(*shape)[i].local == had.local) continue;
    const bool literal = (*shape)[i].literal;
    const LocalDim number = n.Made((*shape)[i]);
    n.Conflict(
        literal ? Kind::kInteger : Kind::kFollowsShard,
        "it normalizes over " + SizeText((*shape)[i]) + " features, but its input has " + SizeText(had) + " features",
        *(*shape)[i].local, had.local, had.is_sharded() ? &had : &number, nullptr,
        literal ? static_cast<int32_t>(n.index()) : LocalDim::kNone);
    return;
  }
  for (const char* name : {"weight", "bias"}) {
    const LocalTensor* parameter = n.Tensor(name);
    if (parameter == nullptr) continue;
    for (size_t i = 0; i < parameter->dims.size() && i < shape->size(); ++i) {
      if (!n.Agree(input->dims[first + i], parameter->dims[i],
                   std::string("the feature dims of its input and of its ") + name))
        return;
    }
  }
  n.Set(0, input->dims);
}

void BatchNorm(NodeSizes& n) {
  const LocalTensor* input = n.Tensor("input");
  const ProgramArgument* trains = n.Find("training");
  if (input == nullptr || trains == nullptr || trains->kind != ProgramArgument::Kind::kBool) return;
  if (input->dims.size() < 2) return;
  for (size_t i = 0; i < input->dims.size(); ++i) {
    if (i == 1 || trains->integer == 0 || !input->dims[i].is_sharded()) continue;
    NeedsFullDim(n, input->dims[i]);
    return;
  }
  for (const char* name : {"weight", "bias", "running_mean", "running_var"}) {
    const LocalTensor* of_channels = n.Tensor(name);
    if (of_channels == nullptr && n.Find(name) != nullptr) return;
    if (of_channels == nullptr || of_channels->dims.size() != 1) continue;
    if (!n.Agree(input->dims[1], of_channels->dims[0], "the channels of its input and of its " + std::string(name)))
      return;
  }
  n.Set(0, input->dims);
}

void AllButBatch(NodeSizes& n) {
  const LocalTensor* input = n.node().inputs.empty() ? nullptr : n.TensorOf(n.node().inputs[0].second);
  if (input == nullptr) return;
  for (size_t i = 1; i < input->dims.size(); ++i) {
    if (!input->dims[i].is_sharded()) continue;
    NeedsFullDim(n, input->dims[i]);
    return;
  }
  Dims out;
  for (const int64_t size : n.FullSizes(0)) {
    LocalDim& dim = out.emplace_back();
    dim.full = dim.local = size;
  }
  if (!out.empty() && !input->dims.empty()) out[0] = input->dims[0];
  n.Set(0, std::move(out));
}

void Pool(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  const std::vector<int64_t>& full = n.FullSizes(0);
  const size_t windows = n.node().target.find("1d") != std::string::npos   ? 1
                         : n.node().target.find("3d") != std::string::npos ? 3
                                                                           : 2;
  if (self == nullptr || full.size() != self->dims.size() || full.size() < windows) return;
  Dims out = self->dims;
  for (size_t i = full.size() - windows; i < full.size(); ++i) {
    if (self->dims[i].is_sharded()) {
      NeedsFullDim(n, self->dims[i]);
      return;
    }
    out[i] = LocalDim();
    out[i].full = out[i].local = full[i];
  }
  for (size_t i = 0; i < n.results.size(); ++i) n.Set(i, out);
}

void Upsample(NodeSizes& n) {
  const LocalTensor* self = n.node().inputs.empty() ? nullptr : n.TensorOf(n.node().inputs[0].second);
  const std::vector<int64_t>& full = n.FullSizes(0);
  if (self == nullptr || full.size() != self->dims.size()) return;
  if (n.Find("output_size") != nullptr) {
    const auto sizes = n.Numbers("output_size");
    if (!sizes || std::ranges::any_of(*sizes, &LocalNumber::follows_shard)) return;
  }
  Dims out = self->dims;
  for (size_t i = 2; i < full.size(); ++i) {
    if (out[i].is_sharded()) {
      NeedsFullDim(n, out[i]);
      return;
    }
    out[i] = Resized(out[i], full[i], full[i]);
  }
  n.Set(0, std::move(out), self->terms);
}

void LossOfPairs(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  const LocalTensor* target = n.Tensor("target");
  if (self == nullptr || target == nullptr) return;
  std::optional<Dims> dims = Broadcast(n, {self, target});
  if (!dims) return;
  const int64_t reduction = n.Number("reduction", 1).full.value_or(1);
  if (reduction == 0) {
    n.Set(0, std::move(*dims));
    return;
  }
  const auto sharded = std::ranges::find_if(*dims, &LocalDim::is_sharded);
  if (sharded != dims->end() && reduction != 2) {
    NeedsFullDim(n, *sharded);
    return;
  }
  n.Set(0, {}, sharded != dims->end());
}

void Loss(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  const LocalTensor* target = n.Tensor("target");
  if (self == nullptr || target == nullptr || self->dims.empty() || target->dims.empty()) return;
  if (!n.Agree(self->dims[0], target->dims[0], "the token dims of the logits and of the labels")) return;
  const LocalDim& classes = self->dims[self->dims.size() > 1 ? 1 : 0];
  if (classes.is_sharded()) {
    n.Conflict(Kind::kNeedsFullDim,
               "the loss depends on all logits of a token, of size " + SizeText(classes) +
                   ", of which a rank has only its shard",
               classes.full, classes.local, &classes);
    return;
  }
  if (!n.FullSizes(0).empty()) {
    n.Set(0, target->dims);
    return;
  }
  const bool sums = n.Number("reduction", 1).full == 2;
  if (self->dims[0].is_sharded() && !sums) {
    NeedsFullDim(n, self->dims[0]);
    return;
  }
  n.Set(0, {}, self->dims[0].is_sharded());
}

}  // namespace moonshard::graph::rules
