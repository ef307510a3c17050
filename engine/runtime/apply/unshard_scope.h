// UnshardScope: parameters that fsdp shards are full (but for tp's sharding) while the scope is open: to look
// at a model, to run a part of it by hand, to write weights.
//
//   { UnshardScope full(model); Inspect(*model.net()); }
//
// Stage before: apply. Stage after: the host.
#pragma once

#include <memory>
#include <vector>

#include "engine/runtime/apply/applied_plan.h"
#include "engine/runtime/fsdp/unit.h"

namespace moonshard {

class UnshardScope {
 public:
  enum class Writes : uint8_t { kForgotten, kKept };

  // Collective over dp_shard; every rank opens and closes the scope. Between steps, not within a call or a backward.
  // kKept: what is written into the parameters goes to the shards when the scope ends; every rank writes the same. An
  // exception that leaves the scope forgets them.
  explicit UnshardScope(const AppliedPlan& model, Writes writes = Writes::kForgotten);
  // The parameters are in shards again.
  ~UnshardScope();
  UnshardScope(const UnshardScope&) = delete;
  UnshardScope& operator=(const UnshardScope&) = delete;

 private:
  std::vector<std::shared_ptr<Unit>> open_;
  Writes writes_;
  int exceptions_;
};

}  // namespace moonshard
