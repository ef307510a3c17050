// replicate, shared, shared_last, partial, shard, packed, on.
#include "dsl/language/bind/arguments.h"
#include "dsl/language/bind/evaluation.h"
#include "dsl/language/bind/values.h"
#include "dsl/language/sandbox/environment.h"
#include "engine/core/base/text.h"

namespace moonshard {
namespace {

constexpr int64_t kMostDims = 16;
constexpr int64_t kMostParts = 1024;  // equal ones

std::optional<int> DimAt(lua_State* L, int index) {
  const std::optional<int64_t> dim = IntegerAt(L, index);
  if (!dim || *dim < -kMostDims || *dim >= kMostDims) return std::nullopt;
  return static_cast<int>(*dim);
}

int Shard(lua_State* L) {
  if (AnyPoison(L)) return PushPoison(L);
  const std::optional<int> dim = DimAt(L, 1);
  if (!dim) return BadArgument(L, "shard", "the tensor dim must be an integer from -16 to 15", 1);
  if (lua_isnoneornil(L, 2)) return PushLayout(L, Layout::Shard(*dim));
  if (!IsTable(L, 2)) {
    return BadArgument(L, "shard", "the second argument must be { heads = n }, { owner = r } or { zigzag = true }", 2);
  }
  KeyReader keys(L, 2, "shard");
  const std::optional<int64_t> owner = keys.Integer("owner");
  const std::optional<int64_t> heads = keys.Integer("heads");
  bool zigzag = false;
  keys.Boolean("zigzag", zigzag);
  if (!keys.good()) return PushPoison(L);
  if (zigzag && (owner || heads)) {
    keys.Push("zigzag");
    return BadArgument(L, "shard", "'zigzag' cannot be combined with 'heads' or 'owner'", -1);
  }
  if (zigzag) return PushLayout(L, Layout::Zigzag(*dim));
  if (!owner && !heads && keys.Push("zigzag")) return PushLayout(L, Layout::Shard(*dim));
  if (!owner && !heads) return BadArgument(L, "shard", MustBe("shard", "heads"), 3);  // an empty table
  if (!owner) return PushLayout(L, Layout::Shard(*dim, *heads));
  if (!heads) return PushLayout(L, Layout::Owned(*dim, *owner));
  keys.Push("heads");
  return BadArgument(L, "shard", "'heads' and 'owner' are mutually exclusive", -1);
}

int SharedLast(lua_State* L) {
  if (AnyPoison(L)) return PushPoison(L);
  const std::optional<int64_t> features = IntegerAt(L, 1);
  if (!features || *features < 1) {
    return BadArgument(L, "shared_last", "the number of features must be a positive integer", 1);
  }
  return PushLayout(L, Layout::SharedLast(*features));
}

// The positive integers of the list at `index`; nothing, reported, where it is another thing.
std::optional<std::vector<int64_t>> PartSizesAt(lua_State* L, int index, const char* what) {
  index = lua_absindex(L, index);
  std::vector<int64_t> sizes;
  const auto bad = [&](int at) {
    BadArgument(L, "packed", std::string(what) + " must be a list of positive integers", at);
    return std::nullopt;
  };
  if (!IsTable(L, index)) return bad(index);
  for (const lua_Integer i : PositionsOf(L, index)) {
    lua_rawgeti(L, index, i);
    const std::optional<int64_t> size = IntegerAt(L, -1);
    if (!size || *size < 1 || i != static_cast<lua_Integer>(sizes.size()) + 1) return bad(-1);
    sizes.push_back(*size);
    lua_pop(L, 1);
  }
  if (sizes.empty()) return bad(index);
  return sizes;
}

int Packed(lua_State* L) {
  if (AnyPoison(L) || (IsTable(L, 2) && HoldsPoison(L, 2))) return PushPoison(L);
  const std::optional<int> dim = DimAt(L, 1);
  if (!dim) return BadArgument(L, "packed", "the tensor dim must be an integer from -16 to 15", 1);
  if (const std::optional<int64_t> count = IntegerAt(L, 2); count && lua_isnoneornil(L, 3)) {
    if (*count < 1 || *count > kMostParts)
      return BadArgument(L, "packed", "the number of parts must be an integer from 1 to 1024", 2);
    return PushLayout(L, Layout::PackedEqually(*dim, static_cast<int>(*count)));
  }
  const std::optional<std::vector<int64_t>> sizes = PartSizesAt(L, 2, "the sizes");
  if (!sizes) return PushPoison(L);
  std::vector<Layout::Part> parts;
  for (const int64_t size : *sizes) parts.push_back({size, 0});
  if (!lua_isnoneornil(L, 3)) {
    if (!IsTable(L, 3)) return BadArgument(L, "packed", "the third argument must be { heads = { ... } }", 3);
    if (!CheckKeys(L, 3, "packed") || HoldsPoison(L, 3)) return PushPoison(L);
    lua_getfield(L, 3, "heads");
    if (IsTable(L, -1) && HoldsPoison(L, -1)) return PushPoison(L);
    const std::optional<std::vector<int64_t>> heads = PartSizesAt(L, -1, "'heads'");
    if (!heads) return PushPoison(L);
    if (heads->size() != parts.size()) {
      return BadArgument(L, "packed",
                         "'heads' must list one number for each of the " + std::to_string(parts.size()) + " sizes", -1);
    }
    for (size_t i = 0; i < parts.size(); ++i) parts[i].heads = (*heads)[i];
  }
  return PushLayout(L, Layout::Packed(*dim, std::move(parts)));
}

// Puts the layout at `index` on the axis named at `axis_index`. False, reported, where one of them is another thing.
bool PutOnAxis(lua_State* L, int axis_index, int index, Placement& placement) {
  const std::optional<std::string> name = StringAt(L, axis_index);
  if (!name) {
    BadArgument(L, "on", "the mesh axis must be a name", axis_index);
    return false;
  }
  const std::optional<MeshAxis> axis = MeshAxisFromName(*name);
  if (!axis) {
    ScriptState::From(L).Report(Finding::kUnknownAxis, "there is no mesh axis '" + *name + "'", *name,
                                DidYouMean(*name, MeshAxisNames()));
    return false;
  }
  const Placement* layout = LayoutAt(L, index);
  if (layout == nullptr || !layout->only_tp()) {
    BadArgument(L, "on", "'" + *name + "' must be a layout such as shard(0), not a result of on(...)", index);
    return false;
  }
  placement[*axis] = (*layout)[MeshAxis::kTp];
  return true;
}

int On(lua_State* L) {
  if (AnyPoison(L) || (IsTable(L, 1) && HoldsPoison(L, 1))) return PushPoison(L);
  Placement placement;
  if (!IsTable(L, 1)) return PutOnAxis(L, 1, 2, placement) ? PushLayout(L, placement) : PushPoison(L);
  lua_settop(L, 1);
  PushSortedKeys(L, 1);  // [table, keys]
  bool good = true;
  for (lua_Integer i = 1; lua_rawgeti(L, 2, i) != LUA_TNIL; ++i, lua_settop(L, 2)) {
    lua_pushvalue(L, 3);
    lua_rawget(L, 1);  // [table, keys, axis, layout]
    good = PutOnAxis(L, 3, 4, placement) && good;
  }
  return good ? PushLayout(L, placement) : PushPoison(L);
}

}  // namespace

void AddLayoutBuiltins(lua_State* L) {
  PushLayout(L, Layout::Replicate());
  SetName(L, "replicate");
  PushLayout(L, Layout::Shared());
  SetName(L, "shared");
  lua_pushcfunction(L, &Guarded<&SharedLast>);
  SetName(L, "shared_last");
  PushLayout(L, Layout::Partial());
  SetName(L, "partial");
  lua_pushcfunction(L, &Guarded<&Shard>);
  SetName(L, "shard");
  lua_pushcfunction(L, &Guarded<&Packed>);
  SetName(L, "packed");
  lua_pushcfunction(L, &Guarded<&On>);
  SetName(L, "on");
}

}  // namespace moonshard
