#include "engine/runtime/collective/agree.h"

#include <algorithm>
#include <map>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "engine/core/base/diagnostic.h"
#include "engine/core/base/text.h"
#include "engine/runtime/collective/label.h"

namespace moonshard {
namespace {

std::vector<uint8_t> Bytes(std::string_view text) { return {text.begin(), text.end()}; }
std::string Text(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

// A value that never is a verdict's first byte, so that an empty verdict is a value too: some stores keep no empty ones.
constexpr char kMark = '.';

class Conversation {
 public:
  Conversation(const DeviceMesh& mesh, std::string_view what, std::chrono::milliseconds timeout)
      : store_(mesh.store()), world_(mesh.shape().world_size()), rank_(mesh.rank()), what_(what), timeout_(timeout) {
    const std::string name = "agree/" + what_;
    turn_ = name + "/" + std::to_string(store_->add(name + "/rank/" + std::to_string(rank_), 1)) + "/";
  }

  void Say(const std::string& key, std::string_view value) {
    store_->set(turn_ + key, Bytes(kMark + std::string(value)));
  }

  std::string Hear(const std::string& key, std::chrono::milliseconds timeout) {
    store_->wait({turn_ + key}, timeout);
    return Text(store_->get(turn_ + key)).substr(1);
  }

  // The hashes by rank; throws kRankLost naming every rank that did not come.
  std::vector<std::string> HearAll() {
    const auto give_up = std::chrono::steady_clock::now() + timeout_;
    std::vector<std::string> hashes;
    std::vector<std::string> missing;
    for (int64_t rank = 0; rank < world_; ++rank) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(give_up - std::chrono::steady_clock::now());
      try {
        hashes.push_back(Hear("hash/" + std::to_string(rank), std::max(left, std::chrono::milliseconds(1))));
      } catch (const std::exception&) {
        missing.push_back(std::to_string(rank));
      }
    }
    if (!missing.empty()) throw PlanError({Lost("rank " + Join(missing, ", ") + " did not come within " + Seconds())});
    return hashes;
  }

  Diagnostic Lost(const std::string& why) const {
    Diagnostic d = MakeDiagnostic(Finding::kRankLost, "not all ranks came to compare " + what_);
    d.declared = why;
    d.required = "every rank of the mesh";
    d.help = "look at the output of the other ranks: the first failure is theirs";
    return d;
  }

  std::string Seconds() const { return std::to_string(timeout_.count() / 1000) + " s"; }
  int64_t world() const { return world_; }
  int64_t rank() const { return rank_; }
  const std::string& what() const { return what_; }
  std::chrono::milliseconds timeout() const { return timeout_; }

  // Rank 0 may serve the store: it leaves last.
  void Leave() {
    store_->add(turn_ + "left", 1);
    const auto give_up = std::chrono::steady_clock::now() + timeout_;
    while (rank_ == 0 && store_->add(turn_ + "left", 0) < world_ && std::chrono::steady_clock::now() < give_up) {
      timespec pause = {0, 1000000};
      nanosleep(&pause, nullptr);
    }
  }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  int64_t world_;
  int64_t rank_;
  std::string what_;
  std::chrono::milliseconds timeout_;
  std::string turn_;
};

// Rank 0's verdict: empty where all agree; else "a b": two ranks that differ, a the first and b the first unlike it.
std::string Judge(const std::vector<std::string>& hashes) {
  for (size_t rank = 1; rank < hashes.size(); ++rank) {
    if (hashes[rank] != hashes[0]) return "0 " + std::to_string(rank);
  }
  return "";
}

Diagnostic Disagreement(const std::string& what, const std::string& rank_a, const std::string& text_a,
                        const std::string& rank_b, const std::string& text_b) {
  const std::vector<std::string> a = Split(text_a, '\n');
  const std::vector<std::string> b = Split(text_b, '\n');
  size_t line = 0;
  while (line < a.size() && line < b.size() && a[line] == b[line]) ++line;
  const auto show = [line](const std::vector<std::string>& lines) {
    return line < lines.size() ? "\"" + lines[line] + "\"" : std::string("(no more lines)");
  };
  Diagnostic d = MakeDiagnostic(Finding::kRanksDisagree, "the ranks do not hold the same: " + what + " differs");
  d.declared = "line " + std::to_string(line + 1) + " of rank " + rank_a + ": " + show(a) + "; of rank " + rank_b +
               ": " + show(b);
  d.required = "the same on every rank";
  d.help = "start every rank with the same plan, options, config and version of the program";
  return d;
}

}  // namespace

void Agree(const DeviceMesh& mesh, std::string_view what, const std::string& text, std::chrono::milliseconds timeout) {
  if (mesh.recording() || mesh.shape().world_size() == 1) return;
  std::optional<Conversation> talk;
  try {
    talk.emplace(mesh, what, timeout);
    const std::string own_rank = std::to_string(mesh.rank());
    talk->Say("hash/" + own_rank, std::to_string(StableHash(text)) + " " + std::to_string(text.size()));
    if (mesh.rank() == 0) {
      std::string verdict;
      try {
        verdict = Judge(talk->HearAll());
      } catch (const PlanError& error) {
        talk->Say("verdict", "lost " + error.diagnostics().front().declared);
        throw;
      }
      talk->Say("verdict", verdict);
    }
    // Rank 0 answers at the end of its own timeout at the latest.
    const std::string verdict = talk->Hear("verdict", timeout + std::chrono::seconds(10));
    if (verdict.starts_with("lost ")) throw PlanError({talk->Lost(verdict.substr(5))});
    if (verdict.empty()) {
      talk->Leave();
      return;
    }
    const std::vector<std::string> ranks = Split(verdict, ' ');
    if (own_rank == ranks[0] || own_rank == ranks[1]) talk->Say("text/" + own_rank, text);
    const std::string text_a = talk->Hear("text/" + ranks[0], timeout);
    const std::string text_b = talk->Hear("text/" + ranks[1], timeout);
    talk->Leave();
    throw PlanError({Disagreement(talk->what(), ranks[0], text_a, ranks[1], text_b)});
  } catch (const PlanError&) {
    throw;
  } catch (const std::exception& error) {
    const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
    const std::string why = torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
    if (talk) throw PlanError({talk->Lost(why)});
    throw PlanError({MakeDiagnostic(Finding::kRankLost, "the store of the ranks is gone: " + why)});
  }
}

}  // namespace moonshard
