// Orders of features. The weights decide which features a rank has: a colwise projection makes those of its rows, a
// rowwise one multiplies what arrives with its columns, whatever they mean. If both have as many and in another order,
// shapes fit and numbers do not:
//
//   gate, up   packed(0, 2)   rank 0: 0 1 4 5     rank 1: 2 3 6 7
//   down       shard(1)       rank 0: 0 1 2 3     rank 1: 4 5 6 7
//
// Compared are modules between which, by their names, nothing but element-wise operators or attention reorders
// features: gate and up with down, queries with the output projection.
#include "engine/plan/lint/order.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "engine/plan/lint/lint.h"

namespace moonshard {
namespace {

constexpr std::array<std::string_view, 6> kGatesAndUps = {"gate_proj", "up_proj", "w1", "w3", "gate", "up"};
constexpr std::array<std::string_view, 2> kFusedGates = {"gate_up_proj", "gate_up"};
constexpr std::array<std::string_view, 3> kDowns = {"down_proj", "w2", "down"};
constexpr std::array<std::string_view, 4> kQueries = {"q_proj", "wq", "query", "to_q"};
constexpr std::array<std::string_view, 4> kOuts = {"o_proj", "wo", "out_proj", "dense"};

std::string_view LastOf(std::string_view path) { return path.substr(path.rfind('.') + 1); }

int64_t RanksOf(const Flow& flow) { return flow.plan().mesh.size(MeshAxis::kTp); }

std::optional<DimShards> ShardsOfDim(const Flow& flow, const Layout& layout, int64_t features) {
  if (!layout.is_shard() || layout.owner >= 0 || features <= 0) return std::nullopt;
  Result<DimShards> shards = DimShards::Make(layout.Sized(features), features, RanksOf(flow));
  if (!shards.ok()) return std::nullopt;
  return std::move(shards).ValueOrThrow();
}

// What a rank has of [begin, end), counted from begin.
std::vector<Interval> Within(const std::vector<Interval>& all, int64_t begin, int64_t end) {
  std::vector<Interval> out;
  for (const Interval& one : all) {
    const int64_t first = std::max(one.begin, begin);
    const int64_t last = std::min(one.begin + one.length, end);
    if (first >= last) continue;
    if (!out.empty() && out.back().begin + out.back().length == first - begin) {
      out.back().length += last - first;
    } else {
      out.push_back({first - begin, last - first});
    }
  }
  return out;
}

int64_t LengthOf(const std::vector<Interval>& intervals) {
  int64_t length = 0;
  for (const Interval& one : intervals) length += one.length;
  return length;
}

std::string TextOfIntervals(const std::vector<Interval>& intervals) {
  constexpr size_t kMost = 4;
  std::string out;
  for (size_t i = 0; i < intervals.size() && i < kMost; ++i) {
    const Interval& one = intervals[i];
    out += (i == 0 ? "" : ", ") + std::to_string(one.begin) + " to " + std::to_string(one.begin + one.length - 1);
  }
  return intervals.size() > kMost ? out + ", ..." : out;
}

// The layout that a message names: the weight's, else the declared one.
std::string LayoutMade(const Flow& flow, const ModuleGroup& group) {
  const Layout* weight = WeightAlong(flow, group, 0);
  return (weight != nullptr ? "weight = " + weight->ToText()
                            : "the output leaves as " + LeavesAs(*group.layouts)->ToText()) +
         ", by style '" + group.layouts->style + "'";
}

std::string LayoutTaken(const Flow& flow, const ModuleGroup& group) {
  const Layout* weight = WeightAlong(flow, group, 1);
  return weight != nullptr ? weight->ToText() : ArrivesAs(*group.layouts)->ToText();
}

class OrderLint {
 public:
  OrderLint(const Flow& flow, Diagnostics& diagnostics) : flow_(flow), diagnostics_(diagnostics) {}

  // `copies`: how many times the maker has the taker's features (gate and up in one weight): one set after the other,
  // or copies of each side by side.
  void Compare(const ModuleGroup* maker, const ModuleGroup* taker, int64_t copies) {
    if (maker == nullptr || taker == nullptr || taker->layouts->in_features <= 0) return;
    const int64_t features = taker->layouts->in_features;
    if (maker->layouts->out_features != copies * features) return;
    const std::optional<DimShards> made = FeaturesMade(flow_, *maker);
    const std::optional<DimShards> taken = FeaturesTaken(flow_, *taker);
    if (!made || !taken) return;
    for (int64_t rank = 0; rank < RanksOf(flow_); ++rank) {
      // Another number of them is LintHeads' to report.
      if (LengthOf(made->of(rank)) != copies * LengthOf(taken->of(rank))) return;
    }
    if (copies > 1 && Alternates(*made, *taken, copies)) return;
    for (int64_t rank = 0; rank < RanksOf(flow_); ++rank) {
      for (int64_t copy = 0; copy < copies; ++copy) {
        const std::vector<Interval> part = Within(made->of(rank), copy * features, (copy + 1) * features);
        if (part == taken->of(rank)) continue;
        return Report(*maker, *taker, rank, part, taken->of(rank));
      }
    }
  }

  // A declared redistribution of features whose weight has them in another order.
  void CompareWithin(const ModuleGroup& group) {
    const ModuleLayouts& layouts = *group.layouts;
    if (!layouts.outputs.empty() && layouts.outputs[0]) {
      const Redistribution& output = *layouts.outputs[0];
      CompareDeclared(group, WeightAlong(flow_, group, 0), output.from[MeshAxis::kTp], output.to[MeshAxis::kTp],
                      layouts.out_features, "the output leaves the forward as ");
    }
    if (!layouts.inputs.empty() && layouts.inputs[0]) {
      const Redistribution& input = *layouts.inputs[0];
      CompareDeclared(group, WeightAlong(flow_, group, 1), input.to[MeshAxis::kTp], input.from[MeshAxis::kTp],
                      layouts.in_features, "the input is used as ");
    }
  }

 private:
  // Whether the features fit if copies of each stand side by side (gate 0, up 0, gate 1, ...), which names do not tell.
  // A weight that is cut in parts (packed) has its copies one after the other.
  bool Alternates(const DimShards& made, const DimShards& taken, int64_t copies) const {
    for (int64_t rank = 0; rank < RanksOf(flow_); ++rank) {
      std::vector<Interval> features;
      if (made.of(rank).size() > 1) return false;
      for (const Interval& one : made.of(rank)) {
        if (one.begin % copies != 0 || one.length % copies != 0) return false;
        features.push_back({one.begin / copies, one.length / copies});
      }
      if (features != taken.of(rank)) return false;
    }
    return true;
  }

  void Report(const ModuleGroup& maker, const ModuleGroup& taker, int64_t rank, const std::vector<Interval>& made,
              const std::vector<Interval>& taken) {
    if (!reported_.insert({maker.layouts->rule, taker.layouts->rule}).second) return;
    Diagnostic d = flow_.AboutBoth(Finding::kOrderDiffers, maker, taker,
                                   "'" + flow_.PathOf(maker) + "' leaves other features on rank " +
                                       std::to_string(rank) + " than '" + flow_.PathOf(taker) + "' takes there");
    d.declared = LayoutMade(flow_, maker) + ": " + TextOfIntervals(made) + "; '" + flow_.PathOf(taker) + "' takes " +
                 LayoutTaken(flow_, taker) + ": " + TextOfIntervals(taken);
    d.required = "the same features, in the same order";
    d.help =
        "the same packed(...) parts, or the same heads, for the rows of the first weight and the columns of the second";
    diagnostics_.push_back(std::move(d));
  }

  void CompareDeclared(const ModuleGroup& group, const Layout* weight, const Layout& declared, const Layout& other,
                       int64_t features, const std::string& what) {
    // Without a redistribution no number depends on the declaration.
    if (weight == nullptr || declared == other || !declared.is_shard() || declared.dim != -1) return;
    const std::optional<DimShards> a = ShardsOfDim(flow_, *weight, features);
    const std::optional<DimShards> b = ShardsOfDim(flow_, declared, features);
    for (int64_t rank = 0; a && b && rank < RanksOf(flow_); ++rank) {
      if (a->of(rank) == b->of(rank) || LengthOf(a->of(rank)) != LengthOf(b->of(rank))) continue;
      if (!reported_.insert({group.layouts->rule, group.layouts->rule}).second) return;
      Diagnostic d = flow_.About(Finding::kOrderDiffers, group,
                                 "the weight of '" + flow_.PathOf(group) + "' has other features on rank " +
                                     std::to_string(rank) + " than the declared layout");
      d.declared = what + declared.ToText() + ": " + TextOfIntervals(b->of(rank)) + "; weight = " + weight->ToText() +
                   ": " + TextOfIntervals(a->of(rank)) + ", by style '" + group.layouts->style + "'";
      d.required = "the same parts for the weight and the declared layout";
      d.help = "packed(-1, ...) for the features, with the same sizes as in packed(...) of the weight";
      diagnostics_.push_back(std::move(d));
      return;
    }
  }

  const Flow& flow_;
  Diagnostics& diagnostics_;
  std::set<std::pair<int32_t, int32_t>> reported_;  // rules
};

}  // namespace

const ModuleGroup* LintBlock::Find(std::span<const std::string_view> names) const {
  const auto found = std::ranges::find_if(
      modules, [&](const ModuleGroup& module) { return std::ranges::find(names, LastOf(module.path)) != names.end(); });
  return found == modules.end() ? nullptr : &*found;
}

std::vector<LintBlock> BlocksWith(const Flow& flow, std::span<const std::string_view> names) {
  const std::vector<Module>& modules = flow.plan().tree->modules();
  std::vector<std::vector<size_t>> blocks;
  std::unordered_map<std::string_view, size_t> block_of;  // by path; counted in tree order
  for (size_t m = 0; m < modules.size(); ++m) {
    if (std::ranges::find(names, LastOf(modules[m].path)) == names.end()) continue;
    const auto [entry, fresh] = block_of.try_emplace(ParentOf(modules[m].path), blocks.size());
    if (fresh) blocks.emplace_back();
    blocks[entry->second].push_back(m);
  }
  std::set<std::vector<std::pair<std::string_view, uint32_t>>> known;  // names and layouts
  std::vector<LintBlock> out;
  for (const std::vector<size_t>& block : blocks) {
    std::vector<std::pair<std::string_view, uint32_t>> key;
    for (size_t m : block) key.emplace_back(LastOf(modules[m].path), flow.plan().layouts_of[m]);
    if (!known.insert(std::move(key)).second) continue;
    LintBlock& fresh = out.emplace_back();
    for (size_t m : block) {
      ModuleGroup group = flow.GroupAt(m);
      if (group.matrix) fresh.modules.push_back(std::move(group));
    }
  }
  return out;
}

const Layout* WeightAlong(const Flow& flow, const ModuleGroup& group, int dim) {
  if (flow.CutOfWeight(group) != dim) return nullptr;
  const auto weight = std::ranges::find(*group.signature, "weight", &Parameter::name);
  return &group.layouts->params[static_cast<size_t>(weight - group.signature->begin())][MeshAxis::kTp];
}

std::optional<DimShards> FeaturesMade(const Flow& flow, const ModuleGroup& group) {
  const Layout* leaves = LeavesAs(*group.layouts);
  if (leaves == nullptr || !ShardsFeatures(*leaves) || group.embedding) return std::nullopt;
  if (group.layouts->outputs[0]->from != group.layouts->outputs[0]->to) return std::nullopt;
  const Layout* weight = WeightAlong(flow, group, 0);
  return ShardsOfDim(flow, weight != nullptr ? *weight : *leaves, group.layouts->out_features);
}

std::optional<DimShards> FeaturesTaken(const Flow& flow, const ModuleGroup& group) {
  const Layout* arrives = ArrivesAs(*group.layouts);
  if (arrives == nullptr || !ShardsFeatures(*arrives) || group.embedding) return std::nullopt;
  if (group.layouts->inputs[0]->from != group.layouts->inputs[0]->to) return std::nullopt;
  const Layout* weight = WeightAlong(flow, group, 1);
  return ShardsOfDim(flow, weight != nullptr ? *weight : *arrives, group.layouts->in_features);
}

void LintOrder(const Flow& flow, Diagnostics& diagnostics) {
  OrderLint lint(flow, diagnostics);
  std::vector<std::string_view> names;
  for (const auto& some : {std::span<const std::string_view>(kGatesAndUps),
                           std::span<const std::string_view>(kFusedGates), std::span<const std::string_view>(kDowns),
                           std::span<const std::string_view>(kQueries), std::span<const std::string_view>(kOuts)}) {
    names.insert(names.end(), some.begin(), some.end());
  }
  for (const LintBlock& block : BlocksWith(flow, names)) {
    const ModuleGroup* down = block.Find(kDowns);
    for (std::string_view name : kGatesAndUps) lint.Compare(block.Find({&name, 1}), down, 1);
    lint.Compare(block.Find(kFusedGates), down, 2);
    lint.Compare(block.Find(kQueries), block.Find(kOuts), 1);
  }
  for (const ModuleGroup& group : flow.groups()) {
    if (group.matrix) lint.CompareWithin(group);
  }
}

}  // namespace moonshard
