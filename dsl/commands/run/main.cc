// moonshard-run: one rank of a verb that needs tensors. Started by `moonshard`, torchrun or srun; the only program that
// links both the plan language and LibTorch.
#include <cstdio>
#include <cstdlib>
#include <new>
#include <optional>
#include <string>
#include <variant>

#include <c10/util/Exception.h>
#include <c10/util/Logging.h>

#include "dsl/commands/cli/options.h"
#include "dsl/commands/cli/run_main.h"
#include "dsl/commands/cli/verbs.h"
#include "dsl/commands/run/verbs.h"
#include "dsl/commands/train/train.h"
#include "engine/core/base/visible.h"
#include "engine/models/program/trial/trial.h"
#include "engine/runtime/mesh/device_mesh.h"

namespace moonshard {
namespace {

// An operator that fails in the call of a planned module: tensors whose sizes do not fit together are a plan's fault,
// or the input's. LibTorch's message names the call, as Boundary::Explain adds it: "... (in the call of 'PATH'
// (FILE:LINE))".
std::optional<Diagnostic> FailedCall(const c10::Error& error) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return {};
  if (dynamic_cast<const c10::DistError*>(&error) != nullptr) return {};
  const std::string text = ErrorText(error);
  const std::string mark = "in the call of '";
  const size_t begin = text.find(mark);
  const size_t end = begin == std::string::npos ? begin : text.find('\'', begin + mark.size());
  if (end == std::string::npos) return {};
  std::string message = text.substr(0, begin);
  while (!message.empty() && std::string_view(" (\n").find(message.back()) != std::string_view::npos)
    message.pop_back();
  Diagnostic d = MakeDiagnostic(Finding::kStyleDoesNotFit, "the call fails: " + message);
  d.path = text.substr(begin + mark.size(), end - begin - mark.size());
  const size_t close = text.find(')', end);
  const size_t colon = close == std::string::npos ? close : text.rfind(':', close);
  if (colon != std::string::npos && text.compare(end, 3, "' (") == 0 && colon > end + 3) {
    d.where.file = text.substr(end + 3, colon - end - 3);
    d.where.line = std::atoi(text.c_str() + colon + 1);
  }
  d.help = "verify --types names the operator and the layouts of its operands";
  return d;
}

// The options or the file that a step of the verb has its sizes from; "" for a verb without a step.
std::string SizesOf(const Verb& verb) {
  if (const auto* explain = std::get_if<ExplainVerb>(&verb)) return "--tokens " + explain->tokens;
  if (const auto* eval = std::get_if<EvalVerb>(&verb)) return eval->input;
  if (const auto* verify = std::get_if<VerifyVerb>(&verb)) {
    return verify->input.empty() ? "--tokens " + verify->tokens : verify->input;
  }
  if (const auto* train = std::get_if<TrainVerb>(&verb)) {
    const std::string batch = "--batch " + std::to_string(train->batch);
    const bool examples = !train->sequence && train->data.front().ends_with(".safetensors");
    return batch + (examples ? " --data " + train->data.front()
                             : " --sequence " + std::to_string(train->sequence.value_or(kSequence)));
  }
  if (const auto* compare = std::get_if<CompareVerb>(&verb)) return compare->expected;
  return "";
}

// What LibTorch refuses outside the call of a module: memory that there is not, a size beyond its own types.
Diagnostic FailedStep(std::string what, const Verb& verb) {
  if (what.find("allocate memory") != std::string::npos) what = "there is not enough memory";  // of a CPU's allocator
  Diagnostic d = MakeDiagnostic(Finding::kBadInput, "the step fails: " + what);
  d.path = SizesOf(verb);
  d.help = "run a smaller step, or a smaller model";
  return d;
}

// What this rank does of each verb. A verb without a line here does not compile.
struct Runner {
  int operator()(const ExplainVerb& verb) const { return verb.memory ? RunExplainMemory(verb) : NeedsNoTensors(); }
  int operator()(const CheckVerb& verb) const { return RunCheck(verb, TryOperators); }
  int operator()(const SuggestVerb& verb) const { return RunSuggest(verb, TryOperators); }
  int operator()(const EvalVerb& verb) const { return RunEval(verb); }
  int operator()(const VerifyVerb& verb) const {
    if (verb.types) return RunVerifyTypes(verb);
    return verb.ops ? RunVerifyOps(verb) : RunVerify(verb);
  }
  int operator()(const TrainVerb& verb) const { return RunTrain(verb); }
  int operator()(const CompareVerb& verb) const { return RunCompare(verb); }
  int operator()(const DoctorVerb& verb) const { return RunDoctor(verb); }
  int operator()(const ExplainFindingVerb& /*verb*/) const { return NeedsNoTensors(); }
  int operator()(const ImportVerb& /*verb*/) const { return NeedsNoTensors(); }
  int operator()(const ExportVerb& /*verb*/) const { return NeedsNoTensors(); }
  int operator()(const ShardVerb& /*verb*/) const { return NeedsNoTensors(); }
  int operator()(const MergeVerb& /*verb*/) const { return NeedsNoTensors(); }
  int operator()(const ReplVerb& /*verb*/) const { return NeedsNoTensors(); }

  static int NeedsNoTensors() {
    std::fputs("moonshard-run: this verb needs no tensors: use moonshard\n", stderr);
    return kExitUsage;
  }
};

int Main(const std::vector<std::string>& arguments) {
  const CommandLine command = ParseCommandLine(arguments);
  std::fputs(VisibleLines(command.text).c_str(), command.exit_code == 0 ? stdout : stderr);
  if (!command.verb) return EndOutput(command.exit_code, {});
  const FindingsOutput findings_output = FindingsOutputOf(*command.verb);
  try {
    return EndOutput(std::visit(Runner{}, *command.verb), findings_output);
  } catch (const PlanError& error) {
    PrintFindings(error.diagnostics(), findings_output);
    return ExitCodeOf(error.diagnostics());
  } catch (const c10::Error& error) {
    if (dynamic_cast<const c10::DistError*>(&error) != nullptr) {
      std::fprintf(stderr, "moonshard-run: %s\n", VisibleLines(ErrorText(error)).c_str());  // without its stack trace
    } else {
      const std::optional<Diagnostic> failed = FailedCall(error);
      PrintFindings({failed ? *failed : FailedStep(ErrorText(error), *command.verb)}, findings_output);
    }
    return kExitFailed;
  } catch (const std::bad_alloc&) {
    PrintFindings({FailedStep("there is not enough memory", *command.verb)}, findings_output);
    return kExitFailed;
  }
}

}  // namespace
}  // namespace moonshard

int main(int argc, char** argv) {
  // c10d reports each lost connection with a stack trace; the diagnostics report the same.
  setenv("TORCH_CPP_LOG_LEVEL", "FATAL", /*overwrite=*/0);
  c10::initLogging();
  return moonshard::RunMain("moonshard-run",
                            [&] { return moonshard::Main(std::vector<std::string>(argv + 1, argv + argc)); });
}
