#include "dsl/planning/resolve_model/resolve_model.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <vector>

#include "dsl/planning/choose/choose_plan.h"
#include "dsl/planning/resolve_model/adapter_options.h"
#include "engine/core/base/join_first.h"
#include "engine/core/base/text.h"
#include "engine/graph/program_checks.h"
#include "engine/io/exported_program/program_archive.h"
#include "engine/io/safetensors/tree.h"

namespace moonshard {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kConfigFile = "config.json";

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
  if (!folder.is_program || HasWeights(*folder.program)) return std::nullopt;
  Diagnostic d = MakeDiagnostic(Finding::kMissingTensor, "the program has no weights");
  d.path = folder.program->file;
  d.required =
      "the model directory with the weights as MODEL, and the program in --program; or a program exported with "
      "--weights";
  return d;
}

namespace {

// What is read of a checkpoint: nothing, the headers of files that may have no data, or the headers of complete files.
enum class CheckpointUse : uint8_t { kNone, kHeaders, kValues };

// Why `path` is not a model directory: it does not exist, or is a file.
Diagnostic NotAModel(const std::string& path) {
  std::error_code error;
  const bool there = std::filesystem::exists(path, error);
  Diagnostic d = MakeDiagnostic(Finding::kFileNotFound,
                                there ? "'" + path + "' is not a directory" : "there is no directory '" + path + "'");
  d.path = path;
  d.required = "a model directory (config.json and safetensors), or an exported program (.pt2)";
  return d;
}

// An error for a directory that has archives but neither their index nor a config: which of them is the program, and
// for which inputs, is not known.
std::optional<Diagnostic> ArchivesWithoutIndex(const std::string& path) {
  std::error_code error;
  if (std::filesystem::exists(std::filesystem::path(path) / kConfigFile, error)) return std::nullopt;
  std::vector<std::string> archives;
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    if (entry.path().extension() == ".pt2") archives.push_back(entry.path().filename().string());
  }
  if (archives.empty()) return std::nullopt;
  std::ranges::sort(archives);
  Diagnostic d = MakeDiagnostic(Finding::kFileNotFound, "the directory has archives of programs (" +
                                                            JoinFirst(archives, 4) + ") but no " + kProgramIndex);
  d.path = path;
  d.required =
      "one of the archives as MODEL, or a directory that the exporter wrote, with its " + std::string(kProgramIndex);
  return d;
}

constexpr HeaderOptions kHeaders{.allow_header_only = true};

// MODEL and --program are different programs: the weights of one would be those of another graph.
Diagnostic TwoPrograms(const ModelOptions& options) {
  Diagnostic d = MakeDiagnostic(Finding::kBadArgument, "MODEL and --program are two exported programs");
  d.path = options.model;
  d.declared = "--program " + options.program;
  d.required = "a program as MODEL without --program, or the model directory with the weights as MODEL";
  return d;
}

// Adapters of a file and new ones: which of them are trained would depend on an order.
Diagnostic AdaptersAndLora() {
  Diagnostic d = MakeDiagnostic(Finding::kBadArgument, "--adapter and --lora are given");
  d.declared = "adapters that exist, and new ones";
  d.required = "--adapter, whose adapters are loaded, or --lora, for new adapters";
  return d;
}

Result<ModelFolder> OpenModel(const ModelOptions& options, CheckpointUse use) {
  Diagnostics diagnostics;
  ModelFolder folder;
  std::optional<MeshShape> mesh = MeshShape::Parse(options.mesh).Collect(diagnostics);
  if (IsProgramPath(options.model) && !options.program.empty() && options.program != options.model) {
    diagnostics.push_back(TwoPrograms(options));
    return diagnostics;
  }
  const std::string program_path = ProgramPathOf(options);
  const auto read_adapters = [&](const ModelConfig& config) {
    std::optional<std::vector<StoredAdapter>> adapters =
        ReadAdapters(options.adapters, use == CheckpointUse::kHeaders ? kHeaders : HeaderOptions(),
                     AdaptedModelOf(config, !program_path.empty()))
            .Collect(diagnostics);
    if (adapters) folder.adapters = *std::move(adapters);
    return adapters.has_value();
  };
  if (!program_path.empty()) {
    std::optional<ExportedProgram> program = ReadProgramPath(program_path).Collect(diagnostics);
    if (program) folder.program = std::make_shared<const ExportedProgram>(std::move(*program));
  }
  if (IsProgramPath(options.model)) {
    if (folder.program) folder.config = ConfigOfProgram(*folder.program);
    const bool read = read_adapters(folder.config);
    if (!mesh || !folder.program || !read) return diagnostics;
    folder.mesh = *mesh;
    folder.is_program = true;
    return Result<ModelFolder>(std::move(folder), std::move(diagnostics));
  }
  std::error_code error;
  if (!std::filesystem::is_directory(options.model, error)) {
    diagnostics.push_back(NotAModel(options.model));
    return diagnostics;
  }
  if (std::optional<Diagnostic> archives = ArchivesWithoutIndex(options.model)) {
    diagnostics.push_back(*std::move(archives));
    return diagnostics;
  }
  std::optional<ModelConfig> config = ModelConfig::Read(options.model).Collect(diagnostics);
  std::optional<Checkpoint> checkpoint = Checkpoint();
  if (use != CheckpointUse::kNone) {
    HeaderOptions header_options;
    header_options.allow_header_only = use == CheckpointUse::kHeaders;
    checkpoint = Checkpoint::Open(options.model, header_options).Collect(diagnostics);
  }
  const bool read = read_adapters(config.value_or(ModelConfig()));
  if (!mesh || !config || !checkpoint || !read || (!program_path.empty() && !folder.program)) return diagnostics;
  folder.config = std::move(*config);
  folder.checkpoint = std::move(*checkpoint);
  folder.mesh = *mesh;
  return Result<ModelFolder>(std::move(folder), std::move(diagnostics));
}

}  // namespace

Result<ModelFolder> OpenModelFolder(const ModelOptions& options, bool headers_only) {
  return OpenModel(options, headers_only ? CheckpointUse::kHeaders : CheckpointUse::kValues);
}

Result<ModelFolder> OpenModelWithoutWeights(const ModelOptions& options) {
  return OpenModel(options, CheckpointUse::kNone);
}

std::optional<int64_t> VocabularyOf(const ModelFolder& folder) {
  const JsonValue* size = folder.config.Get("vocab_size");
  if (const JsonValue* text = folder.config.Get("text_config"); size == nullptr && text != nullptr) {
    size = text->Find("vocab_size");
  }
  if (size != nullptr && size->is_int()) return size->AsInt();
  if (!folder.program) return std::nullopt;
  std::map<std::string, int64_t, std::less<>> parameters;  // full sizes
  for (const auto& [name, symbol] : folder.program->symbols) {
    if (!symbol.tensor.empty()) parameters[name] = symbol.example;
  }
  for (const ProgramOutput& output : folder.program->outputs) {
    if (output.name != "logits" || output.shape.empty()) continue;
    if (const std::optional<int64_t> last = output.shape.back().Evaluate(parameters)) return last;
  }
  return std::nullopt;
}

ModuleTree TreeOf(const ModelFolder& folder, TrialsOf trials) {
  if (!folder.program) return TreeFromCheckpoint(folder.checkpoint, folder.config);
  ModuleTree tree = ProgramTree(*folder.program);
  AddProgramKnowledge(tree, folder.program, LossBy::kCaller, std::move(trials));
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

Resolution ResolveModel(const std::string& wanted, const PlanInputs& inputs, std::shared_ptr<const ModuleTree> tree,
                        const std::vector<Adapter>& adapters, const std::string& active) {
  const Clock::time_point begin = Clock::now();
  Resolution out;
  std::optional<Plan> plan = ChoosePlan(wanted, inputs).Collect(out.diagnostics);
  if (plan && !adapters.empty()) plan->adapters = adapters;
  if (plan && !active.empty()) {
    Diagnostics found = Activate(active, plan->adapters);
    std::ranges::move(found, std::back_inserter(out.diagnostics));
    if (HasErrors(out.diagnostics)) plan.reset();
  }
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
  Resolution out;
  out.mesh = mesh;
  out.tree = tree;
  std::vector<Adapter> sections;
  if (!options.adapters.empty() && !options.lora.empty()) {
    out.diagnostics.push_back(AdaptersAndLora());
    return out;
  }
  const std::optional<std::vector<StoredAdapter>> stored =
      ReadAdapters(options.adapters, kHeaders, AdaptedModelOf(config, !ProgramPathOf(options).empty()))
          .Collect(out.diagnostics);
  if (!stored) return out;
  for (const StoredAdapter& one : *stored) sections.insert(sections.end(), one.sections.begin(), one.sections.end());
  if (!options.lora.empty()) {
    std::optional<std::vector<Adapter>> made = ParseLora(options.lora, config, *tree).Collect(out.diagnostics);
    if (!made) return out;
    sections = *std::move(made);
  }
  return ResolveModel(options.plan, inputs, std::move(tree), sections, options.active);
}

Resolution ResolveDirectory(const ModelOptions& options, bool headers_only, TrialsOf trials) {
  const Clock::time_point begin = Clock::now();
  Diagnostics found;
  const std::optional<ModelFolder> folder = OpenModelFolder(options, headers_only).Collect(found);
  std::shared_ptr<const ModuleTree> tree;
  std::string made = "nothing";
  if (folder) {
    tree = std::make_shared<const ModuleTree>(TreeOf(*folder, std::move(trials)));
    made = folder->program ? Count(folder->program->graph.nodes.size(), "node") + " of a program"
                           : Count(folder->checkpoint.tensors().size(), "tensor") + " in " +
                                 Count(folder->checkpoint.files().size(), "file");
  }
  std::vector<PassRecord> read = {MakeRecord("read", made, found, SecondsSince(begin))};
  Resolution out;
  if (folder) out = ResolveModel(options, folder->config, folder->mesh, std::move(tree));
  if (folder && folder->program) {
    out.notes = NotesOf(*folder->program);
    out.exported = OriginsOf(*folder->program);
  }
  PutBefore(found, std::move(read), out);
  return out;
}

Result<CompiledPlan> ResolveFromHeaders(const ModelOptions& options, bool headers_only) {
  return ToResult(ResolveDirectory(options, headers_only));
}

}  // namespace moonshard
