#include "engine/runtime/collective/announcement.h"

#include <algorithm>

#include <c10/core/ScalarType.h>

#include "engine/core/base/text.h"

namespace moonshard {

// The label is part of it, by hash: two collectives of one kind and shape that come in another order on one rank (two
// branches of a model) would exchange each other's values without any other sign. A misfit agrees with nothing, also
// where every rank has one.
bool Announcement::Agrees(const Announcement& other) const {
  return sequence == other.sequence && kind == other.kind && direction == other.direction && dtype == other.dtype &&
         dims == other.dims && shape == other.shape && label == other.label && mismatched_size == -1 &&
         other.mismatched_size == -1;
}

std::string ToText(const Announcement& announcement) {
  if (announcement.kind == kInputsKind) return "the inputs of a call";
  const size_t dims = std::min<size_t>(announcement.dims, Announcement::kMaxDims);
  std::string text = std::string(ToString(static_cast<CollectiveKind>(announcement.kind))) + " (" +
                     ToString(static_cast<Direction>(announcement.direction)) + ", collective " +
                     std::to_string(announcement.sequence) + ") of " +
                     c10::toString(static_cast<c10::ScalarType>(announcement.dtype)) + " " +
                     ShapeToString(std::span(announcement.shape).first(dims));
  if (announcement.mismatched_size >= 0) {
    text += ", with a shard of size " + std::to_string(announcement.mismatched_size) +
            ", which is not the size that the layout gives this rank";
  }
  return text;
}

// Built on every rank from the same records, so that all ranks report the same comparison, whichever output the user
// looks at. Ranks whose calls are equal share a line: of 64 ranks one differs, and two lines show it.
Diagnostic MismatchError(const std::string& group, std::span<const int64_t> ranks,
                         std::span<const Announcement> announcements, std::span<const std::string> labels) {
  const bool inputs = std::ranges::all_of(announcements, [](const Announcement& a) { return a.kind == kInputsKind; });
  const bool mismatched_size =
      std::ranges::any_of(announcements, [](const Announcement& a) { return a.mismatched_size >= 0; });
  // Equal inputs, of calls that are not the same call: a rank left out a collective before.
  const bool out_of_step = inputs && std::ranges::any_of(announcements, [&](const Announcement& a) {
                             return a.sequence != announcements.front().sequence;
                           });
  Diagnostic d = MakeDiagnostic(Finding::kCollectiveMismatch,
                                inputs ? "the ranks of " + group + " call the model with different inputs"
                                       : "the ranks of " + group + " call different collectives");
  d.path = labels.front();
  // Ranks with equal calls share a line.
  std::vector<std::pair<std::string, std::vector<std::string>>> calls;
  for (size_t i = 0; i < announcements.size(); ++i) {
    std::string text = inputs ? labels[i] : ToText(announcements[i]) + " for " + labels[i];
    if (out_of_step) text += ", collectives before the call: " + std::to_string(announcements[i].sequence);
    auto same = std::ranges::find(calls, text, &std::pair<std::string, std::vector<std::string>>::first);
    if (same == calls.end()) same = calls.insert(same, {text, {}});
    same->second.push_back(std::to_string(ranks[i]));
  }
  std::vector<std::string> lines;
  for (const auto& [text, who] : calls) lines.push_back("rank " + Join(who, ", ") + ": " + text);
  d.declared = Join(lines, "; ");
  d.required = mismatched_size ? "shards of one tensor, each of the size that the layout gives the rank"
               : inputs
                   ? "inputs with the same dtypes, sizes and values on every rank, after the same number of collectives"
                   : "the same collectives in the same order on every rank: equal kind, dtype, shape and module";
  return d;
}

}  // namespace moonshard
