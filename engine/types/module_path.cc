#include "engine/types/module_path.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>

namespace moonshard {
namespace {

// Of nodes that stand outside the numbering: those that accumulate gradients.
constexpr uint64_t kOutside = uint64_t{1} << 62;

}  // namespace

ModulePath::ModulePath() : entered_{""} { Mark(); }

void ModulePath::Mark() {
  since_[{at::RecordFunction::currentThreadId(), at::sequence_number::peek()}] = entered_.back();
}

void ModulePath::Enter(std::string path) {
  entered_.push_back(std::move(path));
  Mark();
}

void ModulePath::Leave() {
  entered_.pop_back();
  Mark();
}

ModulePath::Place ModulePath::Here() const {
  const auto node = torch::autograd::get_current_node();
  if (!node) return {entered_.back(), false};
  // A forward within a backward, as recomputation runs it.
  if (entered_.size() > 1) return {entered_.back(), false};
  if (node->sequence_nr() >= kOutside) return {"", true};
  auto after = since_.upper_bound({node->thread_id(), node->sequence_nr()});
  if (after == since_.begin()) return {"", true};
  --after;
  return {after->first.first == node->thread_id() ? after->second : "", true};
}

}  // namespace moonshard
