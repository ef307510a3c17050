// Loading in two steps. First every parameter is matched with a source, by name and shape, and everything that does not
// fit is collected; only then is the first one written. So a wrong file or a forgotten rule leaves the model as it was,
// and is reported in one run.
#include "engine/runtime/sharded_model/load.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <re2/re2.h>

#include "engine/core/base/check.h"
#include "engine/core/base/text.h"
#include "engine/io/safetensors/read_recipe.h"
#include "engine/io/safetensors/reader.h"
#include "engine/layout/module_tree.h"
#include "engine/plan/compile/local_shape.h"
#include "engine/plan/match/pattern.h"
#include "engine/runtime/apply/local_shard.h"
#include "engine/runtime/dtype/scalar_type.h"

namespace moonshard {
namespace {

// A tensor that may become a parameter.
struct LoadSource {
  std::string name;  // where it comes from
  std::string file;  // for diagnostics; "" in memory
  std::string type;  // "float32", for diagnostics
  std::vector<int64_t> shape;
  std::optional<c10::ScalarType> dtype;  // nothing: of a type that tensors do not have, or without values
};

struct LoadMatch {
  const LiveParameter* parameter;
  size_t source;
  bool transposed;
};

// A parameter that a recipe makes.
struct RecipeMatch {
  const LiveParameter* parameter;
  const WeightRecipe* recipe;
  c10::ScalarType type;  // as stored
};

std::unique_ptr<RE2> QuietRegex(const std::string& text) {
  RE2::Options options;
  options.set_log_errors(false);
  return std::make_unique<RE2>(text, options);
}

// What NameRules make of names, or the errors in them.
class Renamer {
 public:
  Renamer(const NameRules& names, Diagnostics& errors) {
    for (const auto& [from, to] : names.renamed) {
      std::unique_ptr<RE2> regex = QuietRegex(from);
      std::string why = regex->error();
      if (regex->ok() && regex->CheckRewriteString(to, &why)) {
        rules_.emplace_back(std::move(regex), to);
        continue;
      }
      Diagnostic d = MakeDiagnostic(Finding::kBadPattern,
                                    "NameRules::renamed has an invalid pair {\"" + from + "\", \"" + to + "\"}");
      d.declared = why;
      d.required = "an RE2 expression and a replacement, in which \\1 is the first group of the expression";
      errors.push_back(std::move(d));
    }
  }

  std::string operator()(std::string name) const {
    for (const auto& [regex, to] : rules_) RE2::Replace(&name, *regex, to);
    return name;
  }

 private:
  std::vector<std::pair<std::unique_ptr<RE2>, std::string>> rules_;
};

// "h.*.attn.c_proj.weight" for "h.3.attn.c_proj.weight".
std::string PatternOfClass(const std::string& path) {
  std::string pattern = PathClassOf(path);
  for (size_t at = 0; at < pattern.size(); ++at) {
    const bool begins = at == 0 || pattern[at - 1] == '.';
    const bool ends = at + 1 == pattern.size() || pattern[at + 1] == '.';
    if (begins && ends && pattern[at] == '0') pattern[at] = '*';
  }
  return pattern;
}

// Which parameters are stored with their dims swapped. A pattern without effect is an error: a square weight would be
// loaded as it is, and nothing would show it.
std::set<std::string> TransposedPaths(const AppliedPlan& model, const NameRules& names, Diagnostics& errors) {
  std::set<std::string> out;
  for (const std::string& text : names.transposed) {
    const std::optional<Pattern> pattern = TranslatePattern(text, PatternSyntax::kGlob).Collect(errors);
    if (!pattern) continue;
    const std::unique_ptr<RE2> regex = QuietRegex(pattern->regex);
    bool used = false;
    for (const LiveParameter& parameter : model.parameters()) {
      if (parameter.shape.size() != 2 || !RE2::FullMatch(parameter.path, *regex)) continue;
      out.insert(parameter.path);
      used = true;
    }
    if (used) continue;
    Diagnostic d = MakeDiagnostic(Finding::kUnmatchedRule,
                                  "NameRules::transposed: no two-dimensional parameter matches '" + text + "'");
    d.severity = Severity::kError;
    d.required = "a pattern that matches parameters of two dims, which are stored transposed";
    std::set<std::string> patterns;
    for (const LiveParameter& parameter : model.parameters()) {
      if (parameter.shape.size() == 2) patterns.insert(PatternOfClass(parameter.path));
    }
    d.help = DidYouMean(text, std::vector<std::string>(patterns.begin(), patterns.end()), 0);
    errors.push_back(std::move(d));
  }
  return out;
}

// Whether values of the one type may be stored into a tensor of the other: those of a quantized type without their
// scales are other numbers, and a fraction is not an integer.
bool Converts(c10::ScalarType from, c10::ScalarType to) {
  const auto computes = [](c10::ScalarType type) {
    return c10::isFloatingType(type) && !c10::isFloat8Type(type) && c10::elementSize(type) > 1;
  };
  const auto counts = [](c10::ScalarType type) { return c10::isIntegralType(type, /*includeBool=*/true); };
  return from == to || (computes(from) && (computes(to) || c10::isComplexType(to))) ||
         (c10::isComplexType(from) && c10::isComplexType(to)) || (counts(from) && counts(to));
}

std::string NameOf(c10::ScalarType type) {
  const std::optional<DType> dtype = DTypeOf(type);
  return dtype ? ToString(*dtype) : c10::toString(type);
}

std::string HelpForType(c10::ScalarType from, c10::ScalarType to) {
  if (Converts(from, to)) return "";
  return "values of " + NameOf(from) + " are not converted to " + NameOf(to) +
         (c10::isFloatingType(to) ? ": if the checkpoint is quantized, dequantize it first" : "");
}

// Help for a dtype that LibTorch does not have: of a tensor in a file, or of one that a recipe makes.
std::string HelpWithoutType(const std::string& type) {
  return "values of " + type + " cannot be loaded: if the checkpoint is quantized, dequantize it first";
}

Diagnostic MissingTensor(const LiveParameter& parameter, const std::map<std::string, size_t>& by_name,
                         const std::string& from) {
  Diagnostic d = MakeDiagnostic(Finding::kMissingTensor, from + " has no tensor '" + parameter.path + "'");
  std::vector<std::string> names;
  for (const auto& entry : by_name) names.push_back(entry.first);
  d.help = DidYouMean(parameter.path, names, 0);
  return d;
}

// Every parameter with its source; throws where something does not fit. `from`: "the checkpoint". `warnings` gets
// sources that no parameter is for. Names are renamed first and compared then, so that a rule is written once for all
// layers; two sources that become one name are an error, since which of them wins would depend on the order of a file.
// A tied parameter is found under any of its paths, as checkpoints store ties under one. Buffers may be missing (they
// are often made by the constructor), parameters may not. Shapes are those of full tensors: what a rank reads follows
// from the placement and never from the file. `made`: paths that recipes make, and `used` the sources of these.
std::vector<LoadMatch> MatchSources(const AppliedPlan& model, const std::vector<LoadSource>& sources,
                                    const NameRules& names, const std::string& from, const std::string& path,
                                    const std::set<std::string>& made, const std::set<std::string>& used,
                                    Diagnostics& warnings) {
  Diagnostics errors;
  const Renamer renamed(names, errors);
  const std::set<std::string> transposed = TransposedPaths(model, names, errors);
  if (!errors.empty()) throw PlanError(std::move(errors));

  std::map<std::string, size_t> by_name;
  for (size_t i = 0; i < sources.size(); ++i) {
    const auto [entry, fresh] = by_name.try_emplace(renamed(sources[i].name), i);
    if (fresh) continue;
    Diagnostic d = MakeDiagnostic(Finding::kBadArgument, "two tensors of " + from + " have the name '" + entry->first +
                                                             "' after NameRules::renamed");
    d.severity = Severity::kError;
    d.declared = "'" + sources[entry->second].name + "' and '" + sources[i].name + "'";
    d.required = "pairs in NameRules::renamed that give different tensors different names";
    errors.push_back(std::move(d));
  }

  std::vector<LoadMatch> matches;
  std::set<std::string> known;
  for (const LiveParameter& parameter : model.parameters()) {
    known.insert(parameter.path);
    known.insert(parameter.aliases.begin(), parameter.aliases.end());
    if (made.contains(parameter.path)) continue;
    auto found = by_name.find(parameter.path);
    for (size_t a = 0; found == by_name.end() && a < parameter.aliases.size(); ++a) {
      found = by_name.find(parameter.aliases[a]);
    }
    if (found == by_name.end()) {
      if (parameter.is_buffer || model.plan().LayoutsOf(parameter.ref.module).factors) continue;
      errors.push_back(MissingTensor(parameter, by_name, from));
      errors.back().path = path;
      continue;
    }
    const LoadSource& source = sources[found->second];
    std::vector<int64_t> required = parameter.shape;
    const bool swapped = transposed.contains(parameter.path);
    if (swapped) std::ranges::reverse(required);
    const c10::ScalarType type = parameter.tensor.scalar_type();
    if (source.shape == required && source.dtype && Converts(*source.dtype, type)) {
      matches.push_back({&parameter, found->second, swapped});
      continue;
    }
    Diagnostic d = MakeDiagnostic(Finding::kTensorMismatch,
                                  "tensor '" + source.name + "' of " + from + " does not match the model's tensor");
    d.path = source.file;
    d.declared = source.type + " " + ShapeToString(source.shape);
    d.required = ShapeToString(required);
    if (source.shape == required) {
      d.required = NameOf(type) + " " + d.required + (source.dtype || !source.file.empty() ? "" : ", with values");
      d.help = source.dtype          ? HelpForType(*source.dtype, type)
               : source.file.empty() ? "the tensor has no values: it is undefined, or on the meta device"
                                     : HelpWithoutType(source.type);
    } else if (source.shape.size() == 2 && required.size() == 2 && source.shape[0] == required[1] &&
               source.shape[1] == required[0]) {
      const std::string rule = "NameRules::transposed";
      d.help = swapped ? "the stored dims are not swapped: remove or narrow the pattern of " + rule +
                             " that matches '" + parameter.path + "'"
                       : "the stored dims are swapped: add '" + parameter.path + "' to " + rule;
    }
    errors.push_back(std::move(d));
  }
  if (!errors.empty()) throw PlanError(std::move(errors));

  for (const LoadSource& source : sources) {
    const std::string name = renamed(source.name);
    if (known.contains(name) || used.contains(source.name)) continue;
    Diagnostic d = MakeDiagnostic(Finding::kMissingTensor, "the model has no tensor '" + name + "'");
    d.severity = Severity::kWarning;
    d.path = source.file;
    warnings.push_back(std::move(d));
  }
  return matches;
}

std::vector<std::vector<Interval>> ShardOf(const AppliedPlan& model, const LiveParameter& parameter) {
  return LocalIntervals(parameter.shape, parameter.placement, model.plan().mesh, model.mesh().rank());
}

// Straight from the file into the parameter's memory if it has the dtype and the layout of the file and is on the CPU;
// else through a buffer of the shard's size. A tensor that is stored transposed is read with its dims swapped, and only
// the copy turns it, so here too the rank reads no byte outside of its shard. A read into memory does not pass
// LibTorch, so the version counter is incremented by hand: units compare it to decide whether gathered values are
// stale.
void ReadInto(ShardReader& reader, const StoredTensor& stored, const LoadMatch& match,
              std::vector<std::vector<Interval>> shard) {
  at::Tensor target = match.parameter->tensor.detach();
  const std::optional<c10::ScalarType> type = ScalarTypeOf(stored.dtype);
  Check(type.has_value(), "a stored dtype without a ScalarType");
  std::vector<int64_t> sizes = target.sizes().vec();
  if (match.transposed) {
    std::ranges::reverse(shard);
    std::ranges::reverse(sizes);
  }
  const bool direct = !match.transposed && target.is_cpu() && target.is_contiguous() && target.scalar_type() == *type;
  at::Tensor buffer = direct ? target : at::empty(sizes, at::TensorOptions().dtype(*type));
  if (std::optional<Diagnostic> error = reader.ReadShard(stored, shard, buffer.mutable_data_ptr())) {
    throw PlanError({*error});
  }
  if (direct) {
    target.unsafeGetTensorImpl()->bump_version();  // fsdp may have gathered what was here before
  } else {
    target.copy_(match.transposed ? buffer.t() : buffer);
  }
}

}  // namespace

namespace {

// The recipe that makes each parameter, where one holds; throws where it makes another shape.
std::vector<RecipeMatch> MatchRecipes(const AppliedPlan& model, const Checkpoint& checkpoint,
                                      const RecipeSource& source, const NameRules& names) {
  std::vector<RecipeMatch> matches;
  Diagnostics errors;
  for (const LiveParameter& parameter : model.parameters()) {
    std::vector<std::string> paths = {parameter.path};
    paths.insert(paths.end(), parameter.aliases.begin(), parameter.aliases.end());
    const WeightRecipe* recipe = nullptr;
    for (const std::string& path : paths) {
      const auto listed = names.recipes.find(path);
      if (listed != names.recipes.end() && recipe == nullptr) recipe = FirstThatHolds(listed->second, source);
    }
    if (recipe == nullptr) continue;
    std::string why;
    const std::optional<RecipeTensor> made = MadeBy(*recipe, source, why);
    constexpr c10::ScalarType kNone = c10::ScalarType::Undefined;
    const c10::ScalarType type = made ? ScalarTypeOf(made->dtype).value_or(kNone) : kNone;
    const c10::ScalarType own = parameter.tensor.scalar_type();
    if (made && made->shape == parameter.shape && Converts(type, own)) {
      matches.push_back({&parameter, recipe, type});
      continue;
    }
    Diagnostic d =
        MakeDiagnostic(Finding::kTensorMismatch, "the recipe of '" + parameter.path +
                                                     (made ? "' makes a tensor that does not match the model's tensor"
                                                           : "' cannot be applied to the tensors of the checkpoint"));
    d.path = checkpoint.path();
    d.declared =
        made ? "the recipe makes " + std::string(ToString(made->dtype)) + " " + ShapeToString(made->shape) : why;
    if (made) d.required = ShapeToString(parameter.shape);
    if (made && made->shape == parameter.shape) {
      d.required = NameOf(own) + " " + d.required;
      d.help = type != kNone ? HelpForType(type, own) : HelpWithoutType(ToString(made->dtype));
    }
    errors.push_back(std::move(d));
  }
  if (!errors.empty()) throw PlanError(std::move(errors));
  return matches;
}

// Fills the buffers for which no source was found. `loaded`: paths of the others.
void FillMissingBuffers(const AppliedPlan& model, const NameRules& names, const std::set<std::string>& loaded,
                        const std::string& from, const std::string& path, Diagnostics& out) {
  if (!names.buffers) return;
  std::vector<std::string> filled;
  for (const LiveParameter& parameter : model.parameters()) {
    if (!parameter.is_buffer || loaded.contains(parameter.path)) continue;
    const std::optional<InitialValue> value = names.buffers(parameter);
    if (!value) continue;
    SetInitialValue(model, parameter, *value, 0);
    filled.push_back(parameter.path);
  }
  if (filled.empty()) return;
  constexpr size_t kShown = 4;
  const size_t others = filled.size() - std::min(filled.size(), kShown);
  filled.resize(filled.size() - others);
  Diagnostic d = MakeDiagnostic(Finding::kMissingTensor,
                                from + " does not have buffers of the model, which get their initial values: " +
                                    Join(filled, ", ") + (others > 0 ? " and " + Count(others, "other") : ""));
  d.severity = Severity::kNote;
  d.path = path;
  out.push_back(std::move(d));
}

void ReadMade(const RecipeMatch& match, RecipeSource& source, const std::vector<std::vector<Interval>>& shard) {
  at::Tensor made = at::empty(ShardShape(shard), at::TensorOptions().dtype(match.type));
  if (Failure failed = ReadRecipe(*match.recipe, source, shard, made.mutable_data_ptr())) throw PlanError({*failed});
  match.parameter->tensor.detach().copy_(made);
}

}  // namespace

Diagnostics LoadCheckpoint(AppliedPlan& model, const Checkpoint& checkpoint, const NameRules& names) {
  const c10::NoGradGuard no_grad;
  std::vector<LoadSource> sources;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    sources.push_back({tensor.name, checkpoint.files()[tensor.file].path, std::string(ToString(tensor.dtype)),
                       tensor.shape, ScalarTypeOf(tensor.dtype)});
  }
  Diagnostics warnings;
  ShardReader reader(checkpoint);
  CheckpointSource source(checkpoint, reader);
  const std::vector<RecipeMatch> recipes = MatchRecipes(model, checkpoint, source, names);
  std::set<std::string> made;
  std::set<std::string> used;
  for (const RecipeMatch& match : recipes) {
    made.insert(match.parameter->path);
    std::vector<std::string> of_it;
    match.recipe->AddSources(of_it);
    used.insert(of_it.begin(), of_it.end());
  }
  std::vector<LoadMatch> matches =
      MatchSources(model, sources, names, "the checkpoint", checkpoint.path(), made, used, warnings);
  // In the order of the files, so that each is read from front to back.
  const std::vector<StoredTensor>& stored = checkpoint.tensors();
  std::ranges::sort(matches, {},
                    [&](const LoadMatch& m) { return std::pair(stored[m.source].file, stored[m.source].begin); });
  for (const LoadMatch& match : matches) {
    ReadInto(reader, stored[match.source], match, ShardOf(model, *match.parameter));
  }
  for (const RecipeMatch& match : recipes) ReadMade(match, source, ShardOf(model, *match.parameter));
  std::set<std::string> loaded = std::move(made);
  for (const LoadMatch& match : matches) loaded.insert(match.parameter->path);
  FillMissingBuffers(model, names, loaded, "the checkpoint", checkpoint.path(), warnings);
  return warnings;
}

void LoadAdapter(AppliedPlan& model, const StoredAdapter& adapter) {
  const c10::NoGradGuard no_grad;
  ShardReader reader(adapter.checkpoint);
  FactorSource source(adapter.checkpoint, reader);
  std::map<std::string, WeightRecipe> left = adapter.made_of;
  std::vector<RecipeMatch> matches;
  Diagnostics errors;
  const auto fail = [&](Finding finding, const std::string& message) -> Diagnostic& {
    Diagnostic& d = errors.emplace_back(MakeDiagnostic(finding, message));
    d.path = adapter.checkpoint.path();
    return d;
  };
  const auto names = [](const WeightRecipe& recipe) {
    std::vector<std::string> out;
    recipe.AddSources(out);
    return Join(out, ", ");
  };
  std::set<std::string> reported;  // tensors of the adapter: one of a stack is one error, and not one for each expert
  for (const LiveParameter& parameter : model.parameters()) {
    if (!model.plan().LayoutsOf(parameter.ref.module).factors) continue;
    if (model.plan().tree->At(parameter.ref).name != adapter.name) continue;
    const auto recipe = adapter.made_of.find(parameter.path);
    if (recipe == adapter.made_of.end()) {
      fail(Finding::kMissingTensor, "the adapter has no tensor for '" + parameter.path + "'");
      continue;
    }
    left.erase(parameter.path);
    std::string why;
    const std::optional<RecipeTensor> made = MadeBy(recipe->second, source, why);
    Check(made.has_value(), "a factor that its adapter does not make");
    const std::optional<c10::ScalarType> type = ScalarTypeOf(made->dtype);
    if (made->shape == parameter.shape && type && Converts(*type, parameter.tensor.scalar_type())) {
      matches.push_back({&parameter, &recipe->second, *type});
      continue;
    }
    if (!reported.insert(names(recipe->second)).second) continue;
    Diagnostic& d = fail(Finding::kTensorMismatch,
                         "tensor '" + names(recipe->second) + "' of the adapter does not fit '" + parameter.path + "'");
    d.declared = std::string(ToString(made->dtype)) + " " + ShapeToString(made->shape);
    d.required = NameOf(parameter.tensor.scalar_type()) + " " + ShapeToString(parameter.shape);
  }
  for (const auto& [factor, recipe] : left) {
    if (!reported.insert(names(recipe)).second) continue;
    fail(Finding::kMissingTensor, "the plan has no factor '" + factor + "' for '" + names(recipe) + "' of the adapter");
  }
  if (!errors.empty()) throw PlanError(std::move(errors));
  for (const RecipeMatch& match : matches) ReadMade(match, source, ShardOf(model, *match.parameter));
}

Diagnostics LoadFullState(AppliedPlan& model, const std::map<std::string, at::Tensor>& state, const NameRules& names) {
  const c10::NoGradGuard no_grad;
  std::vector<LoadSource> sources;
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : state) {
    const bool defined = tensor.defined();
    sources.push_back({name, "", defined ? NameOf(tensor.scalar_type()) : "undefined",
                       defined ? tensor.sizes().vec() : std::vector<int64_t>(),
                       defined && !tensor.is_meta() ? std::optional(tensor.scalar_type()) : std::nullopt});
    tensors.push_back(tensor);
  }
  Diagnostics warnings;
  std::set<std::string> loaded;
  for (const LoadMatch& match : MatchSources(model, sources, names, "the state", "", {}, {}, warnings)) {
    loaded.insert(match.parameter->path);
    const at::Tensor& full = tensors[match.source];
    const at::Tensor shard = SliceShard(match.transposed ? full.t() : full, ShardOf(model, *match.parameter));
    match.parameter->tensor.detach().copy_(shard);
  }
  FillMissingBuffers(model, names, loaded, "the state", "", warnings);
  return warnings;
}

}  // namespace moonshard
