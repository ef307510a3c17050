#include "tests/support/plan_case.h"
#include "tests/support/paths.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "dsl/language/eval/load_plan.h"
#include "dsl/planning/resolve_model/resolve_model.h"
#include "tests/support/tree_text.h"

namespace moonshard {
namespace {

constexpr const char* kLlamaConfig = R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 64,
  "intermediate_size": 100, "num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": 2,
  "sliding_window": null, "tie_word_embeddings": false, "vocab_size": 331})";

std::string NamedTree(const std::string& name) {
  std::ifstream file(test::SourcePath("tests/cases/trees/") + name + ".tree");
  if (!file) throw std::runtime_error("no tree " + name);
  return {std::istreambuf_iterator<char>(file), {}};
}

ModuleTree TreeOf(std::string text) {
  if (text.starts_with('@')) {
    const size_t end = std::min(text.find('\n'), text.size());
    text = NamedTree(text.substr(1, end - 1)) + text.substr(end);
  }
  return TreeFromText(text);
}

}  // namespace

Diagnostics DiagnosticsOf(const PlanCase& plan_case) {
  const auto tree = std::make_shared<const ModuleTree>(TreeOf(plan_case.tree));
  PlanInputs inputs;
  inputs.model = tree.get();
  inputs.mesh = MeshShape::Parse(plan_case.mesh).ValueOrThrow();
  // Steps are counted alike everywhere; what a plan may take in time, a build with sanitizers on a busy machine
  // exceeds.
  inputs.limits.time = std::chrono::seconds(60);
  inputs.config =
      ParseJson(plan_case.config.empty() ? kLlamaConfig : plan_case.config.c_str(), "config.json").ValueOrThrow();
  for (const auto& [name, value] : plan_case.options) inputs.options[name] = value;
  Diagnostics out;
  std::optional<Plan> plan = EvaluatePlan(plan_case.plan, plan_case.file, inputs).Collect(out);
  if (!plan) return out;
  const Resolution done = RunPasses(std::make_shared<const Plan>(std::move(*plan)), tree, inputs.mesh, inputs.config);
  out.insert(out.end(), done.diagnostics.begin(), done.diagnostics.end());
  return out;
}

std::map<std::string, std::string> SectionsOf(const std::string& text) {
  std::map<std::string, std::string> out;
  std::string* section = &out[""];
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    if (line.starts_with("== ")) {
      section = &out[line.substr(3)];
    } else {
      *section += line + "\n";
    }
    begin = end + 1;
  }
  return out;
}

std::string Trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of("\n ");
  const size_t end = text.find_last_not_of("\n ");
  return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
}

}  // namespace moonshard
