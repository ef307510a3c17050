#include "dsl/planning/resolve_model/resolve.h"

#include <charconv>
#include <filesystem>

#include "dsl/planning/choose/choose_plan.h"
#include "engine/core/base/text.h"
#include "engine/io/safetensors/tree.h"
#include "engine/plan/compile/compile.h"
#include "engine/plan/compile/mostly_replicated.h"
#include "engine/plan/lint/lint.h"
#include "engine/plan/match/match.h"

namespace moonshard {

Result<ModelFolder> OpenModelFolder(const ModelOptions& options, bool headers_only) {
  Diagnostics diagnostics;
  ModelFolder folder;
  HeaderOptions header_options;
  header_options.allow_header_only = headers_only;
  std::optional<MeshShape> mesh = MeshShape::Parse(options.mesh).Collect(diagnostics);
  std::error_code error;
  if (!std::filesystem::is_directory(options.model, error)) {
    const bool there = std::filesystem::exists(options.model, error);
    Diagnostic d = MakeDiagnostic(Finding::kFileNotFound, there ? "'" + options.model + "' is no directory"
                                                                : "there is no directory '" + options.model + "'");
    d.path = options.model;
    d.required = "a model directory: config.json and safetensors";
    diagnostics.push_back(std::move(d));
    return diagnostics;
  }
  std::optional<ModelConfig> config = ModelConfig::Read(options.model).Collect(diagnostics);
  std::optional<Checkpoint> checkpoint = Checkpoint::Open(options.model, header_options).Collect(diagnostics);
  if (!mesh || !config || !checkpoint) return diagnostics;
  return Result<ModelFolder>({std::move(*config), std::move(*checkpoint), *mesh}, std::move(diagnostics));
}

Result<std::pair<int64_t, int64_t>> ParseTokens(const std::string& text) {
  const std::vector<std::string> parts = Split(text, ',');
  std::pair<int64_t, int64_t> tokens;
  const auto read = [](const std::string& digits, int64_t& value) {
    const char* end = digits.data() + digits.size();
    return std::from_chars(digits.data(), end, value) == std::from_chars_result{end, std::errc()} && value > 0;
  };
  if (parts.size() == 2 && read(parts[0], tokens.first) && read(parts[1], tokens.second)) return tokens;
  Diagnostic d = MakeDiagnostic(Finding::kBadArgument, "cannot read '" + text + "' as batch and sequence");
  d.required = "two positive numbers, as in --tokens 2,4096";
  return d;
}

Resolution MatchAndCompile(std::shared_ptr<const Plan> plan, std::shared_ptr<const ModuleTree> tree,
                           const MeshShape& mesh) {
  Resolution out;
  out.plan = plan;
  out.matched = MatchRules(std::move(plan), std::move(tree)).Collect(out.diagnostics);
  if (!out.matched) return out;
  out.compiled = CompilePlan(*out.matched, mesh).Collect(out.diagnostics);
  if (!out.compiled) return out;
  if (std::optional<Diagnostic> full = FindMostlyReplicated(*out.compiled)) out.diagnostics.push_back(std::move(*full));
  out.compiled->findings = out.diagnostics;
  const Diagnostics suspicions = LintPlan(*out.compiled);
  out.diagnostics.insert(out.diagnostics.end(), suspicions.begin(), suspicions.end());
  if (HasErrors(suspicions)) {
    out.compiled.reset();
    return out;
  }
  out.compiled->findings = out.diagnostics;
  return out;
}

Resolution ResolveStages(const std::string& wanted, const PlanInputs& inputs, std::shared_ptr<const ModuleTree> tree) {
  Diagnostics diagnostics;
  std::optional<Plan> plan = ChoosePlan(wanted, inputs).Collect(diagnostics);
  if (!plan) return {nullptr, std::nullopt, std::nullopt, std::move(diagnostics)};
  Resolution out = MatchAndCompile(std::make_shared<const Plan>(std::move(*plan)), std::move(tree), inputs.mesh);
  out.diagnostics.insert(out.diagnostics.begin(), diagnostics.begin(), diagnostics.end());
  if (out.compiled) out.compiled->findings = out.diagnostics;
  return out;
}

PlanInputs InputsOf(const ModelOptions& options, const ModelFolder& folder, const ModuleTree& tree) {
  PlanInputs inputs;
  inputs.config = folder.config.json();
  inputs.mesh = folder.mesh;
  inputs.model = &tree;
  inputs.isolate = options.isolate;
  for (const auto& [name, value] : options.options) inputs.options[name] = value;
  return inputs;
}

Result<CompiledPlan> ResolvePlan(const ModelOptions& options, const ModelFolder& folder,
                                 std::shared_ptr<const ModuleTree> tree) {
  const PlanInputs inputs = InputsOf(options, folder, *tree);
  Resolution resolved = ResolveStages(options.plan, inputs, std::move(tree));
  if (!resolved.compiled) return std::move(resolved.diagnostics);
  return Result<CompiledPlan>(*std::move(resolved.compiled), std::move(resolved.diagnostics));
}

Result<CompiledPlan> ResolveFromHeaders(const ModelOptions& options, bool headers_only) {
  Result<ModelFolder> folder = OpenModelFolder(options, headers_only);
  if (!folder.ok()) return folder.diagnostics();
  auto tree = std::make_shared<const ModuleTree>(TreeFromCheckpoint(folder.value().checkpoint, folder.value().config));
  Diagnostics diagnostics = folder.diagnostics();
  std::optional<CompiledPlan> compiled = ResolvePlan(options, folder.value(), std::move(tree)).Collect(diagnostics);
  if (!compiled) return diagnostics;
  compiled->findings = diagnostics;
  return Result<CompiledPlan>(std::move(*compiled), std::move(diagnostics));
}

}  // namespace moonshard
