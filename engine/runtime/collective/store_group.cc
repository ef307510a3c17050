// One exchange is one round trip through the store: every rank but 0 sets a key of its own, rank 0 reads them all and
// sets the answer, every rank reads that. Rank 0 alone decides, so no two ranks can come to different conclusions: a
// rank that is late finds that answer instead of succeeding where the others failed. On three ranks, the second
// exchange of "saves":
//
//   rank 1, 2    set exchange/saves/1/2/1, .../2/2         then wait for .../2/answer
//   rank 0       read both, combine, set .../2/answer      then wait until .../2/read counts 2, and delete the keys
//
// A rank that is cut off or suspended may read an answer long after rank 0 has stopped to wait for that. The keys then
// stay until the next exchange, which that rank joins only when it has read them.
//
// Keys carry the number of the group and that of the exchange, which every rank counts for itself. An exception of the
// combination is an answer too: each rank throws it.
//
// Waiting polls the store. c10d's own wait holds the connection of the process until the key is there, and a collective
// on another thread that needs the store (to make a group, to report an error) would wait behind a save of minutes.
#include "engine/runtime/collective/store_group.h"

#include <algorithm>
#include <map>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "engine/core/base/check.h"
#include "engine/core/base/hash.h"
#include "engine/core/base/text.h"
#include "engine/core/findings/forms.h"
#include "engine/runtime/mesh/mesh_group.h"
#include "engine/runtime/mesh/waits.h"

namespace moonshard {
namespace {

using Clock = std::chrono::steady_clock;

// The first pause between two looks at the store, and the longest.
constexpr std::chrono::microseconds kFirstPause{100};
constexpr std::chrono::microseconds kLongestPause{10'000};
// How much longer than the gather a rank waits for the answer, and how long rank 0 waits for the answer to be read, but
// not for longer than the timeout.
constexpr std::chrono::milliseconds kGrace{10'000};

struct StoreTimeout : std::runtime_error {
  using std::runtime_error::runtime_error;
};

Diagnostic RanksMissing(const std::string& what, const std::string& why) {
  Diagnostic d = MakeDiagnostic(Finding::kRankLost, "not all ranks joined the exchange '" + what + "'");
  d.declared = why;
  d.required = "every rank of the mesh takes part";
  d.help = "look at the output of the ranks that did not join: they failed, hang, or need more time than the timeout";
  return d;
}

Diagnostic StoreLost(const std::string& what, const std::string& why) {
  Diagnostic d = MakeDiagnostic(Finding::kRankLost, "the exchange '" + what + "' between the ranks failed");
  d.declared = "the store of the ranks is not available: " + why;
  d.required = "a store, which exists until every rank has ended";
  d.help =
      "look at the output of the other ranks and of the launcher: the process that serves the store (rank 0, or the "
      "agent of torchrun) probably failed first";
  return d;
}

// The diagnostics of all ranks, equal ones once; what not every rank reports gets the numbers of the ranks that do.
// Most errors are those of the input, which every rank finds: 64 copies of one text would hide the one that differs.
Diagnostics MergeByText(const std::vector<Diagnostics>& by_rank) {
  struct Reported {
    Diagnostic diagnostic;
    std::vector<size_t> ranks;
  };
  std::vector<std::string> order;
  std::map<std::string, Reported> reported;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    for (const Diagnostic& d : by_rank[rank]) {
      const auto [entry, is_new] = reported.try_emplace(d.ToText(), Reported{d, {}});
      if (is_new) order.push_back(entry->first);
      if (entry->second.ranks.empty() || entry->second.ranks.back() != rank) entry->second.ranks.push_back(rank);
    }
  }
  Diagnostics out;
  for (const std::string& text : order) {
    Reported& one = reported.at(text);
    if (one.ranks.size() < by_rank.size()) {
      std::vector<std::string> ranks;
      for (size_t rank : one.ranks) ranks.push_back(std::to_string(rank));
      one.diagnostic.message = "rank " + Join(ranks, ", ") + ": " + one.diagnostic.message;
    }
    out.push_back(std::move(one.diagnostic));
  }
  return out;
}

Diagnostic TextsDiffer(const std::string& subject, size_t rank_a, const std::string& text_a, size_t rank_b,
                       const std::string& text_b) {
  const std::vector<std::string> a = Split(text_a, '\n');
  const std::vector<std::string> b = Split(text_b, '\n');
  size_t line = 0;
  while (line < a.size() && line < b.size() && a[line] == b[line]) ++line;
  const auto show = [line](const std::vector<std::string>& lines) {
    return line < lines.size() ? "\"" + lines[line] + "\"" : std::string("(no more lines)");
  };
  Diagnostic d = MakeDiagnostic(Finding::kRanksDisagree, "the ranks disagree: " + subject + " differs");
  d.declared = "line " + std::to_string(line + 1) + " of rank " + std::to_string(rank_a) + ": " + show(a) +
               "; of rank " + std::to_string(rank_b) + ": " + show(b);
  d.required = "the same on every rank";
  d.help = "start every rank with the same plan, options, config and version of moonshard";
  return d;
}

}  // namespace

Diagnostics DiagnosticsOfRank(const JsonValue& json) {
  std::string wrong;
  std::optional<Diagnostics> diagnostics = ReadDiagnosticsJson(json, wrong);
  if (diagnostics) return *std::move(diagnostics);
  Diagnostic d = MakeDiagnostic(Finding::kRanksDisagree, "the errors of another rank cannot be read: " + wrong);
  d.required = "the same version of moonshard on every rank";
  throw PlanError({std::move(d)});
}

StoreGroup::StoreGroup(const DeviceMesh& mesh, std::string_view name, std::chrono::milliseconds timeout)
    : rank_(mesh.rank()), world_size_(mesh.recording() ? 1 : mesh.shape().world_size()), timeout_(timeout) {
  if (world_size_ == 1) return;
  store_ = mesh.store();
  Check(store_ != nullptr, "ranks without a store");
  waits_ = mesh.Group(MeshAxis::kTp)->waits;
  // Groups of one name are numbered. Every rank counts its own, because ranks make them in one order at different
  // times.
  const std::string base = "exchange/" + std::string(name) + "/";
  try {
    prefix_ = base + std::to_string(store_->add(base + "rank " + std::to_string(rank_), 1)) + "/";
  } catch (const std::exception& error) {
    throw PlanError(
        {MakeDiagnostic(Finding::kRankLost, "the store of the ranks is not available: " + ErrorText(error))});
  }
}

StoreGroup::~StoreGroup() = default;

std::string StoreGroup::Key(int64_t exchange, const std::string& part) const {
  return prefix_ + std::to_string(exchange) + "/" + part;
}
std::string StoreGroup::Key(const std::string& part) const { return Key(exchange_, part); }

void StoreGroup::Set(const std::string& key, const std::string& text) {
  store_->set(key, std::vector<uint8_t>(text.begin(), text.end()));
}

std::string StoreGroup::Wait(const std::string& key, Clock::time_point until) {
  for (std::chrono::microseconds pause = kFirstPause; !store_->check({key});
       pause = std::min(2 * pause, kLongestPause)) {
    if (Clock::now() > until) throw StoreTimeout(key);
    std::this_thread::sleep_for(pause);
  }
  const std::vector<uint8_t> bytes = store_->get(key);
  return {bytes.begin(), bytes.end()};
}

std::vector<JsonValue> StoreGroup::Gather(const std::string& what, const JsonValue& mine) {
  // One deadline for all: with one for each rank, the wait for a mesh of lost ranks would grow with its size.
  const Clock::time_point until = Clock::now() + timeout_;
  std::vector<JsonValue> all = {mine};
  std::vector<std::string> missing;
  for (int64_t rank = 1; rank < world_size_; ++rank) {
    const std::string key = Key(std::to_string(rank));
    try {
      all.push_back(ParseJson(Wait(key, until), key).ValueOrThrow());
    } catch (const StoreTimeout&) {
      missing.push_back(std::to_string(rank));
    }
  }
  if (missing.empty()) {
    for (const int64_t exchange : std::exchange(unread_, {})) Remove(exchange);
    return all;
  }
  const int64_t tenths = std::chrono::duration_cast<std::chrono::milliseconds>(timeout_).count() / 100;
  const std::string seconds = std::to_string(tenths / 10) + "." + std::to_string(tenths % 10);
  throw PlanError({RanksMissing(what, "rank " + Join(missing, ", ") + " did not join within " + seconds + " s")});
}

// The process of rank 0 may serve the store, so it may not go on to its end before the others have read the answer.
// Then it removes the keys: a run of weeks saves thousands of times.
void StoreGroup::Finish() {
  if (rank_ != 0) {
    store_->add(Key("read"), 1);
    return;
  }
  const Clock::time_point until = Clock::now() + std::min(kGrace, timeout_);
  while (store_->add(Key("read"), 0) < world_size_ - 1) {
    if (Clock::now() >= until) {
      unread_.push_back(exchange_);
      return;
    }
    std::this_thread::sleep_for(kFirstPause);
  }
  Remove(exchange_);
}

void StoreGroup::Remove(int64_t exchange) {
  try {
    for (int64_t rank = 1; rank < world_size_; ++rank) store_->deleteKey(Key(exchange, std::to_string(rank)));
    store_->deleteKey(Key(exchange, "answer"));
    store_->deleteKey(Key(exchange, "read"));
  } catch (const std::exception&) {
    // A store without deleteKey (FileStore) keeps a few kilobytes for each exchange.
  }
}

JsonValue StoreGroup::GatherAndBroadcast(const std::string& what, const JsonValue& mine, const Combine& combine) {
  if (!lost_.empty()) throw PlanError(lost_);
  static const std::string kAllRanks;
  static const std::vector<int64_t> kAll;
  const Waits::Scope wait(waits_ && waits_->IsOwnThread() ? waits_.get() : nullptr, what, kAllRanks, kAll);
  ++exchange_;
  JsonValue::Object answer;
  try {
    if (rank_ == 0 || world_size_ == 1) {
      try {
        answer["value"] = combine(world_size_ == 1 ? std::vector<JsonValue>{mine} : Gather(what, mine));
      } catch (const PlanError& error) {
        answer["errors"] = ToJson(error.diagnostics());
        if (error.diagnostics().front().finding == Finding::kRankLost) lost_ = error.diagnostics();
      } catch (const std::exception& error) {
        // Whatever it is: without an answer the other ranks would wait for their full timeout.
        answer["errors"] = ToJson(Diagnostics{MakeDiagnostic(Finding::kInternal, what + ": " + ErrorText(error))});
      }
      if (world_size_ > 1) Set(Key("answer"), WriteJson(answer, 0));
    } else {
      Set(Key(std::to_string(rank_)), WriteJson(mine, 0));
      // Rank 0 answers at the end of its own timeout at the latest, and may have begun to wait later.
      const std::string text = Wait(Key("answer"), Clock::now() + timeout_ + kGrace);
      answer = ParseJson(text, "answer").ValueOrThrow().AsObject();
    }
    // With a rank lost, its part of Finish would never come.
    if (world_size_ > 1 && lost_.empty()) Finish();
  } catch (const StoreTimeout&) {
    lost_ = {RanksMissing(what, "rank 0 did not respond")};
  } catch (const PlanError&) {
    throw;
  } catch (const InternalError&) {
    throw;
  } catch (const std::exception& error) {
    lost_ = {StoreLost(what, ErrorText(error))};
  }
  if (!lost_.empty()) throw PlanError(lost_);
  if (answer.contains("errors")) {
    Diagnostics errors = DiagnosticsOfRank(answer["errors"]);
    if (errors.front().finding == Finding::kRankLost) lost_ = errors;
    throw PlanError(std::move(errors));
  }
  return std::move(answer["value"]);
}

JsonValue StoreGroup::GatherOrFail(const std::string& what, const Diagnostics& errors, const JsonValue& mine,
                                   const Combine& combine, const std::function<void(Diagnostics&)>& annotate) {
  const JsonValue both = JsonValue::Object{{"errors", ToJson(errors)}, {"value", mine}};
  return GatherAndBroadcast(what, both, [&](const std::vector<JsonValue>& all) {
    std::vector<Diagnostics> by_rank;
    std::vector<JsonValue> values;
    for (const JsonValue& one : all) {
      by_rank.push_back(DiagnosticsOfRank(*one.Find("errors")));
      values.push_back(*one.Find("value"));
    }
    Diagnostics merged = MergeByText(by_rank);
    if (!merged.empty()) {
      if (annotate) annotate(merged);
      throw PlanError(std::move(merged));
    }
    return combine(values);
  });
}

void StoreGroup::Agree(const std::string& subject, const std::string& text) {
  if (world_size_ == 1) return;
  const std::string what = "compare " + subject;
  const std::string hash = std::to_string(HashOf(text)) + " " + std::to_string(text.size());
  // A compiled plan has megabytes: its text travels only from rank 0 and the first rank unlike it.
  const JsonValue unlike = GatherAndBroadcast(what, hash, [](const std::vector<JsonValue>& hashes) -> JsonValue {
    const auto found = std::ranges::find_if(hashes, [&](const JsonValue& other) { return other != hashes.front(); });
    return found == hashes.end() ? JsonValue() : JsonValue(found - hashes.begin());
  });
  if (unlike.is_null()) return;
  const int64_t other = unlike.AsInt();
  GatherAndBroadcast(what, rank_ == 0 || rank_ == other ? text : "",
                     [&](const std::vector<JsonValue>& texts) -> JsonValue {
                       const auto rank = static_cast<size_t>(other);
                       throw PlanError({TextsDiffer(subject, 0, texts[0].AsString(), rank, texts[rank].AsString())});
                     });
}

void Agree(const DeviceMesh& mesh, std::string_view subject, const std::string& text,
           std::chrono::milliseconds timeout) {
  StoreGroup(mesh, subject, timeout).Agree(std::string(subject), text);
}

}  // namespace moonshard
