#include "engine/train/training_state/rank_talk.h"

#include <algorithm>
#include <map>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <utility>

#include <c10/util/Exception.h>

#include "engine/core/base/check.h"
#include "engine/core/base/text.h"

namespace moonshard {
namespace {

using Clock = std::chrono::steady_clock;

// The first look at the store, and the longest pause between two.
constexpr std::chrono::microseconds kFirstPause{100};
constexpr std::chrono::microseconds kLongestPause{10'000};
// How long rank 0, which may serve the store, waits for the others to have read its answer.
constexpr std::chrono::seconds kLeave{10};

struct TimeOut : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::string TextOf(const std::exception& error) {
  if (const auto* torch_error = dynamic_cast<const c10::Error*>(&error)) return torch_error->what_without_backtrace();
  return error.what();
}

Diagnostic Lost(const std::string& what, const std::string& why) {
  Diagnostic d = MakeDiagnostic(Finding::kRankLost, "not all ranks came to " + what);
  d.declared = why;
  d.required = "every rank of the mesh";
  d.help = "look at the output of the other ranks: the first failure is theirs";
  return d;
}

// What several ranks say in the same words once; what one says alone with its number.
Diagnostics Together(const std::vector<Diagnostics>& by_rank) {
  struct Said {
    Diagnostic diagnostic;
    std::vector<size_t> ranks;
  };
  std::vector<std::string> order;
  std::map<std::string, Said> said;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    for (const Diagnostic& d : by_rank[rank]) {
      const auto [entry, fresh] = said.try_emplace(d.ToText(), Said{d, {}});
      if (fresh) order.push_back(entry->first);
      if (entry->second.ranks.empty() || entry->second.ranks.back() != rank) entry->second.ranks.push_back(rank);
    }
  }
  Diagnostics out;
  for (const std::string& text : order) {
    Said& one = said.at(text);
    if (one.ranks.size() < by_rank.size()) {
      std::vector<std::string> ranks;
      for (size_t rank : one.ranks) ranks.push_back(std::to_string(rank));
      one.diagnostic.message = "rank " + Join(ranks, ", ") + ": " + one.diagnostic.message;
    }
    out.push_back(std::move(one.diagnostic));
  }
  return out;
}

}  // namespace

JsonValue DiagnosticsToJson(const Diagnostics& diagnostics) {
  JsonValue::Array out;
  for (const Diagnostic& d : diagnostics) {
    out.push_back(JsonValue::Object{{"finding", InfoOf(d.finding).id},
                                    {"severity", static_cast<int>(d.severity)},
                                    {"message", d.message},
                                    {"path", d.path},
                                    {"file", d.where.file},
                                    {"line", d.where.line},
                                    {"declared", d.declared},
                                    {"required", d.required},
                                    {"help", d.help}});
  }
  return out;
}

Diagnostics DiagnosticsFromJson(const JsonValue& json) {
  Diagnostics out;
  for (const JsonValue& one : json.AsArray()) {
    const auto text = [&](const char* key) { return one.Find(key)->AsString(); };
    const auto info =
        std::ranges::find(AllFindings(), text("finding"), [](const FindingInfo& i) { return std::string(i.id); });
    Check(info != AllFindings().end(), "a finding of another version");
    Diagnostic d = MakeDiagnostic(info->finding, text("message"));
    d.severity = static_cast<Severity>(one.Find("severity")->AsInt());
    d.path = text("path");
    d.where.file = text("file");
    d.where.line = static_cast<int>(one.Find("line")->AsInt());
    d.declared = text("declared");
    d.required = text("required");
    d.help = text("help");
    out.push_back(std::move(d));
  }
  return out;
}

RankTalk::RankTalk(const DeviceMesh& mesh, const std::string& name, std::chrono::milliseconds timeout)
    : rank_(mesh.rank()), world_(mesh.shape().world_size()), timeout_(timeout) {
  if (world_ == 1) return;
  store_ = mesh.store();
  Check(store_ != nullptr, "ranks without a store");
  // The how-manieth of this name, which every rank counts for itself.
  name_ = "talk/" + name + "/" + std::to_string(store_->add("talk/" + name + "/" + std::to_string(rank_), 1)) + "/";
}

std::string RankTalk::Key(const std::string& what) const { return name_ + std::to_string(turn_) + "/" + what; }

void RankTalk::Say(const std::string& key, const std::string& text) {
  store_->set(key, std::vector<uint8_t>(text.begin(), text.end()));
}

std::string RankTalk::Hear(const std::string& key, Clock::time_point until) {
  for (std::chrono::microseconds pause = kFirstPause; !store_->check({key});
       pause = std::min(2 * pause, kLongestPause)) {
    if (Clock::now() > until) throw TimeOut(key);
    std::this_thread::sleep_for(pause);
  }
  const std::vector<uint8_t> bytes = store_->get(key);
  return {bytes.begin(), bytes.end()};
}

std::vector<JsonValue> RankTalk::HearAll(const std::string& what, const JsonValue& mine) {
  const Clock::time_point until = Clock::now() + timeout_;
  std::vector<JsonValue> all = {mine};
  std::vector<std::string> missing;
  for (int64_t rank = 1; rank < world_; ++rank) {
    const std::string key = Key(std::to_string(rank));
    try {
      all.push_back(ParseJson(Hear(key, until), key).ValueOrThrow());
    } catch (const TimeOut&) {
      missing.push_back(std::to_string(rank));
    }
  }
  if (missing.empty()) return all;
  const double seconds = std::chrono::duration<double>(timeout_).count();
  std::string after = std::to_string(seconds);
  after.resize(after.find('.') + 2);
  throw PlanError({Lost(what, "rank " + Join(missing, ", ") + " did not come within " + after + " s")});
}

void RankTalk::LeaveLast() {
  const Clock::time_point until = Clock::now() + kLeave;
  if (rank_ != 0) {
    store_->add(Key("left"), 1);
    return;
  }
  while (store_->add(Key("left"), 0) < world_ - 1 && Clock::now() < until) std::this_thread::sleep_for(kFirstPause);
  try {
    for (int64_t rank = 1; rank < world_; ++rank) store_->deleteKey(Key(std::to_string(rank)));
    store_->deleteKey(Key("answer"));
    store_->deleteKey(Key("left"));
  } catch (const std::exception&) {
    // A store that cannot forget keeps a few kilobytes a save.
  }
}

JsonValue RankTalk::Ask(const std::string& what, const JsonValue& mine, const Answer& answer) {
  if (!lost_.empty()) throw PlanError(lost_);
  ++turn_;
  JsonValue::Object reply;
  try {
    if (rank_ == 0) {
      try {
        reply["value"] = answer(world_ == 1 ? std::vector<JsonValue>{mine} : HearAll(what, mine));
      } catch (const PlanError& error) {
        reply["errors"] = DiagnosticsToJson(error.diagnostics());
        if (error.diagnostics().front().finding == Finding::kRankLost) lost_ = error.diagnostics();
      } catch (const std::exception& error) {
        // The others must hear of it, whatever it is.
        reply["errors"] = DiagnosticsToJson({MakeDiagnostic(Finding::kInternal, what + ": " + TextOf(error))});
      }
      if (world_ > 1) Say(Key("answer"), WriteJson(reply, 0));
    } else {
      Say(Key(std::to_string(rank_)), WriteJson(mine, 0));
      // Rank 0 answers at the end of its own waiting at the latest.
      const std::string text = Hear(Key("answer"), Clock::now() + timeout_ + kLeave);
      reply = ParseJson(text, "answer").ValueOrThrow().AsObject();
    }
    if (world_ > 1 && lost_.empty()) LeaveLast();
  } catch (const TimeOut&) {
    lost_ = {Lost(what, "rank 0 did not answer")};
  } catch (const PlanError&) {
    throw;
  } catch (const InternalError&) {
    throw;
  } catch (const std::exception& error) {
    lost_ = {Lost(what, "the store of the ranks is gone: " + TextOf(error))};
  }
  if (!lost_.empty()) throw PlanError(lost_);
  if (reply.contains("errors")) {
    Diagnostics errors = DiagnosticsFromJson(reply["errors"]);
    if (errors.front().finding == Finding::kRankLost) lost_ = errors;
    throw PlanError(std::move(errors));
  }
  return std::move(reply["value"]);
}

JsonValue RankTalk::Agree(const std::string& what, const Diagnostics& errors, const JsonValue& mine,
                          const Answer& answer, const std::function<void(Diagnostics&)>& more) {
  const JsonValue said = JsonValue::Object{{"errors", DiagnosticsToJson(errors)}, {"value", mine}};
  return Ask(what, said, [&](const std::vector<JsonValue>& all) {
    std::vector<Diagnostics> by_rank;
    std::vector<JsonValue> values;
    for (const JsonValue& one : all) {
      by_rank.push_back(DiagnosticsFromJson(*one.Find("errors")));
      values.push_back(*one.Find("value"));
    }
    Diagnostics together = Together(by_rank);
    if (!together.empty()) {
      if (more) more(together);
      throw PlanError(std::move(together));
    }
    return answer(values);
  });
}

}  // namespace moonshard
