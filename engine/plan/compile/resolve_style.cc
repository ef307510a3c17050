// A style is written once for many kinds of modules; here it meets one of them. What a style leaves open is filled in
// (heads, sizes of equal parts, dims counted from the end, the layout of late parameters), and what it claims is
// checked against the module's own shapes. The result has a placement for every parameter,
// with dims from 0 and sizes for all parts.
//
// colwise { heads = 8 } on a Linear with weight [512, 256] and a bias [512], over tp=4:
//
//   weight   shard(0)     ->   shard(0,heads=8)    2 heads of 64 rows on each rank
//   bias     shard(0)     ->   shard(0,heads=8)    the same rows
//   output   shard(-1)    ->   shard(-1,heads=8)   features in the same order, for the checks of what takes them
//
// Errors do not end the pass: a wrong layout becomes replicate after it was reported, so that later checks see
// something consistent and one mistake does not return under three names.
#include "engine/plan/compile/resolve_style.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <ranges>
#include <string_view>

#include "engine/core/base/text.h"
#include "engine/layout/redistributions.h"
#include "engine/layout/shards.h"
#include "engine/plan/compile/block_scales.h"
#include "engine/plan/compile/checks.h"
#include "engine/plan/compile/context_parallel.h"

namespace moonshard {
namespace {

// A style may declare a bias whether or not the module has one.
constexpr const char* kOptionalParameter = "bias";
// In Style::params: every parameter that is not named.
constexpr const char* kEveryOther = "*";

Diagnostic At(const Landing& landing, Finding finding, std::string message) {
  Diagnostic d = MakeDiagnostic(finding, std::move(message), landing.source);
  d.path = landing.module->path;
  return d;
}

std::vector<std::string> Names(const ModuleTree::Signature& signature) {
  std::vector<std::string> names;
  for (const Parameter& p : signature) names.push_back(p.name);
  return names;
}

bool Owns(const ModuleTree::Signature& signature, const std::string& name) {
  return std::ranges::find(signature, name, &Parameter::name) != signature.end();
}

void CheckNamesExist(const std::map<std::string, Placement>& params, const Style& style, const Landing& landing,
                     Diagnostics& diagnostics) {
  const std::vector<std::string> names = Names(*landing.signature);
  const auto check = [&](const std::string& name) {
    if (name == kOptionalParameter || name == kEveryOther || Owns(*landing.signature, name)) return;
    Diagnostic d = At(landing, Finding::kNoSuchParameter,
                      "style '" + style.name + "' names a parameter '" + name + "' that '" + landing.module->path +
                          "' does not have");
    d.declared = name;
    d.required = names.empty() ? "the module owns no parameter" : "one of: " + Join(names, ", ");
    d.help = names.empty()
                 ? "write the rule for the modules that own the parameters: \"" + std::string(landing.pattern) + ".*\""
                 : DidYouMean(name, names, 0);
    diagnostics.push_back(std::move(d));
  };
  for (const auto& [name, placement] : params) check(name);
  for (const auto& [name, placement] : style.vectors) check(name);
  for (const std::string& name : style.after) check(name);
}

// Gives every shard without heads or parts of its own the style's heads. A shard that declares them itself knows more
// about its dim than the style does.
void FillHeads(int64_t heads, Placement& placement) {
  for (Layout& layout : placement.by_axis) {
    if (layout.is_plain_shard()) layout.heads = heads;
  }
}

// In an output it is the features, the last dim, that are heads; a sequence that is sharded too is not.
void FillOutputHeads(int64_t heads, std::optional<Redistribution>& move) {
  if (!move) return;
  for (Placement* placement : {&move->from, &move->to}) {
    for (Layout& layout : placement->by_axis) {
      if (layout.is_plain_shard() && layout.dim == -1) layout.heads = heads;
    }
  }
}

// Whether `dim` of an output are the features, along which late parameters are added: the channels of a convolution,
// whose output is [batch, channels, N positions] for a weight [out, in / groups, N sizes], and the last dim of others.
bool IsFeatures(const Landing& landing, int dim) {
  constexpr std::array<std::string_view, 3> kConvolutions = {"Conv1d", "Conv2d", "Conv3d"};
  const auto positions = std::ranges::find(kConvolutions, landing.module->kind) - kConvolutions.begin() + 1;
  const auto weight = std::ranges::find(*landing.signature, "weight", &Parameter::name);
  const bool convolves = positions <= std::ssize(kConvolutions) && weight != landing.signature->end() &&
                         std::ssize(weight->shape) == positions + 2;
  return convolves ? dim == 1 || dim == -positions - 1 : dim == -1;
}

// A late parameter, which has one size for each feature, is added to what leaves the module: to shards of the features
// its own shards, to other shards and to what is shared all of it, with gradients that are terms of a sum then.
Placement LatePlacement(const Style& style, const Landing& landing) {
  Placement late;
  if (style.outputs.empty() || !style.outputs[0]) return late;
  for (MeshAxis axis : kMeshAxes) {
    const Layout& leaves = style.outputs[0]->to[axis];
    if (leaves.is_shard() && IsFeatures(landing, leaves.dim)) {
      late[axis] = leaves;
      late[axis].dim = 0;
      late[axis].zigzag = false;  // an error of the output
    } else if (leaves.is_shard() || leaves.kind == LayoutKind::kShared) {
      late[axis] = Layout::Shared();
    }
  }
  return late;
}

// Added to every term of a sum it would count once per rank.
void CheckLate(const Style& style, const Landing& landing, const MeshShape& mesh, const ModuleLayouts& layouts,
               Diagnostics& diagnostics) {
  if (layouts.after.empty() || style.outputs.empty() || !style.outputs[0]) return;
  for (MeshAxis axis : kMeshAxes) {
    const Layout& leaves = style.outputs[0]->to[axis];
    if (mesh.size(axis) > 1 && leaves.is_shared_last()) {
      Diagnostic d = At(landing, Finding::kStyleDoesNotFit,
                        "'" + layouts.after.front() + "' of '" + landing.module->path +
                            "' is added to an output that is shared only in its last features");
      d.declared = leaves.ToText() + ", and after = { \"" + Join(layouts.after, "\", \"") + "\" }";
      d.required = "no 'after': 'after' is only for outputs that are reduced";
      diagnostics.push_back(std::move(d));
    }
    if (mesh.size(axis) == 1 || leaves.kind != LayoutKind::kPartial) continue;
    Diagnostic d = At(landing, Finding::kUnreachablePartial,
                      "'" + layouts.after.front() + "' of '" + landing.module->path + "' would be added " +
                          std::to_string(mesh.size(axis)) + " times, once on each rank");
    d.declared = "an output that leaves as partial, and after = { \"" + Join(layouts.after, "\", \"") + "\" }";
    d.required = "an output that leaves as replicate, shared or shard(d), or a module without this parameter";
    diagnostics.push_back(std::move(d));
  }
}

// An embedding bag multiplies its rows by the weights of the ids, its third input: on shards of the table the gradient
// of the weights is a term of a sum, as that of the input of a projection is.
void UseBagWeights(const Landing& landing, ModuleLayouts& layouts) {
  if (landing.module->kind != "EmbeddingBag" || layouts.inputs.size() != 1) return;
  const bool shards = std::ranges::any_of(
      layouts.params, [](const Placement& placement) { return placement[MeshAxis::kTp].is_shard(); });
  if (!shards) return;
  layouts.inputs.resize(3);
  layouts.inputs[2] = Redistribution{Layout::Replicate(), Layout::Shared()};
}

// A style that shards a parameter, whichever names the parameters of the module have.
std::optional<Diagnostic> ShardsRecurrence(const Style& style, const Landing& landing) {
  const auto shard = [](const auto& entry) { return entry.second[MeshAxis::kTp].is_shard(); };
  for (const auto* params : {&style.params, &style.vectors}) {
    const auto found = std::ranges::find_if(*params, shard);
    if (found == params->end()) continue;
    return RefuseRecurrence(landing, found->first + " = " + found->second[MeshAxis::kTp].ToText());
  }
  return std::nullopt;
}

void ResolveParams(const Style& style, const Landing& landing, const MeshShape& mesh, ModuleLayouts& layouts,
                   Diagnostics& diagnostics) {
  auto kind = style.kinds.find(landing.module->kind);
  if (kind == style.kinds.end() && landing.module->kind == "EmbeddingBag") kind = style.kinds.find("Embedding");
  const std::map<std::string, Placement>& params = kind == style.kinds.end() ? style.params : kind->second;
  CheckNamesExist(params, style, landing, diagnostics);
  const bool shards = std::ranges::any_of(
      params, [](const auto& entry) { return std::ranges::any_of(entry.second.by_axis, &Layout::is_shard); });
  // Its redistributions would take shards that no parameter makes.
  if (shards && layouts.missing.empty() && std::ranges::all_of(*landing.signature, &Parameter::is_buffer)) {
    layouts.missing = "'" + landing.module->path + "' owns no parameter that the style could shard";
  }
  std::vector<std::pair<size_t, size_t>> scales;  // which nobody placed, and the weights that they follow
  for (size_t i = 0; i < landing.signature->size(); ++i) {
    const Parameter& parameter = (*landing.signature)[i];
    Placement& placement = layouts.params[i];
    const bool named = params.contains(parameter.name) || style.vectors.contains(parameter.name);
    const Placement* said = style.PlacementOf(landing.module->kind, parameter.name, parameter.shape.size());
    if (std::ranges::find(style.after, parameter.name) != style.after.end()) {
      placement = named && said != nullptr ? *said : LatePlacement(style, landing);
    } else if (said != nullptr && (named || !parameter.is_buffer)) {
      placement = *said;
    } else if (const int64_t weight = WeightOfScales(*landing.signature, i); weight >= 0) {
      scales.emplace_back(i, static_cast<size_t>(weight));
      continue;
    } else if (shards && !parameter.is_buffer) {
      Diagnostic d = At(landing, Finding::kUnclaimedParameter,
                        "style '" + style.name + "' declares no layout for parameter '" + parameter.name + "'");
      d.severity = Severity::kError;
      d.declared = "params of " + style.name + ": " + ToText(style);
      d.required = "a layout for '" + parameter.name + "': replicate, shared or shard(d)";
      diagnostics.push_back(std::move(d));
    }
    FillHeads(style.heads, placement);
    ResolvePlacement(parameter, landing, mesh, placement, diagnostics);
  }
  for (const auto& [i, weight] : scales) {
    layouts.params[i] = PlacementOfScales((*landing.signature)[i], (*landing.signature)[weight], layouts.params[weight],
                                          landing, mesh, diagnostics);
  }
  for (const std::string& name : style.after) {
    if (Owns(*landing.signature, name)) layouts.after.push_back(name);
  }
  CheckLate(style, landing, mesh, layouts, diagnostics);
}

// Of the tokens of a sequence on cp a late one is more work. A ring, the loss and the checks take them in zigzag;
// elsewhere, shards in zigzag would be combined with shards of consecutive elements.
void CheckZigzag(const Style& style, const Landing& landing, const char* what, size_t position,
                 std::optional<Redistribution>& move, Diagnostics& diagnostics) {
  if (!move) return;
  const Redistribution declared = *move;
  bool refused = false;
  for (Placement* placement : {&move->from, &move->to}) {
    for (MeshAxis axis : kMeshAxes) {
      Layout& layout = (*placement)[axis];
      if (!layout.zigzag || (axis == MeshAxis::kCp && ShardsSequence(layout))) continue;
      layout.zigzag = false;
      refused = true;
    }
  }
  if (!refused) return;
  Diagnostic d = At(landing, Finding::kNoSuchRedistribution,
                    std::string(what) + " " + std::to_string(position) + " of style '" + style.name +
                        "' has a layout in zigzag that is not of the tokens of a sequence on cp");
  d.declared = declared.from.ToText() + " -> " + declared.to.ToText();
  d.required =
      "shard(1, { zigzag = true }) on cp, as in on { cp = shard(1, { zigzag = true }) }; a shard without "
      "zigzag of other dims and on other axes";
  diagnostics.push_back(std::move(d));
}

// `features`: size of the tensor's last dim, -1 where that is not known.
void ResolveRedistribution(const Style& style, const Landing& landing, const char* what, size_t position,
                           int64_t features, std::optional<Redistribution>& move, Diagnostics& diagnostics) {
  if (!move) return;
  int moving = 0;
  bool exchanges = false;  // one dim for another
  for (MeshAxis axis : kMeshAxes) {
    const Layout& from = move->from[axis];
    const Layout& to = move->to[axis];
    if (from == to) continue;
    ++moving;
    exchanges = exchanges || (from.is_shard() && to.is_shard());
    if (from.has_equal_parts() || to.has_equal_parts()) {
      Diagnostic d = At(landing, Finding::kPackedDoesNotFit,
                        "the sizes of the parts in " + std::string(what) + " " + std::to_string(position) +
                            " of style '" + style.name + "' cannot be derived from '" + landing.module->path + "'");
      d.declared = from.ToText() + " -> " + to.ToText();
      d.required = "the size of each part: packed(dim, { size, ... })";
      diagnostics.push_back(std::move(d));
      continue;
    }
    if (features >= 0 && to.last > features) {
      Diagnostic d = At(landing, Finding::kBadDim,
                        std::string(what) + " " + std::to_string(position) + " of '" + landing.module->path +
                            "' has only " + std::to_string(features) + " features");
      d.declared = to.ToText();
      d.required = "at most shared_last(" + std::to_string(features) + ")";
      diagnostics.push_back(std::move(d));
    }
    if (RowOf(from, to)) continue;
    Diagnostic d = At(landing, Finding::kNoSuchRedistribution,
                      "there is no redistribution from " + from.ToText() + " to " + to.ToText() + " (" + what + " " +
                          std::to_string(position) + " of style '" + style.name + "')");
    d.declared = from.ToText() + " -> " + to.ToText() + " on axis " + ToString(axis);
    d.required = from.ToText() + " can be redistributed to: " + TargetsOf(from);
    diagnostics.push_back(std::move(d));
  }
  // An output runs one step for each axis. Siblings share the redistribution of an input, which is one step.
  const bool input = what == std::string_view("input");
  if (moving > 1 && (input || exchanges)) {
    Diagnostic d = At(landing, Finding::kNotSupported,
                      "the redistribution of " + std::string(what) + " " + std::to_string(position) +
                          " changes the layout on more than one mesh axis");
    d.declared = move->from.ToText() + " -> " + move->to.ToText();
    d.required = input
                     ? "a change on one axis"
                     : "a change on one axis; or on several axes, none of them from a shard to a shard of another dim";
    diagnostics.push_back(std::move(d));
  }
}

// With fewer heads than ranks several ranks hold the same shard, so a sum over all ranks counts it more than once. For
// 2 key and value heads on 4 ranks that is right in k_proj, whose outputs are shards, and wrong in an output
// projection sharded by those heads: each term would come from two ranks. The gradient's sum over the two
// (gradient_sums.h) does not help, the forward is wrong.
void CheckReplicasInSums(const Style& style, const Landing& landing, const MeshShape& mesh,
                         const ModuleLayouts& layouts, Diagnostics& diagnostics) {
  for (MeshAxis axis : kMeshAxes) {
    const bool sums = std::ranges::any_of(layouts.outputs, [&](const std::optional<Redistribution>& move) {
      return move && move->from[axis].kind == LayoutKind::kPartial;
    });
    if (!sums) continue;
    for (size_t i = 0; i < layouts.params.size(); ++i) {
      const Layout& layout = layouts.params[i][axis];
      if (!layout.is_shard()) continue;
      const auto size = (*landing.signature)[i].shape[static_cast<size_t>(layout.dim)];
      const Result<DimShards> pieces = DimShards::Make(layout, size, mesh.size(axis));
      if (!pieces.ok() || pieces.value().replicas() == 1) continue;
      Diagnostic d =
          At(landing, Finding::kUnreachablePartial,
             "the output of style '" + style.name + "' is a sum over the ranks, and this sum would count each head " +
                 std::to_string(pieces.value().replicas()) + " times");
      d.declared =
          (*landing.signature)[i].name + " " + layout.ToText() + " over " + std::to_string(mesh.size(axis)) + " ranks";
      d.required = "at least as many heads as ranks if the output is partial";
      diagnostics.push_back(std::move(d));
    }
  }
}

void ResolveLookup(const Style& style, const Landing& landing, const ModuleLayouts& layouts, Diagnostics& diagnostics) {
  if (style.lookup != Lookup::kMasked) return;
  const auto weight = std::ranges::find(*landing.signature, "weight", &Parameter::name);
  const bool fits = weight != landing.signature->end() && weight->shape.size() == 2;
  const Layout layout =
      fits ? layouts.params[static_cast<size_t>(weight - landing.signature->begin())][MeshAxis::kTp] : Layout();
  if (fits && layout == Layout::Shard(0)) return;
  Diagnostic d = At(landing, Finding::kStyleDoesNotFit,
                    "lookup = \"masked\" of style '" + style.name + "' does not fit '" + landing.module->path + "'");
  d.declared = fits ? "weight = " + layout.ToText() : "no two-dimensional parameter 'weight'";
  d.required = "an embedding whose weight is shard(0), so that each rank owns some of the rows";
  diagnostics.push_back(std::move(d));
}

// The experts are counted by the first dim of the module's own parameters: a router's rows, or stacked experts. Which
// of them a rank owns is torch.chunk's shard, and must be that of stacked experts too.
void ResolveRoute(const Style& style, const Landing& landing, const MeshShape& mesh, ModuleLayouts& layouts,
                  Diagnostics& diagnostics) {
  if (!style.route) return;
  size_t counted = 0;
  for (size_t i = 0; i < landing.signature->size(); ++i) {
    const Parameter& parameter = (*landing.signature)[i];
    if (parameter.is_buffer || parameter.shape.size() < 2) continue;
    const Layout& layout = layouts.params[i][MeshAxis::kTp];
    const bool fits = style.route->inputs || !layout.is_shard();
    const bool agrees = counted == 0 || parameter.shape[0] == layouts.experts;
    if (!fits || !agrees || (layout.is_shard() && layout.dim == 0 && !layout.is_plain_shard())) {
      Diagnostic d = At(landing, Finding::kStyleDoesNotFit,
                        "route of style '" + style.name + "' does not fit '" + landing.module->path + "'");
      d.declared = parameter.name + " of shape " + ShapeToString(parameter.shape) + ", " + layout.ToText();
      d.required =
          !agrees ? "parameters whose first dim is " + std::to_string(layouts.experts) + ", one entry for each expert"
          : !fits ? "a replicated router, so that every rank has the results for all experts"
                  : "experts sharded as shard(0), so that no expert is split over ranks";
      diagnostics.push_back(std::move(d));
    }
    layouts.experts = parameter.shape[0];
    ++counted;
  }
  const auto pieces = DimShards::Make(Layout::Shard(0), layouts.experts, mesh.size(MeshAxis::kTp));
  if (counted > 0 && pieces.ok() && pieces.value().length(mesh.size(MeshAxis::kTp) - 1) == 0) {
    Diagnostic d = At(
        landing, Finding::kStyleDoesNotFit,
        "with route of style '" + style.name + "', some ranks of tp have no expert of '" + landing.module->path + "'");
    d.declared = std::to_string(layouts.experts) + " experts on " + std::to_string(mesh.size(MeshAxis::kTp)) + " ranks";
    d.required =
        "at least one expert on every rank: each rank has ceil(experts / ranks) experts, the last rank may have fewer";
    diagnostics.push_back(std::move(d));
  }
  if (counted == 0) {
    layouts.missing = "the number of experts cannot be derived from the parameters of '" + landing.module->path + "'";
    return;
  }
  layouts.route = style.route;
}

// Stacked experts are the rows of every matrix of the module. Which of them a rank of ep has is torch.chunk's shard, as
// the exchange expects; tp shards other dims.
void ResolveExchange(const Style& style, const Landing& landing, const MeshShape& mesh, ModuleLayouts& layouts,
                     Diagnostics& diagnostics) {
  if (!style.exchange) return;
  const auto refuse = [&](std::string declared, std::string required) {
    Diagnostic d = At(landing, Finding::kStyleDoesNotFit,
                      "exchange of style '" + style.name + "' does not fit '" + landing.module->path + "'");
    d.declared = std::move(declared);
    d.required = std::move(required);
    diagnostics.push_back(std::move(d));
  };
  if (style.route) return refuse("exchange and route", "one of them");
  layouts.experts = style.exchange->listed;
  for (size_t i = 0; i < landing.signature->size() && style.exchange->listed == 0; ++i) {
    const Parameter& parameter = (*landing.signature)[i];
    if (parameter.is_buffer || parameter.shape.size() < 2) continue;
    const Layout& on_ep = layouts.params[i][MeshAxis::kEp];
    const Layout& on_tp = layouts.params[i][MeshAxis::kTp];
    const bool agrees = layouts.experts == 0 || parameter.shape[0] == layouts.experts;
    if (!agrees || (mesh.size(MeshAxis::kEp) > 1 && on_ep != Layout::Shard(0)) ||
        (on_tp.is_shard() && on_tp.dim == 0)) {
      refuse(parameter.name + " of shape " + ShapeToString(parameter.shape) + ", " + layouts.params[i].ToText(),
             agrees
                 ? "experts sharded as on { ep = shard(0) }, and on tp along another dim"
                 : "parameters whose first dim is " + std::to_string(layouts.experts) + ", one entry for each expert");
    }
    layouts.experts = parameter.shape[0];
  }
  if (layouts.experts == 0) {
    return refuse("no parameter of two dims or more",
                  "exchange = { listed = NUMBER OF EXPERTS } if each expert is a module");
  }
  layouts.exchange = style.exchange;
  if (style.exchange->per_token > layouts.experts) {
    refuse("per_token = " + std::to_string(style.exchange->per_token),
           "at most the number of experts, " + std::to_string(layouts.experts));
  }
}

// The features of the first input are those of the query heads, which a rank of tp has as shards between heads.
void ResolveRing(const Style& style, const Landing& landing, const MeshShape& mesh, ModuleLayouts& layouts,
                 Diagnostics& diagnostics) {
  if (!style.ring) return;
  const auto refuse = [&](std::string declared, std::string required) {
    Diagnostic d = At(landing, Finding::kStyleDoesNotFit,
                      "ring of style '" + style.name + "' does not fit '" + landing.module->path + "'");
    d.declared = std::move(declared);
    d.required = std::move(required);
    diagnostics.push_back(std::move(d));
  };
  layouts.ring = style.ring;
  const Ring& ring = *style.ring;
  if (ring.heads < 1 || ring.kv_heads < 1 || ring.heads % ring.kv_heads != 0 || ring.window < 0) {
    return refuse(ToText(ring), "heads and kv_heads of at least 1, with kv_heads dividing heads");
  }
  if (mesh.size(MeshAxis::kCp) == 1) return;
  const std::optional<Redistribution> input = layouts.inputs.empty() ? std::nullopt : layouts.inputs.front();
  const Layout on_cp = input ? input->from[MeshAxis::kCp] : Layout();
  const int64_t inner = mesh.cp_heads();
  if (inner == 1 && on_cp != Layout::Shard(1) && on_cp != Layout::Zigzag(1)) {
    return refuse("input 0: " + (input ? input->from.ToText() + " on cp=" + std::to_string(mesh.size(MeshAxis::kCp))
                                       : "not declared"),
                  "an input of the rank's own tokens: shard(1), or shard(1, { zigzag = true }), on cp; or, for a ring "
                  "between ranks that exchange heads, a mesh with two factors of cp, as in cp=2x2");
  }
  if (inner > 1 && (!ShardsFeatures(on_cp) || input->to[MeshAxis::kCp] != Layout::Zigzag(1, inner))) {
    return refuse("input 0: " + (input ? input->from.ToText() + " -> " + input->to.ToText() : "not declared") + " on " +
                      mesh.ToString(),
                  "an input of exchanged heads that becomes the rank's own tokens: from shard(-1, { heads = ... }) to "
                  "shard(1, { zigzag = true }) on cp, as with context = \"ulysses_ring\"; or a mesh with one number "
                  "for cp, as in cp=" +
                      std::to_string(mesh.size(MeshAxis::kCp)));
  }
  if (layouts.in_features < 0 || layouts.in_features % ring.heads != 0) {
    return refuse(std::to_string(ring.heads) + " heads, " +
                      (layouts.in_features < 0 ? "an unknown number of" : std::to_string(layouts.in_features)) +
                      " features",
                  "an output projection whose input features are a multiple of the heads");
  }
  const int64_t tp = input->from[MeshAxis::kTp].is_shard() ? mesh.size(MeshAxis::kTp) : 1;
  const int64_t ranks = tp * inner;
  if (ring.heads % ranks == 0 && (ring.kv_heads % ranks == 0 || ranks % ring.kv_heads == 0)) return;
  const std::string by = inner == 1 ? "tp" : "the product of tp and the inner factor of cp";
  refuse("heads = " + std::to_string(ring.heads) + ", kv_heads = " + std::to_string(ring.kv_heads) + " on " +
             (inner == 1 ? "tp=" + std::to_string(tp) : mesh.ToString()),
         "a number of heads that " + by + " divides, and kv_heads that " + (inner == 1 ? by : "it") +
             " divides or that divide " + (inner == 1 ? by : "it"));
}

}  // namespace

// Axes from the innermost out, as LocalIntervals shards: each axis gets the length that the one before it left.
// Negative dims are counted from the end by the parameter's own rank here, so every later stage sees dims from 0.
void ResolvePlacement(const Parameter& parameter, const Landing& landing, const MeshShape& mesh, Placement& placement,
                      Diagnostics& diagnostics) {
  const auto rank = static_cast<int>(parameter.shape.size());
  std::vector<int64_t> sizes = parameter.shape;
  for (MeshAxis axis : std::views::reverse(kMeshAxes)) {
    Layout& layout = placement[axis];
    if (layout.kind == LayoutKind::kPartial) {
      Diagnostic d = At(landing, Finding::kNoSuchRedistribution, "a parameter cannot be partial");
      d.declared = parameter.name + " = partial";
      d.required = "replicate, shared or shard(d)";
      diagnostics.push_back(std::move(d));
    }
    if (layout.is_shared_last()) {
      Diagnostic d =
          At(landing, Finding::kNoSuchRedistribution, "a parameter cannot be shared only in its last features");
      d.declared = parameter.name + " = " + layout.ToText();
      d.required = "replicate, shared or shard(d)";
      diagnostics.push_back(std::move(d));
    }
    if (layout.zigzag) {
      Diagnostic d = At(landing, Finding::kNoSuchRedistribution,
                        "a parameter cannot be sharded in zigzag, which is for the tokens of activations");
      d.declared = parameter.name + " = " + layout.ToText();
      d.required = "replicate, shared or shard(d)";
      diagnostics.push_back(std::move(d));
    }
    if (!layout.is_shard()) continue;
    if (layout.dim < -rank || layout.dim >= rank) {
      Diagnostic d = At(landing, Finding::kBadDim,
                        "parameter '" + parameter.name + "' of shape " + ShapeToString(parameter.shape) +
                            " has no tensor dim " + std::to_string(layout.dim));
      d.declared = layout.ToText();
      d.required = rank == 0 ? "replicate: the parameter is a single number"
                             : "a tensor dim from " + std::to_string(-rank) + " to " + std::to_string(rank - 1);
      diagnostics.push_back(std::move(d));
      layout = Layout::Replicate();
      continue;
    }
    if (layout.dim < 0) layout.dim += rank;
    int64_t& size = sizes[static_cast<size_t>(layout.dim)];
    if (std::optional<Diagnostic> unequal = UnequalParts(layout, size, landing, "parameter '" + parameter.name + "'")) {
      diagnostics.push_back(*std::move(unequal));
      layout = Layout::Replicate();
      continue;
    }
    layout = layout.Sized(size);
    const Result<DimShards> pieces = DimShards::Make(layout, size, mesh.size(axis));
    if (pieces.ok()) {
      // A second axis shards what the first one left. Only equal shards can be sharded again in the same way on every
      // rank.
      size = pieces.value().length(0);
      continue;
    }
    for (Diagnostic d : pieces.diagnostics()) {
      d.message = "parameter '" + parameter.name + "' of '" + landing.module->path + "': " + d.message;
      d.where = landing.source;
      d.path = landing.module->path;
      diagnostics.push_back(std::move(d));
    }
  }
}

// LibTorch's recurrent layers compute all steps in one operator. In it, the gates of a step take the whole hidden state
// of the step before, so that ranks with some of the gates would have to gather it at each step; and the sizes of the
// weights are checked against those that the layer was made with.
std::optional<Diagnostic> RefuseRecurrence(const Landing& landing, const std::string& declared) {
  constexpr std::array<std::string_view, 6> kRecurrent = {"GRU", "GRUCell", "LSTM", "LSTMCell", "RNN", "RNNCell"};
  const bool recurs = std::ranges::find(kRecurrent, landing.module->kind) != kRecurrent.end() &&
                      std::ranges::any_of(*landing.signature, [](const Parameter& parameter) {
                        return parameter.name.starts_with("weight_ih");
                      });
  if (!recurs) return std::nullopt;
  const std::string& path = landing.module->path;
  Diagnostic d = At(landing, Finding::kStyleDoesNotFit,
                    "'" + path +
                        "' cannot be sharded: each step of its recurrence takes all features of the hidden "
                        "state of the step before");
  d.declared = declared + " on " + landing.module->kind;
  d.required = "the full parameters on every rank";
  d.help = "at(\"" + path +
           "\", replicated()); or, in place of the layer, a class of your own with the gates as "
           "moonshard::nn::Linear, which gathers the hidden state of each step";
  return d;
}

void FillFeatures(const Module& module, const ModuleTree::Signature& signature, ModuleLayouts& layouts) {
  const bool looks_up = module.kind == "Embedding" || module.kind == "EmbeddingBag";
  layouts.looks_up = looks_up;
  const auto weight = std::ranges::find(signature, "weight", &Parameter::name);
  if (weight == signature.end()) return;
  if ((module.kind == "Linear" || module.kind == "NormHead") && weight->shape.size() == 2) {
    layouts.in_features = weight->shape[1];
    layouts.out_features = weight->shape[0];
  } else if (looks_up && weight->shape.size() == 2) {
    layouts.out_features = weight->shape[1];
  } else if (weight->shape.size() == 1) {
    layouts.in_features = layouts.out_features = weight->shape[0];
  }
}

// Fills one style in for one kind of module. Parameters first, since sizes of inputs and outputs follow from weights;
// then redistributions, each checked against the table of those that exist (redistributions.h); then what needs both. A
// check that reads what an earlier one found wrong is left out (before): it would report the same mistake in other
// words.
void ResolveStyle(const Style& given, const Landing& landing, const MeshShape& mesh, ModuleLayouts& layouts,
                  Diagnostics& diagnostics) {
  const Style& style = given.For(landing.module->kind);
  const size_t before = diagnostics.size();
  layouts.style = style.name;
  layouts.inputs = style.inputs;
  layouts.outputs = style.outputs;
  layouts.lookup = style.lookup;
  layouts.looks_up = layouts.looks_up || style.lookup == Lookup::kMasked;
  layouts.missing = style.missing;
  if (std::optional<Diagnostic> refused = ShardsRecurrence(style, landing)) {
    diagnostics.push_back(*std::move(refused));
    return;
  }
  ResolveParams(style, landing, mesh, layouts, diagnostics);
  UseBagWeights(landing, layouts);
  for (size_t i = 0; i < layouts.inputs.size(); ++i) {
    const int64_t features = i == 0 ? layouts.in_features : -1;
    CheckZigzag(style, landing, "input", i, layouts.inputs[i], diagnostics);
    FillEqualParts(features, landing, "input " + std::to_string(i), diagnostics.size() > before, layouts.inputs[i],
                   diagnostics);
    ResolveRedistribution(style, landing, "input", i, features, layouts.inputs[i], diagnostics);
    FitContextHeads(landing, mesh, "input", i, features, layouts.inputs[i], diagnostics);
  }
  for (size_t i = 0; i < layouts.outputs.size(); ++i) {
    CheckZigzag(style, landing, "output", i, layouts.outputs[i], diagnostics);
    FillOutputHeads(style.heads, layouts.outputs[i]);
    const int64_t features = i == 0 ? layouts.out_features : -1;
    FillEqualParts(features, landing, "output " + std::to_string(i), diagnostics.size() > before, layouts.outputs[i],
                   diagnostics);
    ResolveRedistribution(style, landing, "output", i, features, layouts.outputs[i], diagnostics);
    FitContextHeads(landing, mesh, "output", i, features, layouts.outputs[i], diagnostics);
  }
  if (diagnostics.size() == before) CheckReplicasInSums(style, landing, mesh, layouts, diagnostics);
  ResolveLookup(style, landing, layouts, diagnostics);
  ResolveRoute(style, landing, mesh, layouts, diagnostics);
  ResolveExchange(style, landing, mesh, layouts, diagnostics);
  if (diagnostics.size() == before) ResolveRing(style, landing, mesh, layouts, diagnostics);
  if (layouts.needs_calls() && !landing.module->hookable) {
    diagnostics.push_back(NotHookable(*landing.module, "style '" + style.name + "' would not run", landing.source));
  }
}

}  // namespace moonshard
