// UnshardScope: while it is open, parameters that fsdp shards are all-gathered over dp_shard (and still sharded by tp),
// to inspect a model, run a part of it by hand, or write weights.
//
//   { UnshardScope full(model); Inspect(*model.net()); }
//
// Stage before: apply. Stage after: the caller's code.
#pragma once

#include <memory>
#include <vector>

#include "engine/runtime/apply/applied_plan.h"
#include "engine/runtime/fsdp/unit.h"

namespace moonshard {

class UnshardScope {
 public:
  enum class Writes : uint8_t { kForgotten, kKept };

  // Collective over dp_shard: every rank opens and closes the scope. Use it between steps, not within a call or a
  // backward. kForgotten: values written to the parameters are discarded when the scope ends. kKept: they are copied to
  // the shards; every rank must write the same values. If an exception ends the scope, the values are discarded in any
  // case.
  explicit UnshardScope(const AppliedPlan& model, Writes writes = Writes::kForgotten);
  // Reshards the parameters.
  ~UnshardScope();
  UnshardScope(const UnshardScope&) = delete;
  UnshardScope& operator=(const UnshardScope&) = delete;

 private:
  std::vector<std::shared_ptr<Unit>> open_;
  Writes writes_;
  int exceptions_;
};

}  // namespace moonshard
