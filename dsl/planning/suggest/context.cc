// Between the blocks a rank has its own tokens, as under sequence parallelism, so that all is required which sequence
// parallelism from the embedding to the head requires. Attention is the one block that needs all tokens: its query, key
// and value projections and its output projection must be known as such, since with "ulysses" their heads are
// exchanged. A projection of interleaved key heads would be replicated with its queries where the key heads are fewer
// than the ranks, so it is left out.
#include "dsl/planning/suggest/context.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "engine/core/base/text.h"
#include "engine/plan/explain/texts.h"

namespace moonshard {
namespace {

constexpr std::array<const char*, 2> kContexts = {"ulysses", "ring"};

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

}  // namespace

void OfferContext(const ContextRequest& request, Draft& draft) {
  draft.context.clear();
  draft.no_context = WhyNot(draft);
  if (!draft.no_context.empty()) return;
  std::string best;
  std::optional<int64_t> fewest;
  std::vector<std::string> texts;
  for (const std::string context : kContexts) {
    draft.context = context;
    const Result<int64_t> sent = request.sent(WritePlan(draft).text);
    if (!sent.ok()) {
      texts.push_back(InQuotes(context) + " is not possible: " + sent.diagnostics().front().message);
      continue;
    }
    texts.push_back(InQuotes(context) + " sends " + BytesText(sent.value()));
    const bool counts = request.wanted.empty() || request.wanted == context;
    if (!counts || (fewest && *fewest <= sent.value())) continue;
    best = context;
    fewest = sent.value();
  }
  const std::string all = Join(texts, "; ");
  draft.context = best;
  if (best.empty()) {
    draft.no_context = all;
  } else {
    draft.context_why = InQuotes(best) + " on " + request.mesh +
                        (request.wanted.empty() ? ", which sends the fewest bytes for attention" : ", as asked for") +
                        ". What a rank sends in a step of one sequence of " + std::to_string(kContextTokens) +
                        " tokens: " + all + ".";
  }
}

}  // namespace moonshard
