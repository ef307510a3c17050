// Keys of the store, below a prefix of the attempt: beat/R with what rank R last wrote about itself, failure with the
// first failure (compareSet decides which one is first), heard with the number of ranks that have read it, lifeline
// with the address, the port and the token of rank 0's lifeline.
//
// A rank that ends in order writes so before its connection ends, and one that fails writes its failure. So rank 0
// takes the state of the connections first, then reads the store: a connection that had ended before, of a rank that
// wrote neither, is that of a process that was killed.
//
// A rank that serves the store must not end before the others have read a failure: they would lose the store, and
// report that instead. So it takes a failure only once they have, or after kAcknowledge.
//
// Where a rank has no lifeline: a process that was killed closes its connections at once, and its peers' collectives
// fail long before its counter is silent for `silence`. These ranks do not know which rank it was. They write that they
// suspect a loss, which makes rank 0 judge by kSuspicion, and wait for its judgement.
#include "engine/runtime/mesh/rank_watch.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <random>
#include <system_error>
#include <thread>
#include <utility>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "engine/core/base/json.h"
#include "engine/runtime/mesh/device_mesh.h"
#include "engine/runtime/mesh/launch.h"
#include "engine/runtime/mesh/lifeline.h"
#include "engine/runtime/mesh/mesh_group.h"
#include "engine/runtime/mesh/route.h"
#include "engine/runtime/mesh/tcp_store.h"
#include "engine/runtime/mesh/waits.h"

namespace moonshard {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kLook{200};          // of the thread that reports
constexpr milliseconds kSuspicion{4000};    // the silence of a rank that is lost, where a connection ended
constexpr milliseconds kJudgement{8000};    // the longest wait for a judgement after that
constexpr milliseconds kAcknowledge{3000};  // the longest wait for the other ranks to read a failure
constexpr milliseconds kPost{4000};         // the longest wait for a failure to be written
constexpr milliseconds kLeave{2000};        // the longest wait for the thread of the store to end
constexpr milliseconds kReach{2000};        // the longest wait for a store that was not reached yet
constexpr milliseconds kKeep{5000};         // between two looks for new connections
constexpr milliseconds kForever = std::chrono::hours(24 * 7);
constexpr milliseconds kLater{20'000};
constexpr std::chrono::seconds kQuiet{3};  // a silence to mention

std::vector<uint8_t> Bytes(const std::string& text) { return {text.begin(), text.end()}; }

std::string TextOr(const JsonValue& json, const char* key) {
  const JsonValue* value = json.Find(key);
  return value != nullptr && value->is_string() ? value->AsString() : "";
}

int64_t NumberOr(const JsonValue& json, const char* key, int64_t otherwise) {
  const JsonValue* value = json.Find(key);
  return value != nullptr && value->is_int() ? value->AsInt() : otherwise;
}

std::string ToJsonText(const FailedRank& failure) {
  return WriteJson(JsonValue::Object{{"rank", failure.place.rank},
                                     {"host", failure.place.host},
                                     {"stage", failure.place.stage},
                                     {"message", failure.message},
                                     {"exit_code", failure.exit_code}},
                   0);
}

FailedRank FailureOf(const std::vector<uint8_t>& bytes) {
  const Result<JsonValue> json = ParseJson(std::string(bytes.begin(), bytes.end()), "failure");
  FailedRank failure;
  if (!json.ok()) {
    failure.message = "a failure that cannot be read: all ranks must have the same version of moonshard";
    return failure;
  }
  failure.place = {NumberOr(json.value(), "rank", 0), TextOr(json.value(), "host"), TextOr(json.value(), "stage")};
  failure.message = TextOr(json.value(), "message");
  failure.exit_code = static_cast<int>(std::clamp<int64_t>(NumberOr(json.value(), "exit_code", 1), 1, 255));
  return failure;
}

std::string NewToken() {
  std::random_device device;
  std::string token;
  for (int i = 0; i < 4; ++i) token += std::to_string(device()) + (i < 3 ? "." : "");
  return token;
}

std::string Seconds(Clock::duration time) {
  return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(time).count()) + " s";
}

}  // namespace

std::string RankPlace::ToText() const {
  std::string text = rank < 0 ? "the store" : "rank " + std::to_string(rank);
  if (!host.empty()) text += (rank < 0 ? " at " : " on ") + host;
  if (!stage.empty()) text += ", in '" + stage + "'";
  if (silent >= kQuiet) text += ", without a sign of life for " + std::to_string(silent.count()) + " s";
  return text;
}

Diagnostic FailedRank::ToDiagnostic() const {
  Diagnostic d = MakeDiagnostic(Finding::kRankLost, place.ToText() + ", failed first");
  d.declared = message;
  d.required = "every rank runs to the end";
  d.help = "look at the output of that rank";
  return d;
}

std::string LongWait::ToText() const {
  constexpr size_t kMost = 4;
  RankPlace here = place;
  here.stage.clear();
  std::string text = here.ToText();
  if (!for_ranks) return text + " has been in '" + what + "' for " + std::to_string(waited.count()) + " s";
  text += " has waited " + std::to_string(waited.count()) + " s for other ranks, in " + what;
  if (!store.empty()) return text + "; the store at " + store + " cannot be reached yet: rank 0 has not come";
  if (!missing_known) return text;
  if (missing.empty()) return text + "; all ranks have come";
  text += "; not there:";
  for (size_t i = 0; i < std::min(missing.size(), kMost); ++i) text += (i == 0 ? " " : "; ") + missing[i].ToText();
  if (missing.size() > kMost) text += "; and " + std::to_string(missing.size() - kMost) + " more";
  return text;
}

struct RankWatch::State {
  // What is known of another rank.
  struct PeerSign {
    bool seen = false;   // it has written something
    bool moved = false;  // its counter has changed while this rank looked; what an earlier run left does not
    bool done = false;
    bool suspects = false;
    int64_t counter = -1;
    std::string host;
    std::string stage;
    std::string waits_for;
    bool for_ranks = false;
    std::vector<int64_t> ranks;
    milliseconds waited{0};
    Clock::duration silent{0};
    Lifeline::State line = Lifeline::State::kNone;  // before its counter was read
  };

  // The wait that a rank is in, by its own clock.
  struct OwnWait {
    std::string what;
    bool for_ranks = false;
    std::vector<int64_t> ranks;
    milliseconds waited{0};
  };

  RankWatchOptions options;
  Launch launch;
  bool over_store = false;  // else the launcher watches the processes
  bool reports_waits = false;

  std::mutex mutex;
  std::condition_variable changed;
  std::thread store_thread;
  std::thread report_thread;
  bool store_thread_ended = false;

  // Of this rank.
  std::string host;
  std::string stage = "starting";
  bool stage_reported = true;
  Clock::time_point stage_begin = Clock::now();
  std::shared_ptr<Waits> waits;
  OwnWait wait;
  bool suspects = false;
  bool suspects_written = false;  // as the last sign had it
  bool sign_due = false;          // the next look does not wait for the beat
  bool stopping = false;
  bool done = false;
  std::optional<FailedRank> own;  // to be written

  // Of the others.
  std::vector<PeerSign> peers;
  bool connected = false;
  bool looked = false;              // this rank's first sign is in the store
  std::string store_lost;           // why the store is not available any more
  Clock::duration store_waited{0};  // of the call that failed then
  int64_t run = 1;                  // written once, by the thread of the store
  std::optional<Clock::time_point> call_begin;
  std::optional<FailedRank> first;
  Clock::time_point first_at;
  std::unique_ptr<Lifeline> lifeline;  // null: not opened yet, or not possible
  bool ending = false;                 // the thread of the program ends the rank
  bool calling = false;                // on_failure runs

  // A launcher's store may hold the keys of an earlier run: `run` counts the runs of this rank over the store.
  std::string Key(const std::string& name) const {
    return "moonshard/watch/" + launch.attempt + "/" + std::to_string(run) + "/" + name;
  }
  RankPlace Place(int64_t rank) const {
    if (rank == launch.rank) return {rank, host, stage};
    const PeerSign& peer = peers[static_cast<size_t>(rank)];
    return {rank, peer.host, peer.stage};
  }
  // How long a rank may be silent; 0: any time.
  milliseconds LimitOf(Lifeline::State line) const {
    return line == Lifeline::State::kStands ? options.mute : options.silence;
  }
  // TCP gives up after the rank's silence was judged: it counts from the last packet, which an idle connection may have
  // received 15 seconds before the way was interrupted.
  milliseconds ConnectionLimit() const { return options.mute.count() > 0 ? options.mute + kLater : kForever; }
  bool AllSeen() const {
    for (size_t r = 0; r < peers.size(); ++r) {
      if (static_cast<int64_t>(r) != launch.rank && !peers[r].seen) return false;
    }
    return true;
  }

  void RunStore();
  void OpenLifeline(c10d::Store& store, const std::optional<NetworkRoute>& route);
  void LookAtStore(c10d::Store& store, int64_t count, Clock::time_point& last);
  std::string Sign(int64_t count);
  std::vector<int64_t> Targets() const;
  std::optional<FailedRank> Judge() const;
  void Take(c10d::Store& store, FailedRank failure);

  void RunReports();
  void MeasureWait(uint64_t& serial, Clock::time_point& begin);
  void ReportWait(std::unique_lock<std::mutex>& lock, milliseconds& next);
  void NoticeStore(Clock::duration& in_call, Clock::duration gap);
};

// The thread of the store.

std::string RankWatch::State::Sign(int64_t count) {
  JsonValue::Object sign = {{"count", count}, {"host", host}, {"stage", stage}};
  if (done) sign["done"] = true;
  if (suspects) sign["suspects"] = true;
  if (wait.waited >= options.beat && !wait.what.empty()) {
    sign["waits_for"] = wait.what;
    sign["for_ranks"] = wait.for_ranks;
    sign["waited_ms"] = wait.waited.count();
    JsonValue::Array ranks;
    for (const int64_t rank : wait.ranks) ranks.emplace_back(rank);
    sign["ranks"] = std::move(ranks);
  }
  return WriteJson(sign, 0);
}

// Whose signs this look reads. One rank of each host reads those of its host, and all while it has a wait to report.
std::vector<int64_t> RankWatch::State::Targets() const {
  bool all = launch.rank == 0;
  if (reports_waits) {
    all = all || !AllSeen() || wait.waited >= options.patience / 2;
    for (const PeerSign& peer : peers) all = all || (peer.host == host && peer.waited >= options.patience / 2);
  }
  std::vector<int64_t> out;
  for (int64_t rank = 0; rank < static_cast<int64_t>(peers.size()); ++rank) {
    const bool beside = reports_waits && peers[static_cast<size_t>(rank)].host == host;
    if (rank != launch.rank && (all || rank == 0 || beside)) out.push_back(rank);
  }
  return out;
}

std::optional<FailedRank> RankWatch::State::Judge() const {
  bool suspected = suspects;
  for (const PeerSign& peer : peers) suspected = suspected || peer.suspects;
  for (int64_t rank = 0; rank < static_cast<int64_t>(peers.size()); ++rank) {
    const PeerSign& peer = peers[static_cast<size_t>(rank)];
    if (!peer.seen || peer.done || rank == launch.rank || (launch.rank != 0 && rank != 0)) continue;
    FailedRank failure;
    failure.place = Place(rank);
    if (peer.line == Lifeline::State::kEnded) {
      failure.message =
          "its process has ended without a message: it was killed (by a signal, or because memory was short), or it "
          "crashed";
      return failure;
    }
    milliseconds limit = LimitOf(peer.line);
    if (limit.count() == 0 || !peer.moved) continue;
    if (suspected) limit = std::min(kSuspicion, limit);
    if (peer.silent < limit) continue;
    failure.message = "no sign of life for " + Seconds(peer.silent) +
                      ": its process was killed, is suspended, or its machine cannot be reached";
    return failure;
  }
  return std::nullopt;
}

// Rank 0 listens at the address from which it reaches the store. If that is its loopback, it does not know at which
// address the others reach it: that of the store, where it serves it.
void RankWatch::State::OpenLifeline(c10d::Store& store, const std::optional<NetworkRoute>& route) {
  const bool known = route && !IsLoopback(route->own);
  if (launch.rank == 0) {
    const bool here = launch.host == "localhost" || IsLoopback(launch.host);  // all ranks are
    const std::string own = route && (known || here) ? route->own : "";
    std::string token = NewToken();
    std::unique_ptr<Lifeline> made = Lifeline::Listen(own, launch.world_size, token, ConnectionLimit());
    const int64_t port = made ? made->port() : 0;
    store.set(Key("lifeline"),
              Bytes(WriteJson(
                  JsonValue::Object{{"address", known ? own : ""}, {"port", port}, {"token", std::move(token)}}, 0)));
    const std::lock_guard lock(mutex);
    lifeline = std::move(made);
    return;
  }
  if (!store.check({Key("lifeline")})) return;
  const std::vector<uint8_t> bytes = store.get(Key("lifeline"));
  const Result<JsonValue> json = ParseJson(std::string(bytes.begin(), bytes.end()), "lifeline");
  if (!json.ok()) return;
  const int64_t port = NumberOr(json.value(), "port", 0);
  std::string address = TextOr(json.value(), "address");
  if (address.empty() && route) address = route->peer;
  if (port <= 0 || port > UINT16_MAX) return;
  const std::lock_guard lock(mutex);
  lifeline = Lifeline::Connect(address, static_cast<uint16_t>(port), launch.rank, TextOr(json.value(), "token"),
                               ConnectionLimit());
}

void RankWatch::State::LookAtStore(c10d::Store& store, int64_t count, Clock::time_point& last) {
  std::vector<int64_t> targets;
  std::string sign;
  std::optional<FailedRank> mine;
  {
    const std::lock_guard lock(mutex);
    sign_due = false;
    sign = Sign(count);
    suspects_written = suspects;
    targets = Targets();
    mine = own;
    if (lifeline) lifeline->Look();
    for (size_t r = 0; lifeline && r < peers.size(); ++r) {
      if (launch.rank == 0 || r == 0) peers[r].line = lifeline->Of(static_cast<int64_t>(r));
    }
  }
  store.set(Key("beat/" + std::to_string(launch.rank)), Bytes(sign));
  if (mine) {
    Take(store, FailureOf(store.compareSet(Key("failure"), {}, Bytes(ToJsonText(*mine)))));
    return;
  }
  if (store.check({Key("failure")})) {
    Take(store, FailureOf(store.get(Key("failure"))));
    return;
  }
  std::vector<std::string> keys;
  std::vector<int64_t> known;
  for (const int64_t rank : targets) {
    const std::string key = Key("beat/" + std::to_string(rank));
    if (!peers[static_cast<size_t>(rank)].seen && !store.check({key})) continue;
    keys.push_back(key);
    known.push_back(rank);
  }
  const std::vector<std::vector<uint8_t>> signs =
      keys.empty() ? std::vector<std::vector<uint8_t>>() : store.multiGet(keys);
  const Clock::time_point now = Clock::now();
  // Time in which this rank did not run says nothing about the others.
  const Clock::duration passed = std::min<Clock::duration>(now - last, 2 * options.beat);
  last = now;
  std::optional<FailedRank> judged;
  {
    const std::lock_guard lock(mutex);
    std::vector<bool> read(peers.size(), false);
    for (size_t i = 0; i < signs.size(); ++i) {
      const Result<JsonValue> json = ParseJson(std::string(signs[i].begin(), signs[i].end()), "beat");
      if (!json.ok()) continue;
      const JsonValue& value = json.value();
      PeerSign& peer = peers[static_cast<size_t>(known[i])];
      read[static_cast<size_t>(known[i])] = true;
      const int64_t counter = NumberOr(value, "count", -1);
      peer.moved = peer.moved || (peer.seen && counter != peer.counter);
      peer.silent = peer.seen && counter == peer.counter ? peer.silent + passed : Clock::duration(0);
      peer.counter = counter;
      peer.seen = true;
      peer.done = value.Find("done") != nullptr;
      peer.suspects = value.Find("suspects") != nullptr;
      peer.host = TextOr(value, "host");
      peer.stage = TextOr(value, "stage");
      peer.waits_for = TextOr(value, "waits_for");
      const JsonValue* for_ranks = value.Find("for_ranks");
      peer.for_ranks = for_ranks != nullptr && for_ranks->is_bool() && for_ranks->AsBool();
      peer.waited = milliseconds(NumberOr(value, "waited_ms", 0));
      peer.ranks.clear();
      if (const JsonValue* ranks = value.Find("ranks"); ranks != nullptr && ranks->is_array()) {
        for (const JsonValue& rank : ranks->AsArray()) {
          if (rank.is_int()) peer.ranks.push_back(rank.AsInt());
        }
      }
    }
    for (size_t r = 0; r < peers.size(); ++r) {
      if (!read[r]) peers[r].silent = Clock::duration(0);
    }
    if (!done && !stopping) judged = Judge();
    changed.notify_all();
  }
  if (judged) Take(store, FailureOf(store.compareSet(Key("failure"), {}, Bytes(ToJsonText(*judged)))));
}

void RankWatch::State::Take(c10d::Store& store, FailedRank failure) {
  const bool serves = launch.serves_store;
  if (!serves && failure.place.rank != launch.rank) store.add(Key("heard"), 1);
  if (serves) {
    std::vector<int64_t> unseen;
    int64_t others = 0;
    {
      const std::lock_guard lock(mutex);
      for (int64_t rank = 0; rank < static_cast<int64_t>(peers.size()); ++rank) {
        const PeerSign& peer = peers[static_cast<size_t>(rank)];
        if (rank == launch.rank || rank == failure.place.rank || peer.done) continue;
        if (peer.seen) {
          ++others;
        } else {
          unseen.push_back(rank);
        }
      }
    }
    // A rank that has come since the last look reads the failure, too.
    others +=
        std::ranges::count_if(unseen, [&](int64_t rank) { return store.check({Key("beat/" + std::to_string(rank))}); });
    const Clock::time_point until = Clock::now() + kAcknowledge;
    while (store.add(Key("heard"), 0) < others && Clock::now() < until) {
      std::this_thread::sleep_for(milliseconds(50));
    }
  }
  const std::lock_guard lock(mutex);
  first = std::move(failure);
  first_at = Clock::now();
  changed.notify_all();
}

void RankWatch::State::RunStore() {
  std::string address;
  const std::optional<NetworkRoute> route = RouteTo(launch.host, launch.port);
  if (route && !IsLoopback(route->own)) address = " (" + route->own + ")";
  std::array<char, 256> name = {};
  gethostname(name.data(), name.size() - 1);
  {
    const std::lock_guard lock(mutex);
    host = name.data() + address;
  }
  try {
    const c10::intrusive_ptr<c10d::Store> store = OpenTcpStore(launch, options.join);
    run = store->add("moonshard/watch/" + launch.attempt + "/runs/" + std::to_string(launch.rank), 1);
    Clock::time_point last = Clock::now();
    for (int64_t count = 0;; ++count) {
      bool leaves = false;
      bool opens = false;
      std::string last_sign;
      {
        const std::lock_guard lock(mutex);
        connected = true;
        leaves = stopping && !own;
        call_begin = Clock::now();
        if (leaves) last_sign = Sign(count);
        opens = !lifeline && (launch.rank != 0 || count == 0);
      }
      if (leaves) {
        store->set(Key("beat/" + std::to_string(launch.rank)), Bytes(last_sign));
        break;
      }
      if (opens) OpenLifeline(*store, route);
      LookAtStore(*store, count, last);
      std::unique_lock lock(mutex);
      call_begin.reset();
      if (first) break;
      looked = true;
      changed.notify_all();
      changed.wait_for(lock, options.beat, [&] { return stopping || sign_due || own || suspects != suspects_written; });
    }
  } catch (const std::exception& error) {
    const std::lock_guard lock(mutex);
    store_lost = ErrorText(error);
    store_lost.resize(std::min(store_lost.find('\n'), store_lost.size()));
    if (call_begin) store_waited = Clock::now() - *call_begin;
  }
  const std::lock_guard lock(mutex);
  call_begin.reset();
  store_thread_ended = true;
  changed.notify_all();
}

// The thread that reports.

void RankWatch::State::MeasureWait(uint64_t& serial, Clock::time_point& begin) {
  const Clock::time_point now = Clock::now();
  const std::optional<Waits::Place> place = waits ? waits->Oldest() : std::nullopt;
  if (place) {
    if (place->serial != serial) begin = now;
    serial = place->serial;
    wait = {place->what, true, place->ranks, std::chrono::duration_cast<milliseconds>(now - begin)};
    return;
  }
  serial = 0;
  wait = {};
  if (!stage_reported) return;
  wait = {stage, !waits, {}, std::chrono::duration_cast<milliseconds>(now - stage_begin)};
  if (wait.for_ranks) wait.what = "'" + stage + "'";
}

void RankWatch::State::ReportWait(std::unique_lock<std::mutex>& lock, milliseconds& next) {
  if (!reports_waits || !options.on_wait || done || stopping || ending || first) return;
  LongWait longest;
  longest.place = Place(launch.rank);
  longest.what = wait.what;
  longest.for_ranks = wait.for_ranks;
  milliseconds waited = wait.waited;
  std::vector<int64_t> ranks = wait.ranks;
  for (int64_t rank = 0; rank < static_cast<int64_t>(peers.size()); ++rank) {
    const PeerSign& peer = peers[static_cast<size_t>(rank)];
    if (rank == launch.rank || peer.host != host || peer.waits_for.empty() || peer.waited <= waited) continue;
    longest.place = Place(rank);
    longest.what = peer.waits_for;
    longest.for_ranks = peer.for_ranks;
    waited = peer.waited;
    ranks = peer.ranks;
  }
  if (waited < options.patience) next = options.patience;
  if (waited < next) return;
  while (next <= waited) next *= 2;
  longest.waited = std::chrono::duration_cast<std::chrono::seconds>(waited);
  if (longest.for_ranks && over_store) {
    if (!connected) longest.store = launch.host + ":" + std::to_string(launch.port);
    const bool joining = !waits;
    longest.missing_known = connected;
    const auto add = [&](int64_t rank) {
      if (rank == longest.place.rank || rank < 0 || rank >= static_cast<int64_t>(peers.size())) return;
      const bool own_place = rank == launch.rank;
      const PeerSign& peer = peers[static_cast<size_t>(rank)];
      const bool come = joining ? own_place || peer.seen : (own_place ? wait.what : peer.waits_for) == longest.what;
      if (come) return;
      RankPlace place = Place(rank);
      if (!own_place) place.silent = std::chrono::duration_cast<std::chrono::seconds>(peer.silent);
      longest.missing.push_back(std::move(place));
    };
    if (ranks.empty()) {
      for (int64_t rank = 0; rank < static_cast<int64_t>(peers.size()); ++rank) add(rank);
    } else {
      for (const int64_t rank : ranks) add(rank);
    }
  }
  lock.unlock();
  options.on_wait(longest);
  lock.lock();
}

// The store is lost: its connection ended, or a call does not return. Where rank 0 serves it, that is the loss of rank
// 0, unless rank 0 has ended in order.
void RankWatch::State::NoticeStore(Clock::duration& in_call, Clock::duration gap) {
  if (!over_store || !connected || first || done || stopping || own || launch.serves_store) return;
  in_call = call_begin && Clock::now() - *call_begin > 2 * kLook ? in_call + gap : Clock::duration(0);
  // Of the launcher's process nothing is known but that its connection has not ended.
  const bool stands = launch.agent_serves || (lifeline && lifeline->Of(0) == Lifeline::State::kStands);
  const milliseconds limit = LimitOf(stands ? Lifeline::State::kStands : Lifeline::State::kNone);
  const bool hangs = limit.count() > 0 && in_call >= limit;
  if (store_lost.empty() && !hangs) return;
  if (!launch.agent_serves && peers[0].done) return;
  FailedRank failure;
  failure.place = Place(0);
  std::string of = "its store";
  if (launch.agent_serves) {
    failure.place = {-1, launch.host + ":" + std::to_string(launch.port), ""};
    of = "the store of the launcher";
  }
  const bool gave_up = store_lost.find(std::generic_category().message(ETIMEDOUT)) != std::string::npos;
  const bool mute = hangs || gave_up;
  failure.message = mute ? of + " has not responded for " + Seconds(hangs ? in_call : store_waited) +
                               ": its machine cannot be reached"
                         : "the connection to " + of + " has ended: its process has ended (" + store_lost + ")";
  first = std::move(failure);
  first_at = Clock::now();
  changed.notify_all();
}

void RankWatch::State::RunReports() {
  uint64_t serial = 0;
  Clock::time_point begin = Clock::now();
  Clock::time_point last = begin;
  Clock::duration in_call{0};
  Clock::time_point kept{};
  milliseconds next = options.patience;
  std::unique_lock lock(mutex);
  while (!stopping) {
    const Clock::time_point now = Clock::now();
    if (over_store && now - kept >= kKeep) {
      kept = now;
      KeepConnections(ConnectionLimit());
    }
    if (lifeline) lifeline->Look();
    const Clock::duration gap = std::min<Clock::duration>(now - last, 2 * kLook);
    last = now;
    MeasureWait(serial, begin);
    NoticeStore(in_call, gap);
    // Also where the others took this rank for lost, and ended.
    if (first && !ending && now - first_at >= options.grace) {
      calling = true;
      const FailedRank failure = *first;
      lock.unlock();
      if (options.on_failure) options.on_failure(failure);
      lock.lock();
      calling = false;
      ending = true;
      changed.notify_all();
    }
    ReportWait(lock, next);
    if (stopping) return;
    changed.wait_for(lock, kLook, [&] { return stopping; });
  }
}

// The thread of the program.

std::unique_ptr<RankWatch> RankWatch::FromEnvironment(const MeshShape& shape, RankWatchOptions options) {
  const Result<Launch> launch = ReadLaunch(ProcessEnvironment, shape);
  if (!launch.ok() || shape.world_size() == 1) return nullptr;
  auto state = std::make_shared<State>();
  state->options = std::move(options);
  state->launch = launch.value();
  state->over_store = launch.value().store_file.empty();
  state->reports_waits = launch.value().local_rank == 0;
  state->peers.resize(static_cast<size_t>(launch.value().world_size));
  return std::unique_ptr<RankWatch>(new RankWatch(std::move(state)));
}

// The threads take no signals: those are for the thread of the program, whose waits they interrupt.
RankWatch::RankWatch(std::shared_ptr<State> state) : state_(std::move(state)) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  // The thread of the store may outlive this object, in a call that does not return.
  if (state_->over_store) state_->store_thread = std::thread([shared = state_] { shared->RunStore(); });
  state_->report_thread = std::thread([shared = state_] { shared->RunReports(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

RankWatch::~RankWatch() { Stop(); }

void RankWatch::Stop() {
  std::unique_lock lock(state_->mutex);
  state_->stopping = true;
  state_->changed.notify_all();
  if (state_->report_thread.joinable()) {
    lock.unlock();
    state_->report_thread.join();
    lock.lock();
  }
  if (!state_->store_thread.joinable()) return;
  // A thread that has not reached the store has nothing to write.
  const bool ended = state_->changed.wait_for(lock, state_->connected ? kLeave : milliseconds(0),
                                              [&] { return state_->store_thread_ended; });
  lock.unlock();
  if (ended) {
    state_->store_thread.join();
  } else {
    state_->store_thread.detach();
  }
}

void RankWatch::Enter(std::string stage, bool reported) {
  const std::lock_guard lock(state_->mutex);
  // Steps may take a millisecond each, and are written with the beat.
  state_->sign_due = state_->sign_due || reported || state_->stage_reported;
  if (state_->sign_due) state_->changed.notify_all();
  state_->stage = std::move(stage);
  state_->stage_reported = reported;
  state_->stage_begin = Clock::now();
}

void RankWatch::Attach(const DeviceMesh& mesh) {
  std::shared_ptr<Waits> waits = mesh.Group(MeshAxis::kTp)->waits;
  std::unique_lock lock(state_->mutex);
  state_->waits = std::move(waits);
  if (!state_->over_store) return;
  state_->changed.wait_for(lock, kReach, [&] { return state_->looked || state_->store_thread_ended; });
}

struct RankWatch::DeviceWait::Note {
  Note(std::shared_ptr<Waits> of, std::string text)
      : waits(std::move(of)), what(std::move(text)), scope(waits.get(), what, group, ranks) {}
  std::shared_ptr<Waits> waits;  // null before Attach
  std::string what;
  std::string group;
  std::vector<int64_t> ranks;  // all
  Waits::Scope scope;
};

RankWatch::DeviceWait::DeviceWait(const RankWatch* watch, std::string what) {
  if (watch == nullptr) return;
  std::shared_ptr<Waits> waits;
  {
    const std::lock_guard lock(watch->state_->mutex);
    waits = watch->state_->waits;
  }
  note_ = std::make_unique<Note>(std::move(waits), std::move(what));
}

RankWatch::DeviceWait::~DeviceWait() = default;

std::optional<FailedRank> RankWatch::Fail(const std::string& message, int exit_code, bool consequence) {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  s.changed.wait_for(lock, kJudgement, [&] { return !s.calling; });
  s.ending = true;
  if (!s.over_store) return std::nullopt;
  const auto known = [&] { return s.first.has_value() || s.store_thread_ended; };
  s.changed.wait_for(lock, kReach, [&] { return s.connected || known(); });
  if (!s.connected) return s.first;  // there is no rank to hear of it
  if (consequence) {
    s.suspects = true;
    s.changed.notify_all();
    // Rank 0 judges the ranks that it has seen, the others wait for rank 0.
    const bool judges = s.launch.rank != 0 || std::ranges::any_of(s.peers, &State::PeerSign::seen);
    if (judges && s.options.silence.count() > 0) s.changed.wait_for(lock, kJudgement, known);
    // The report thread takes the end of the store for the failure of rank 0.
    if (!s.first) s.changed.wait_for(lock, 5 * kLook, [&] { return s.first.has_value(); });
  }
  if (!s.first) {
    s.own = FailedRank{{s.launch.rank, s.host, s.stage}, message, exit_code};
    s.changed.notify_all();
    s.changed.wait_for(lock, kPost, known);
  }
  if (s.first && s.first->place.rank != s.launch.rank) return s.first;
  return std::nullopt;
}

void RankWatch::Done() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->done = true;
  }
  Stop();
}

}  // namespace moonshard
