#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/graph/size_rules/dims.h"
#include "engine/graph/size_rules/rules.h"

namespace moonshard::graph::rules {

namespace {

// Whether a lookup at indices of a sharded dim cannot be followed: the indices are those of the full dim. The rows of a
// sharded parameter may be those of this rank's experts, with ids that are local to the rank (Route).
bool LooksAcrossShards(NodeSizes& n, const LocalTensor& self, size_t dim) {
  if (!self.dims[dim].is_sharded()) return false;
  n.of_local_experts = self.parameter && n.routes;
  if (!n.of_local_experts) CrossesShards(n, self.dims[dim], "it looks up indices");
  return true;
}

// Whether an index of as many dims as `self` has the local elements of `self` in all dims but `dim`. It may be shorter
// than a dim that is not sharded.
bool LiesWithin(NodeSizes& n, const LocalTensor& self, const LocalTensor& index, size_t dim) {
  for (size_t i = 0; i < self.dims.size(); ++i) {
    if (i == dim) continue;
    if (self.dims[i].is_sharded() && index.dims[i].full != self.dims[i].full) {
      CrossesShards(n, self.dims[i], "its index has the first elements");
      return false;
    }
    if (!n.Agree(self.dims[i], index.dims[i], "in a dim that must be equal, the tensor and the index")) return false;
  }
  return true;
}

// The dims of a tensor that is indexed in the dims `places`: the indices' common shape stands for them, at the first of
// them where they follow each other, else in front.
Dims Indexed(const LocalTensor& self, const std::vector<size_t>& places, const Dims& common) {
  const bool together = places.back() - places.front() + 1 == places.size();
  Dims out;
  if (!together) out = common;
  for (size_t i = 0; i < self.dims.size(); ++i) {
    if (together && i == places.front()) out.insert(out.end(), common.begin(), common.end());
    if (std::ranges::find(places, i) == places.end()) out.push_back(self.dims[i]);
  }
  return out;
}

}  // namespace

void IndexSelect(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  const LocalTensor* index = n.Tensor("index");
  if (self == nullptr || index == nullptr || index->dims.size() != 1) return;
  const auto dim = n.Dim("dim", self->dims.size());
  if (!dim || LooksAcrossShards(n, *self, *dim)) return;
  Dims out = self->dims;
  out[*dim] = index->dims[0];
  n.Set(0, std::move(out));
}

void Gather(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  const LocalTensor* index = n.Tensor("index");
  if (self == nullptr || index == nullptr || self->dims.size() != index->dims.size()) return;
  const auto dim = n.Dim("dim", self->dims.size());
  if (!dim || LooksAcrossShards(n, *self, *dim) || !LiesWithin(n, *self, *index, *dim)) return;
  n.Set(0, index->dims);
}

void Index(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  const ProgramArgument* list = n.Find("indices");
  if (self == nullptr || list == nullptr || list->kind != ProgramArgument::Kind::kList) return;
  std::vector<const LocalTensor*> indices;
  std::vector<size_t> places;
  size_t at = 0;
  for (const ProgramArgument& one : list->elements) {
    if (one.kind != ProgramArgument::Kind::kNone) {
      const LocalTensor* index = n.TensorOf(one);
      if (index == nullptr || n.IsMask(one) || at >= self->dims.size() || LooksAcrossShards(n, *self, at)) return;
      indices.push_back(index);
      places.push_back(at);
    }
    ++at;
  }
  std::optional<Dims> common = Broadcast(n, indices);
  if (!common || places.empty()) return;
  Dims out = Indexed(*self, places, *common);
  if (out.size() == n.FullSizes(0).size()) n.Set(0, std::move(out));
}

void Embedding(NodeSizes& n) {
  const LocalTensor* weight = n.Tensor("weight");
  const LocalTensor* ids = n.Tensor("indices");
  if (weight == nullptr || ids == nullptr || weight->dims.size() != 2) return;
  Dims out = ids->dims;
  out.push_back(weight->dims[1]);
  n.Set(0, std::move(out), weight->dims[0].is_sharded());
}

void WriteAlong(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  const LocalTensor* index = n.Tensor("index");
  if (self == nullptr || index == nullptr || index->dims.size() > 1) return;
  const auto dim = n.Dim("dim", self->dims.size());
  if (!dim) return;
  if (self->dims[*dim].is_sharded()) {
    CrossesShards(n, self->dims[*dim], "it writes at indices");
    return;
  }
  bool terms = self->terms;
  if (n.Find("source") != nullptr) {
    const LocalTensor* source = n.Tensor("source");
    if (source == nullptr || source->dims.size() != self->dims.size()) return;
    for (size_t i = 0; i < self->dims.size(); ++i) {
      if (i == *dim) continue;
      if (!n.Agree(self->dims[i], source->dims[i], "in a dim that must be equal, the tensor and the source")) return;
    }
    const LocalDim& rows = source->dims[*dim];
    if (!index->dims.empty() && !n.Agree(index->dims[0], rows, "the dims of the indices and of the source")) return;
    if (rows.is_sharded() && n.node().target.find("index_add") == std::string::npos) {
      CrossesShards(n, rows, "it copies the rows");
      return;
    }
    terms = terms || rows.is_sharded();  // each rank adds its own rows
  }
  n.Set(0, self->dims, terms);
}

void ScatterAlong(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  const LocalTensor* index = n.Tensor("index");
  if (self == nullptr || index == nullptr || self->dims.size() != index->dims.size()) return;
  if (self->dims.empty()) {
    n.Set(0, {}, self->terms);
    return;
  }
  const auto dim = n.Dim("dim", self->dims.size());
  if (!dim) return;
  if (self->dims[*dim].is_sharded()) {
    CrossesShards(n, self->dims[*dim], "it writes at indices");
    return;
  }
  if (!LiesWithin(n, *self, *index, *dim)) return;
  if (const LocalTensor* source = n.Tensor("src"); source != nullptr && source->dims.size() == index->dims.size()) {
    for (size_t i = 0; i < index->dims.size(); ++i) {
      if (source->dims[i].is_sharded() && source->dims[i].full != index->dims[i].full) {
        CrossesShards(n, source->dims[i], "it takes the first elements");
        return;
      }
      if (!n.Agree(index->dims[i], source->dims[i], "in a dim that must be equal, the index and the source")) return;
    }
  }
  const ProgramArgument* reduces = n.Find("reduce");
  const ProgramArgument* keeps = n.Find("include_self");
  const bool replaces = keeps != nullptr && keeps->kind == ProgramArgument::Kind::kBool && keeps->integer == 0;
  const bool adds = n.node().target.find("scatter_add") != std::string::npos ||
                    (n.node().target.find("scatter_reduce") != std::string::npos && reduces != nullptr &&
                     reduces->text == "sum" && (!replaces || self->zero));
  if (index->dims[*dim].is_sharded() && !adds) {
    CrossesShards(n, index->dims[*dim], "it writes elements");
    return;
  }
  n.Set(0, self->dims, self->terms || index->dims[*dim].is_sharded());
}

void WriteAt(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  const LocalTensor* values = n.Tensor("values");
  const ProgramArgument* list = n.Find("indices");
  if (self == nullptr || values == nullptr || list == nullptr || list->kind != ProgramArgument::Kind::kList) return;
  const bool one_value = std::ranges::all_of(values->dims, [](const LocalDim& dim) { return dim.full == 1; });
  constexpr int64_t kSelected = -1;
  LocalTensor selected{true};
  LocalDim& selection = selected.dims.emplace_back();
  selection.full = selection.local = kSelected;
  std::vector<const LocalTensor*> indices;
  std::vector<size_t> places;  // the dims that are indexed
  size_t at = 0;
  for (const ProgramArgument& argument : list->elements) {
    if (argument.kind == ProgramArgument::Kind::kNone) {
      ++at;
      continue;
    }
    const LocalTensor* index = n.TensorOf(argument);
    if (index == nullptr) return;
    const bool mask = n.IsMask(argument);
    const size_t count = mask ? index->dims.size() : 1;
    if (at + count > self->dims.size()) return;
    for (size_t i = 0; i < count; ++i) {
      const LocalDim& had = self->dims[at + i];
      if (mask && !n.Agree(had, index->dims[i], "in a dim that must be equal, the tensor and the mask")) return;
      if (!had.is_sharded() || (mask && one_value)) continue;
      CrossesShards(n, had, mask ? "it writes the values in the order" : "it writes at indices");
      return;
    }
    if (!mask && AnySharded(index->dims)) return;
    indices.push_back(mask ? &selected : index);
    for (size_t i = 0; i < count; ++i) places.push_back(at++);
  }
  if (places.empty()) return;
  const std::optional<Dims> common = Broadcast(n, indices);
  if (!common) return;
  const Dims written = Indexed(*self, places, *common);
  for (size_t back = 1; back <= values->dims.size() && back <= written.size(); ++back) {
    const LocalDim& given = values->dims[values->dims.size() - back];
    LocalDim place = written[written.size() - back];
    if (given.full == 1 && !given.is_sharded()) continue;
    if (place.full == kSelected) place.full = place.local = given.full;
    if (!n.Agree(place, given, "in a dim that must be equal, the tensor and the values")) return;
  }
  n.Set(0, self->dims, self->terms);
}

void MaskedScatter(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  const LocalTensor* source = n.Tensor("source");
  if (self == nullptr || source == nullptr) return;
  for (size_t i = 0; i < self->dims.size(); ++i) {
    const LocalDim& dim = self->dims[i];
    if (!dim.is_sharded()) continue;
    const bool alike = i + 1 == self->dims.size() && !source->dims.empty() && source->dims.back().local == dim.local &&
                       source->dims.back().full == dim.full;
    if (alike) continue;
    NeedsFullDim(n, dim);
    return;
  }
  LikeFirst(n);
}

}  // namespace moonshard::graph::rules
