#include "engine/runtime/apply/unshard_scope.h"

#include <exception>

namespace moonshard {

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
