// Between the blocks a rank has its own tokens, as under sequence parallelism, so that all is required which sequence
// parallelism from the embedding to the head requires. Attention is the one block that needs all tokens: its query, key
// and value projections and its output projection must be known as such, since with "ulysses" their heads are
// exchanged. A projection of interleaved key heads would be replicated with its queries where the key heads are fewer
// than the ranks, so it is left out.
//
// Bytes alone would choose a ring too early. Attention on a ring is computed block by block by the reference models or
// by a class that supports it, without the fused kernel that attention with all tokens may have, so a ring must save at
// least half of what is sent.
#include "dsl/planning/suggest/context.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "dsl/planning/suggest/sequence.h"
#include "engine/core/base/text.h"
#include "engine/plan/explain/texts.h"

namespace moonshard {
namespace {

std::string InQuotes(const std::string& text) { return "\"" + text + "\""; }

bool IsKnown(const Decision& decision) {
  if (decision.turned || decision.from_all) return false;
  constexpr std::array kParts = {Part::kEmbedding, Part::kHead,     Part::kNorm,    Part::kColwise,
                                 Part::kRowwise,   Part::kHeadNorm, Part::kExperts, Part::kFusedColwise};
  return std::ranges::find(kParts, decision.part) != kParts.end();
}

// Whether queries, keys and values are projections of their own or consecutive parts of one, and nothing else is in the
// block but norms of heads and the output projection.
bool HasOwnProjections(const Block& block) {
  size_t projections = 0;
  size_t ends = 0;
  for (const Decision& decision : block.decisions) {
    if (decision.part == Part::kRowwise) {
      ends += decision.names.size();
    } else if (decision.part == Part::kFusedColwise) {
      projections += decision.part_heads.size() == 3 ? 3 : 0;
    } else if (decision.part == Part::kColwise) {
      if (!decision.heads.known()) return false;
      projections += decision.names.size();
    }
  }
  return projections == 3 && ends == 1;
}

// Why the blocks of the draft cannot have shards of the sequence on cp; "": they can.
std::string WhyNot(const Draft& draft) {
  if (!HasHead(draft)) return "no head is known, whose output would have the tokens of all ranks";
  if (!draft.sequence) {
    return draft.no_sequence.empty() ? "not every block from the embedding to the head is understood"
                                     : draft.no_sequence;
  }
  const auto unknown = [](const Block& block) { return !std::ranges::all_of(block.decisions, IsKnown); };
  const auto named = [](const Block& block) { return "the block of " + block.decisions.front().names.front(); };
  for (const std::vector<Block>* blocks : {&draft.ends.first, &draft.ends.last}) {
    const auto found = std::ranges::find_if(*blocks, unknown);
    if (found != blocks->end()) return named(*found) + " is not known under context parallelism";
  }
  for (const ReadStack::Row& row : draft.stacks.front().rows) {
    if (unknown(row.block)) return named(row.block) + " is not known under context parallelism";
    if (row.block.heads.known() && !HasOwnProjections(row.block))
      return named(row.block) + " has other projections of heads than those of queries, keys and values";
  }
  return "";
}

struct Chosen {
  std::string context;  // "": none
  std::string why;
};

// ContextRequest::wanted, of the contexts that are possible, with the bytes that a rank sends.
Chosen Choice(const std::string& wanted, const std::map<std::string, int64_t>& possible) {
  const auto ulysses = possible.find("ulysses");
  const auto ring = possible.find("ring");
  if (!wanted.empty()) return possible.contains(wanted) ? Chosen{wanted, "as asked for"} : Chosen{};
  if (possible.contains("ulysses_ring")) return {"ulysses_ring", "since cp has two factors"};
  if (ulysses == possible.end()) return ring == possible.end() ? Chosen{} : Chosen{"ring", "the only one possible"};
  if (ring == possible.end()) return {"ulysses", "the only one possible"};
  if (ring->second <= ulysses->second / 2) return {"ring", "which sends at most half of the bytes"};
  return {"ulysses", "since a ring would not send half of the bytes or less"};
}

}  // namespace

void OfferContext(const ContextRequest& request, Draft& draft) {
  draft.context.clear();
  draft.no_context = WhyNot(draft);
  if (!draft.no_context.empty()) return;
  std::map<std::string, int64_t> possible;  // with what is sent
  std::vector<std::string> texts;
  std::vector<std::string> contexts = {"ulysses", "ring"};
  if (request.two_factors) contexts = {"ulysses_ring"};
  // With why it is not possible.
  if (!request.wanted.empty() && std::ranges::find(contexts, request.wanted) == contexts.end())
    contexts.push_back(request.wanted);
  for (const std::string& context : contexts) {
    draft.context = context;
    const Result<int64_t> sent = request.sent(WritePlan(draft).text);
    if (sent.ok()) possible[context] = sent.value();
    texts.push_back(InQuotes(context) + (sent.ok() ? " sends " + BytesText(sent.value())
                                                   : " is not possible: " + sent.diagnostics().front().message));
  }
  const std::string all = Join(texts, "; ");
  const auto [chosen, why] = Choice(request.wanted, possible);
  draft.context = chosen;
  if (chosen.empty()) {
    draft.no_context = all;
    return;
  }
  draft.context_why = InQuotes(chosen) + " on " + request.mesh + ", " + why +
                      ". What a rank sends for attention in a step of one sequence of " +
                      std::to_string(kContextTokens) + " tokens: " + all + ".";
  if (chosen != "ulysses") {
    draft.context_why +=
        " A ring needs attention that supports it: the reference models, or a class with SetRing, and no fused "
        "kernel." +
        std::string(possible.contains("ulysses") ? " For other attention: --context ulysses." : "");
  }
}

}  // namespace moonshard
