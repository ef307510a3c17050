// Two dims of an activation [batch, sequence, features] are sharded by two axes at once, in two orders. The sequence is
// sharded by cp first, and under sequence parallelism tp shards the chunk of cp: each redistribution sees the lengths
// that the other axis left, so that nothing is to be done here. The features are sharded by tp first, because a rank of
// tp computes them with its shard of a weight, and cp exchanges what that rank has. A plan is written for the full
// model, so its heads are divided here by what tp takes. For 8 query heads and 2 key heads, on tp=2 and cp=2:
//
//   q output   {cp: shard(1), tp: shard(-1,heads=8)} -> {cp: shard(-1,heads=4), tp: shard(-1,heads=8)}
//   k output   {cp: shard(1), tp: shard(-1,heads=2)} -> {cp: shard(-1,heads=1), tp: shard(-1,heads=2)}
//   o input    {cp: shard(-1,heads=4), tp: shard(-1)} -> {cp: shard(1), tp: shard(-1)}
//
// Both ranks of cp get the one key head that tp left, with all tokens.
//
// On cp=2x2 the ranks of a group of two exchange heads and a ring runs between the groups, so that attention has the
// tokens of the group:
//
//   q output   shard(1,zigzag,inner=2) -> shard(-1,heads=8,inner=2)
//   o input    shard(-1,heads=8,inner=2) -> shard(1,zigzag,inner=2), around a ring
//
// One layout on one axis cannot name the sequence and the features that a rank has of q in between; `inner` says that
// it is both. No rule outside of attention sees such a tensor. Everything else takes cp for one axis of four ranks.
#include "engine/plan/compile/context_parallel.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "engine/layout/shards.h"
#include "engine/plan/compile/cost.h"

namespace moonshard {
namespace {

class ContextHeads {
 public:
  ContextHeads(const Landing& landing, const MeshShape& mesh, std::string tensor, Diagnostics& diagnostics)
      : landing_(landing),
        tp_(mesh.size(MeshAxis::kTp)),
        cp_(mesh.size(MeshAxis::kCp)),
        inner_(mesh.cp_heads()),
        tensor_(std::move(tensor)),
        diagnostics_(diagnostics) {}

  void Fit(Placement& placement, int64_t features) {
    Layout& on_cp = placement[MeshAxis::kCp];
    const Layout& on_tp = placement[MeshAxis::kTp];
    if (cp_ == 1) return;
    if (on_cp.zigzag || ShardsFeatures(on_cp)) on_cp.inner = inner_;
    if (!ShardsFeatures(on_cp)) return;
    const std::string declared = placement.ToText();
    if (tp_ > 1 && ShardsFeatures(on_tp)) {
      const size_t before = diagnostics_.size();
      if (!on_cp.parts.empty()) FitParts(on_tp, on_cp);
      if (on_cp.heads > 0) on_cp.heads = HeadsOnTp(on_cp.heads, on_tp.heads > 0);
      if (diagnostics_.size() > before) return;
      if (features >= 0) {
        const Result<DimShards> shards = DimShards::Make(on_tp, features, tp_);
        if (!shards.ok()) return;  // an error of the weight
        features = shards.value().length(0);
      }
    }
    // Of a size that is not known, heads alone can be checked.
    if (features < 0 && on_cp.parts.empty()) features = std::max<int64_t>(on_cp.heads, 1);
    if (features < 0) return;
    const Result<DimShards> shards = DimShards::Make(on_cp, features, cp_);
    const std::string on =
        inner_ == 1 ? " on cp=" + std::to_string(cp_)
                    : " on the inner factor of cp=" + std::to_string(cp_ / inner_) + "x" + std::to_string(inner_);
    for (Diagnostic d : shards.diagnostics()) Report(std::move(d), declared + on);
  }

 private:
  // `by_heads`: tp shards between heads, so that one head can be on several ranks.
  int64_t HeadsOnTp(int64_t heads, bool by_heads) {
    if (heads % tp_ == 0) return heads / tp_;
    if (by_heads && tp_ % heads == 0) return 1;
    Diagnostic d = MakeDiagnostic(Finding::kHeadsDoNotFit, std::to_string(heads) +
                                                               " heads of a layout on cp do not fit "
                                                               "on " +
                                                               std::to_string(tp_) + " ranks of tp");
    d.required = "a number of heads that tp divides";
    Report(std::move(d), "heads = " + std::to_string(heads) + " on tp=" + std::to_string(tp_));
    return heads;
  }

  void FitParts(const Layout& on_tp, Layout& on_cp) {
    const bool alike = on_tp.parts.size() == on_cp.parts.size() &&
                       std::ranges::equal(on_tp.parts, on_cp.parts, {}, &Layout::Part::size, &Layout::Part::size);
    const bool even = std::ranges::all_of(
        on_tp.parts, [&](const Layout::Part& part) { return part.heads > 0 || part.size % tp_ == 0; });
    if (!alike || !even) {
      Diagnostic d = MakeDiagnostic(Finding::kPackedDoesNotFit,
                                    "the parts of a layout on cp are not equal shards of the parts on tp");
      d.required = "packed with the same sizes on tp and cp, each with heads or divisible by tp";
      return Report(std::move(d), on_cp.ToText() + " on cp, " + on_tp.ToText() + " on tp=" + std::to_string(tp_));
    }
    for (size_t i = 0; i < on_cp.parts.size(); ++i) {
      Layout::Part& part = on_cp.parts[i];
      const int64_t heads = on_tp.parts[i].heads;
      part.size = heads > 0 ? part.size / std::min(heads, tp_) : part.size / tp_;
      if (part.heads > 0) part.heads = HeadsOnTp(part.heads, heads > 0);
    }
  }

  void Report(Diagnostic d, std::string declared) {
    d.message = tensor_ + " of '" + landing_.module->path + "': " + d.message;
    d.where = landing_.source;
    d.path = landing_.module->path;
    d.declared = std::move(declared);
    diagnostics_.push_back(std::move(d));
  }

  const Landing& landing_;
  int64_t tp_;
  int64_t cp_;
  int64_t inner_;
  std::string tensor_;
  Diagnostics& diagnostics_;
};

bool ShardsContext(const ModuleLayouts& layouts) {
  for (const auto* redistributions : {&layouts.inputs, &layouts.outputs}) {
    for (const std::optional<Redistribution>& move : *redistributions) {
      if (move && (ShardsSequence(move->from[MeshAxis::kCp]) || ShardsSequence(move->to[MeshAxis::kCp]))) return true;
    }
  }
  return false;
}

// A gather to replicate in front of a module has a backward that takes a slice, and a slice behind it one that gathers:
// the module computes the same on every rank of cp, and the gradients of its parameters are full ones and no terms.
void CheckFull(const CompiledPlan& plan, const ModuleLayouts& layouts, const std::string& path,
               Diagnostics& diagnostics) {
  const auto check = [&](const std::vector<std::optional<Redistribution>>& moves, const char* what, bool input) {
    for (size_t i = 0; i < moves.size(); ++i) {
      if (!moves[i]) continue;
      const Layout& from = moves[i]->from[MeshAxis::kCp];
      const Layout& to = moves[i]->to[MeshAxis::kCp];
      const Layout& inside = input ? to : from;
      const Layout& outside = input ? from : to;
      if (inside != Layout::Replicate() || !outside.is_shard()) continue;
      if (input && MovingAxes(moves[i], plan.mesh).size() > 1) continue;  // an error already
      Diagnostic d =
          MakeDiagnostic(Finding::kNotSupported,
                         "'" + path + "' would compute the same on every rank of cp, but a plan that shards the " +
                             "sequence on cp sums the gradients of all parameters over cp",
                         SourceOf(plan, layouts));
      d.path = path;
      d.declared = what + (" " + std::to_string(i)) + ": " + moves[i]->from.ToText() + " -> " + moves[i]->to.ToText();
      d.required = input ? "an input that stays sharded on cp, or that becomes shared on cp"
                         : "an output that the module computes sharded on cp: from a layout with cp = shard(1)";
      d.help = "transformer.column(stream, ...) is colwise for such a sequence, transformer.block_end(stream) rowwise";
      diagnostics.push_back(std::move(d));
    }
  };
  check(layouts.inputs, "input", true);
  check(layouts.outputs, "output", false);
}

// Every module of a plan must have the same tokens on a rank of cp.
void CheckOneOrder(const CompiledPlan& plan, Diagnostics& diagnostics) {
  std::optional<size_t> first[2];  // the first module with shard(1), and the first one with shard(1,zigzag)
  std::optional<Placement> of[2];
  for (size_t m = 0; m < plan.layouts_of.size(); ++m) {
    const ModuleLayouts& layouts = plan.LayoutsOf(m);
    for (const auto* moves : {&layouts.inputs, &layouts.outputs}) {
      for (const std::optional<Redistribution>& move : *moves) {
        if (!move) continue;
        for (const Placement* placement : {&move->from, &move->to}) {
          const Layout& on_cp = (*placement)[MeshAxis::kCp];
          const size_t kind = on_cp.zigzag ? 1 : 0;
          if (!ShardsSequence(on_cp) || first[kind]) continue;
          first[kind] = m;
          of[kind] = *placement;
        }
      }
    }
  }
  if (!first[0] || !first[1]) return;
  const size_t last = *first[0] > *first[1] ? 0 : 1;
  const std::string& path = plan.tree->modules()[*first[last]].path;
  const std::string& other = plan.tree->modules()[*first[1 - last]].path;
  const bool one_module = *first[0] == *first[1];
  Diagnostic d = MakeDiagnostic(
      Finding::kStyleDoesNotFit,
      one_module ? "'" + path + "' has other tokens on a rank of cp in one input or output " + "than in another one"
                 : "'" + path + "' has other tokens on a rank of cp than '" + other + "'",
      SourceOf(plan, plan.LayoutsOf(*first[last])));
  d.path = path;
  d.declared = one_module ? of[0]->ToText() + " and " + of[1]->ToText()
                          : of[last]->ToText() + " here, " + of[1 - last]->ToText() + " in '" + other + "'";
  d.required = "shard(1), or shard(1, { zigzag = true }), on cp in all inputs and outputs of all modules";
  d.help =
      "transformer.tokens(stream, layout) has the layout that the context of the stream needs; or context = "
      "\"plain_ring\" instead of \"ring\", whose blocks have shard(1)";
  diagnostics.push_back(std::move(d));
}

// Whether two factors of cp have this redistribution: of tokens in zigzag, which a ring between the groups has, to
// heads of the tokens of a group and back, and of tokens to full tensors and back. Another shard would be one over all
// ranks, whose tokens are not those of a group.
bool FitsFactors(const Layout& from, const Layout& to) {
  const auto tokens = [](const Layout& layout) { return ShardsSequence(layout) && layout.zigzag; };
  const auto heads = [](const Layout& layout) { return ShardsFeatures(layout) && layout.inner > 1; };
  for (const Layout* layout : {&from, &to}) {
    if (layout->is_shard() && !tokens(*layout) && !heads(*layout)) return false;
  }
  if (!heads(from) && !heads(to)) return true;
  return from == to || (tokens(from) && heads(to)) || (heads(from) && tokens(to));
}

void CheckFactors(const CompiledPlan& plan, Diagnostics& diagnostics) {
  if (plan.mesh.cp_heads() == 1) return;
  for (size_t m = 0; m < plan.layouts_of.size(); ++m) {
    const ModuleLayouts& layouts = plan.LayoutsOf(m);
    for (const auto* moves : {&layouts.inputs, &layouts.outputs}) {
      for (const std::optional<Redistribution>& move : *moves) {
        if (!move || FitsFactors(move->from[MeshAxis::kCp], move->to[MeshAxis::kCp])) continue;
        const std::string& path = plan.tree->modules()[m].path;
        Diagnostic d = MakeDiagnostic(Finding::kStyleDoesNotFit,
                                      "'" + path + "' has tokens on cp that are not those of " + plan.mesh.ToString(),
                                      SourceOf(plan, layouts));
        d.path = path;
        const bool moved = move->from != move->to;
        d.declared = move->from.ToText() + (moved ? " to " + move->to.ToText() : "") + " on " + plan.mesh.ToString();
        d.required =
            "context = \"ulysses_ring\", whose tokens are shard(1, { zigzag = true }), and whose heads in attention "
            "are "
            "shard(-1, { heads = ... }); or a mesh with one number for cp, as in cp=" +
            std::to_string(plan.mesh.size(MeshAxis::kCp));
        diagnostics.push_back(std::move(d));
        return;
      }
    }
  }
}

bool AnyMove(const ModuleLayouts& layouts, const std::function<bool(const Layout& from, const Layout& to)>& is) {
  for (const auto* redistributions : {&layouts.inputs, &layouts.outputs}) {
    for (const std::optional<Redistribution>& move : *redistributions) {
      if (move && is(move->from[MeshAxis::kCp], move->to[MeshAxis::kCp])) return true;
    }
  }
  return false;
}

// Whether the first output is shards between heads, of the rank's own tokens. `heads` of one or two features are no
// heads of attention: an interleaved projection of gate and up has them, one pair of features each.
bool KeepsHeads(const ModuleLayouts& layouts) {
  const std::optional<Redistribution> move = layouts.outputs.empty() ? std::nullopt : layouts.outputs.front();
  if (!move || !ShardsSequence(move->from[MeshAxis::kCp]) || !ShardsSequence(move->to[MeshAxis::kCp])) return false;
  const auto are_heads = [](int64_t heads, int64_t features) { return heads > 0 && features > 2 * heads; };
  const Layout& layout = move->to[MeshAxis::kTp];
  return are_heads(layout.heads, layouts.out_features) ||
         std::ranges::any_of(layout.parts, [&](const Layout::Part& part) { return are_heads(part.heads, part.size); });
}

bool TakesFeatures(const ModuleLayouts& layouts) {
  return !layouts.inputs.empty() && layouts.inputs[0] && ShardsFeatures(layouts.inputs[0]->from[MeshAxis::kTp]);
}

// What the modules of one parent declare.
struct ChildrenOnContext {
  // The first module of each: with a ring, KeepsHeads, TakesFeatures, ExchangesHeads.
  std::optional<size_t> ring, heads, end, exchanges;
};

Diagnostic SecondRing(const CompiledPlan& plan, size_t first, size_t second) {
  const std::string& path = plan.tree->modules()[second].path;
  Diagnostic d = MakeDiagnostic(Finding::kStyleDoesNotFit, "'" + std::string(ParentOf(path)) + "' has two rings",
                                SourceOf(plan, plan.LayoutsOf(second)));
  d.path = path;
  d.declared = "a ring of '" + plan.tree->modules()[first].path + "' and a ring of '" + path + "'";
  d.required = "one ring in an attention, on its output projection";
  return d;
}

Diagnostic WithoutRing(const CompiledPlan& plan, const ChildrenOnContext& children) {
  const size_t m = children.end.value_or(*children.heads);
  const std::string& path = plan.tree->modules()[m].path;
  Diagnostic d =
      MakeDiagnostic(Finding::kStyleDoesNotFit,
                     "the attention in '" + std::string(ParentOf(path)) + "' would attend to this rank's tokens alone",
                     SourceOf(plan, plan.LayoutsOf(m)));
  d.path = path;
  d.declared = "heads of the rank's own tokens from '" + plan.tree->modules()[*children.heads].path +
               "', and neither a ring nor an exchange of heads on cp";
  d.required = "ring = { heads = ..., kv_heads = ... } in the style of the output projection";
  d.help = "transformer.block_end(stream, shard(-1), heads, kv_heads) declares what the context of the stream needs";
  return d;
}

// Heads are exchanged on the inner factor of cp, and nothing brings the tokens of the other groups.
Diagnostic WithoutOuterRing(const CompiledPlan& plan, size_t m) {
  const std::string& path = plan.tree->modules()[m].path;
  Diagnostic d = MakeDiagnostic(
      Finding::kStyleDoesNotFit,
      "the attention in '" + std::string(ParentOf(path)) + "' would attend to the tokens of this rank's group alone",
      SourceOf(plan, plan.LayoutsOf(m)));
  d.path = path;
  d.declared = "an exchange of heads on the inner factor of " + plan.mesh.ToString() + ", and no ring";
  d.required = "ring = { heads = ..., kv_heads = ... } in the style of the output projection";
  d.help =
      "context = \"ulysses_ring\" declares both; context = \"ulysses\" is for a mesh with one number for cp, as in "
      "cp=" +
      std::to_string(plan.mesh.size(MeshAxis::kCp));
  return d;
}

// A ring gets heads of the group's tokens, and this module makes heads of the rank's own tokens.
Diagnostic HeadsNotExchanged(const CompiledPlan& plan, size_t m) {
  const std::string& path = plan.tree->modules()[m].path;
  Diagnostic d = MakeDiagnostic(Finding::kStyleDoesNotFit,
                                "'" + path + "' makes heads of the rank's own tokens, for a ring on exchanged heads",
                                SourceOf(plan, plan.LayoutsOf(m)));
  d.path = path;
  d.declared = "output 0: " + plan.LayoutsOf(m).outputs.front()->to.ToText() + " on " + plan.mesh.ToString();
  d.required = "an exchange of heads: from shard(1, { zigzag = true }) to shard(-1, { heads = ... }) on cp";
  d.help =
      "transformer.column(stream, { heads = ..., attention = true }) declares what the context of the stream needs";
  return d;
}

}  // namespace

PlannedGroup GroupOf(const Redistribution& redistribution, MeshAxis axis, const MeshShape& mesh) {
  const Layout& from = redistribution.from[axis];
  const Layout& to = redistribution.to[axis];
  const bool exchanges = from.is_shard() && to.is_shard() && from.dim != to.dim;
  return {axis, exchanges && from.inner > 1 ? from.inner : mesh.size(axis)};
}

bool ExchangesHeads(const ModuleLayouts& layouts) {
  return AnyMove(layouts, [](const Layout& from, const Layout& to) {
    return (ShardsSequence(from) && ShardsFeatures(to)) || (ShardsFeatures(from) && ShardsSequence(to));
  });
}

bool HasOwnInputs(const CompiledPlan& plan) {
  return plan.context_parallel && std::ranges::any_of(plan.layouts_of, [&](uint32_t index) {
           const ModuleLayouts& layouts = plan.layouts[index];
           return layouts.looks_up && !layouts.inputs.empty() && layouts.inputs[0] &&
                  ShardsSequence(layouts.inputs[0]->from[MeshAxis::kCp]);
         });
}

bool KeepsOwnTokens(const ModuleLayouts& layouts) {
  return AnyMove(layouts,
                 [](const Layout& from, const Layout& to) { return ShardsSequence(from) && ShardsSequence(to); });
}

// A block of another kind (an mlp) keeps the rank's own tokens too, and is right to do so. Heads are what tells
// attention from it before there is a live model, whose classes the check of applying a plan asks (SupportsRing).
void CheckContextAttention(const CompiledPlan& plan, Diagnostics& diagnostics) {
  if (!plan.context_parallel) return;
  std::map<uint32_t, ChildrenOnContext> by_parent;
  std::set<std::string, std::less<>> with_ring;  // paths of parents
  std::set<uint32_t> reported;                   // layouts: layers that are alike give one finding
  for (size_t m = 0; m < plan.layouts_of.size(); ++m) {
    const ModuleLayouts& layouts = plan.LayoutsOf(m);
    if (layouts.inputs.empty() && layouts.outputs.empty()) continue;
    ChildrenOnContext& children = by_parent[plan.tree->parents()[m]];
    if (layouts.ring) {
      if (children.ring && reported.insert(plan.layouts_of[m]).second) {
        diagnostics.push_back(SecondRing(plan, *children.ring, m));
      }
      if (!children.ring) children.ring = m;
      with_ring.emplace(ParentOf(plan.tree->modules()[m].path));
    }
    if (!children.heads && KeepsHeads(layouts)) children.heads = m;
    if (!children.end && TakesFeatures(layouts)) children.end = m;
    if (!children.exchanges && ExchangesHeads(layouts)) children.exchanges = m;
  }
  const auto in_ring = [&](std::string_view path) {
    while (!path.empty()) {
      path = ParentOf(path);
      if (with_ring.contains(path)) return true;
    }
    return false;
  };
  for (const auto& [parent, children] : by_parent) {
    if (plan.mesh.cp_heads() > 1) {
      if (children.exchanges && !in_ring(plan.tree->modules()[*children.exchanges].path) &&
          reported.insert(plan.layouts_of[*children.exchanges]).second) {
        diagnostics.push_back(WithoutOuterRing(plan, *children.exchanges));
      }
      if (children.heads && in_ring(plan.tree->modules()[*children.heads].path) &&
          reported.insert(plan.layouts_of[*children.heads]).second) {
        diagnostics.push_back(HeadsNotExchanged(plan, *children.heads));
      }
    }
    if (!children.heads || children.exchanges || in_ring(plan.tree->modules()[*children.heads].path)) continue;
    if (reported.insert(plan.layouts_of[*children.heads]).second) diagnostics.push_back(WithoutRing(plan, children));
  }
}

void FitContextHeads(const Landing& landing, const MeshShape& mesh, const char* what, size_t position, int64_t features,
                     std::optional<Redistribution>& move, Diagnostics& diagnostics) {
  if (!move) return;
  ContextHeads heads(landing, mesh, std::string(what) + " " + std::to_string(position), diagnostics);
  heads.Fit(move->from, features);
  heads.Fit(move->to, features);
}

void CompileContext(CompiledPlan& plan, Diagnostics& diagnostics) {
  plan.context_parallel = false;
  if (plan.mesh.size(MeshAxis::kCp) == 1) return;
  // Layouts that no module has do not count.
  plan.context_parallel =
      std::ranges::any_of(plan.layouts_of, [&](uint32_t l) { return ShardsContext(plan.layouts[l]); });
  CheckFactors(plan, diagnostics);
  if (!plan.context_parallel) return;
  std::set<uint32_t> checked;
  for (size_t m = 0; m < plan.layouts_of.size(); ++m) {
    if (!checked.insert(plan.layouts_of[m]).second) continue;
    CheckFull(plan, plan.LayoutsOf(m), plan.tree->modules()[m].path, diagnostics);
  }
  CheckOneOrder(plan, diagnostics);
  for (ModuleLayouts& layouts : plan.layouts) {
    const ModuleTree::Signature& signature = plan.tree->signatures()[layouts.signature];
    for (size_t p = 0; p < layouts.params.size(); ++p) {
      Layout& on_cp = layouts.params[p][MeshAxis::kCp];
      if (!signature[p].is_buffer && on_cp == Layout::Replicate()) on_cp = Layout::Shared();
    }
  }
}

}  // namespace moonshard
