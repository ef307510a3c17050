#include "engine/analysis/types/local_indices.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace moonshard {
namespace {

template <size_t kCount>
bool IsOneOf(const std::array<std::string_view, kCount>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

// The results have the same values as the first operand, or some of them.
bool Moves(std::string_view name) {
  constexpr std::array<std::string_view, 23> kNames = {
      "view",    "_unsafe_view", "_reshape_alias", "reshape", "t",      "transpose", "permute",     "unsqueeze",
      "squeeze", "expand",       "slice",          "narrow",  "select", "split",     "unbind",      "split_with_sizes",
      "clone",   "contiguous",   "_to_copy",       "detach",  "alias",  "index",     "index_select"};
  return IsOneOf(kNames, name);
}

// The results follow the sizes of the operand alone.
bool ReadsSizes(std::string_view name) {
  constexpr std::array<std::string_view, 8> kNames = {"zeros_like", "ones_like", "empty_like", "full_like",
                                                      "new_zeros",  "new_ones",  "new_empty",  "new_full"};
  return IsOneOf(kNames, name);
}

// Whether operand `i` is one of the indices.
bool IsIndex(const Operands& o, size_t i) {
  if (i == 0) return false;
  const std::string_view name = o.name();
  if (name == "index") return true;
  if (name == "index_put" || name == "_index_put_impl") return i + 1 < o.size();
  return i == 1 && (name == "index_select" || name == "index_add" || name == "index_copy");
}

// Of a matrix with one column of local indices: whether the operator keeps the columns apart.
bool KeepsColumns(const Operands& o) {
  const std::string_view name = o.name();
  if (name == "select" || name == "unbind") return true;
  if (name == "slice" || name == "narrow") return o.Dim(1, o.dims(0)) == 0;
  return name == "clone" || name == "contiguous" || name == "detach" || name == "alias" || name == "_to_copy";
}

}  // namespace

std::string LocalIndicesMisused(const Operands& o) {
  for (size_t i = 0; i < o.size(); ++i) {
    const AxisType& type = o.type(i);
    if (type.local_in == nullptr || ReadsSizes(o.name())) continue;
    const bool column = type.local_column >= 0;
    if (!column && IsIndex(o, i)) continue;
    if (i == 0 && Moves(o.name()) && (!column || KeepsColumns(o))) continue;
    return "indices into the shard of each rank are used as values, and are not the indices of the full tensor";
  }
  return "";
}

void SetLocalIndices(const Operands& o, AxisTypes& made) {
  if (o.name() == "nonzero") return;
  if (o.size() == 0 || o.type(0).local_in == nullptr || !Moves(o.name())) {
    for (AxisType& type : made) {
      type.local_in = nullptr;
      type.local_column = -1;
    }
    return;
  }
  const AxisType& from = o.type(0);
  const bool columns = from.local_column >= 0 && (o.name() == "select" || o.name() == "unbind");
  if (columns && o.name() == "unbind" && made.size() == 1) made.resize(o.products(), AxisType(made.front()));
  for (size_t i = 0; i < made.size(); ++i) {
    const int64_t column =
        o.name() == "select" ? o.Int(2) + (o.Int(2) < 0 ? o.sizes(0).back() : 0) : static_cast<int64_t>(i);
    const bool local = made[i].is_shard() && (!columns || column == from.local_column);
    made[i].local_in = local ? from.local_in : nullptr;
    made[i].local_column = local && !columns ? from.local_column : -1;
  }
}

}  // namespace moonshard
