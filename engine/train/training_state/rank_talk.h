// RankTalk: what the ranks of a mesh say to each other about a save or a load: short texts, through the mesh's store and
// beside all collectives, so that a thread may talk while training goes on. Rank 0 hears everybody and answers.
// Waiting asks the store again and again and never blocks in it, because other threads use it too.
// Part of training_checkpoints.h.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "engine/core/base/diagnostic.h"
#include "engine/core/base/json.h"
#include "engine/runtime/mesh/device_mesh.h"

namespace moonshard {

// Every function is collective: each rank calls the same ones in the same order, on one thread at a time. Throws
// PlanError kRankLost where a rank does not come within `timeout`, on every rank that came, with the missing ranks;
// after that every call throws it.
class RankTalk {
 public:
  // `name` tells this talk from others over the same store.
  RankTalk(const DeviceMesh& mesh, const std::string& name, std::chrono::milliseconds timeout);

  int64_t rank() const { return rank_; }
  int64_t world() const { return world_; }
  bool first() const { return rank_ == 0; }

  // Everybody says `mine`; rank 0 makes an answer of all, by rank, and everybody gets it. `what` is what errors call it.
  // If `answer` throws, PlanError's diagnostics are thrown on every rank.
  using Answer = std::function<JsonValue(const std::vector<JsonValue>& all)>;
  JsonValue Ask(const std::string& what, const JsonValue& mine, const Answer& answer);

  // As Ask, where each rank has errors to tell or none. Where any has one, all are thrown on every rank, those of one
  // rank alone naming it, and `answer` is not called; `more` (on rank 0, may be empty) may add to them. What is said by
  // several ranks in the same words is said once.
  JsonValue Agree(const std::string& what, const Diagnostics& errors, const JsonValue& mine, const Answer& answer,
                  const std::function<void(Diagnostics&)>& more = {});

 private:
  std::string Key(const std::string& what) const;
  void Say(const std::string& key, const std::string& text);
  std::string Hear(const std::string& key, std::chrono::steady_clock::time_point until);
  std::vector<JsonValue> HearAll(const std::string& what, const JsonValue& mine);
  void LeaveLast();

  c10::intrusive_ptr<c10d::Store> store_;
  int64_t rank_;
  int64_t world_;
  std::string name_;
  std::chrono::milliseconds timeout_;
  int64_t turn_ = 0;
  Diagnostics lost_;  // why nobody can be talked to any more
};

// Diagnostics as JSON, and back: all but excerpts and related places.
JsonValue DiagnosticsToJson(const Diagnostics& diagnostics);
Diagnostics DiagnosticsFromJson(const JsonValue& json);

}  // namespace moonshard
