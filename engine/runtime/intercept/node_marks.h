// NodeMarks: maps a node of autograd's graph to the part of the forward that made it. Autograd numbers nodes as they
// are made, on each thread; a mark notes the next number when a part begins or ends, and a node belongs to the last
// mark at or before its number. Used in the backward, where the node that runs is known and the module is not.
// Stage after: types (module_path.h), footprint (module_paths.h), which mark the calls of modules.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

namespace torch::autograd {
struct Node;
}

namespace moonshard {

class NodeMarks {
 public:
  // Nodes that this thread makes from now on belong to `place`.
  void Mark(int32_t place);
  // The place of a node; nothing if it was made before the first mark of its thread, or has no number of its own (nodes
  // that accumulate gradients).
  std::optional<int32_t> PlaceOf(const torch::autograd::Node& node) const;

 private:
  std::map<std::pair<uint64_t, uint64_t>, int32_t> since_;  // (thread, number of the first node) -> place
};

}  // namespace moonshard
