// Result<T>: the result of a stage: an optional value and all diagnostics of the stage. The value exists if and only if
// none of the diagnostics is an error.
#pragma once

#include <optional>
#include <utility>

#include "engine/core/base/check.h"
#include "engine/core/base/diagnostic.h"

namespace moonshard {

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value, Diagnostics diagnostics = {}) : value_(std::move(value)), diagnostics_(std::move(diagnostics)) {
    if (HasErrors(diagnostics_)) value_.reset();
  }
  Result(Diagnostics errors) : diagnostics_(std::move(errors)) {
    Check(HasErrors(diagnostics_), "a Result without a value must hold an error");
  }
  Result(Diagnostic error) : Result(Diagnostics{std::move(error)}) {}

  bool ok() const { return value_.has_value(); }
  const T& value() const& {
    Check(ok(), "value() of a failed Result");
    return *value_;
  }
  T& value() & {
    Check(ok(), "value() of a failed Result");
    return *value_;
  }
  T&& value() && {
    Check(ok(), "value() of a failed Result");
    return std::move(*value_);
  }
  const Diagnostics& diagnostics() const { return diagnostics_; }

  // Returns the value; throws PlanError with all diagnostics if the stage failed.
  T ValueOrThrow() && {
    if (!ok()) throw PlanError(diagnostics_);
    return std::move(*value_);
  }
  // Returns the value, or nullopt if the stage failed. Adds the diagnostics to `all`.
  std::optional<T> Collect(Diagnostics& all) && {
    all.insert(all.end(), diagnostics_.begin(), diagnostics_.end());
    return std::move(value_);
  }

 private:
  std::optional<T> value_;
  Diagnostics diagnostics_;
};

}  // namespace moonshard
