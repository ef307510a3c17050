// Heads of attention: queries and keys have heads of one size, and the shards of the projection that ends the block are
// those of the queries.
#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "engine/layout/shards.h"
#include "engine/plan/lint/flow.h"
#include "engine/plan/lint/lint.h"

namespace moonshard {
namespace {

bool Named(const Station& station, const auto& names) {
  const std::string_view path = station.path;
  return std::ranges::find(names, path.substr(path.rfind('.') + 1)) != names.end();
}

bool IsQuery(const Station& station) {
  static constexpr std::array<std::string_view, 7> kNames = {"q",          "q_lin", "q_proj", "query",
                                                             "query_proj", "to_q",  "wq"};
  return Named(station, kNames);
}

bool IsKey(const Station& station) {
  static constexpr std::array<std::string_view, 7> kNames = {"k", "k_lin", "k_proj", "key", "key_proj", "to_k", "wk"};
  return Named(station, kNames);
}

bool IsValue(const Station& station) {
  static constexpr std::array<std::string_view, 7> kNames = {"v",          "v_lin", "v_proj", "value",
                                                             "value_proj", "to_v",  "wv"};
  return Named(station, kNames);
}

// The layout of the features that a projection leaves in shards; nullptr where they leave otherwise.
const Layout* ShardsLeft(const Station& station) {
  const Layout* leaves = LeavesAs(*station.steps);
  const bool shards = leaves != nullptr && CutsFeatures(*leaves) && leaves->owner < 0 && !leaves->has_equal_parts();
  return shards && station.matrix && station.steps->out_features > 0 ? leaves : nullptr;
}

int64_t Ranks(const Flow& flow) { return flow.plan().mesh.size(MeshAxis::kTp); }

// Nothing where the layout does not fit so many features.
std::optional<DimShards> Shards(const Flow& flow, const Layout& layout, int64_t features) {
  Result<DimShards> shards = DimShards::Make(layout, features, Ranks(flow));
  if (!shards.ok()) return std::nullopt;
  return std::move(shards).ValueOrThrow();
}

// Features of a head, where the projection says how many heads it has; 0 where not.
int64_t HeadSize(const Station& station) {
  const Layout* left = ShardsLeft(station);
  return left != nullptr && left->heads > 0 ? station.steps->out_features / left->heads : 0;
}

bool CutsThrough(const Flow& flow, const Station& station, int64_t head_size) {
  const Layout* left = ShardsLeft(station);
  if (left == nullptr || !left->parts.empty() || station.steps->out_features % head_size != 0) return false;
  const std::optional<DimShards> shards = Shards(flow, *left, station.steps->out_features);
  for (int64_t rank = 0; shards && rank < Ranks(flow); ++rank) {
    for (const Interval& interval : shards->of(rank)) {
      if (interval.begin % head_size != 0 || interval.length % head_size != 0) return true;
    }
  }
  return false;
}

std::string TextOf(const Layout& left, const Station& station) {
  return "the output leaves as " + left.ToText() + ", by style '" + station.steps->style + "'";
}

// Key and value projections whose shards are no whole heads, by what the query projection beside them says of heads.
void LintShardedHeads(const Flow& flow, Diagnostics& diagnostics) {
  struct Cut {
    const Station* query = nullptr;
    std::vector<const Station*> stations;
  };
  std::map<int32_t, Cut> cuts;  // by rule
  for (const Station& query : flow.stations()) {
    const int64_t head_size = IsQuery(query) ? HeadSize(query) : 0;
    if (head_size == 0) continue;
    const std::string_view block = ParentOf(query.path);
    std::set<int64_t> key_features;
    for (const Station& key : flow.stations()) {
      if (IsKey(key) && ParentOf(key.path) == block) key_features.insert(key.steps->out_features);
    }
    for (const Station& other : flow.stations()) {
      // Heads of values may have a size of their own.
      const bool like_key = IsKey(other) || (IsValue(other) && key_features.contains(other.steps->out_features));
      if (!like_key || ParentOf(other.path) != block || !CutsThrough(flow, other, head_size)) continue;
      Cut& cut = cuts[other.steps->rule];
      if (cut.query != nullptr && ParentOf(cut.query->path) != block) continue;
      cut.query = &query;
      cut.stations.push_back(&other);
    }
  }
  for (const auto& [rule, cut] : cuts) {
    const Station& first = *cut.stations.front();
    const int64_t head_size = HeadSize(*cut.query);
    const int64_t heads = first.steps->out_features / head_size;
    Diagnostic d = flow.AboutBoth(Finding::kHeadsDoNotFit, first, *cut.query,
                                  flow.Names(cut.stations) + (cut.stations.size() == 1 ? " is" : " are") +
                                      " cut through heads over " + std::to_string(Ranks(flow)) + " ranks");
    d.severity = Severity::kWarning;
    d.declared = TextOf(*ShardsLeft(first), first) + "; heads of '" + flow.PathOf(*cut.query) + "' have " +
                 std::to_string(head_size) + " features";
    d.required = "shards of whole heads: " + std::to_string(first.steps->out_features) + " features are " +
                 std::to_string(heads) + (heads == 1 ? " head" : " heads");
    d.help = "heads = " + std::to_string(heads) +
             ", mostly config.num_key_value_heads: with fewer heads than ranks, several ranks hold the same one";
    diagnostics.push_back(std::move(d));
  }
}

// The first rank that would have otherwise many of so many features; -1 where there is none.
int64_t DiffersOn(const Flow& flow, const Layout& left, const Layout& taken, int64_t features) {
  const std::optional<DimShards> a = Shards(flow, left, features);
  const std::optional<DimShards> b = Shards(flow, taken, features);
  for (int64_t rank = 0; a && b && rank < Ranks(flow); ++rank) {
    if (a->length(rank) != b->length(rank)) return rank;
  }
  return -1;
}

// How the projection takes its features: as the weight's columns are cut, which the move in front does not change.
const Layout* ShardsTaken(const Flow& flow, const Station& station) {
  const Layout* arrives = ArrivesAs(*station.steps);
  if (arrives == nullptr || !CutsFeatures(*arrives) || arrives->owner >= 0 || station.steps->in_features <= 0)
    return nullptr;
  if (flow.CutOfWeight(station) != 1) return arrives->has_equal_parts() ? nullptr : arrives;
  const auto weight = std::ranges::find(*station.signature, "weight", &Parameter::name);
  return &station.steps->params[static_cast<size_t>(weight - station.signature->begin())][MeshAxis::kTp];
}

// Projections that take shards of just as many features as siblings leave, and whose shards have other lengths.
void LintLengths(const Flow& flow, Diagnostics& diagnostics) {
  std::set<int32_t> said;  // rules
  for (const Station& end : flow.stations()) {
    const Layout* taken = ShardsTaken(flow, end);
    if (taken == nullptr) continue;
    const int64_t features = end.steps->in_features;
    std::vector<const Station*> makers;
    bool any_fits = false;
    for (const Station& other : flow.stations()) {
      if (&other == &end || ParentOf(other.path) != ParentOf(end.path)) continue;
      const Layout* left = ShardsLeft(other);
      if (left == nullptr || other.steps->out_features != features) continue;
      makers.push_back(&other);
      any_fits |= DiffersOn(flow, *left, *taken, features) < 0;
    }
    if (makers.empty() || any_fits || !said.insert(end.steps->rule).second) continue;
    const Station& maker = *makers.front();
    const Layout& left = *ShardsLeft(maker);
    const int64_t ranks = Ranks(flow);
    const int64_t rank = DiffersOn(flow, left, *taken, features);
    const auto on_rank = [&](const Layout& layout) {
      return std::to_string(Shards(flow, layout, features)->length(rank));
    };
    Diagnostic d = flow.AboutBoth(Finding::kHeadsDoNotFit, maker, end,
                                  flow.Names(makers) + (makers.size() == 1 ? " leaves " : " leave ") + on_rank(left) +
                                      " features on rank " + std::to_string(rank) + " of " + std::to_string(ranks) +
                                      ", and '" + flow.PathOf(end) + "' takes " + on_rank(*taken));
    d.severity = Severity::kWarning;
    d.declared = TextOf(left, maker) + "; '" + flow.PathOf(end) + "' takes " + ArrivesAs(*end.steps)->ToText();
    if (left.heads > 0 && left.heads < ranks) {
      d.required = "a tp that divides " + std::to_string(left.heads) + " heads: each lies on " +
                   std::to_string(ranks / left.heads) + " ranks, and a sum over all of them counts it as often";
      d.help = "--mesh tp=" + std::to_string(left.heads) +
               " or a divisor of it; only keys and values may have fewer heads than ranks";
    } else {
      d.required = "shards of the same lengths";
      d.help = "the same heads, or the same parts, for both";
    }
    diagnostics.push_back(std::move(d));
  }
}

}  // namespace

void LintHeads(const Flow& flow, Diagnostics& diagnostics) {
  LintShardedHeads(flow, diagnostics);
  LintLengths(flow, diagnostics);
}

}  // namespace moonshard
