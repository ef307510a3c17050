// Hugging Face plans as plans of this engine.
// There is no second interpreter for them: the tables are written as a Lua plan (lua_text.h), which is evaluated like
// any other, in the same sandbox and with the same options. Places in that text are then replaced by places in the file
// that it comes from, in diagnostics and in the rules of the plan, since the user never sees the generated text.
// A config's table has keys relative to its base model, and the file does not contain the base model's path in the full
// model. It is derived from the module names if there is a model; an option "base" replaces it, and without a model
// "model." is used, which most causal language models have.
#include "dsl/planning/choose/hugging_face_plan.h"

#include "dsl/language/eval/files.h"
#include "dsl/language/eval/load_plan.h"
#include "dsl/planning/hugging_face/plan_file.h"

namespace moonshard {
namespace {

constexpr std::string_view kPrefix = "hf:";
constexpr size_t kMostBytes = size_t{16} << 20;
constexpr const char* kConfigFile = "config.json";

Result<Plan> PlanOfChoice(const HuggingFaceChoice& choice, const std::string& file, const PlanInputs& inputs) {
  std::string base = "model.";
  if (inputs.model != nullptr && !inputs.options.contains("base")) {
    const Result<std::string> found = FindBasePath(choice, *inputs.model);
    if (!found.ok()) return found.diagnostics();
    base = found.value();
  }
  return EvaluateHuggingFacePlan(WriteLuaPlan(choice, base, file), file, inputs);
}

}  // namespace

bool IsHuggingFaceName(const std::string& plan) { return plan.starts_with(kPrefix); }

Result<HuggingFaceFile> ReadHuggingFaceFile(const std::string& path) {
  const Result<SourceFile> source = ReadSource(path, kMostBytes);
  if (!source.ok()) return source.diagnostics();
  return ReadHuggingFacePlans(source.value().text, path);
}

Result<Plan> EvaluateHuggingFacePlan(const LuaPlanText& text, const std::string& name, const PlanInputs& inputs) {
  Result<Plan> plan = EvaluatePlan(text.text, name, inputs);
  Diagnostics diagnostics = plan.diagnostics();
  PointToOrigin(text, name, diagnostics);
  if (!plan.ok()) return diagnostics;
  PointToOrigin(text, name, plan.value());
  return Result<Plan>(std::move(plan).value(), std::move(diagnostics));
}

Result<Plan> LoadHuggingFacePlan(const std::string& plan, const PlanInputs& inputs) {
  const size_t hash = plan.rfind('#');
  const std::string path = plan.substr(kPrefix.size(), hash == std::string::npos ? hash : hash - kPrefix.size());
  const Result<HuggingFaceFile> file = ReadHuggingFaceFile(path);
  if (!file.ok()) return file.diagnostics();
  const std::string key = hash == std::string::npos ? "" : plan.substr(hash + 1);
  const Result<HuggingFaceChoice> choice = ChooseHuggingFacePlan(file.value(), key, inputs.config);
  if (!choice.ok()) return choice.diagnostics();
  return PlanOfChoice(choice.value(), path, inputs);
}

Result<std::optional<Plan>> PlanOfCheckpoint(const PlanInputs& inputs) {
  const auto has_plan = [](const JsonValue& config) {
    const JsonValue* plan = config.Find("base_model_tp_plan");
    return plan != nullptr && plan->is_object() && !plan->AsObject().empty();
  };
  const JsonValue* text_config = inputs.config.Find("text_config");
  if (!has_plan(inputs.config) && (text_config == nullptr || !has_plan(*text_config))) return std::optional<Plan>();
  const Result<HuggingFaceFile> file = ReadHuggingFacePlans(WriteJson(inputs.config, 0), kConfigFile);
  if (!file.ok()) return file.diagnostics();
  const Result<HuggingFaceChoice> choice = ChooseHuggingFacePlan(file.value(), "", inputs.config);
  if (!choice.ok()) return choice.diagnostics();
  Result<Plan> plan = PlanOfChoice(choice.value(), kConfigFile, inputs);
  if (!plan.ok()) return plan.diagnostics();
  Diagnostics diagnostics = plan.diagnostics();
  return Result<std::optional<Plan>>(std::move(plan).value(), std::move(diagnostics));
}

}  // namespace moonshard
