#include "dsl/program/cli/hugging_face.h"

#include <filesystem>

#include "dsl/planning/choose/hugging_face_plan.h"
#include "dsl/planning/hugging_face/lua_text.h"
#include "dsl/planning/hugging_face/plan_file.h"

namespace moonshard {

Result<std::string> ImportHuggingFacePlan(const ImportVerb& verb) {
  const Result<HuggingFaceFile> file = ReadHuggingFaceFile(verb.file);
  if (!file.ok()) return file.diagnostics();
  const std::string key = verb.experts ? (verb.key.empty() ? "ep" : verb.key + "/ep") : verb.key;
  const Result<HuggingFaceChoice> choice = ChooseHuggingFacePlan(file.value(), key, {});
  if (!choice.ok()) return choice.diagnostics();
  const std::string from = std::filesystem::path(verb.file).filename().string();
  // Evaluated with the styles of Hugging Face, which needs no config, so that every style is known to exist.
  const LuaPlanText exact = WriteLuaPlan(choice.value(), verb.base, from);
  PlanInputs inputs;
  inputs.config = JsonValue::Object{};
  const Result<Plan> plan = EvaluateHuggingFacePlan(exact, verb.file, inputs);
  if (!plan.ok()) return plan.diagnostics();
  return verb.idiomatic ? WriteIdiomaticPlan(choice.value(), verb.base, from).text : exact.text;
}

}  // namespace moonshard
