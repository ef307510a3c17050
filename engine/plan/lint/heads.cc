// Heads of attention. Queries and keys have heads of one size, so where the plan declares the number of query heads,
// the shards of keys (and of values of the keys' size) must be full heads of that size. And the projection that ends
// the block takes, on each rank, as many features as the queries' heads leave there.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "engine/layout/shards.h"
#include "engine/plan/lint/attention_names.h"
#include "engine/plan/lint/flow.h"
#include "engine/plan/lint/lint.h"

namespace moonshard {
namespace {

bool Named(const ModuleGroup& group, const auto& names) {
  const std::string_view path = group.path;
  return std::ranges::find(names, path.substr(path.rfind('.') + 1)) != names.end();
}

bool IsQuery(const ModuleGroup& group) { return Named(group, kQueryNames); }
bool IsKey(const ModuleGroup& group) { return Named(group, kKeyNames); }
bool IsValue(const ModuleGroup& group) { return Named(group, kValueNames); }

// The layout of the sharded features that a projection leaves; nullptr if they leave in another layout.
const Layout* ShardsLeft(const ModuleGroup& group) {
  const Layout* leaves = LeavesAs(*group.layouts);
  const bool shards = leaves != nullptr && ShardsFeatures(*leaves) && leaves->owner < 0 && !leaves->has_equal_parts();
  return shards && group.matrix && group.layouts->out_features > 0 ? leaves : nullptr;
}

int64_t Ranks(const Flow& flow) { return flow.plan().mesh.size(MeshAxis::kTp); }

// Nothing if the layout does not fit that many features.
std::optional<DimShards> Shards(const Flow& flow, const Layout& layout, int64_t features) {
  Result<DimShards> shards = DimShards::Make(layout, features, Ranks(flow));
  if (!shards.ok()) return std::nullopt;
  return std::move(shards).ValueOrThrow();
}

// Features of a head, if the projection declares its number of heads; else 0.
int64_t HeadSize(const ModuleGroup& group) {
  const Layout* left = ShardsLeft(group);
  return left != nullptr && left->heads > 0 ? group.layouts->out_features / left->heads : 0;
}

// Whether a rank's shard of the projection begins or ends inside a head.
bool CutsThrough(const Flow& flow, const ModuleGroup& group, int64_t head_size) {
  const Layout* left = ShardsLeft(group);
  if (left == nullptr || !left->parts.empty() || group.layouts->out_features % head_size != 0) return false;
  const std::optional<DimShards> shards = Shards(flow, *left, group.layouts->out_features);
  for (int64_t rank = 0; shards && rank < Ranks(flow); ++rank) {
    for (const Interval& interval : shards->of(rank)) {
      if (interval.begin % head_size != 0 || interval.length % head_size != 0) return true;
    }
  }
  return false;
}

std::string TextOf(const Layout& left, const ModuleGroup& group) {
  return "the output leaves as " + left.ToText() + ", by style '" + group.layouts->style + "'";
}

// Key and value projections whose shards are not full heads, by the head size of the query projection beside them.
void LintShardedHeads(const Flow& flow, Diagnostics& diagnostics) {
  struct Cut {
    const ModuleGroup* query = nullptr;
    std::vector<const ModuleGroup*> groups;
  };
  std::map<int32_t, Cut> cuts;  // by rule
  for (const ModuleGroup& query : flow.groups()) {
    const int64_t head_size = IsQuery(query) ? HeadSize(query) : 0;
    if (head_size == 0) continue;
    const std::string_view block = ParentOf(query.path);
    std::set<int64_t> key_features;
    for (const ModuleGroup& key : flow.groups()) {
      if (IsKey(key) && ParentOf(key.path) == block) key_features.insert(key.layouts->out_features);
    }
    for (const ModuleGroup& other : flow.groups()) {
      // Heads of values may have a size of their own.
      const bool like_key = IsKey(other) || (IsValue(other) && key_features.contains(other.layouts->out_features));
      if (!like_key || ParentOf(other.path) != block || !CutsThrough(flow, other, head_size)) continue;
      // Queries that carry a gate have twice the features of a key: LintHeadOrder, where the config shows it.
      const std::optional<HeadCount> count =
          flow.heads().Of(query.layouts->in_features, query.layouts->out_features, other.layouts->out_features);
      if (count && count->head_size != head_size) continue;
      Cut& cut = cuts[other.layouts->rule];
      if (cut.query != nullptr && ParentOf(cut.query->path) != block) continue;
      cut.query = &query;
      cut.groups.push_back(&other);
    }
  }
  for (const auto& [rule, cut] : cuts) {
    const ModuleGroup& first = *cut.groups.front();
    const int64_t head_size = HeadSize(*cut.query);
    const int64_t heads = first.layouts->out_features / head_size;
    Diagnostic d = flow.AboutBoth(Finding::kHeadsDoNotFit, first, *cut.query,
                                  "the shards of " + flow.Names(cut.groups) + " on " + std::to_string(Ranks(flow)) +
                                      " ranks begin or end inside a head");
    d.severity = Severity::kWarning;
    d.declared = TextOf(*ShardsLeft(first), first) + "; heads of '" + flow.PathOf(*cut.query) + "' have " +
                 std::to_string(head_size) + " features";
    d.required = "shards of full heads: " + std::to_string(first.layouts->out_features) + " features are " +
                 std::to_string(heads) + (heads == 1 ? " head" : " heads");
    d.help = "heads = " + std::to_string(heads) +
             ", usually config.num_key_value_heads: with fewer heads than ranks, several ranks hold the same head";
    diagnostics.push_back(std::move(d));
  }
}

// The first rank that has another number of the features under `left` than under `taken`; -1 if there is none.
int64_t DiffersOn(const Flow& flow, const Layout& left, const Layout& taken, int64_t features) {
  const std::optional<DimShards> a = Shards(flow, left, features);
  const std::optional<DimShards> b = Shards(flow, taken, features);
  for (int64_t rank = 0; a && b && rank < Ranks(flow); ++rank) {
    if (a->length(rank) != b->length(rank)) return rank;
  }
  return -1;
}

// The layout in which the projection takes its features: that of the weight's columns, which carries heads that the
// declared input (a plain shard(-1)) does not.
const Layout* ShardsTaken(const Flow& flow, const ModuleGroup& group) {
  const Layout* arrives = ArrivesAs(*group.layouts);
  if (arrives == nullptr || !ShardsFeatures(*arrives) || arrives->owner >= 0 || group.layouts->in_features <= 0)
    return nullptr;
  if (flow.CutOfWeight(group) != 1) return arrives->has_equal_parts() ? nullptr : arrives;
  const auto weight = std::ranges::find(*group.signature, "weight", &Parameter::name);
  return &group.layouts->params[static_cast<size_t>(weight - group.signature->begin())][MeshAxis::kTp];
}

// Projections that take as many features as siblings leave, in shards of other lengths.
void LintLengths(const Flow& flow, Diagnostics& diagnostics) {
  std::set<int32_t> reported;  // rules
  for (const ModuleGroup& end : flow.groups()) {
    const Layout* taken = ShardsTaken(flow, end);
    if (taken == nullptr) continue;
    const int64_t features = end.layouts->in_features;
    std::vector<const ModuleGroup*> makers;
    bool any_fits = false;
    for (const ModuleGroup& other : flow.groups()) {
      if (&other == &end || ParentOf(other.path) != ParentOf(end.path)) continue;
      const Layout* left = ShardsLeft(other);
      if (left == nullptr || other.layouts->out_features != features) continue;
      makers.push_back(&other);
      any_fits |= DiffersOn(flow, *left, *taken, features) < 0;
    }
    if (makers.empty() || any_fits || !reported.insert(end.layouts->rule).second) continue;
    const ModuleGroup& maker = *makers.front();
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
    d.declared = TextOf(left, maker) + "; '" + flow.PathOf(end) + "' takes " + ArrivesAs(*end.layouts)->ToText();
    if (left.heads > 0 && left.heads < ranks) {
      d.required = "a size of tp that divides " + std::to_string(left.heads) + " heads: with " + std::to_string(ranks) +
                   " ranks, an all-reduce would count each head " + std::to_string(ranks / left.heads) + " times";
      d.help = "--mesh tp=" + std::to_string(left.heads) + ", or a divisor of " + std::to_string(left.heads) +
               "; only keys and values may have fewer heads than ranks";
    } else {
      d.required = "shards of the same lengths";
      d.help = "declare the same heads, or the same packed(...) parts, on both sides";
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
