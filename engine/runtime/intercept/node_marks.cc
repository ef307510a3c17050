#include "engine/runtime/intercept/node_marks.h"

#include <iterator>

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>

namespace moonshard {
namespace {

// AccumulateGrad nodes have the largest sequence number, so that the engine runs them first.
constexpr uint64_t kOutside = uint64_t{1} << 62;

}  // namespace

void NodeMarks::Mark(int32_t place) {
  since_[{at::RecordFunction::currentThreadId(), at::sequence_number::peek()}] = place;
}

// Marks are sorted by thread and number, and each holds until the next one of its thread: the last mark at or before
// the node's number is found by one binary search. Modules need no list of their nodes, and code between modules
// belongs to the module around it.
std::optional<int32_t> NodeMarks::PlaceOf(const torch::autograd::Node& node) const {
  if (node.sequence_nr() >= kOutside) return std::nullopt;
  const auto after = since_.upper_bound({node.thread_id(), node.sequence_nr()});
  if (after == since_.begin()) return std::nullopt;
  const auto& [from, place] = *std::prev(after);
  return from.first == node.thread_id() ? std::optional(place) : std::nullopt;
}

}  // namespace moonshard
