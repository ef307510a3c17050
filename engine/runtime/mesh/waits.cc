#include "engine/runtime/mesh/waits.h"

namespace moonshard {

Waits::Scope::Scope(Waits* waits, const std::string& what, const std::string& group, const std::vector<int64_t>& ranks)
    : waits_(waits), what_(&what), group_(&group), ranks_(&ranks) {
  if (waits_ == nullptr) return;
  const std::lock_guard lock(waits_->mutex_);
  serial_ = ++waits_->serials_;
  waits_->open_.push_back(this);
}

Waits::Scope::~Scope() {
  if (waits_ == nullptr) return;
  const std::lock_guard lock(waits_->mutex_);
  std::erase(waits_->open_, this);
}

std::optional<Waits::Place> Waits::Oldest() const {
  const std::lock_guard lock(mutex_);
  if (open_.empty()) return std::nullopt;
  const Scope& scope = *open_.front();
  Place place{scope.serial_, "'" + *scope.what_ + "'", *scope.ranks_};
  if (!scope.group_->empty()) place.what += " of " + *scope.group_;
  return place;
}

}  // namespace moonshard
