// The stream between the blocks of a layer: the norms on it say how it lies, and what takes it or adds to it must say the
// same.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "engine/plan/lint/flow.h"
#include "engine/plan/lint/lint.h"

namespace moonshard {
namespace {

// What the norms of one layer say, all of them the same.
struct Layer {
  std::string_view path;          // of the class: "model.layers.0"
  int64_t features = 0;           // of the stream
  bool in_shards = false;         // of the sequence; else whole
  const Station* norm = nullptr;  // one of them
};

bool IsFull(const Layout* layout) { return layout != nullptr && *layout == Layout::Replicate(); }
bool IsTokens(const Layout* layout) { return layout != nullptr && CutsTokens(*layout); }
bool IsFeatures(const Layout* layout) { return layout != nullptr && CutsFeatures(*layout); }

// Whether any of the layer's projections has the stream as its norms say. Norms that are alone with it are the odd ones.
bool Supported(const Flow& flow, const Layer& layer) {
  const std::vector<const Station*> below = flow.Below(layer.path, nullptr, /*into_lists=*/true);
  return std::ranges::any_of(below, [&](const Station* station) {
    if (flow.NormSize(*station) >= 0) return false;
    const Layout* arrives = ArrivesAs(*station->steps);
    const Layout* leaves = LeavesAs(*station->steps);
    if (layer.in_shards) return IsTokens(arrives) || IsTokens(leaves);
    return station->matrix && station->steps->in_features == layer.features && IsFull(arrives);
  });
}

// Layers whose norms all say how the stream lies, before and behind them, and agree.
std::vector<Layer> LayersOf(const Flow& flow) {
  std::map<std::pair<std::string_view, int64_t>, Layer> layers;
  std::set<std::pair<std::string_view, int64_t>> unclear;
  for (const Station& station : flow.stations()) {
    const int64_t features = flow.NormSize(station);
    const std::string_view path = ParentOf(station.path);
    if (features < 0 || !InList(path) || flow.WithinBlock(station)) continue;
    const Layout* arrives = ArrivesAs(*station.steps);
    const Layout* leaves = LeavesAs(*station.steps);
    const bool in_shards = IsTokens(arrives) && IsTokens(leaves);
    const bool full = IsFull(arrives) && IsFull(leaves);
    const auto [entry, fresh] = layers.try_emplace({path, features}, Layer{path, features, in_shards, &station});
    if (in_shards == full || entry->second.in_shards != in_shards) unclear.insert({path, features});
  }
  std::vector<Layer> out;
  for (const auto& [key, layer] : layers) {
    if (!unclear.contains(key) && Supported(flow, layer)) out.push_back(layer);
  }
  return out;
}

// The projections of a layer, and what is said by modules around them.
class Projections {
 public:
  Projections(const Flow& flow, const Layer& layer) : layer_(layer), below_(flow.Below(layer.path, nullptr, true)) {}

  // Those whose inputs and outputs are the layer's own: no module between moves them once more.
  std::vector<const Station*> Bare() const {
    std::vector<const Station*> out;
    for (const Station* station : below_) {
      const bool moved = std::ranges::any_of(below_, [&](const Station* around) {
        return station->path.size() > around->path.size() && station->path.starts_with(around->path) &&
               station->path[around->path.size()] == '.' &&
               !(around->steps->inputs.empty() && around->steps->outputs.empty());
      });
      if (station->matrix && !moved) out.push_back(station);
    }
    return out;
  }

  bool Any(const auto& passes) const {
    return std::ranges::any_of(below_, [&](const Station* station) { return passes(*station); });
  }

  // Whether a sibling of the station passes.
  bool AnyBeside(const Station& station, const auto& passes) const {
    return Any([&](const Station& other) {
      return &other != &station && ParentOf(other.path) == ParentOf(station.path) && other.matrix && passes(other);
    });
  }

  bool TakesStream(const Station& station) const { return station.steps->in_features == layer_.features; }
  bool MakesStream(const Station& station) const { return station.steps->out_features == layer_.features; }

 private:
  const Layer& layer_;
  std::vector<const Station*> below_;
};

struct Kind {
  Finding finding = Finding::kShardsNotTaken;
  bool output = false;  // what the projection leaves; else what it takes
  const char* what = "";
  const char* other = "";  // how the norm has it
  std::string help;
};

// Projections of one rule that have the stream otherwise than the norms of their layer.
struct OddStations {
  Kind kind;
  Layer layer;
  std::vector<const Station*> stations;
};

class Suspects {
 public:
  explicit Suspects(const Flow& flow) : flow_(flow) {}

  const std::vector<OddStations>& odd() const { return odd_; }

  void Look(const Layer& layer) {
    const Projections projections(flow_, layer);
    for (const Station* station : projections.Bare()) {
      if (layer.in_shards) {
        LookInShards(layer, projections, *station);
      } else {
        LookFull(layer, projections, *station);
      }
      LookAtFeatures(layer, projections, *station);
    }
  }

  // An embedding that leaves the stream otherwise than the layers behind it take it.
  void LookAtEmbeddings(const std::vector<Layer>& layers) {
    for (const Station& station : flow_.stations()) {
      if (!station.embedding || InList(station.path)) continue;
      const std::string_view around = ParentOf(station.path);
      const auto layer = std::ranges::find_if(layers, [&](const Layer& l) {
        return l.features == station.steps->out_features && (around.empty() || l.path.starts_with(around));
      });
      if (layer == layers.end() || MovedByOthers() || ProjectedBeside(station)) continue;
      const Layout* leaves = LeavesAs(*station.steps);
      const std::string output = std::string("output = ") + (layer->in_shards ? "shard(1)" : "replicate");
      if (IsFeatures(leaves)) {
        Note({Finding::kShardsNotTaken, /*output=*/true, "features in shards", "them whole",
              output + "; vocab_rowwise {} cuts an embedding by its rows"},
             station, *layer);
      } else if (layer->in_shards && IsFull(leaves)) {
        Note({Finding::kShardsNotMade, /*output=*/true, "the sequence whole", "it in shards", output}, station, *layer);
      } else if (!layer->in_shards && IsTokens(leaves)) {
        Note({Finding::kShardsNotTaken, /*output=*/true, "shards of the sequence", "it whole", output}, station,
             *layer);
      }
    }
  }

  // The one projection outside of the layers, a head, that takes the stream otherwise than the one norm there leaves it.
  void LookAtHead(const std::vector<Layer>& layers) {
    std::vector<const Station*> norms;
    std::vector<const Station*> heads;
    for (const Station& station : flow_.stations()) {
      if (InList(station.path)) continue;
      if (flow_.NormSize(station) >= 0) norms.push_back(&station);
      if (station.matrix && !station.embedding) heads.push_back(&station);
    }
    if (norms.size() != 1 || heads.size() != 1) return;
    const int64_t features = flow_.NormSize(*norms[0]);
    const auto same = [&](const Layer& l) { return l.features == features; };
    const auto layer = std::ranges::find_if(layers, same);
    if (layer == layers.end() || heads[0]->steps->in_features != features || MovedByOthers()) return;
    const Layout* leaves = LeavesAs(*norms[0]->steps);
    if (!(layer->in_shards ? IsTokens(leaves) : IsFull(leaves))) return;
    const Layer end{layer->path, features, layer->in_shards, norms[0]};
    const Layout* arrives = ArrivesAs(*heads[0]->steps);
    if (layer->in_shards && IsFull(arrives)) {
      Note({Finding::kShardsNotTaken, /*output=*/false, "the sequence whole", "it in shards",
            "input = shard(1), which gathers the sequence"},
           *heads[0], end);
    } else if (!layer->in_shards && IsTokens(arrives)) {
      Note({Finding::kShardsNotMade, /*output=*/false, "shards of the sequence", "it whole", "input = replicate"},
           *heads[0], end);
    }
  }

 private:
  // Whether a module without a matrix moves the stream, as one around a layer may.
  bool MovedByOthers() const {
    const auto cuts = [](const Layout& layout) { return CutsTokens(layout) || CutsFeatures(layout); };
    const auto redistributions = [&](const std::vector<std::optional<Redistribution>>& all) {
      return std::ranges::any_of(all, [&](const std::optional<Redistribution>& move) {
        return move && move->from != move->to && (cuts(move->from[MeshAxis::kTp]) || cuts(move->to[MeshAxis::kTp]));
      });
    };
    return std::ranges::any_of(flow_.stations(), [&](const Station& s) {
      return !s.matrix && (redistributions(s.steps->inputs) || redistributions(s.steps->outputs));
    });
  }

  // Whether a projection to the stream stands beside the embedding, and may be between it and the layers.
  bool ProjectedBeside(const Station& embedding) const {
    const std::vector<const Station*> beside = flow_.Below(ParentOf(embedding.path), &embedding, /*into_lists=*/false);
    return std::ranges::any_of(beside, [&](const Station* s) {
      return s->matrix && !s->embedding && s->steps->in_features > 0 &&
             s->steps->out_features == embedding.steps->out_features;
    });
  }

  void LookInShards(const Layer& layer, const Projections& projections, const Station& station) {
    const ModuleSteps& steps = *station.steps;
    const auto takes_full = [&](const Station& s) { return projections.TakesStream(s) && IsFull(ArrivesAs(*s.steps)); };
    const auto leaves_full = [&](const Station& s) { return projections.MakesStream(s) && IsFull(LeavesAs(*s.steps)); };
    if (leaves_full(station) && IsFeatures(ArrivesAs(steps)) && !projections.AnyBeside(station, takes_full)) {
      Note({Finding::kShardsNotMade, /*output=*/true, "the sequence whole", "it in shards",
            "output = shard(1), which leaves each rank the sums of its own tokens"},
           station, layer);
    } else if (takes_full(station) && IsFeatures(LeavesAs(steps)) && !projections.AnyBeside(station, leaves_full)) {
      Note({Finding::kShardsNotTaken, /*output=*/false, "the sequence whole", "it in shards",
            "input = shard(1), which gathers the sequence"},
           station, layer);
    }
  }

  void LookFull(const Layer& layer, const Projections& projections, const Station& station) {
    const ModuleSteps& steps = *station.steps;
    const auto takes_shards = [](const Station& s) { return IsTokens(ArrivesAs(*s.steps)); };
    const auto leaves_shards = [](const Station& s) { return IsTokens(LeavesAs(*s.steps)); };
    if (projections.MakesStream(station) && leaves_shards(station) && !projections.Any(takes_shards)) {
      Note({Finding::kShardsNotTaken, /*output=*/true, "shards of the sequence", "it whole",
            "output = replicate, or shard(1) for all of the stream: norm_on(shard(1)), input = shard(1)"},
           station, layer);
    }
    const auto others_leave = [&](const Station& s) {
      return &s != &station && projections.MakesStream(s) && leaves_shards(s);
    };
    if (projections.TakesStream(station) && takes_shards(station) && !projections.Any(others_leave)) {
      Note({Finding::kShardsNotMade, /*output=*/false, "shards of the sequence", "it whole",
            steps.out_features == layer.features ? "input = replicate"
                                                 : "input = replicate; colwise {} cuts a projection by its features"},
           station, layer);
    }
  }

  // A projection from the stream that takes shards of its features, which no sibling makes.
  void LookAtFeatures(const Layer& layer, const Projections& projections, const Station& station) {
    const ModuleSteps& steps = *station.steps;
    const bool takes = projections.TakesStream(station) && IsFeatures(ArrivesAs(steps)) && IsFeatures(LeavesAs(steps));
    if (!takes) return;
    const auto makes = [&](const Station& s) {
      const ModuleSteps& other = *s.steps;
      const bool parallel = other.in_features == steps.in_features && other.out_features == steps.out_features;
      const bool fits = other.out_features < 0 || other.out_features % steps.in_features == 0;
      return flow_.LeavesShards(s) && !parallel && fits;
    };
    if (projections.AnyBeside(station, makes)) return;
    Note({Finding::kShardsNotMade, /*output=*/false, "features in shards", "them whole",
          std::string("input = ") + (layer.in_shards ? "shard(1)" : "replicate")},
         station, layer);
  }

  void Note(const Kind& kind, const Station& station, const Layer& layer) {
    const auto same = [&](const OddStations& odd) {
      return odd.kind.finding == kind.finding && odd.stations.front()->steps->rule == station.steps->rule;
    };
    const auto known = std::ranges::find_if(odd_, same);
    if (known == odd_.end()) {
      odd_.push_back({kind, layer, {&station}});
    } else if (known->layer.path == layer.path) {
      known->stations.push_back(&station);
    }
  }

  const Flow& flow_;
  std::vector<OddStations> odd_;
};

Diagnostic About(const Flow& flow, const OddStations& odd) {
  const Station& first = *odd.stations.front();
  const Station& norm = *odd.layer.norm;
  const bool one = odd.stations.size() == 1;
  const char* const does = odd.kind.output ? (one ? " leaves " : " leave ") : (one ? " takes " : " take ");
  const char* const norm_does = odd.kind.output ? " takes " : " leaves ";
  Diagnostic d = flow.AboutBoth(
      odd.kind.finding, first, norm,
      flow.Names(odd.stations) + does + odd.kind.what + "; '" + flow.PathOf(norm) + "'" + norm_does + odd.kind.other);
  const Layout& layout = *(odd.kind.output ? LeavesAs(*first.steps) : ArrivesAs(*first.steps));
  d.declared = (odd.kind.output ? "the output leaves as " : "the input arrives as ") + layout.ToText() +
               ", by style '" + first.steps->style + "'; '" + flow.PathOf(norm) + "'" + norm_does +
               (odd.layer.in_shards ? "shard(1)" : "replicate") + ", by style '" + norm.steps->style + "'";
  d.required = "one layout of the stream for both";
  d.help = odd.kind.help;
  return d;
}

// An activation [batch, sequence, features] has dims 0 to 2.
void LintDims(const Flow& flow, Diagnostics& diagnostics) {
  constexpr int kDims = 3;
  std::set<int32_t> said;  // rules
  for (const Station& station : flow.stations()) {
    const std::string& kind = flow.plan().tree->modules()[station.module].kind;
    if (kind != "Linear" && !station.embedding && flow.NormSize(station) < 0) continue;
    for (const auto* redistributions : {&station.steps->inputs, &station.steps->outputs}) {
      const bool output = redistributions == &station.steps->outputs;
      if (redistributions->empty() || !redistributions->front()) continue;
      for (const Placement* placement : {&redistributions->front()->from, &redistributions->front()->to}) {
        const Layout& layout = (*placement)[MeshAxis::kTp];
        if (!layout.is_shard() || (layout.dim >= -kDims && layout.dim < kDims)) continue;
        if (!said.insert(station.steps->rule).second) continue;
        Diagnostic d = flow.About(Finding::kBadDim, station,
                                  std::string(output ? "the output" : "the input") + " of '" + flow.PathOf(station) +
                                      "' is cut along tensor dim " + std::to_string(layout.dim) +
                                      ", which an activation does not have");
        d.severity = Severity::kWarning;
        d.declared = layout.ToText() + ", by style '" + station.steps->style + "'";
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
  const auto cuts = [](const Layout& layout) { return CutsTokens(layout) || CutsFeatures(layout); };
  if (flow.AnyUnplacedRedistribution([&](const Layout& from, const Layout& to) { return cuts(from) || cuts(to); }))
    return;
  const std::vector<Layer> layers = LayersOf(flow);
  Suspects suspects(flow);
  for (const Layer& layer : layers) suspects.Look(layer);
  suspects.LookAtEmbeddings(layers);
  suspects.LookAtHead(layers);
  for (const OddStations& odd : suspects.odd()) diagnostics.push_back(About(flow, odd));
}

}  // namespace moonshard
