// The verbs between plan files and the plans of Hugging Face and torch: import and export.
#include <filesystem>
#include <iostream>

#include "dsl/commands/cli/verbs.h"
#include "dsl/planning/choose/hugging_face_plan.h"
#include "dsl/planning/hugging_face/export.h"
#include "dsl/planning/hugging_face/lua_text.h"
#include "dsl/planning/hugging_face/plan_file.h"
#include "dsl/planning/resolve_model/resolve_model.h"

namespace moonshard {
namespace {

// The text of a plan file. It has been evaluated once: an undefined style is an error at its line in FILE.
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

}  // namespace

int RunImport(const ImportVerb& verb) {
  const Result<std::string> text = ImportHuggingFacePlan(verb);
  PrintFindings(text.diagnostics(), verb.findings_output);
  if (!text.ok()) return kExitUsage;
  std::cout << text.value();
  return kExitSuccess;
}

int RunExport(const ExportVerb& verb) {
  const Result<CompiledPlan> plan = ResolveFromHeaders(verb.model);
  Diagnostics found = plan.diagnostics();
  if (!plan.ok()) {
    PrintFindings(found, verb.findings_output);
    return kExitUsage;
  }
  const ExportedPlan exported = verb.form == "hf" ? ExportHuggingFace(plan.value()) : ExportTorch(plan.value());
  found.insert(found.end(), exported.findings.begin(), exported.findings.end());
  PrintFindings(found, verb.findings_output);
  std::cout << exported.text;
  return HasErrors(exported.findings) ? kExitFailed : kExitSuccess;
}

}  // namespace moonshard
