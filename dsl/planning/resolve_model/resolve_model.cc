#include "dsl/planning/resolve_model/resolve_model.h"

#include <charconv>
#include <chrono>
#include <filesystem>
#include <optional>
#include <vector>

#include "dsl/planning/choose/choose_plan.h"
#include "engine/core/base/text.h"
#include "engine/graph/program_checks.h"
#include "engine/io/exported_program/program_archive.h"
#include "engine/io/safetensors/tree.h"

namespace moonshard {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// What ran before the passes of `later`. The compiled plan has all findings, in the order in which they were made.
void PutBefore(const Diagnostics& found, std::vector<PassRecord> passes, Resolution& later) {
  later.diagnostics.insert(later.diagnostics.begin(), found.begin(), found.end());
  passes.insert(passes.end(), later.passes.begin(), later.passes.end());
  later.passes = std::move(passes);
  if (later.compiled) later.compiled->findings = later.diagnostics;
}

ModelConfig ConfigOfProgram(const ExportedProgram& program) {
  return ModelConfig(program.config ? program.config->AsObject() : JsonValue::Object(), program.file + ": config");
}

}  // namespace

std::string ProgramPathOf(const ModelOptions& options) {
  return options.program.empty() && IsProgramPath(options.model) ? options.model : options.program;
}

Result<ModelConfig> ReadConfigOf(const ModelOptions& options) {
  if (!IsProgramPath(options.model)) return ModelConfig::Read(options.model);
  const Result<ExportedProgram> program = ReadProgramPath(options.model);
  if (!program.ok()) return program.diagnostics();
  if (program.value().config) return ConfigOfProgram(program.value());
  Diagnostic d = MakeDiagnostic(Finding::kBadInput, "the exported program has no config");
  d.path = options.model;
  d.required = "the model directory as MODEL, and the program in --program";
  return d;
}

std::optional<Diagnostic> NoWeights(const ModelFolder& folder) {
  if (!folder.program || !folder.checkpoint.files().empty() || HasWeights(*folder.program)) return std::nullopt;
  Diagnostic d = MakeDiagnostic(Finding::kMissingTensor, "the program has no weights");
  d.path = folder.program->file;
  d.required =
      "the model directory with the weights as MODEL, and the program in --program; or a program exported with "
      "--weights";
  return d;
}

Result<ModelFolder> OpenModelFolder(const ModelOptions& options, bool headers_only) {
  Diagnostics diagnostics;
  ModelFolder folder;
  HeaderOptions header_options;
  header_options.allow_header_only = headers_only;
  std::optional<MeshShape> mesh = MeshShape::Parse(options.mesh).Collect(diagnostics);
  const std::string program_path = ProgramPathOf(options);
  if (!program_path.empty()) {
    std::optional<ExportedProgram> program = ReadProgramPath(program_path).Collect(diagnostics);
    if (program) folder.program = std::make_shared<const ExportedProgram>(std::move(*program));
  }
  if (IsProgramPath(options.model)) {
    if (!mesh || !folder.program) return diagnostics;
    folder.config = ConfigOfProgram(*folder.program);
    folder.mesh = *mesh;
    return Result<ModelFolder>(std::move(folder), std::move(diagnostics));
  }
  std::error_code error;
  if (!std::filesystem::is_directory(options.model, error)) {
    const bool there = std::filesystem::exists(options.model, error);
    Diagnostic d = MakeDiagnostic(Finding::kFileNotFound, there ? "'" + options.model + "' is not a directory"
                                                                : "there is no directory '" + options.model + "'");
    d.path = options.model;
    d.required = "a model directory (config.json and safetensors), or an exported program (.pt2)";
    diagnostics.push_back(std::move(d));
    return diagnostics;
  }
  std::optional<ModelConfig> config = ModelConfig::Read(options.model).Collect(diagnostics);
  std::optional<Checkpoint> checkpoint = Checkpoint::Open(options.model, header_options).Collect(diagnostics);
  if (!mesh || !config || !checkpoint || (!program_path.empty() && !folder.program)) return diagnostics;
  folder.config = std::move(*config);
  folder.checkpoint = std::move(*checkpoint);
  folder.mesh = *mesh;
  return Result<ModelFolder>(std::move(folder), std::move(diagnostics));
}

ModuleTree TreeOf(const ModelFolder& folder) {
  if (!folder.program) return TreeFromCheckpoint(folder.checkpoint, folder.config);
  ModuleTree tree = ProgramTree(*folder.program);
  AddProgramKnowledge(tree, folder.program);
  return tree;
}

Result<std::pair<int64_t, int64_t>> ParseTokens(const std::string& text) {
  const std::vector<std::string> parts = Split(text, ',');
  std::pair<int64_t, int64_t> tokens;
  const auto read = [](const std::string& digits, int64_t most, int64_t& value) {
    const char* end = digits.data() + digits.size();
    return std::from_chars(digits.data(), end, value) == std::from_chars_result{end, std::errc()} && value > 0 &&
           value <= most;
  };
  if (parts.size() == 2 && read(parts[0], kMostBatch, tokens.first) && read(parts[1], kMostSequence, tokens.second) &&
      tokens.first * tokens.second <= kMostTokens) {
    return tokens;
  }
  Diagnostic d = MakeDiagnostic(Finding::kBadArgument, "cannot read '" + text + "' as batch and sequence");
  d.required = "two numbers, as in --tokens 2,4096: the number of sequences (1 to " + std::to_string(kMostBatch) +
               ") and the tokens of each sequence (1 to " + std::to_string(kMostSequence) + "), at most " +
               std::to_string(kMostTokens) + " tokens in all";
  return d;
}

PlanInputs InputsOf(const ModelOptions& options, const ModelConfig& config, const MeshShape& mesh,
                    const ModuleTree& tree) {
  PlanInputs inputs;
  inputs.config = config.json();
  inputs.mesh = mesh;
  inputs.model = &tree;
  inputs.isolate = options.isolate;
  for (const auto& [name, value] : options.options) inputs.options[name] = value;
  return inputs;
}

Resolution ResolveModel(const std::string& wanted, const PlanInputs& inputs, std::shared_ptr<const ModuleTree> tree) {
  const Clock::time_point begin = Clock::now();
  Resolution out;
  std::optional<Plan> plan = ChoosePlan(wanted, inputs).Collect(out.diagnostics);
  const std::string made = plan ? Count(plan->rules.size(), "rule") + " of plan " + plan->name : "nothing";
  out.passes.push_back(MakeRecord("evaluate", made, out.diagnostics, SecondsSince(begin)));
  out.tree = std::move(tree);
  out.mesh = inputs.mesh;
  if (!plan) return out;
  Resolution resolved = RunPasses(std::make_shared<const Plan>(std::move(*plan)), out.tree, out.mesh, inputs.config);
  PutBefore(out.diagnostics, std::move(out.passes), resolved);
  return resolved;
}

Resolution ResolveModel(const ModelOptions& options, const ModelConfig& config, const MeshShape& mesh,
                        std::shared_ptr<const ModuleTree> tree) {
  const PlanInputs inputs = InputsOf(options, config, mesh, *tree);
  return ResolveModel(options.plan, inputs, std::move(tree));
}

Resolution ResolveDirectory(const ModelOptions& options, bool headers_only) {
  const Clock::time_point begin = Clock::now();
  Diagnostics found;
  const std::optional<ModelFolder> folder = OpenModelFolder(options, headers_only).Collect(found);
  std::shared_ptr<const ModuleTree> tree;
  std::string made = "nothing";
  if (folder) {
    tree = std::make_shared<const ModuleTree>(TreeOf(*folder));
    made = folder->program ? Count(folder->program->graph.nodes.size(), "node") + " of a program"
                           : Count(folder->checkpoint.tensors().size(), "tensor") + " in " +
                                 Count(folder->checkpoint.files().size(), "file");
  }
  std::vector<PassRecord> read = {MakeRecord("read", made, found, SecondsSince(begin))};
  Resolution out;
  if (folder) out = ResolveModel(options, folder->config, folder->mesh, std::move(tree));
  PutBefore(found, std::move(read), out);
  return out;
}

Result<CompiledPlan> ResolveFromHeaders(const ModelOptions& options, bool headers_only) {
  return ToResult(ResolveDirectory(options, headers_only));
}

}  // namespace moonshard
