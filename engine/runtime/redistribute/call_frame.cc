#include "engine/runtime/redistribute/call_frame.h"

#include <algorithm>
#include <vector>

#include "engine/runtime/redistribute/exchanges_ahead.h"
#include "engine/runtime/redistribute/shared_redistributions.h"

namespace moonshard {
namespace {

thread_local CallFrame* current = nullptr;

}  // namespace

struct CallFrame::Sizes {
  struct Entry {
    const AxisGroup* group;
    int64_t dim;
    int64_t size;
    bool operator==(const Entry&) const = default;
  };
  std::vector<Entry> entries;  // distinct
};

CallFrame::CallFrame() : enclosing_(current), root_(enclosing_ == nullptr ? this : enclosing_->root_) {
  current = this;
}

CallFrame::~CallFrame() { current = enclosing_; }

CallFrame* CallFrame::Current() { return current; }

SharedRedistributions& CallFrame::redistributions() {
  if (!redistributions_) redistributions_ = std::make_unique<SharedRedistributions>();
  return *redistributions_;
}

StartedExchanges& CallFrame::started_exchanges() {
  if (!started_exchanges_) started_exchanges_ = std::make_unique<StartedExchanges>();
  return *started_exchanges_;
}

void CallFrame::NoteSize(const AxisGroup& group, int64_t dim, int64_t size) {
  if (current == nullptr) return;
  std::unique_ptr<Sizes>& sizes = current->root_->sizes_;
  if (!sizes) sizes = std::make_unique<Sizes>();
  const Sizes::Entry entry = {&group, dim, size};
  if (std::ranges::find(sizes->entries, entry) == sizes->entries.end()) sizes->entries.push_back(entry);
}

std::optional<int64_t> CallFrame::OnlySize(const AxisGroup& group, int64_t dim) {
  if (current == nullptr || !current->root_->sizes_) return std::nullopt;
  std::optional<int64_t> only;
  for (const Sizes::Entry& entry : current->root_->sizes_->entries) {
    if (entry.group != &group || entry.dim != dim) continue;
    if (only) return std::nullopt;
    only = entry.size;
  }
  return only;
}

}  // namespace moonshard
