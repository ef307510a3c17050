// The steps go from the most to the least specific source (choose_plan.h). In the index a qualified name goes before a
// bare one, because two families may use one class name for different modules.
// Both fallbacks, the checkpoint's own plan and the default, are warnings: they shard what they recognize and are not
// tested with this model. A default plan without a rule is an error: a model that is replicated in full is not what tp
// > 1 is used for.
#include "dsl/planning/choose/choose_plan.h"

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "dsl/language/bind/arguments.h"
#include "dsl/language/bind/evaluation.h"
#include "dsl/language/eval/file_builtins.h"
#include "dsl/language/eval/files.h"
#include "dsl/language/eval/load_plan.h"
#include "dsl/planning/choose/hugging_face_plan.h"
#include "engine/core/base/text.h"

namespace moonshard {
namespace {

constexpr const char* kIndexFile = "plans/index.lua";
constexpr const char* kDefaultPlan = "default";

// The index: plan name by class name, qualified ("nemotron-nas.DeciLMForCausalLM") or bare.
std::map<std::string, std::string> ReadIndex() {
  const std::optional<SourceFile> file = FindEmbedded(kIndexFile);
  Check(file.has_value(), "plans/index.lua is not built in");
  std::map<std::string, std::string> index;
  Evaluation evaluation({});
  const bool done = evaluation.state().Run([&](lua_State* L) {
    OpenLanguage(L);
    RunSource(L, *file);
    Check(IsTable(L, -1), "plans/index.lua does not return a table");
    for (lua_pushnil(L); lua_next(L, -2) != 0; lua_pop(L, 1)) {
      const std::optional<std::string> name = StringAt(L, -2);
      const std::optional<std::string> plan = StringAt(L, -1);
      Check(name && plan, "plans/index.lua holds something else than names");
      index.emplace(*name, *plan);
    }
  });
  Check(done, "plans/index.lua does not evaluate: " + ToText(evaluation.state().TakeDiagnostics()));
  return index;
}

std::string TextOf(const JsonValue& config, const std::string& key) {
  const JsonValue* field = config.Find(key);
  return field != nullptr && field->is_string() ? field->AsString() : "";
}

// The model's classes: "architectures" of transformers, or "_class_name" of diffusers.
std::vector<std::string> ClassesOf(const JsonValue& config) {
  std::vector<std::string> classes;
  const JsonValue* architectures = config.Find("architectures");
  if (architectures != nullptr && architectures->is_array()) {
    for (const JsonValue& architecture : architectures->AsArray()) {
      if (architecture.is_string()) classes.push_back(architecture.AsString());
    }
  }
  if (const std::string name = TextOf(config, "_class_name"); !name.empty()) classes.push_back(name);
  return classes;
}

struct Entry {
  std::string key;
  std::string plan;
};

std::optional<Entry> FindInIndex(const JsonValue& config, const std::map<std::string, std::string>& index) {
  const std::string type = TextOf(config, "model_type");
  for (const std::string& name : ClassesOf(config)) {
    for (const std::string& key : {type + "." + name, name}) {
      if (const auto found = index.find(key); found != index.end()) return Entry{key, found->second};
    }
  }
  return std::nullopt;
}

std::string WhyNot(const JsonValue& config) {
  const std::vector<std::string> classes = ClassesOf(config);
  return classes.empty() ? "config.json names no architecture"
                         : "no plan for the architecture '" + Join(classes, ", ") + "'";
}

// "did you mean 'LlamaForCausalLM'? ", or nothing. Only the family, the name before "For...", is compared, among
// classes of the same task: the common suffix is long, so with it any two classes would count as similar.
std::string NearestClass(const JsonValue& config, const std::map<std::string, std::string>& index) {
  for (const std::string& name : ClassesOf(config)) {
    const size_t end = std::min(name.find("For"), name.size());
    const std::string task = name.substr(end);
    std::vector<std::string> families;
    for (const auto& [known, plan] : index) {
      if (known.ends_with(task)) families.push_back(known.substr(0, known.size() - task.size()));
    }
    const std::string nearest = NearestName(name.substr(0, end), families);
    if (!nearest.empty()) return "did you mean '" + nearest + task + "'? ";
  }
  return "";
}

Result<Plan> DefaultPlan(const PlanInputs& inputs, const std::map<std::string, std::string>& index) {
  Diagnostics diagnostics;
  std::optional<Plan> plan = LoadPlanFile(kDefaultPlan, inputs).Collect(diagnostics);
  if (!plan) return diagnostics;
  if (plan->rules.empty()) {
    Diagnostic d = MakeDiagnostic(
        Finding::kPlanNotFound,
        WhyNot(inputs.config) + ", and neither its attention nor its mlp has the modules of a usual decoder's");
    d.help = NearestClass(inputs.config, index) +
             "moonshard suggest writes a first plan file for it: --plan FILE; a shipped plan that fits it: --plan "
             "NAME, one of " +
             Join(BuiltInPlans(), ", ") + "; or --mesh tp=1";
    diagnostics.push_back(std::move(d));
    return diagnostics;
  }
  Diagnostic d = MakeDiagnostic(Finding::kPlanFallback, WhyNot(inputs.config) + ": the default plan is used");
  d.declared = "plans/default.lua shards the modules that it recognizes by name and leaves the others replicated";
  d.help = NearestClass(inputs.config, index) +
           "explain shows what it does; verify whether the numbers are the same; --plan names another plan";
  diagnostics.push_back(std::move(d));
  plan->chosen = "by the names of the modules";
  return Result<Plan>(std::move(*plan), std::move(diagnostics));
}

}  // namespace

Result<Plan> ChoosePlan(const std::string& wanted, const PlanInputs& inputs) {
  if (IsHuggingFaceName(wanted)) return LoadHuggingFacePlan(wanted, inputs);
  if (!wanted.empty()) return LoadPlanFile(wanted, inputs);
  Diagnostics diagnostics;
  const std::map<std::string, std::string> index = ReadIndex();
  if (const std::optional<Entry> entry = FindInIndex(inputs.config, index)) {
    std::optional<Plan> plan = LoadPlanFile(entry->plan, inputs).Collect(diagnostics);
    if (!plan) return diagnostics;
    plan->chosen = std::string(kIndexFile) + " has it for " + entry->key;
    return Result<Plan>(std::move(*plan), std::move(diagnostics));
  }
  std::optional<std::optional<Plan>> own = PlanOfCheckpoint(inputs).Collect(diagnostics);
  if (!own) return diagnostics;
  if (*own) {
    Diagnostic d = MakeDiagnostic(Finding::kPlanFallback, WhyNot(inputs.config) + ": the checkpoint's own is used");
    diagnostics.push_back(std::move(d));
    (*own)->chosen = "the checkpoint's own";
    return Result<Plan>(*std::move(*own), std::move(diagnostics));
  }
  std::optional<Plan> plan = DefaultPlan(inputs, index).Collect(diagnostics);
  if (!plan) return diagnostics;
  return Result<Plan>(std::move(*plan), std::move(diagnostics));
}

Result<std::string> SelectPlan(const JsonValue& config) {
  const std::map<std::string, std::string> index = ReadIndex();
  if (const std::optional<Entry> entry = FindInIndex(config, index)) return entry->plan;
  std::vector<std::string> known;
  for (const auto& [name, plan] : index) known.push_back(name);
  Diagnostic d = MakeDiagnostic(Finding::kPlanNotFound, WhyNot(config));
  d.help = "there are plans for " + Join(known, ", ") +
           "; moonshard suggest writes a first one for others, to be named instead";
  return d;
}

}  // namespace moonshard
