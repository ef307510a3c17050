#include <algorithm>
#include <map>
#include <set>

#include "dsl/planning/hugging_face/export.h"
#include "dsl/planning/hugging_face/findings.h"
#include "dsl/planning/hugging_face/lua_text.h"
#include "dsl/planning/hugging_face/role.h"
#include "engine/core/base/quoted.h"
#include "engine/core/base/text.h"
#include "engine/plan/match/pattern.h"

namespace moonshard {
namespace {

// A layout as a Placement; "" where there is none.
std::string PlacementText(const Layout& layout) {
  switch (layout.kind) {
    case LayoutKind::kReplicate: return "Replicate()";
    case LayoutKind::kShared: return layout.last > 0 ? "" : "Replicate()";
    case LayoutKind::kPartial: return "Partial()";
    case LayoutKind::kShard: return layout.parts.empty() ? "Shard(" + std::to_string(layout.dim) + ")" : "";
  }
  return "";
}

// "Name(input_layouts=..., output_layouts=...)" without what are the defaults.
std::string Call(const std::string& name, const std::string& input, const std::string& usual_input,
                 const std::string& output, const std::string& usual_output) {
  std::vector<std::string> arguments;
  if (input != usual_input) arguments.push_back("input_layouts=" + input);
  if (output != usual_output) arguments.push_back("output_layouts=" + output);
  return name + "(" + Join(arguments, ", ") + ")";
}

// The expression for one module, or why there is none.
struct Expression {
  std::string text;
  std::string why;
};

Expression Linear(const Role& role, bool rows) {
  const std::string input = PlacementText(role.inputs.empty() ? Layout::Replicate() : role.From(role.inputs, 0));
  const Layout made = role.From(role.outputs, 0);
  const std::string output = PlacementText(role.outputs.empty() ? Layout::Shard(-1) : role.To(role.outputs, 0));
  if (input.empty() || output.empty()) return {"", "DTensor has no placement for a packed layout"};
  if (rows && made.kind != LayoutKind::kPartial)
    return {"", "the output of the module is " + made.ToText() + ", and RowwiseParallel requires partial"};
  return {rows ? Call("RowwiseParallel", input, "Shard(-1)", output, "Replicate()")
               : Call("ColwiseParallel", input, "Replicate()", output, "Shard(-1)"),
          ""};
}

// A tuple of placements by position, None where nothing is redistributed.
std::string Placements(const std::vector<std::optional<Redistribution>>& redistributions, bool to) {
  std::vector<std::string> texts;
  for (const std::optional<Redistribution>& move : redistributions) {
    texts.push_back(move ? PlacementText((to ? move->to : move->from)[MeshAxis::kTp]) : "None");
    if (texts.back().empty()) return "";
  }
  return "(" + Join(texts, ", ") + (texts.size() == 1 ? ",)" : ")");
}

bool Used(const std::vector<std::optional<Redistribution>>& redistributions) {
  return std::ranges::any_of(redistributions, [](const auto& move) { return move && move->from != move->to; });
}

Expression TorchRedistributions(const Role& role) {
  const auto only_shared = [](const std::optional<Redistribution>& move) {
    return move && move->to[MeshAxis::kTp].kind == LayoutKind::kShared &&
           move->from[MeshAxis::kTp].kind == LayoutKind::kReplicate;
  };
  if (std::ranges::any_of(role.inputs, only_shared)) {
    return {"", "no PyTorch style sums the gradient of a replicated input (replicate -> shared)"};
  }
  if (role.route) return {"", "no PyTorch style routes tokens to the experts that each rank owns"};
  const auto share = [](const std::optional<Redistribution>& move) {
    return move && move->from[MeshAxis::kTp].kind == LayoutKind::kShared && move->from != move->to;
  };
  if (std::ranges::any_of(role.inputs, share) || std::ranges::any_of(role.outputs, share)) {
    return {"", "no PyTorch style makes a partial tensor from a replicated tensor"};
  }
  std::vector<std::string> arguments;
  const bool in = Used(role.inputs);
  const bool out = Used(role.outputs);
  if (!in && !out) return {};
  const auto add = [&](const char* from, const char* to,
                       const std::vector<std::optional<Redistribution>>& redistributions) {
    arguments.push_back(std::string(from) + "=" + Placements(redistributions, false));
    arguments.push_back(std::string(to) + "=" + Placements(redistributions, true));
    return !Placements(redistributions, false).empty() && !Placements(redistributions, true).empty();
  };
  bool good = true;
  if (in) good = add("input_layouts", "desired_input_layouts", role.inputs) && good;
  if (out) good = add("output_layouts", "desired_output_layouts", role.outputs) && good;
  if (!good) return {"", "DTensor has no placement for a packed layout, or for a layout that differs between features"};
  const std::string name = in && out ? "PrepareModuleInputOutput" : in ? "PrepareModuleInput" : "PrepareModuleOutput";
  if (in) arguments.emplace_back(out ? "use_local_input=True" : "use_local_output=True");
  return {name + "(" + Join(arguments, ", ") + ")", ""};
}

Expression ExpressionOf(const Role& role) {
  switch (role.kind) {
    case Role::Kind::kNothing: return {};
    case Role::Kind::kColwise: return Linear(role, false);
    case Role::Kind::kRowwise:
    case Role::Kind::kVocabRowwise: return Linear(role, true);
    case Role::Kind::kPackedColwise:
      return {"", "ColwiseParallel would shard the packed output as one tensor, not each of its two halves"};
    case Role::Kind::kSequence: {
      const int dim = role.From(role.inputs, 0).dim;
      return {std::string("SequenceParallel(") + (dim == 1 ? "" : "sequence_dim=" + std::to_string(dim) + ", ") +
                  "use_local_output=True)",
              ""};
    }
    case Role::Kind::kSummedGradient: return {"", "no PyTorch style sums the gradient of a replicated parameter"};
    case Role::Kind::kRedistributions: return TorchRedistributions(role);
    case Role::Kind::kBare: return {"", "no PyTorch style shards parameters by their names"};
    case Role::Kind::kOther: return {"", role.why};
  }
  return {};
}

// The classes that a text calls, sorted: of `names`, those followed by '('.
std::string Called(const std::string& text, const std::vector<std::string>& names) {
  std::vector<std::string> found;
  for (const std::string& name : names) {
    if (text.find(name + "(") != std::string::npos) found.push_back(name);
  }
  return Join(found, ", ");
}

}  // namespace

ExportedPlan ExportTorch(const CompiledPlan& plan) {
  ExportFindings findings(plan);
  // parallelize_module takes a dict of paths, in which a "*" matches any component. A key with a star for the layer
  // number keeps the dict short, but it is correct only if all modules that it matches have the same expression,
  // including those that need none: a replicated layer under such a key would be sharded. If they differ, each module
  // has an entry under its own path.
  // By the key with stars: the expression of each path. Replicated modules count, because a star matches them too.
  std::map<std::string, std::map<std::string, std::string>> by_key;
  findings.LeaveOutAdapters();
  for (size_t m = 0; m < plan.tree->modules().size(); ++m) {
    if (plan.LayoutsOf(m).factors) continue;
    const Module& module = plan.tree->modules()[m];
    const Role role = RoleOf(plan, m);
    const Expression expression = ExpressionOf(role);
    if (!expression.why.empty()) findings.LeaveOut(m, expression.why);
    if (role.kind == Role::Kind::kSequence)
      findings.Warn(m, "SequenceParallel of PyTorch does not sum the gradients of the parameters over the ranks");
    by_key[NumberedKeyOf(module.path)][module.path] = expression.text;
  }
  std::string body;
  for (const auto& [key, paths] : by_key) {
    const std::string& first = paths.begin()->second;
    const bool same = std::ranges::all_of(paths, [&](const auto& path) { return path.second == first; });
    if (same && !first.empty()) body += "    " + PythonQuoted(key) + ": " + first + ",\n";
    if (same) continue;
    for (const auto& [path, text] : paths) {
      if (!text.empty()) body += "    " + PythonQuoted(path) + ": " + text + ",\n";
    }
  }
  std::string text = "# " + plan.plan->name + ": parallelize_module(model, mesh[\"tp\"], plan)\n";
  if (const std::string names = Called(body, {"Partial", "Replicate", "Shard"}); !names.empty()) {
    text += "from torch.distributed.tensor import " + names + "\n";
  }
  text += "from torch.distributed.tensor.parallel import ";
  const std::string styles = Called(body, {"ColwiseParallel", "PrepareModuleInput", "PrepareModuleInputOutput",
                                           "PrepareModuleOutput", "RowwiseParallel", "SequenceParallel"});
  text += styles + (styles.empty() ? "" : ", ") + "parallelize_module\n\nplan = {\n" + body + "}\n";
  return {text, findings.Take()};
}

}  // namespace moonshard
