// StoreGroup: gather, broadcast and agreement of short texts between all ranks of a mesh, over c10d's store and
// independent of collectives, so that a background thread may use it during training. Rank 0 is the root: it gathers,
// decides and broadcasts, and every rank returns the same value or throws the same errors.
//
//   Agree(mesh, "the compiled plan", plan.CanonicalText());                // once, before the first collective
//   StoreGroup group(mesh, "training checkpoints", timeout);               // or several exchanges under one name
//   group.GatherOrFail("save step 3", errors_of_this_rank, mine, [](const std::vector<JsonValue>& all) { ... });
//
// Not for tensors, or for the records that ranks compare at every call: axis_group.h, mesh/rank_exchange.h.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "engine/core/base/diagnostic.h"
#include "engine/core/base/json.h"
#include "engine/runtime/mesh/device_mesh.h"

namespace moonshard {

// Every function is collective: each rank calls the same ones in the same order, on one thread at a time. `what` names
// the exchange in errors, as an infinitive: "save step 3". If a rank does not join within `timeout`, the others throw
// PlanError kRankLost with the missing ranks, and so does every later call. On one rank and in a Recording mesh nothing
// is exchanged.
class StoreGroup {
 public:
  // `name` separates this group's keys from those of others over the same store.
  StoreGroup(const DeviceMesh& mesh, std::string_view name, std::chrono::milliseconds timeout);
  ~StoreGroup();
  StoreGroup(const StoreGroup&) = delete;
  StoreGroup& operator=(const StoreGroup&) = delete;

  int64_t rank() const { return rank_; }
  int64_t world_size() const { return world_size_; }

  // Gathers every rank's value on rank 0, calls `combine` there with all of them in rank order, and broadcasts the
  // result. If `combine` throws a PlanError, its diagnostics are thrown on every rank; any other exception is thrown as
  // kInternal.
  using Combine = std::function<JsonValue(const std::vector<JsonValue>& all)>;
  JsonValue GatherAndBroadcast(const std::string& what, const JsonValue& mine, const Combine& combine);

  // As GatherAndBroadcast, but each rank may have errors. If any has one, all errors are thrown on every rank and
  // `combine` is not called: equal errors once, errors of only some ranks with their numbers. `annotate` (on rank 0,
  // may be empty) may change them first.
  JsonValue GatherOrFail(const std::string& what, const Diagnostics& errors, const JsonValue& mine,
                         const Combine& combine, const std::function<void(Diagnostics&)>& annotate = {});

  // Compares a text of all ranks, as hashes; only where these differ are two texts gathered. Throws PlanError
  // kRanksDisagree on every rank with the first line that differs. `subject`: "the compiled plan".
  void Agree(const std::string& subject, const std::string& text);

 private:
  std::string Key(const std::string& part) const;
  void Set(const std::string& key, const std::string& text);
  std::string Wait(const std::string& key, std::chrono::steady_clock::time_point until);
  std::vector<JsonValue> Gather(const std::string& what, const JsonValue& mine);
  void Finish();

  c10::intrusive_ptr<c10d::Store> store_;
  int64_t rank_;
  int64_t world_size_;
  std::string prefix_;
  std::chrono::milliseconds timeout_;
  int64_t exchange_ = 0;  // number of the exchange in progress
  Diagnostics lost_;      // why no exchange is possible any more; empty while one is
};

// StoreGroup::Agree of a group of its own. Called once for a mesh before its first collective: ranks with different
// plans would otherwise hang or mix up data there.
void Agree(const DeviceMesh& mesh, std::string_view subject, const std::string& text,
           std::chrono::milliseconds timeout = std::chrono::minutes(2));

// The diagnostics that a rank sent as ToJson (core/findings/forms.h). Throws PlanError kRanksDisagree for anything
// else:
// the rank runs another version of moonshard.
Diagnostics DiagnosticsOfRank(const JsonValue& json);

}  // namespace moonshard
