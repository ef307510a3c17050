// NodeMarks: finds the place in the forward (a call of a module) that created a node of autograd's graph. Autograd
// numbers nodes in the order of their creation, per thread. A mark records the next number when a place begins or ends,
// and a node belongs to the last mark at or before the number of the node. Used in the backward, where the running node
// is known and the module is not.
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
  // Nodes that this thread creates from now on belong to `place`.
  void Mark(int32_t place);
  // Returns the place of a node. Returns nothing if the node was created before the first mark of its thread, or has no
  // number of its own (nodes that accumulate gradients).
  std::optional<int32_t> PlaceOf(const torch::autograd::Node& node) const;

 private:
  std::map<std::pair<uint64_t, uint64_t>, int32_t> since_;  // (thread, number of its first node) -> place
};

}  // namespace moonshard
