// Quantized weights. A 4 bit weight [4096, 4096] of bitsandbytes is stored as bytes [8388608, 1], two numbers per byte
// and one scale for each 64 numbers in a tensor beside it; GPTQ packs 8 numbers along the input features into an int32.
// Half of the bytes are not half of the matrix's columns, and the scales must be sharded with them. All of these are
// integers, which no other matrix of a model is. Stacked experts are matrices along their first dim, which is not
// packed: ranks with full experts have full matrices (gpt-oss: blocks [experts, out, in / 32, 16], scales
// [experts, out, in / 32]).
#include "engine/plan/compile/checks.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace moonshard {
namespace {

struct Format {
  std::string_view beside;  // a parameter of the same module, or of the module below it that is called as the weight
  std::string_view name;
};

// The more special names first.
constexpr std::array kFormats = {
    Format{"absmax", "bitsandbytes, 4 bit"},
    Format{"SCB", "bitsandbytes, 8 bit"},
    Format{"g_idx", "GPTQ"},
    Format{"qzeros", "AWQ or GPTQ"},
    Format{"weight_packed", "compressed-tensors"},
    Format{"W_q", "HQQ"},
    Format{"codebooks", "AQLM"},
};

bool IsInteger(DType dtype) {
  constexpr std::array kIntegers = {DType::kU8,  DType::kI8,  DType::kU16, DType::kI16,
                                    DType::kU32, DType::kI32, DType::kU64, DType::kI64};
  return std::ranges::find(kIntegers, dtype) != kIntegers.end();
}

bool Has(const ModuleTree& tree, const std::string& path) {
  ParamRef found;
  return tree.FindParameter(path, &found);
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string out;
  for (int64_t size : shape) out += (out.empty() ? "[" : ", ") + std::to_string(size);
  return out + "]";
}

// Both store qweight, qzeros and scales [groups, out]. GPTQ packs input features, qweight [in / 8, out]; AWQ packs
// output features, qweight [in, out / 8].
std::string_view GptqOrAwq(const ModuleTree& tree, const std::string& module) {
  ParamRef weight;
  ParamRef scales;
  if (!tree.FindParameter(module + ".qweight", &weight) || !tree.FindParameter(module + ".scales", &scales)) return "";
  const int64_t columns = tree.At(weight).shape.back();
  const int64_t out = tree.At(scales).shape.back();
  return columns == out ? "GPTQ" : columns < out ? "AWQ" : "";
}

// "" where nothing shows it.
std::string_view FormatOf(const ModuleTree& tree, const std::string& module, const std::string& parameter) {
  for (const Format& format : kFormats) {
    const std::string name(format.beside);
    if (!Has(tree, module + "." + name) && !Has(tree, module + "." + parameter + "." + name)) continue;
    const std::string_view told = format.beside == "qzeros" ? GptqOrAwq(tree, module) : "";
    return told.empty() ? format.name : told;
  }
  if (parameter.ends_with("_blocks")) return "MXFP4";
  return "";
}

// The layout on tp of a parameter; of one that stands for a weight that the module does not have, that of the weight.
const Layout* LayoutFor(const CompiledPlan& plan, size_t module, size_t param) {
  const ModuleLayouts& layouts = plan.LayoutsOf(module);
  const Module& of = plan.tree->modules()[module];
  if (param < layouts.params.size() && layouts.params[param][MeshAxis::kTp].is_shard()) {
    return &layouts.params[param][MeshAxis::kTp];
  }
  const bool has_weight = std::ranges::count(plan.tree->parameters(of), "weight", &Parameter::name) > 0;
  if (layouts.rule < 0 || has_weight) return nullptr;
  const std::map<std::string, Placement>& params =
      plan.plan->rules[static_cast<size_t>(layouts.rule)].style.For(of.kind).params;
  const auto weight = params.find("weight");
  return weight != params.end() && weight->second[MeshAxis::kTp].is_shard() ? &weight->second[MeshAxis::kTp] : nullptr;
}

// Whether a rank has full experts of a module of stacked ones, with all that belongs to them.
bool ShardsExperts(const ModuleLayouts& layouts, const ModuleTree::Signature& parameters, size_t param) {
  const std::vector<int64_t>& shape = parameters[param].shape;
  const auto by_expert = [&](size_t p) {
    const Layout& layout = layouts.params[p][MeshAxis::kTp];
    return layout.is_shard() && layout.dim == 0 && layout == layouts.params[param][MeshAxis::kTp];
  };
  if (shape.size() < 3 || param >= layouts.params.size() || !by_expert(param)) return false;
  for (size_t p = 0; p < layouts.params.size() && p < parameters.size(); ++p) {
    const bool of_experts = !parameters[p].shape.empty() && parameters[p].shape.front() == shape.front();
    if (of_experts && !by_expert(p)) return false;
  }
  return true;
}

bool IsPacked(const Parameter& parameter) {
  return !parameter.is_buffer && parameter.shape.size() >= 2 && IsInteger(parameter.dtype);
}

// That a style declares no layout for scales, or one for a weight that is stored under another name, follows from what
// is reported on the same line.
void DropWhatFollows(const ModuleTree& tree, const std::set<std::pair<std::string, int>>& reported,
                     Diagnostics& diagnostics) {
  std::erase_if(diagnostics, [&](const Diagnostic& d) {
    if (d.finding != Finding::kNoSuchParameter && d.finding != Finding::kUnclaimedParameter) return false;
    const int64_t module = tree.Find(d.path);
    return reported.contains({d.where.file, d.where.line}) && module >= 0 &&
           std::ranges::any_of(tree.parameters(tree.modules()[static_cast<size_t>(module)]), IsPacked);
  });
}

}  // namespace

void CheckPackedIntegers(const CompiledPlan& plan, Diagnostics& diagnostics) {
  if (plan.mesh.size(MeshAxis::kTp) == 1) return;
  const ModuleTree& tree = *plan.tree;
  std::set<int32_t> seen;                          // rules
  std::set<std::pair<std::string, int>> reported;  // file and line
  for (size_t m = 0; m < plan.layouts_of.size(); ++m) {
    const ModuleLayouts& layouts = plan.LayoutsOf(m);
    if (seen.contains(layouts.rule)) continue;
    const ModuleTree::Signature& parameters = tree.parameters(tree.modules()[m]);
    for (size_t p = 0; p < parameters.size(); ++p) {
      const Parameter& parameter = parameters[p];
      if (!IsPacked(parameter)) continue;
      const Layout* layout = LayoutFor(plan, m, p);
      const SourceSpan& line = SourceOf(plan, layouts, p);
      if (layout == nullptr || !(line == SourceOf(plan, layouts))) continue;  // a rule of the parameter's own
      if (ShardsExperts(layouts, parameters, p)) continue;
      seen.insert(layouts.rule);
      if (!reported.insert({line.file, line.line}).second) break;
      const std::string& path = tree.modules()[m].path;
      const std::string_view format = FormatOf(tree, path, parameter.name);
      Diagnostic d = MakeDiagnostic(
          Finding::kStyleDoesNotFit,
          "'" + tree.PathOf({static_cast<uint32_t>(m), static_cast<uint32_t>(p)}) + "' contains packed integers" +
              (format.empty() ? "" : " (" + std::string(format) + ")") + ", but is sharded as a plain matrix",
          line);
      d.path = path;
      d.declared = layout->ToText() + ", by style '" + layouts.style + "'; the parameter is " +
                   SafetensorsName(parameter.dtype) + " " + ShapeText(parameter.shape);
      d.required = "a matrix of floating-point numbers";
      d.help =
          "use a checkpoint that is not quantized; or replicated {} for these modules; or, if the format can be "
          "sharded, a rule for the parameter and a rule for each of its scales";
      diagnostics.push_back(std::move(d));
      break;
    }
  }
  DropWhatFollows(tree, reported, diagnostics);
}

}  // namespace moonshard
