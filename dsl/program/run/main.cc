// moonshard-run: one rank of a verb that needs tensors. Started by `moonshard`, torchrun or srun; the only program that
// links both the plan language and LibTorch.
#include <cstdio>
#include <cstdlib>

#include <c10/util/Logging.h>

#include "dsl/program/cli/options.h"
#include "dsl/program/cli/run_main.h"
#include "dsl/program/cli/verbs.h"
#include "dsl/program/run/verbs.h"
#include "dsl/program/train/train.h"

namespace moonshard {
namespace {

int RunVerb(const Verb& verb) {
  if (const auto* explain = std::get_if<ExplainVerb>(&verb); explain != nullptr && explain->memory) {
    return RunExplainMemory(*explain);
  }
  if (const auto* eval = std::get_if<EvalVerb>(&verb)) return RunEval(*eval);
  if (const auto* verify = std::get_if<VerifyVerb>(&verb)) {
    return verify->types ? RunVerifyTypes(*verify) : verify->ops ? RunVerifyOps(*verify) : RunVerify(*verify);
  }
  if (const auto* train = std::get_if<TrainVerb>(&verb)) return train::RunTrain(*train);
  if (const auto* compare = std::get_if<CompareVerb>(&verb)) return RunCompare(*compare);
  if (std::holds_alternative<DoctorVerb>(verb)) return RunDoctor();
  std::fputs("moonshard-run: this verb needs no tensors: use moonshard\n", stderr);
  return kExitUsage;
}

int Main(const std::vector<std::string>& arguments) {
  const CommandLine command = ParseCommandLine(arguments);
  std::fputs(command.text.c_str(), command.exit_code == 0 ? stdout : stderr);
  if (!command.verb) return EndOutput(command.exit_code, {});
  const SayOptions say = SayOf(*command.verb);
  try {
    return EndOutput(RunVerb(*command.verb), say);
  } catch (const PlanError& error) {
    Say(error.diagnostics(), say);
    return ExitCodeOf(error.diagnostics());
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
