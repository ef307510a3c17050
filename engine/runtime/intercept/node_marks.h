// NodeMarks: in which part of a forward autograd's nodes were made. Nodes are numbered as they are made, on each thread: who
// notes the number at which each part begins and ends can say of a node in a backward where it belongs.
// Stage before: whoever knows when a call begins and ends. Stage after: types (module_path.h), footprint (module_paths.h).
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
  // Nodes that this thread makes from now on are of `place`.
  void Mark(int32_t place);
  // Of the node's; nothing where it was made before the first mark of its thread, or stands outside the numbering (those
  // that accumulate gradients).
  std::optional<int32_t> PlaceOf(const torch::autograd::Node& node) const;

 private:
  std::map<std::pair<uint64_t, uint64_t>, int32_t> since_;  // (thread, number of the first node) -> place
};

}  // namespace moonshard
