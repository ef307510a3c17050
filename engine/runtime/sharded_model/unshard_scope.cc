#include "engine/runtime/sharded_model/unshard_scope.h"

#include <exception>

namespace moonshard {

// Units open in the plan's order, which is a collective each, and close in any: putting shards back is local, and so
// is the copy of what was written, since every rank wrote the full tensor. An exception of the host within the scope
// therefore leaves no other rank waiting.
UnshardScope::UnshardScope(const AppliedPlan& model, Writes writes)
    : writes_(writes), exceptions_(std::uncaught_exceptions()) {
  try {
    for (const std::shared_ptr<Unit>& unit : model.units()) {
      unit->Open();
      open_.push_back(unit);
    }
  } catch (...) {
    for (const std::shared_ptr<Unit>& unit : open_) unit->Close(false);
    throw;
  }
}

UnshardScope::~UnshardScope() {
  const bool keep = writes_ == Writes::kKept && std::uncaught_exceptions() == exceptions_;
  for (const std::shared_ptr<Unit>& unit : open_) unit->Close(keep);
}

}  // namespace moonshard
