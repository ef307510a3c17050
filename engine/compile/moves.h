// The rows of the layout algebra: which moves between two layouts of one axis exist, and what each costs. Every pair
// that is not here is an error. The runtime half of the same table is engine/layout/move.h.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "engine/plan/layout.h"

namespace moonshard {

enum class Collective : uint8_t { kAllGather, kAllReduce, kAllToAll, kReduceScatter };
// "all_gather", "all_reduce", "all_to_all", "reduce_scatter".
const char* ToString(Collective collective);

struct MoveRow {
  std::optional<Collective> forward;  // none: no communication
  std::optional<Collective> backward;
};

// The row for from -> to; an empty row for equal layouts; nothing for a pair without one.
std::optional<MoveRow> RowOf(const Layout& from, const Layout& to);
// The layouts that `from` can move to, for messages: "replicate, shared, shard(d)".
std::string TargetsOf(const Layout& from);

// Counts and bytes of collectives. Bytes are those of the whole tensor: what an all-reduce reduces, an all-gather
// makes, a reduce-scatter takes, an all-to-all exchanges over all ranks.
struct CollectiveTotals {
  struct Entry {
    int64_t count = 0;
    int64_t bytes = 0;
    bool operator==(const Entry&) const = default;
  };
  std::map<Collective, Entry> forward;
  std::map<Collective, Entry> backward;

  void AddForward(Collective collective, int64_t bytes);
  void AddBackward(Collective collective, int64_t bytes);
  bool operator==(const CollectiveTotals&) const = default;
};

}  // namespace moonshard
