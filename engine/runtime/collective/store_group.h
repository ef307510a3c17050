// StoreGroup: gathers, broadcasts and compares short texts between all ranks of a mesh, over c10d's store. It runs no
// collectives of a process group, so a background thread may use it during training. Rank 0 gathers the values, decides
// and broadcasts the decision, so every rank returns the same value or throws the same errors.
//
//   Agree(mesh, "the compiled plan", plan.CanonicalText());                // before the first collective
//   StoreGroup group(mesh, "training checkpoints", timeout);               // or several exchanges under one name
//   group.GatherOrFail("save step 3", errors_of_this_rank, mine, [](const std::vector<JsonValue>& all) { ... });
//
// Not for tensors (axis_group.h), and not for the records that ranks compare at every call (mesh/rank_exchange.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "engine/core/base/diagnostic.h"
#include "engine/core/base/json.h"
#include "engine/runtime/mesh/device_mesh.h"

namespace moonshard {

class Waits;  // mesh/waits.h

// Every function is collective: each rank calls the same functions in the same order, on one thread at a time. `what`
// names the exchange in errors, as an infinitive: "save step 3". If a rank does not join within `timeout`, the other
// ranks throw PlanError kRankLost with the missing ranks, and so does every later call. On one rank and in a Recording
// mesh nothing is exchanged.
class StoreGroup {
 public:
  // `name` separates the keys of this group from the keys of other groups in the same store.
  StoreGroup(const DeviceMesh& mesh, std::string_view name, std::chrono::milliseconds timeout);
  ~StoreGroup();
  StoreGroup(const StoreGroup&) = delete;
  StoreGroup& operator=(const StoreGroup&) = delete;

  int64_t rank() const { return rank_; }
  int64_t world_size() const { return world_size_; }

  // Gathers the values of all ranks on rank 0, calls `combine` there with the values in rank order, and broadcasts the
  // result. If `combine` throws a PlanError, its diagnostics are thrown on every rank. Any other exception is thrown as
  // kInternal on every rank.
  using Combine = std::function<JsonValue(const std::vector<JsonValue>& all)>;
  JsonValue GatherAndBroadcast(const std::string& what, const JsonValue& mine, const Combine& combine);

  // As GatherAndBroadcast, but each rank may also pass errors. If any rank passes an error, all errors are thrown on
  // every rank, and `combine` is not called. Equal errors are reported once; an error of only some ranks is reported
  // with the numbers of these ranks. `annotate` (may be empty) runs on rank 0 and may change the errors before they are
  // thrown.
  JsonValue GatherOrFail(const std::string& what, const Diagnostics& errors, const JsonValue& mine,
                         const Combine& combine, const std::function<void(Diagnostics&)>& annotate = {});

  // Compares the texts of all ranks by their hashes. If the hashes differ, rank 0 gathers two of the texts, and every
  // rank throws PlanError kRanksDisagree with the first line that differs. `subject`: "the compiled plan".
  void Agree(const std::string& subject, const std::string& text);

 private:
  std::string Key(int64_t exchange, const std::string& part) const;
  std::string Key(const std::string& part) const;
  void Set(const std::string& key, const std::string& text);
  std::string Wait(const std::string& key, std::chrono::steady_clock::time_point until);
  std::vector<JsonValue> Gather(const std::string& what, const JsonValue& mine);
  void Finish();
  // On rank 0: deletes the keys of an exchange.
  void Remove(int64_t exchange);

  c10::intrusive_ptr<c10d::Store> store_;
  std::shared_ptr<Waits> waits_;  // null on one rank
  int64_t rank_;
  int64_t world_size_;
  std::string prefix_;
  std::chrono::milliseconds timeout_;
  int64_t exchange_ = 0;         // number of the exchange in progress
  std::vector<int64_t> unread_;  // on rank 0: exchanges whose answer some rank had not read in time
  Diagnostics lost_;             // why no exchange is possible any more; empty: exchanges are possible
};

// StoreGroup::Agree with a group of its own. Call it before the first collective, for the compiled plan: ranks with
// different plans would otherwise hang or mix up data in the collectives; and between two steps, for what every rank
// must change alike.
void Agree(const DeviceMesh& mesh, std::string_view subject, const std::string& text,
           std::chrono::milliseconds timeout = std::chrono::minutes(2));

// Reads the diagnostics that a rank sent as ToJson (core/findings/forms.h). Throws PlanError kRanksDisagree if the text
// cannot be read, because then that rank runs another version of moonshard.
Diagnostics DiagnosticsOfRank(const JsonValue& json);

}  // namespace moonshard
