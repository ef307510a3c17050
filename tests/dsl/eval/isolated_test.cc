// A plan evaluated in a child process is the plan evaluated here; and whatever the child does, this process goes on with a
// diagnostic.
#include "dsl/eval/isolated.h"

#include <catch2/catch.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>

#include "engine/plan/plan_json.h"
#include "tests/dsl/inputs.h"

namespace moonshard {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

std::string Whole(const Result<Plan>& plan) {
  return (plan.ok() ? WriteJson(PlanJson(plan.value()), 1) : "") + ToText(plan.diagnostics());
}

std::string WhatIsSaid(const std::function<Result<Plan>(EvaluationRecord*)>& run, const ScriptLimits& limits = {}) {
  const Result<Plan> plan = EvaluateInChild("p.lua", limits, nullptr, run);
  return plan.ok() ? "a plan" : ToText(plan.diagnostics());
}

TEST_CASE("every shipped plan is the same from a child process") {
  const ModuleTree tree = SmallLlama();
  size_t good = 0;
  for (const std::string& name : BuiltInPlans()) {
    PlanInputs inputs = LlamaInputs(2);
    inputs.model = &tree;
    EvaluationRecord here;
    EvaluationRecord there;
    inputs.record = &here;
    const Result<Plan> plan = LoadPlanFile(name, inputs);
    inputs.record = &there;
    inputs.isolate = true;
    INFO(name);
    CHECK(Whole(LoadPlanFile(name, inputs)) == Whole(plan));
    good += plan.ok() ? 1 : 0;
    CHECK(here.files == there.files);
    REQUIRE(here.options.size() == there.options.size());
    for (const auto& [option, declared] : here.options) {
      CHECK(there.options.at(option).value == declared.value);
      CHECK(there.options.at(option).fallback == declared.fallback);
      CHECK(there.options.at(option).source == declared.source);
    }
  }
  CHECK(good >= 15);
}

TEST_CASE("what a plan did wrong is said from the child as here") {
  for (const char* text :
       {"return plan { at(\"a\", colwse {}) }", "x = 1", "while true do end", "return 1", "(", "error {}"}) {
    PlanInputs inputs = LlamaInputs(2);
    const std::string here = Whole(EvaluatePlan(text, "t.lua", inputs));
    inputs.isolate = true;
    INFO(text);
    CHECK(Whole(EvaluatePlan(text, "t.lua", inputs)) == here);
  }
}

TEST_CASE("a child that crashes is a diagnostic") {
  const std::string crashed = WhatIsSaid([](EvaluationRecord*) -> Result<Plan> {
    std::raise(SIGSEGV);
    return Plan{};
  });
  CHECK_THAT(crashed,
             Catch::StartsWith("p.lua: error[MS0901]: the plan's process") && Catch::Contains("nothing of it is used"));
  if (!kSanitized) CHECK_THAT(crashed, Catch::Contains("was ended by signal 11"));
  CHECK_THAT(WhatIsSaid([](EvaluationRecord*) -> Result<Plan> { std::abort(); }), Catch::Contains("signal 6"));
  CHECK_THAT(WhatIsSaid([](EvaluationRecord*) -> Result<Plan> { _exit(7); }),
             Catch::Contains("ended with exit code 7"));
  CHECK_THAT(WhatIsSaid([](EvaluationRecord*) -> Result<Plan> { _exit(0); }),
             Catch::Contains("wrote something that is no plan"));
  CHECK_THAT(WhatIsSaid([](EvaluationRecord*) -> Result<Plan> { throw std::runtime_error("a defect"); }),
             Catch::Contains("error[MS0901]: a defect"));
}

TEST_CASE("a child that does not end is ended by its CPU time") {
  ScriptLimits limits;
  limits.time = std::chrono::milliseconds(0);
  const std::string said = WhatIsSaid(
      [](EvaluationRecord*) -> Result<Plan> {
        for (volatile bool forever = true; forever;) {
        }
        return Plan{};
      },
      limits);
  CHECK_THAT(said, Catch::Contains("error[MS0109]: the plan"));
}

TEST_CASE("a child that grows is ended by its memory") {
  if (kSanitized) return;  // a sanitizer's own memory is not limited
  const std::string said = WhatIsSaid([](EvaluationRecord*) -> Result<Plan> {
    std::vector<std::unique_ptr<char[]>> kept;
    for (int i = 0; i < 4096; ++i) {
      kept.push_back(std::make_unique<char[]>(size_t{1} << 20));
    }
    return Plan{};
  });
  CHECK_THAT(said, Catch::Contains("error[MS0109]: the plan's process needs more than 112 MiB of memory"));
}

// Answers the names of what the child could do and should not.
TEST_CASE("a child writes no file and holds nothing of this process open") {
  const std::string path = std::filesystem::temp_directory_path() / ("moonshard_isolated_" + std::to_string(getpid()));
  const int open_here = open("/dev/null", O_RDONLY);  // not to be closed by exec, but by us
  REQUIRE(open_here > 2);
  const Result<Plan> plan = EvaluateInChild("p.lua", {}, nullptr, [&](EvaluationRecord*) -> Result<Plan> {
    std::signal(SIGXFSZ, SIG_IGN);
    Plan out;
    if (fcntl(open_here, F_GETFD) >= 0) out.name += "descriptor ";
    std::ofstream file(path);
    file << "text" << std::flush;
    if (file.good()) out.name += "file ";
    if (isatty(STDOUT_FILENO) != 0 || std::fputs("printed\n", stdout) < 0) out.name += "stream ";
    std::fflush(stdout);
    return out;
  });
  close(open_here);
  std::filesystem::remove(path);
  REQUIRE(plan.ok());
  CHECK(plan.value().name == "");  // NOLINT(readability-container-size-empty): shows what it is
}

}  // namespace
}  // namespace moonshard
