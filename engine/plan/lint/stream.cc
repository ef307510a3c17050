// The residual stream between the blocks of a layer. A plan does not declare its layout anywhere, but the norms on it
// do:
// what they take and leave. Every projection that reads the stream or adds to it must declare the same layout, or
// shapes differ at an addition (an error at run time) or, worse, fit by broadcasting.
//
// How the stream is followed:
//   1. LayersOf: for every layer (an entry of a list) whose norms all declare one layout and whose projections support
//      it, that layout and the number of features. Layers with contradicting norms are left to LintNorms.
//   2. CheckLayer: each projection of the layer that has as many input or output features as the stream, and that no
//      module in between redistributes for.
//   3. CheckEmbeddings, CheckHead: the ends of the stream outside of the layers.
// Findings are grouped by rule, with the modules of the first layer: what is wrong in one layer is so in all.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "engine/plan/lint/flow.h"
#include "engine/plan/lint/lint.h"

namespace moonshard {
namespace {

// The layout of the stream that all norms of a layer declare.
struct Layer {
  std::string_view path;              // of the class: "model.layers.0"
  int64_t features = 0;               // of the stream
  bool in_shards = false;             // shards of the sequence; else full
  const ModuleGroup* norm = nullptr;  // one of them
};

bool IsFull(const Layout* layout) { return layout != nullptr && *layout == Layout::Replicate(); }
bool IsTokens(const Layout* layout) { return layout != nullptr && ShardsSequence(*layout); }
bool IsFeatures(const Layout* layout) { return layout != nullptr && ShardsFeatures(*layout); }

// Whether any of the layer's projections has the stream as its norms do. If none has, the norms are the mismatch, and
// the projections are not reported.
bool Supported(const Flow& flow, const Layer& layer) {
  const std::vector<const ModuleGroup*> below = flow.Below(layer.path, nullptr, /*into_lists=*/true);
  return std::ranges::any_of(below, [&](const ModuleGroup* group) {
    if (flow.NormSize(*group) >= 0) return false;
    const Layout* arrives = ArrivesAs(*group->layouts);
    const Layout* leaves = LeavesAs(*group->layouts);
    if (layer.in_shards) return IsTokens(arrives) || IsTokens(leaves);
    return group->matrix && group->layouts->in_features == layer.features && IsFull(arrives);
  });
}

// Layers whose norms all declare the layout of the stream, the same one before and after them.
std::vector<Layer> LayersOf(const Flow& flow) {
  std::map<std::pair<std::string_view, int64_t>, Layer> layers;
  std::set<std::pair<std::string_view, int64_t>> unclear;
  for (const ModuleGroup& group : flow.groups()) {
    const int64_t features = flow.NormSize(group);
    const std::string_view path = ParentOf(group.path);
    if (features < 0 || !InList(path) || flow.WithinBlock(group)) continue;
    const Layout* arrives = ArrivesAs(*group.layouts);
    const Layout* leaves = LeavesAs(*group.layouts);
    const bool in_shards = IsTokens(arrives) && IsTokens(leaves);
    const bool full = IsFull(arrives) && IsFull(leaves);
    const auto [entry, fresh] = layers.try_emplace({path, features}, Layer{path, features, in_shards, &group});
    if (in_shards == full || entry->second.in_shards != in_shards) unclear.insert({path, features});
  }
  std::vector<Layer> out;
  for (const auto& [key, layer] : layers) {
    if (!unclear.contains(key) && Supported(flow, layer)) out.push_back(layer);
  }
  return out;
}

// The projections of a layer, with the modules around them.
class Projections {
 public:
  Projections(const Flow& flow, const Layer& layer) : layer_(layer), below_(flow.Below(layer.path, nullptr, true)) {}

  // Those whose inputs and outputs are the layer's own: no module in between redistributes them again.
  std::vector<const ModuleGroup*> Bare() const {
    std::vector<const ModuleGroup*> out;
    for (const ModuleGroup* group : below_) {
      const bool redistributed = std::ranges::any_of(below_, [&](const ModuleGroup* around) {
        return group->path.size() > around->path.size() && group->path.starts_with(around->path) &&
               group->path[around->path.size()] == '.' &&
               !(around->layouts->inputs.empty() && around->layouts->outputs.empty());
      });
      if (group->matrix && !redistributed) out.push_back(group);
    }
    return out;
  }

  bool Any(const auto& passes) const {
    return std::ranges::any_of(below_, [&](const ModuleGroup* group) { return passes(*group); });
  }

  // Whether a sibling of the group passes.
  bool AnyBeside(const ModuleGroup& group, const auto& passes) const {
    return Any([&](const ModuleGroup& other) {
      return &other != &group && ParentOf(other.path) == ParentOf(group.path) && other.matrix && passes(other);
    });
  }

  bool TakesStream(const ModuleGroup& group) const { return group.layouts->in_features == layer_.features; }
  bool MakesStream(const ModuleGroup& group) const { return group.layouts->out_features == layer_.features; }

 private:
  const Layer& layer_;
  std::vector<const ModuleGroup*> below_;
};

struct MismatchKind {
  Finding finding = Finding::kShardsNotTaken;
  bool output = false;        // concerns what the projection leaves; else what it takes
  const char* declared = "";  // the stream as the projection has it
  const char* expected = "";  // as the norm has it
  std::string help;
};

// Projections of one rule that declare another layout of the stream than the norms of their layer.
struct StreamMismatch {
  MismatchKind kind;
  Layer layer;
  std::vector<const ModuleGroup*> groups;
};

class StreamLint {
 public:
  explicit StreamLint(const Flow& flow) : flow_(flow) {}

  const std::vector<StreamMismatch>& mismatches() const { return mismatches_; }

  void CheckLayer(const Layer& layer) {
    const Projections projections(flow_, layer);
    for (const ModuleGroup* group : projections.Bare()) {
      if (layer.in_shards) {
        CheckSharded(layer, projections, *group);
      } else {
        CheckFull(layer, projections, *group);
      }
      CheckFeatures(layer, projections, *group);
    }
  }

  // An embedding that leaves the stream in another layout than the layers after it take.
  void CheckEmbeddings(const std::vector<Layer>& layers) {
    for (const ModuleGroup& group : flow_.groups()) {
      if (!group.embedding || InList(group.path)) continue;
      const std::string_view around = ParentOf(group.path);
      const auto layer = std::ranges::find_if(layers, [&](const Layer& l) {
        return l.features == group.layouts->out_features && (around.empty() || l.path.starts_with(around));
      });
      if (layer == layers.end() || RedistributedByOthers() || ProjectedBeside(group)) continue;
      const Layout* leaves = LeavesAs(*group.layouts);
      const std::string output = std::string("output = ") + (layer->in_shards ? "shard(1)" : "replicate");
      if (IsFeatures(leaves)) {
        Add({Finding::kShardsNotTaken, /*output=*/true, "sharded features", "full features",
             output + "; or vocab_rowwise { " + output + " }, which shards an embedding by its rows"},
            group, *layer);
      } else if (layer->in_shards && IsFull(leaves)) {
        Add({Finding::kShardsNotMade, /*output=*/true, "the full sequence", "shards of the sequence", output}, group,
            *layer);
      } else if (!layer->in_shards && IsTokens(leaves)) {
        Add({Finding::kShardsNotTaken, /*output=*/true, "shards of the sequence", "the full sequence", output}, group,
            *layer);
      }
    }
  }

  // The one projection outside of the layers, a head, that takes the stream in another layout than the one norm there
  // leaves. With several of either, which one follows which is unknown.
  void CheckHead(const std::vector<Layer>& layers) {
    std::vector<const ModuleGroup*> norms;
    std::vector<const ModuleGroup*> heads;
    for (const ModuleGroup& group : flow_.groups()) {
      if (InList(group.path)) continue;
      if (flow_.NormSize(group) >= 0) norms.push_back(&group);
      if (group.matrix && !group.embedding) heads.push_back(&group);
    }
    if (norms.size() != 1 || heads.size() != 1) return;
    const int64_t features = flow_.NormSize(*norms[0]);
    const auto same = [&](const Layer& l) { return l.features == features; };
    const auto layer = std::ranges::find_if(layers, same);
    if (layer == layers.end() || heads[0]->layouts->in_features != features || RedistributedByOthers()) return;
    const Layout* leaves = LeavesAs(*norms[0]->layouts);
    if (!(layer->in_shards ? IsTokens(leaves) : IsFull(leaves))) return;
    const Layer end{layer->path, features, layer->in_shards, norms[0]};
    const Layout* arrives = ArrivesAs(*heads[0]->layouts);
    if (layer->in_shards && IsFull(arrives)) {
      Add({Finding::kShardsNotTaken, /*output=*/false, "the full sequence", "shards of the sequence",
           "input = shard(1), which gathers the sequence"},
          *heads[0], end);
    } else if (!layer->in_shards && IsTokens(arrives)) {
      Add({Finding::kShardsNotMade, /*output=*/false, "shards of the sequence", "the full sequence",
           "input = replicate"},
          *heads[0], end);
    }
  }

 private:
  // Whether a module without a matrix redistributes the stream, as one around a layer may.
  bool RedistributedByOthers() const {
    const auto cuts = [](const Layout& layout) { return ShardsSequence(layout) || ShardsFeatures(layout); };
    const auto redistributions = [&](const std::vector<std::optional<Redistribution>>& all) {
      return std::ranges::any_of(all, [&](const std::optional<Redistribution>& redistribution) {
        return redistribution && redistribution->from != redistribution->to &&
               (cuts(redistribution->from[MeshAxis::kTp]) || cuts(redistribution->to[MeshAxis::kTp]));
      });
    };
    return std::ranges::any_of(flow_.groups(), [&](const ModuleGroup& s) {
      return !s.matrix && (redistributions(s.layouts->inputs) || redistributions(s.layouts->outputs));
    });
  }

  // Whether a sibling of the embedding projects to the stream, and so may be between the embedding and the layers.
  bool ProjectedBeside(const ModuleGroup& embedding) const {
    const std::vector<const ModuleGroup*> beside =
        flow_.Below(ParentOf(embedding.path), &embedding, /*into_lists=*/false);
    return std::ranges::any_of(beside, [&](const ModuleGroup* s) {
      return s->matrix && !s->embedding && s->layouts->in_features > 0 &&
             s->layouts->out_features == embedding.layouts->out_features;
    });
  }

  // The stream is sharded in this layer. A projection that reads or adds the full sequence is reported unless a sibling
  // does the inverse: a pair that gathers and shards again by itself is consistent.
  void CheckSharded(const Layer& layer, const Projections& projections, const ModuleGroup& group) {
    const ModuleLayouts& layouts = *group.layouts;
    const auto takes_full = [&](const ModuleGroup& s) {
      return projections.TakesStream(s) && IsFull(ArrivesAs(*s.layouts));
    };
    const auto leaves_full = [&](const ModuleGroup& s) {
      return projections.MakesStream(s) && IsFull(LeavesAs(*s.layouts));
    };
    if (leaves_full(group) && IsFeatures(ArrivesAs(layouts)) && !projections.AnyBeside(group, takes_full)) {
      Add({Finding::kShardsNotMade, /*output=*/true, "the full sequence", "shards of the sequence",
           "output = shard(1): each rank receives the sums of its own tokens"},
          group, layer);
    } else if (takes_full(group) && IsFeatures(LeavesAs(layouts)) && !projections.AnyBeside(group, leaves_full)) {
      Add({Finding::kShardsNotTaken, /*output=*/false, "the full sequence", "shards of the sequence",
           "input = shard(1), which gathers the sequence"},
          group, layer);
    }
  }

  // The stream is full in this layer: the inverse, where any projection of the layer may be the partner.
  void CheckFull(const Layer& layer, const Projections& projections, const ModuleGroup& group) {
    const ModuleLayouts& layouts = *group.layouts;
    const auto takes_shards = [](const ModuleGroup& s) { return IsTokens(ArrivesAs(*s.layouts)); };
    const auto leaves_shards = [](const ModuleGroup& s) { return IsTokens(LeavesAs(*s.layouts)); };
    if (projections.MakesStream(group) && leaves_shards(group) && !projections.Any(takes_shards)) {
      Add({Finding::kShardsNotTaken, /*output=*/true, "shards of the sequence", "the full sequence",
           "output = replicate; or shard(1) for the full residual stream: norm_on(shard(1)) for the norms, "
           "input = shard(1) for the projections"},
          group, layer);
    }
    const auto others_leave = [&](const ModuleGroup& s) {
      return &s != &group && projections.MakesStream(s) && leaves_shards(s);
    };
    if (projections.TakesStream(group) && takes_shards(group) && !projections.Any(others_leave)) {
      Add({Finding::kShardsNotMade, /*output=*/false, "shards of the sequence", "the full sequence",
           layouts.out_features == layer.features
               ? "input = replicate"
               : "input = replicate; or colwise {}, which takes the full sequence and shards the output features"},
          group, layer);
    }
  }

  // A projection from the stream that takes sharded features, which no sibling makes.
  void CheckFeatures(const Layer& layer, const Projections& projections, const ModuleGroup& group) {
    const ModuleLayouts& layouts = *group.layouts;
    const bool takes =
        projections.TakesStream(group) && IsFeatures(ArrivesAs(layouts)) && IsFeatures(LeavesAs(layouts));
    if (!takes) return;
    const auto makes = [&](const ModuleGroup& s) {
      const ModuleLayouts& other = *s.layouts;
      const bool parallel = other.in_features == layouts.in_features && other.out_features == layouts.out_features;
      const bool fits = other.out_features < 0 || other.out_features % layouts.in_features == 0;
      return flow_.LeavesShards(s) && !parallel && fits;
    };
    if (projections.AnyBeside(group, makes)) return;
    Add({Finding::kShardsNotMade, /*output=*/false, "sharded features", "full features",
         std::string("input = ") + (layer.in_shards ? "shard(1)" : "replicate")},
        group, layer);
  }

  void Add(const MismatchKind& kind, const ModuleGroup& group, const Layer& layer) {
    const auto same = [&](const StreamMismatch& mismatch) {
      return mismatch.kind.finding == kind.finding && mismatch.groups.front()->layouts->rule == group.layouts->rule;
    };
    const auto known = std::ranges::find_if(mismatches_, same);
    if (known == mismatches_.end()) {
      mismatches_.push_back({kind, layer, {&group}});
    } else if (known->layer.path == layer.path) {
      known->groups.push_back(&group);
    }
  }

  const Flow& flow_;
  std::vector<StreamMismatch> mismatches_;
};

Diagnostic AboutStream(const Flow& flow, const StreamMismatch& mismatch) {
  const ModuleGroup& first = *mismatch.groups.front();
  const ModuleGroup& norm = *mismatch.layer.norm;
  const bool one = mismatch.groups.size() == 1;
  const char* const does = mismatch.kind.output ? (one ? " leaves " : " leave ") : (one ? " takes " : " take ");
  const char* const norm_does = mismatch.kind.output ? " takes " : " leaves ";
  Diagnostic d = flow.AboutBoth(mismatch.kind.finding, first, norm,
                                flow.Names(mismatch.groups) + does + mismatch.kind.declared + "; '" +
                                    flow.PathOf(norm) + "'" + norm_does + mismatch.kind.expected);
  const Layout& layout = *(mismatch.kind.output ? LeavesAs(*first.layouts) : ArrivesAs(*first.layouts));
  d.declared = (mismatch.kind.output ? "the output leaves as " : "the input arrives as ") + layout.ToText() +
               ", by style '" + first.layouts->style + "'; '" + flow.PathOf(norm) + "'" + norm_does +
               (mismatch.layer.in_shards ? "shard(1)" : "replicate") + ", by style '" + norm.layouts->style + "'";
  d.required = "one layout of the residual stream for both";
  d.help = mismatch.kind.help;
  return d;
}

// An activation [batch, sequence, features] has dims 0 to 2.
void LintDims(const Flow& flow, Diagnostics& diagnostics) {
  constexpr int kDims = 3;
  std::set<int32_t> reported;  // rules
  for (const ModuleGroup& group : flow.groups()) {
    const std::string& kind = flow.plan().tree->modules()[group.module].kind;
    if (kind != "Linear" && !group.embedding && flow.NormSize(group) < 0) continue;
    for (const auto* redistributions : {&group.layouts->inputs, &group.layouts->outputs}) {
      const bool output = redistributions == &group.layouts->outputs;
      if (redistributions->empty() || !redistributions->front()) continue;
      for (const Placement* placement : {&redistributions->front()->from, &redistributions->front()->to}) {
        const Layout& layout = (*placement)[MeshAxis::kTp];
        if (!layout.is_shard() || (layout.dim >= -kDims && layout.dim < kDims)) continue;
        if (!reported.insert(group.layouts->rule).second) continue;
        Diagnostic d = flow.About(Finding::kBadDim, group,
                                  std::string(output ? "the output" : "the input") + " of '" + flow.PathOf(group) +
                                      "' is sharded along tensor dim " + std::to_string(layout.dim) +
                                      ", which an activation does not have");
        d.severity = Severity::kWarning;
        d.declared = layout.ToText() + ", by style '" + group.layouts->style + "'";
        d.required = "a dim of [batch, sequence, features]: 0 to 2, or -3 to -1";
        d.help = "shard(1) is the sequence, shard(-1) the features";
        diagnostics.push_back(std::move(d));
      }
    }
  }
}

}  // namespace

void LintStream(const Flow& flow, Diagnostics& diagnostics) {
  LintDims(flow, diagnostics);
  const auto cuts = [](const Layout& layout) { return ShardsSequence(layout) || ShardsFeatures(layout); };
  if (flow.AnyUnplacedRedistribution([&](const Layout& from, const Layout& to) { return cuts(from) || cuts(to); }))
    return;
  const std::vector<Layer> layers = LayersOf(flow);
  StreamLint lint(flow);
  for (const Layer& layer : layers) lint.CheckLayer(layer);
  lint.CheckEmbeddings(layers);
  lint.CheckHead(layers);
  for (const StreamMismatch& mismatch : lint.mismatches()) diagnostics.push_back(AboutStream(flow, mismatch));
}

}  // namespace moonshard
