// Plan text, the whole way: evaluated, matched, compiled, explained. The plan is the same after JSON.
#include <memory>

#include "dsl/planning/resolve_model/resolve_model.h"
#include "engine/plan/explain/explain.h"
#include "engine/plan/plan/plan_json.h"
#include "tests/dsl/inputs.h"
#include "tests/fuzz/target.h"

namespace moonshard {
namespace {

constexpr size_t kMostRules = 200;  // that are matched: more take long under sanitizers, and tell no more

// Small, so that a run that goes to a limit is short.
PlanInputs SmallInputs(const ModuleTree& tree) {
  PlanInputs inputs = LlamaInputs(2);
  inputs.model = &tree;
  inputs.limits.steps = 300'000;
  inputs.limits.time = std::chrono::milliseconds(200);
  inputs.limits.memory_bytes = size_t{16} << 20;
  return inputs;
}

}  // namespace
}  // namespace moonshard

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moonshard;
  static const auto tree = std::make_shared<const ModuleTree>(SmallLlama());
  const PlanInputs inputs = SmallInputs(*tree);
  const Result<Plan> plan = EvaluatePlan(fuzz::TextOf(data, size), "fuzz.lua", inputs);
  fuzz::Require(plan.ok() || HasErrors(plan.diagnostics()), "neither a plan nor an error");
  fuzz::Require(ToText(plan.diagnostics()).find('\x1b') == std::string::npos, "an escape byte in a diagnostic");
  for (const Diagnostic& d : plan.diagnostics()) {
    fuzz::Require(d.finding != Finding::kInternal, "a defect was reported: " + d.message);
  }
  if (!plan.ok()) return 0;
  const std::string json = WriteJson(PlanJson(plan.value()), 0);
  const Plan read = ReadPlanJson(ParseJson(json, "json").ValueOrThrow(), "json").ValueOrThrow();
  fuzz::Require(WriteJson(PlanJson(read), 0) == json, "the plan is another one after JSON");
  if (plan.value().rules.size() > kMostRules) return 0;
  const Resolution resolved = RunPasses(std::make_shared<const Plan>(plan.value()), tree, inputs.mesh);
  if (!resolved.compiled) return 0;
  fuzz::Require(!ExplainText(*resolved.compiled, {}).empty(), "nothing is explained");
  const Resolution again = RunPasses(std::make_shared<const Plan>(read), tree, inputs.mesh);
  fuzz::Require(again.compiled && again.compiled->Hash() == resolved.compiled->Hash(), "another hash after JSON");
  return 0;
}
