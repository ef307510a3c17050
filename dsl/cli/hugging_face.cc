#include "dsl/cli/hugging_face.h"

#include <filesystem>

#include "dsl/eval/files.h"
#include "dsl/eval/load_plan.h"
#include "dsl/hugging_face/base_path.h"
#include "dsl/hugging_face/idiomatic.h"
#include "dsl/hugging_face/lua_text.h"
#include "dsl/hugging_face/plan_file.h"

namespace moonshard {
namespace {

constexpr std::string_view kPrefix = "hf:";
constexpr size_t kMostBytes = size_t{16} << 20;

Result<HuggingFaceFile> ReadFile(const std::string& path) {
  const Result<SourceFile> source = ReadSource(path, kMostBytes);
  if (!source.ok()) return source.diagnostics();
  return ReadHuggingFacePlans(source.value().text, path);
}

// Evaluates the text; what there is to say is said about the file that it was made from.
Result<Plan> Evaluate(const LuaPlanText& text, const std::string& name, const PlanInputs& inputs) {
  Result<Plan> plan = EvaluatePlan(text.text, name, inputs);
  Diagnostics diagnostics = plan.diagnostics();
  PointToOrigin(text, name, diagnostics);
  if (!plan.ok()) return diagnostics;
  PointToOrigin(text, name, plan.value());
  return Result<Plan>(std::move(plan).value(), std::move(diagnostics));
}

}  // namespace

bool IsHuggingFaceName(const std::string& plan) { return plan.starts_with(kPrefix); }

Result<Plan> LoadHuggingFacePlan(const std::string& plan, const PlanInputs& inputs) {
  const size_t hash = plan.rfind('#');
  const std::string path = plan.substr(kPrefix.size(), hash == std::string::npos ? hash : hash - kPrefix.size());
  const Result<HuggingFaceFile> file = ReadFile(path);
  if (!file.ok()) return file.diagnostics();
  const std::string key = hash == std::string::npos ? "" : plan.substr(hash + 1);
  const Result<HuggingFaceChoice> choice = ChooseHuggingFacePlan(file.value(), key, inputs.config);
  if (!choice.ok()) return choice.diagnostics();
  std::string base = "model.";
  if (inputs.model != nullptr && !inputs.options.contains("base")) {
    const Result<std::string> found = FindBasePath(choice.value(), *inputs.model);
    if (!found.ok()) return found.diagnostics();
    base = found.value();
  }
  return Evaluate(WriteLuaPlan(choice.value(), base, path), path, inputs);
}

Result<std::string> ImportHuggingFacePlan(const ImportVerb& verb) {
  const Result<HuggingFaceFile> file = ReadFile(verb.file);
  if (!file.ok()) return file.diagnostics();
  const std::string key = verb.experts ? (verb.key.empty() ? "ep" : verb.key + "/ep") : verb.key;
  const Result<HuggingFaceChoice> choice = ChooseHuggingFacePlan(file.value(), key, {});
  if (!choice.ok()) return choice.diagnostics();
  const std::string from = std::filesystem::path(verb.file).filename().string();
  // Evaluated in Hugging Face's words, which need no config, so that every style is known to exist.
  const LuaPlanText exact = WriteLuaPlan(choice.value(), verb.base, from);
  PlanInputs inputs;
  inputs.config = JsonValue::Object{};
  const Result<Plan> plan = Evaluate(exact, verb.file, inputs);
  if (!plan.ok()) return plan.diagnostics();
  return verb.idiomatic ? WriteIdiomaticPlan(choice.value(), verb.base, from).text : exact.text;
}

}  // namespace moonshard
