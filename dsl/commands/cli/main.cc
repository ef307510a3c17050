// moonshard: the executable. Answers what needs no tensor itself, in milliseconds and without LibTorch; for the rest it
// starts moonshard-run, once for each local rank, or once where the operators of a program are only tried.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iostream>

#include "dsl/commands/cli/launch.h"
#include "dsl/commands/cli/options.h"
#include "dsl/commands/cli/run_main.h"
#include "dsl/commands/cli/torch_library.h"
#include "dsl/commands/cli/train_options.h"
#include "dsl/commands/cli/verbs.h"
#include "dsl/planning/resolve_model/resolve_model.h"
#include "engine/core/base/visible.h"

namespace moonshard {
namespace {

// Runs moonshard-run in place of this process.
int Become(const std::string& executable, const std::vector<std::string>& arguments) {
  std::vector<std::string> texts = arguments;
  texts.insert(texts.begin(), executable);
  std::vector<char*> argv;
  for (std::string& text : texts) argv.push_back(text.data());
  argv.push_back(nullptr);
  execv(executable.c_str(), argv.data());
  std::perror(executable.c_str());
  return kExitFailed;
}

// One process for each rank of `mesh`; without one this process alone.
int RunWithTensors(const std::vector<std::string>& arguments, const std::optional<MeshShape>& mesh,
                   const FindingsOutput& findings_output, bool finish_first = false) {
  const std::string executable = SiblingExecutable("moonshard-run");
  if (std::error_code ignored; !std::filesystem::exists(executable, ignored)) {
    std::cerr << "moonshard: this build has no LibTorch (" << Visible(executable)
              << " is missing): only verbs that need no tensors are available\n";
    return kExitFailed;
  }
  const TorchOfBuild torch = {MOONSHARD_TORCH_VERSION, MOONSHARD_TORCH_DIRECTORY};
  if (const std::optional<std::string> why = WhyNotLoaded(executable, torch)) {
    std::cerr << "moonshard: " << VisibleLines(*why);
    return kExitFailed;
  }
  if (StartedByLauncher() || !mesh) return Become(executable, arguments);
  if (const Diagnostics errors = CheckRanks(*mesh, MostLocalRanks(), "start them on one machine"); !errors.empty()) {
    PrintFindings(errors, findings_output);
    return kExitUsage;
  }
  return LaunchRanks(
      {.executable = executable, .arguments = arguments, .ranks = mesh->world_size(), .finish_first = finish_first});
}

// Why `path` is not a file that this process may make or replace; "" where it is one.
std::string WhyNotWritten(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (std::filesystem::is_directory(status)) return std::strerror(EISDIR);
  if (status.type() == std::filesystem::file_type::none) return error.message();  // a name that is too long
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  return access(folder.c_str(), W_OK | X_OK) == 0 ? "" : std::strerror(errno);
}

// The plan as the headers show it, before a process is started or a tensor made: with errors it is reported here, once.
// The warnings and notes of a plan without errors are rank 0's to report: it resolves the plan against the live model,
// which also has the modules that own no parameter.
std::optional<CompiledPlan> ResolveForRanks(const ModelOptions& model, bool headers_only,
                                            const FindingsOutput& findings_output) {
  Result<CompiledPlan> plan = ResolveFromHeaders(model, headers_only);
  if (!plan.ok()) PrintFindings(plan.diagnostics(), findings_output);
  return plan.ok() ? std::optional<CompiledPlan>(std::move(plan).value()) : std::nullopt;
}

// check and suggest run the operators of an exported program too, which needs tensors. A build without LibTorch does
// the rest here.
template <class V>
int RunWithTrials(const V& verb, const std::vector<std::string>& arguments, int (*run)(const V&, TrialsOf)) {
  if (ProgramPathOf(verb.model).empty()) return run(verb, {});
  const std::string executable = SiblingExecutable("moonshard-run");
  const TorchOfBuild torch = {MOONSHARD_TORCH_VERSION, MOONSHARD_TORCH_DIRECTORY};
  std::error_code ignored;
  if (std::filesystem::exists(executable, ignored) && !WhyNotLoaded(executable, torch)) {
    return Become(executable, arguments);
  }
  if (verb.findings_output.text()) std::cerr << "note: without LibTorch the operators of the program are not run\n";
  return run(verb, {});
}

int RunEval(const EvalVerb& verb, const std::vector<std::string>& arguments) {
  const std::optional<CompiledPlan> plan = ResolveForRanks(verb.model, /*headers_only=*/false, verb.findings_output);
  if (!plan) return kExitUsage;
  if (!StartedByLauncher()) {
    // Reported before the work instead of after it.
    for (const std::string& path : {verb.output, verb.stats}) {
      const std::string why = path.empty() || path == "-" ? "" : WhyNotWritten(path);
      if (why.empty()) continue;
      Diagnostic d = MakeDiagnostic(Finding::kWriteFailed, "cannot write '" + path + "': " + why);
      d.required = "a file in a directory that exists and can be written to";
      PrintFindings({d}, verb.findings_output);
      return kExitFailed;
    }
  }
  return RunWithTensors(arguments, plan->mesh, verb.findings_output);
}

// Findings are reported here; the step itself needs tensors, of one rank.
int RunExplainMemory(const ExplainVerb& verb, const std::vector<std::string>& arguments) {
  bool good = false;
  ResolveToExplain(verb, good);
  return good ? RunWithTensors(arguments, std::nullopt, verb.findings_output) : kExitUsage;
}

int RunVerify(const VerifyVerb& verb, const std::vector<std::string>& arguments) {
  Diagnostics found;
  if (!verb.tokens.empty()) (void)ParseTokens(verb.tokens).Collect(found);
  if (HasErrors(found)) {
    PrintFindings(found, verb.findings_output);
    return ExitCodeOf(found);
  }
  const std::optional<CompiledPlan> plan =
      ResolveForRanks(verb.model, /*headers_only=*/verb.types, verb.findings_output);
  if (!plan) return kExitUsage;
  return RunWithTensors(arguments, verb.types ? std::nullopt : std::optional(plan->mesh), verb.findings_output);
}

// With --init MODEL needs no checkpoint, so there are no headers to resolve the plan against: the ranks do it, with the
// live model, as they do in any case.
int RunTrain(const TrainVerb& verb, const std::vector<std::string>& arguments) {
  std::optional<MeshShape> mesh;
  const auto refuse = [&](const Diagnostics& errors) {
    PrintFindings(errors, verb.findings_output);
    return ExitCodeOf(errors);
  };
  if (verb.init) {
    const Result<ModelFolder> folder = OpenModelWithoutWeights(verb.model);
    if (!folder.ok()) return refuse(folder.diagnostics());
    mesh = folder.value().mesh;
  } else {
    const std::optional<CompiledPlan> plan = ResolveForRanks(verb.model, /*headers_only=*/false, verb.findings_output);
    if (!plan) return kExitUsage;
    mesh = plan->mesh;
  }
  if (const Diagnostics errors = CheckStep(verb, *mesh); !errors.empty()) return refuse(errors);
  return RunWithTensors(arguments, mesh, verb.findings_output, /*finish_first=*/true);
}

// A launcher's ranks are those that it has started, whatever the mesh.
int RunDoctor(const DoctorVerb& verb, const std::vector<std::string>& arguments) {
  const Result<MeshShape> mesh = MeshShape::Parse(verb.mesh);
  if (!mesh.ok()) {
    PrintFindings(mesh.diagnostics(), {});
    return ExitCodeOf(mesh.diagnostics());
  }
  const bool alone = mesh.value().world_size() == 1;
  return RunWithTensors(arguments, alone ? std::nullopt : std::optional(mesh.value()), {});
}

// How each verb begins: in this process, or in one of each rank. A verb without a line here does not compile.
struct Runner {
  const std::vector<std::string>& arguments;

  int operator()(const ExplainVerb& verb) const {
    return verb.memory ? RunExplainMemory(verb, arguments) : RunExplain(verb);
  }
  int operator()(const CheckVerb& verb) const { return RunWithTrials(verb, arguments, RunCheck); }
  int operator()(const ExplainFindingVerb& verb) const { return RunExplainFinding(verb); }
  int operator()(const ImportVerb& verb) const { return RunImport(verb); }
  int operator()(const ExportVerb& verb) const { return RunExport(verb); }
  int operator()(const ShardVerb& verb) const { return RunShard(verb); }
  int operator()(const MergeVerb& verb) const { return RunMerge(verb); }
  int operator()(const ReplVerb& verb) const { return RunRepl(verb); }
  int operator()(const SuggestVerb& verb) const { return RunWithTrials(verb, arguments, RunSuggest); }
  int operator()(const EvalVerb& verb) const { return RunEval(verb, arguments); }
  int operator()(const VerifyVerb& verb) const { return RunVerify(verb, arguments); }
  int operator()(const TrainVerb& verb) const { return RunTrain(verb, arguments); }
  int operator()(const CompareVerb& /*verb*/) const { return RunWithTensors(arguments, std::nullopt, {}); }
  int operator()(const DoctorVerb& verb) const { return RunDoctor(verb, arguments); }
};

int Main(const std::vector<std::string>& arguments) {
  const CommandLine command = ParseCommandLine(arguments);
  (command.exit_code == 0 ? std::cout : std::cerr) << VisibleLines(command.text);
  if (!command.verb) return EndOutput(command.exit_code, {});
  const FindingsOutput findings_output = FindingsOutputOf(*command.verb);
  try {
    return EndOutput(std::visit(Runner{arguments}, *command.verb), findings_output);
  } catch (const PlanError& error) {
    PrintFindings(error.diagnostics(), findings_output);
    return ExitCodeOf(error.diagnostics());
  }
}

}  // namespace
}  // namespace moonshard

int main(int argc, char** argv) {
  return moonshard::RunMain("moonshard",
                            [&] { return moonshard::Main(std::vector<std::string>(argv + 1, argv + argc)); });
}
