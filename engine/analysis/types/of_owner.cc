#include "engine/analysis/types/of_owner.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

namespace moonshard {
namespace {

bool IsEmpty(at::IntArrayRef sizes) { return std::ranges::count(sizes, 0) > 0; }

// Whether an operator makes zeros of tensors without elements: a sum over them.
bool MakesZeros(std::string_view name) {
  constexpr std::array<std::string_view, 3> kNames = {"mm", "bmm", "sum"};
  return std::ranges::find(kNames, name) != kNames.end();
}

bool IsShardOrReplicate(const AxisType& type) { return type.is_shard() || type.is_replicate(); }

// The owner of all shards with an owner; -1: there is none, or they differ.
int64_t OwnerAmong(std::span<const AxisType> types) {
  int64_t owner = -1;
  for (const AxisType& type : types) {
    if (!type.is_owned()) continue;
    if (owner >= 0 && OwnerOf(type) != owner) return -1;
    owner = OwnerOf(type);
  }
  return owner;
}

bool MakesNothingElsewhere(const Operands& o, int64_t owner) {
  bool empty = o.products() > 0 && o.rank() != owner;
  for (size_t i = 0; i < o.products(); ++i) empty = empty && IsEmpty(o.made(i));
  return empty;
}

}  // namespace

int64_t OwnerOf(const AxisType& type) {
  if (type.is(TypeKind::kVarying)) return type.owner;
  if (!type.is_owned()) return -1;
  int64_t rank = 0;
  while (type.map->length(rank) == 0) ++rank;
  return rank;
}

int64_t OneOwner(c10::ArrayRef<AxisType> types) {
  int64_t owner = -1;
  for (const AxisType& type : types) {
    if (type.is_replicate() && type.local == 0) continue;
    const int64_t here = OwnerOf(type);
    if (here < 0 || (owner >= 0 && here != owner)) return -1;
    owner = here;
  }
  return owner;
}

void TakeAsTerms(c10::ArrayRef<Operand> operands, int64_t rank, std::span<AxisType> types) {
  const bool alone = OneOwner({types.data(), types.size()}) >= 0;
  for (size_t i = 0; i < types.size(); ++i) {
    AxisType& type = types[i];
    if (!type.is(TypeKind::kVarying) || type.owner < 0) continue;
    if (type.owner == rank ? alone : IsEmpty(operands[i].sizes)) continue;
    AxisType terms = AxisType::Partial();
    terms.since = type.since;
    type = terms;
  }
}

bool AsOfOwner(const Operands& o, std::span<AxisType> types) {
  const bool alone = OneOwner({types.data(), types.size()}) >= 0;
  const int64_t owner = OwnerAmong(types);
  if (owner < 0) return false;
  if (!alone && (!MakesNothingElsewhere(o, owner) || !std::ranges::all_of(types, IsShardOrReplicate))) return false;
  for (AxisType& type : types) {
    if (type.is_owned() || (!alone && !type.is_replicate())) type = AxisType::OfOwner(owner);
  }
  return true;
}

bool MeetsTermsElsewhere(const Operands& o, std::span<const AxisType> types) {
  const int64_t owner = OwnerAmong(types);
  return owner >= 0 && MakesNothingElsewhere(o, owner) && !std::ranges::all_of(types, IsShardOrReplicate);
}

AxisTypes OfOwner(Operands& o, const std::string& why) {
  std::vector<AxisType> types;
  for (size_t i = 0; i < o.size(); ++i) types.push_back(o.type(i));
  const int64_t owner = OneOwner(types);
  if (owner < 0) return {o.Unproven("tensors that one rank has are combined with tensors that differ between ranks")};
  if (o.products() == 0) return {o.Unproven("a number is read from a tensor that one rank has")};
  const AxisType own = AxisType::OfOwner(owner);
  AxisTypes out;
  for (size_t i = 0; i < o.products(); ++i) {
    const bool whole = o.rank() == owner || IsEmpty(o.made(i));
    if (!whole && !MakesZeros(o.name())) return {o.Unproven(why)};
    out.push_back(whole ? own : AxisType::Partial());
  }
  return out;
}

}  // namespace moonshard
