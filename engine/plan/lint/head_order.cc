// Heads of attention by the config. With H query heads and K key heads the forward pairs, on each rank, its i-th query
// head with its key head i / (queries / keys of the rank), whatever heads these are. So what a rank has is right if and
// only if for every i the key head that it meets there is the one that belongs to its query head in the full model: q /
// (H / K).
//
//   4 key heads, 8 query heads, 4 ranks, k declared with heads = 2
//   rank 1   queries 2 3   keys 0 1 (of one "head" twice the size)   query 2 meets key 0, and belongs to key 1
//
// This holds for every layout of the three projections, also for those that are unusual and right.
#include <algorithm>
#include <set>
#include <utility>

#include "engine/plan/lint/attention_names.h"
#include "engine/plan/lint/lint.h"
#include "engine/plan/lint/order.h"

namespace moonshard {
namespace {

using Heads = std::vector<int64_t>;

// The heads of `size` features of which a rank's shard is made, in its order; nothing where it ends inside one.
std::optional<Heads> HeadsIn(const std::vector<Interval>& shard, int64_t size) {
  Heads out;
  for (const Interval& one : shard) {
    if (one.begin % size != 0 || one.length % size != 0) return std::nullopt;
    for (int64_t head = one.begin / size; head < (one.begin + one.length) / size; ++head) out.push_back(head);
  }
  return out;
}

// Whether every query meets the key of its group. `per_key`: queries of a key head in the full model.
bool Meet(std::span<const int64_t> queries, std::span<const int64_t> keys, int64_t per_key) {
  if (keys.empty() || queries.size() % keys.size() != 0) return queries.empty() && keys.empty();
  const size_t repeat = queries.size() / keys.size();
  for (size_t i = 0; i < queries.size(); ++i) {
    if (queries[i] / per_key != keys[i / repeat]) return false;
  }
  return true;
}

// Queries, then keys, then values; or, for each key head, its queries, itself and its value.
bool IsFusedShard(const Heads& heads, const HeadCount& count) {
  const int64_t per_key = count.heads / count.key_heads;
  const auto group = static_cast<size_t>(per_key + 2);
  bool grouped = heads.size() % group == 0;
  for (size_t i = 0; grouped && i < heads.size(); ++i) {
    grouped = i % group == 0 ? heads[i] % static_cast<int64_t>(group) == 0 : heads[i] == heads[i - 1] + 1;
  }
  if (grouped) return true;
  const auto end_of = [&](int64_t end) {
    return static_cast<size_t>(std::ranges::find_if(heads, [&](int64_t head) { return head >= end; }) - heads.begin());
  };
  const size_t queries = end_of(count.heads);
  const size_t keys = end_of(count.heads + count.key_heads);
  const std::span<const int64_t> all = heads;
  Heads key;
  Heads value;
  for (int64_t head : all.subspan(queries, keys - queries)) key.push_back(head - count.heads);
  for (int64_t head : all.subspan(keys)) value.push_back(head - count.heads - count.key_heads);
  const bool ordered = std::ranges::all_of(all.first(queries), [&](int64_t head) { return head < count.heads; });
  return ordered && key == value && Meet(all.first(queries), key, per_key);
}

class HeadOrderLint {
 public:
  HeadOrderLint(const Flow& flow, Diagnostics& diagnostics) : flow_(flow), diagnostics_(diagnostics) {}

  void CheckBlock(const LintBlock& block) {
    const ModuleGroup* query = block.Find(kQueryNames);
    const ModuleGroup* key = block.Find(kKeyNames);
    if (query != nullptr && key != nullptr) {
      const std::optional<HeadCount> count =
          flow_.heads().Of(query->layouts->in_features, query->layouts->out_features, key->layouts->out_features);
      if (count) CheckPair(*query, *key, *count);
      const ModuleGroup* value = block.Find(kValueNames);
      // Heads of values may have a size of their own.
      if (count && value != nullptr && value->layouts->out_features == key->layouts->out_features)
        CheckPair(*query, *value, *count);
    }
    if (const ModuleGroup* fused = block.Find(kFusedNames)) CheckFused(*fused);
  }

 private:
  int64_t ranks() const { return flow_.plan().mesh.size(MeshAxis::kTp); }

  // Whether the plan's own heads show it (LintHeads).
  bool IsReported(const ModuleGroup& query, const ModuleGroup& key, const HeadCount& count) const {
    if (!flow_.plan().tree->checks().empty()) return false;
    const Layout* queries = LeavesAs(*query.layouts);
    const Layout* keys = LeavesAs(*key.layouts);
    if (queries->heads == 0 || !keys->parts.empty()) return false;
    const int64_t size = query.layouts->out_features / queries->heads;
    const std::optional<DimShards> shards = FeaturesMade(flow_, key);
    if (key.layouts->out_features % size != 0 || size != count.head_size) return false;
    for (int64_t rank = 0; rank < ranks(); ++rank) {
      if (!HeadsIn(shards->of(rank), size)) return true;
    }
    return false;
  }

  // Whether the projection's shards are those of so many heads.
  bool IsUsual(const ModuleGroup& group, const DimShards& shards, int64_t heads) const {
    const Result<DimShards> usual = DimShards::Make(Layout::Shard(-1, heads), group.layouts->out_features, ranks());
    for (int64_t rank = 0; usual.ok() && rank < ranks(); ++rank) {
      if (usual.value().of(rank) != shards.of(rank)) return false;
    }
    return usual.ok();
  }

  void CheckPair(const ModuleGroup& query, const ModuleGroup& key, const HeadCount& count) {
    const std::optional<DimShards> queries = FeaturesMade(flow_, query);
    const std::optional<DimShards> keys = FeaturesMade(flow_, key);
    if (!queries || !keys || IsReported(query, key, count)) return;
    const int64_t query_size = query.layouts->out_features / count.heads;
    const int64_t per_key = count.heads / count.key_heads;
    for (int64_t rank = 0; rank < ranks(); ++rank) {
      const std::optional<Heads> q = HeadsIn(queries->of(rank), query_size);
      const std::optional<Heads> k = HeadsIn(keys->of(rank), count.head_size);
      if (q && k && Meet(*q, *k, per_key)) continue;
      const bool query_is_usual = IsUsual(query, *queries, count.heads);
      const bool key_is_usual = IsUsual(key, *keys, count.key_heads);
      const bool about_query = key_is_usual && !query_is_usual;
      ReportPair(about_query ? query : key, about_query ? key : query, about_query ? count.heads : count.key_heads,
                 about_query, rank, count);
      return;
    }
  }

  void ReportPair(const ModuleGroup& group, const ModuleGroup& other, int64_t heads, bool queries, int64_t rank,
                  const HeadCount& count) {
    if (!reported_.insert(group.layouts->rule).second) return;
    const Layout& layout = *LeavesAs(*group.layouts);
    const std::string kind = queries ? "query" : "key";
    const std::string path = "'" + flow_.PathOf(group) + "'";
    std::string message = path + " is not sharded by the model's " + std::to_string(heads) + " " + kind + " heads";
    if (layout.heads > 0 && layout.heads != heads) {
      message = path + " declares " + std::to_string(layout.heads) + (layout.heads == 1 ? " head" : " heads") +
                ", and the model has " + std::to_string(heads) + " " + kind + " heads";
    }
    Diagnostic d = flow_.AboutBoth(Finding::kHeadsDoNotFit, group, other, std::move(message));
    d.severity = Severity::kWarning;
    d.declared = "the output leaves as " + layout.ToText() + ", by style '" + group.layouts->style + "'";
    d.required = std::to_string(heads) + " heads of " + std::to_string(group.layouts->out_features / heads) +
                 " features, by config.json: with these shards, queries of rank " + std::to_string(rank) + " of " +
                 std::to_string(ranks()) + " are combined with keys of other heads";
    d.help = heads % ranks() != 0 && ranks() % heads != 0
                 ? "a size of tp that divides " + std::to_string(heads) + ", or a multiple of " + std::to_string(heads)
                 : "heads = " + std::to_string(heads) + ", config." + (queries ? count.query_key : count.key);
    diagnostics_.push_back(std::move(d));
  }

  // Plain shards are compile's to refuse (fused_as_one.cc).
  void CheckFused(const ModuleGroup& group) {
    const std::optional<HeadCount> count =
        flow_.heads().OfFused(group.layouts->in_features, group.layouts->out_features);
    const std::optional<DimShards> shards = FeaturesMade(flow_, group);
    if (!count || !shards || shards->is_plain()) return;
    for (int64_t rank = 0; rank < ranks(); ++rank) {
      const std::optional<Heads> heads = HeadsIn(shards->of(rank), count->head_size);
      if (heads && IsFusedShard(*heads, *count)) continue;
      if (!reported_.insert(group.layouts->rule).second) return;
      const std::string sizes = std::to_string(count->heads * count->head_size) + ", " +
                                std::to_string(count->key_heads * count->head_size) + ", " +
                                std::to_string(count->key_heads * count->head_size);
      const std::string heads_text = std::to_string(count->heads) + ", " + std::to_string(count->key_heads) + ", " +
                                     std::to_string(count->key_heads);
      Diagnostic d = flow_.About(
          Finding::kHeadsDoNotFit, group,
          "'" + flow_.PathOf(group) + "' does not give each rank its share of the heads of queries, keys and values");
      d.severity = Severity::kWarning;
      d.declared =
          "the output leaves as " + LeavesAs(*group.layouts)->ToText() + ", by style '" + group.layouts->style + "'";
      d.required = std::to_string(count->heads) + " query heads, " + std::to_string(count->key_heads) +
                   " key heads and " + std::to_string(count->key_heads) + " value heads of " +
                   std::to_string(count->head_size) + " features, by config.json; the shard of rank " +
                   std::to_string(rank) + " does not fit these heads";
      d.help = "packed(0, { " + sizes + " }, { heads = { " + heads_text +
               " } }) if queries, keys and values are stored one after another, or heads = " +
               std::to_string(count->key_heads) +
               " if the queries, the key and the value of each key head are stored together";
      diagnostics_.push_back(std::move(d));
      return;
    }
  }

  const Flow& flow_;
  Diagnostics& diagnostics_;
  std::set<int32_t> reported_;  // rules
};

}  // namespace

void LintHeadOrder(const Flow& flow, Diagnostics& diagnostics) {
  if (flow.heads().readings().empty()) return;
  std::vector<std::string_view> names;
  names.insert(names.end(), kQueryNames.begin(), kQueryNames.end());
  names.insert(names.end(), kKeyNames.begin(), kKeyNames.end());
  names.insert(names.end(), kValueNames.begin(), kValueNames.end());
  names.insert(names.end(), kFusedNames.begin(), kFusedNames.end());
  HeadOrderLint lint(flow, diagnostics);
  for (const LintBlock& block : BlocksWith(flow, names)) lint.CheckBlock(block);
}

}  // namespace moonshard
