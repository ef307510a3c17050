#include "dsl/commands/cli/number_ranges.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>

#include "dsl/planning/resolve_model/resolve_model.h"
#include "engine/core/base/check.h"
#include "engine/layout/mesh_shape.h"

namespace moonshard {
namespace {

// Times kMostBatch, the rows of a run are still a number of int64_t.
constexpr uint64_t kMostSteps = 1'000'000'000'000;
constexpr uint64_t kMostGrace = 86'400;
constexpr uint64_t kMostSeed = std::numeric_limits<uint64_t>::max();
// A norm or a rate above it is none that float32 computes with.
constexpr double kLargest = 1e30;

constexpr NumberRange Integer(std::string_view option, uint64_t least, uint64_t most, std::string_view unit) {
  return {.option = option, .kind = NumberKind::kInteger, .least = least, .most = most, .unit = unit};
}

constexpr NumberRange Real(std::string_view option, double lowest, double highest, std::string_view unit = {}) {
  return {.option = option, .kind = NumberKind::kReal, .lowest = lowest, .highest = highest, .unit = unit};
}

constexpr NumberRange BelowOne(std::string_view option) {
  NumberRange range = Real(option, 0, 1);
  range.below_highest = true;
  return range;
}

constexpr std::array kRanges = {
    Integer("--ahead", 0, 1, "steps"),
    Integer("--batch", 1, kMostBatch, "sequences"),
    BelowOne("--betas"),
    Integer("--check-inputs", 0, kMostSteps, "calls"),
    Integer("--check-replicas", 0, kMostSteps, "steps"),
    Real("--clip", 0, kLargest),
    Integer("--decay-steps", 0, kMostSteps, "steps"),
    Real("--eps", 0, 1),
    Integer("--eval-every", 0, kMostSteps, "steps"),
    Integer("--grace", 1, kMostGrace, "seconds"),
    Integer("--init", 0, kMostSeed, ""),
    Integer("--keep", 0, kMostSteps, "checkpoints"),
    Integer("--log-every", 1, kMostSteps, "steps"),
    Integer("--loss-chunk", 0, kMostTokens, "tokens"),
    Real("--lr", 0, kLargest),
    Integer("--micro-batches", 1, kMostBatch, "parts"),
    Real("--min-lr", 0, kLargest),
    Integer("--rank", 0, kMostRanks - 1, ""),
    Real("--router-balance", 0, 1e6),
    Real("--router-z", 0, 1e6),
    Integer("--save-every", 0, kMostSteps, "steps"),
    Integer("--seed", 0, kMostSeed, ""),
    Integer("--sequence", 1, kMostSequence, "tokens"),
    Integer("--skips", 0, kMostSteps, "steps"),
    Integer("--steps", 1, kMostSteps, "steps"),
    Real("--timeout", 0.001, 31'536'000, "seconds"),
    Real("--tolerance", 0, kLargest),
    Integer("--warmup", 0, kMostSteps, "steps"),
    Real("--weight-decay", 0, 1e6),
};

std::string Shown(double number) {
  std::array<char, 32> text = {};
  std::snprintf(text.data(), text.size(), "%.15g", number);
  return text.data();
}

template <class Number>
std::optional<Number> ReadAll(std::string_view text) {
  Number number{};
  const char* end = text.data() + text.size();
  if (std::from_chars(text.data(), end, number) != std::from_chars_result{end, std::errc()}) return std::nullopt;
  return number;
}

}  // namespace

std::span<const NumberRange> NumberRanges() { return kRanges; }

const NumberRange& RangeOf(std::string_view option) {
  const auto* const found = std::ranges::find(kRanges, option, &NumberRange::option);
  Check(found != kRanges.end(), "a number of the command line without a range");
  return *found;
}

std::string Ends(const NumberRange& range) {
  if (range.kind == NumberKind::kInteger) return std::to_string(range.least) + " to " + std::to_string(range.most);
  return Shown(range.lowest) + " to " + (range.below_highest ? "below " : "") + Shown(range.highest);
}

std::string ToText(const NumberRange& range) {
  const std::string kind = range.kind == NumberKind::kInteger ? "an integer" : "a number";
  return kind + " from " + Ends(range) + (range.unit.empty() ? "" : " (" + std::string(range.unit) + ")");
}

std::optional<uint64_t> ReadInteger(const NumberRange& range, std::string_view text) {
  const std::optional<uint64_t> number = ReadAll<uint64_t>(text);
  return number && *number >= range.least && *number <= range.most ? number : std::nullopt;
}

std::optional<double> ReadReal(const NumberRange& range, std::string_view text) {
  const std::optional<double> number = ReadAll<double>(text);
  if (!number || !std::isfinite(*number) || *number < range.lowest || *number > range.highest) return std::nullopt;
  return range.below_highest && *number == range.highest ? std::nullopt : number;
}

std::string WhyNotIn(const NumberRange& range, std::string_view text) {
  const bool good =
      range.kind == NumberKind::kInteger ? ReadInteger(range, text).has_value() : ReadReal(range, text).has_value();
  return good ? "" : "'" + std::string(text) + "' is not " + ToText(range);
}

}  // namespace moonshard
