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
#include "dsl/planning/choose/structure_plan.h"
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

Diagnostic Fallback(const PlanInputs& inputs, const std::map<std::string, std::string>& index, const std::string& which,
                    const std::string& what) {
  Diagnostic d = MakeDiagnostic(Finding::kPlanFallback, WhyNot(inputs.config) + ": " + which + " is used");
  d.declared = what;
  d.help = NearestClass(inputs.config, index) +
           "explain shows what the plan does; verify compares a sharded run with an unsharded run; --plan selects "
           "another plan";
  return d;
}

Diagnostic NothingFits(const PlanInputs& inputs, const std::map<std::string, std::string>& index) {
  Diagnostic d =
      MakeDiagnostic(Finding::kPlanNotFound, WhyNot(inputs.config) +
                                                 ", and no block of the model is recognized unambiguously by names, "
                                                 "shapes and config.json");
  d.help = NearestClass(inputs.config, index) +
           "write a first plan file with moonshard suggest, and give it as --plan FILE; or give a shipped plan that "
           "fits the model as --plan NAME, one of " +
           Join(BuiltInPlans(), ", ") + "; or run unsharded with --mesh tp=1";
  return d;
}

Result<Plan> Chosen(Plan plan, std::string how, Diagnostics diagnostics) {
  plan.chosen = std::move(how);
  return Result<Plan>(std::move(plan), std::move(diagnostics));
}

// The default plan reads names, the plan by structure shapes too, at any path. The one that shards more of the
// parameters under the given options and mesh is taken, and the default one of two equals: it has more options. A plan
// with errors shards nothing; of two of these the default one's are shown, unless it recognizes nothing, or the plan by
// structure knows why the tokens cannot be shards: it reads the same modules, and more.
Result<Plan> PlanOfUnknown(const PlanInputs& inputs, const std::map<std::string, std::string>& index) {
  Diagnostics diagnostics;
  std::optional<Plan> by_name = LoadPlanFile(kDefaultPlan, inputs).Collect(diagnostics);
  if (by_name && inputs.mesh.size(MeshAxis::kTp) == 1) {
    return Chosen(*std::move(by_name), "tp=1 shards nothing", std::move(diagnostics));
  }
  const bool recognizes = !by_name || !by_name->rules.empty();
  if (inputs.model != nullptr) {
    StructurePlan structure = ReadStructure(inputs);
    const int64_t of_names = by_name && recognizes ? ShardedElements(*by_name, inputs) : -1;
    const int64_t of_structure = structure.plan.ok() ? ShardedElements(structure.plan.value(), inputs) : -1;
    // Where it alone shards something, its errors on this mesh are the answer.
    const bool alone = of_structure < 0 && !recognizes && structure.blocks > 0;
    const bool tells_why = (!by_name || !recognizes) && structure.no_sequence;
    if (of_structure > std::max<int64_t>(of_names, 0) || alone || tells_why) {
      Diagnostics found = structure.plan.diagnostics();
      if (!structure.plan.ok()) return found;
      found.push_back(Fallback(inputs, index, "the plan by structure",
                               Count(static_cast<size_t>(structure.blocks), "block") +
                                   " of modules identified from names, shapes and config.json; " +
                                   std::to_string(structure.left) +
                                   " not identified; moonshard suggest --sure writes this plan to a file"));
      return Chosen(std::move(structure.plan).value(), "by the structure of the modules", std::move(found));
    }
  }
  if (!by_name) return diagnostics;
  if (!recognizes) {
    diagnostics.push_back(NothingFits(inputs, index));
    return diagnostics;
  }
  diagnostics.push_back(
      Fallback(inputs, index, "the default plan",
               "plans/default.lua shards the modules that it recognizes by name and leaves the others replicated"));
  return Chosen(*std::move(by_name), "by the names of the modules", std::move(diagnostics));
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
    return Chosen(*std::move(plan), std::string(kIndexFile) + " has it for " + entry->key, std::move(diagnostics));
  }
  std::optional<std::optional<Plan>> own = PlanOfCheckpoint(inputs).Collect(diagnostics);
  if (!own) return diagnostics;
  if (*own) {
    Diagnostic d = MakeDiagnostic(
        Finding::kPlanFallback,
        WhyNot(inputs.config) + ": the checkpoint's own plan (base_model_tp_plan in config.json) is used");
    diagnostics.push_back(std::move(d));
    return Chosen(**std::move(own), "the checkpoint's own plan", std::move(diagnostics));
  }
  std::optional<Plan> plan = PlanOfUnknown(inputs, index).Collect(diagnostics);
  if (!plan) return diagnostics;
  return Result<Plan>(*std::move(plan), std::move(diagnostics));
}

Result<std::string> SelectPlan(const JsonValue& config) {
  const std::map<std::string, std::string> index = ReadIndex();
  if (const std::optional<Entry> entry = FindInIndex(config, index)) return entry->plan;
  std::vector<std::string> known;
  for (const auto& [name, plan] : index) known.push_back(name);
  Diagnostic d = MakeDiagnostic(Finding::kPlanNotFound, WhyNot(config));
  d.help =
      "there are plans for " + Join(known, ", ") +
      "; for any other architecture, write a first plan file with moonshard suggest and give that file as the plan";
  return d;
}

}  // namespace moonshard
