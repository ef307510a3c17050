// Every tp_plan and ep_plan that transformers ships, on the model that its class makes: each rule must match what
// transformers' own lookup matches, and each parameter must lie where its DTensor lies on two ranks. trees.txt holds
// what transformers does; make_trees.py, which wrote it, says how.
#include <catch2/catch.hpp>

#include <map>
#include <set>
#include <sstream>

#include "dsl/language/eval/load_plan.h"
#include "dsl/planning/hugging_face/export.h"
#include "dsl/planning/hugging_face/lua_text.h"
#include "dsl/planning/hugging_face/plan_file.h"
#include "engine/core/base/text.h"
#include "engine/plan/compile/local_shape.h"
#include "engine/plan/resolve/resolve_plan.h"
#include "tests/support/golden.h"
#include "tests/support/paths.h"
#include "tests/support/tree_text.h"

namespace moonshard {
namespace {

constexpr const char* kForms[] = {"tp", "ep"};
constexpr size_t kTpPlans = 119;  // of configuration classes, in transformers 5.18
constexpr size_t kEpPlans = 53;

// What transformers does with one module: the rule of its calls, and for each parameter that a rule is found for the
// placement and the rule.
struct Effect {
  std::string call;
  struct OfParameter {
    std::string placement;
    std::string key;
  };
  std::map<std::string, OfParameter> parameters;
};

struct Section {
  std::string name;
  bool tied = false;
  std::map<std::string, std::map<std::string, std::string>> plans;  // form -> key -> style
  std::string tree;                                                 // as TreeFromText reads it
  std::map<std::string, std::map<std::string, Effect>> effects;     // form -> path -> effect
};

Effect ParseEffect(const std::string& text) {
  std::istringstream words(text);
  Effect effect;
  words >> effect.call;
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    const size_t at = word.find('@');
    const std::string key = at == std::string::npos ? effect.call : word.substr(at + 1);
    effect.parameters[word.substr(0, equals)] = {
        word.substr(equals + 1, at == std::string::npos ? at : at - equals - 1), key};
  }
  return effect;
}

// The paths that a folded line stands for.
std::vector<std::string> Paths(const std::string& line) {
  std::vector<std::string> paths;
  const ModuleTree tree = TreeFromText(line.substr(0, line.find(' ')) + " ?");
  for (const Module& module : tree.modules()) paths.push_back(module.path);
  return paths;
}

std::vector<Section> ReadSections() {
  std::vector<Section> sections;
  for (const std::string& line :
       Split(ReadWholeFile(test::SourcePath("tests/dsl/planning/hugging_face/trees.txt")), '\n')) {
    if (line.empty() || line.starts_with("# ")) continue;
    if (line.starts_with("== ")) {
      std::istringstream words(line.substr(3));
      std::string model;
      std::string tied;
      words >> sections.emplace_back().name >> model >> tied;
      INFO(line);
      REQUIRE((tied == "tied" || tied == "untied"));  // "cannot be built" would be a plan that is not proven
      sections.back().tied = tied == "tied";
      continue;
    }
    Section& section = sections.back();
    if (line.starts_with("tp ") || line.starts_with("ep ")) {
      const std::vector<std::string> words = Split(line, ' ');
      section.plans[words[0]][words[1]] = words[2];
      continue;
    }
    std::vector<std::string> columns;
    for (size_t begin = 0, end = 0; end != std::string::npos; begin = end + 3) {
      end = line.find(" | ", begin);
      columns.push_back(line.substr(begin, end == std::string::npos ? end : end - begin));
    }
    section.tree += columns[0] + "\n";
    for (size_t form = 0; form < 2 && form + 1 < columns.size(); ++form) {
      if (columns[form + 1].empty()) continue;
      for (const std::string& path : Paths(line)) section.effects[kForms[form]][path] = ParseEffect(columns[form + 1]);
    }
  }
  return sections;
}

// The plan as a release's file has it. The rule that transformers adds for tied embeddings is left out: importing adds
// it.
std::string ReleaseFile(const Section& section, const std::string& form) {
  JsonValue::Object table;
  for (const auto& [key, style] : section.plans.at(form)) {
    if (form == "tp" && section.tied && key == "embed_tokens") continue;
    table[key] = style;
  }
  const JsonValue::Object entry = {{"kind", "config"}, {"base_model_" + form + "_plan", std::move(table)}};
  return WriteJson(JsonValue::Object{{section.name, entry}}, 1);
}

CompiledPlan Resolve(const Section& section, const std::string& form, MatchedPlan* matched) {
  const HuggingFaceFile file = ReadHuggingFacePlans(ReleaseFile(section, form), "plans.json").ValueOrThrow();
  const HuggingFaceChoice choice =
      ChooseHuggingFacePlan(file, section.name + (form == "ep" ? "/ep" : ""), {}).ValueOrThrow();
  PlanInputs inputs;
  inputs.config = JsonValue::Object{{"tie_word_embeddings", section.tied}};
  inputs.mesh = MeshShape::Parse("tp=2").ValueOrThrow();
  auto plan = std::make_shared<const Plan>(
      EvaluatePlan(WriteLuaPlan(choice, "", "plans.json").text, "plans.json", inputs).ValueOrThrow());
  Resolution resolved = RunPasses(plan, std::make_shared<const ModuleTree>(TreeFromText(section.tree)), inputs.mesh);
  if (resolved.compiled) *matched = *resolved.matched;
  return ToResult(std::move(resolved)).ValueOrThrow();
}

std::string KeyOf(const Plan& plan, int32_t rule) {
  return rule < 0 ? "-" : plan.rules[static_cast<size_t>(rule)].pattern;
}

// A layout as make_trees.py writes a DTensor's: what transformers leaves a plain tensor is whole, like a replicated
// one.
std::string PlacementText(const Layout& layout, int64_t size) {
  if (!layout.is_shard()) return "whole";
  if (layout.parts.empty()) return "S" + std::to_string(layout.dim);
  const bool halves = layout.parts.size() == 2 && layout.parts[0].size * 2 == size && layout.parts[1].size * 2 == size;
  return (halves ? "P" : "other parts of ") + std::to_string(layout.dim);
}

// What differs, one line each.
std::vector<std::string> Differences(const Section& section, const std::string& form) {
  MatchedPlan matched;
  const CompiledPlan compiled = Resolve(section, form, &matched);
  const ModuleTree& tree = *compiled.tree;
  std::vector<std::string> out;
  const auto expect = [&](const std::string& what, const std::string& ours, const std::string& theirs) {
    if (ours != theirs)
      out.push_back(section.name + " " + form + " " + what + ": " + ours + ", transformers: " + theirs);
  };
  for (uint32_t m = 0; m < tree.modules().size(); ++m) {
    const Module& module = tree.modules()[m];
    const Effect& theirs = section.effects.at(form).at(module.path);
    expect(module.path, KeyOf(*compiled.plan, matched.rule_of[m]), theirs.call);
    const ModuleLayouts& layouts = compiled.LayoutsOf(m);
    for (uint32_t p = 0; p < tree.parameters(module).size(); ++p) {
      const Parameter& parameter = tree.parameters(module)[p];
      const auto found = theirs.parameters.find(parameter.name);
      const int32_t own = matched.ParameterRuleOf({m, p});
      const std::string what = tree.PathOf({m, p});
      const Layout& layout = layouts.params[p][MeshAxis::kTp];
      const int64_t size = layout.is_shard() ? parameter.shape[static_cast<size_t>(layout.dim)] : 0;
      if (found == theirs.parameters.end()) {
        expect(what, PlacementText(layout, size), "whole");
        expect(what + " rule", KeyOf(*compiled.plan, own), "-");
        continue;
      }
      const std::string& placement = found->second.placement;
      expect(what, PlacementText(layout, size), placement == "R" || placement == "N" ? "whole" : placement);
      expect(what + " rule", KeyOf(*compiled.plan, own >= 0 ? own : matched.rule_of[m]), found->second.key);
    }
  }
  return out;
}

TEST_CASE("every plan that transformers ships matches and places what transformers does") {
  const std::vector<Section> sections = ReadSections();
  std::map<std::string, size_t> proven;
  size_t sharded = 0;
  for (const Section& section : sections) {
    for (const auto& [form, plan] : section.plans) {
      const std::vector<std::string> differences = Differences(section, form);
      INFO(Join(differences, "\n"));
      CHECK(differences.empty());
      ++proven[form];
    }
    for (const auto& [form, effects] : section.effects) {
      for (const auto& [path, effect] : effects) sharded += effect.parameters.size();
    }
  }
  CHECK(proven["tp"] == kTpPlans);
  CHECK(proven["ep"] == kEpPlans);
  CHECK(sharded > 10000);  // the fixture is not empty
}

// What a rule of the plan is called when it comes back: on an embedding, two names mean the same.
bool SameStyle(const std::string& exported, const std::string& given) {
  return exported == given || (exported == "embedding_rowwise" && given == "rowwise_split_input");
}

// Whether a rule does anything: the sum of gradients of a module without parameters is none.
bool HasEffect(const MatchedPlan& matched, int32_t rule) {
  const Style& style = matched.plan->rules[static_cast<size_t>(rule)].style;
  if (!style.inputs.empty() || !style.outputs.empty() || style.route || !style.missing.empty()) return true;
  const std::vector<Module>& modules = matched.tree->modules();
  for (size_t m = 0; m < modules.size(); ++m) {
    if (matched.rule_of[m] == rule && !matched.tree->parameters(modules[m]).empty()) return true;
  }
  return std::ranges::any_of(matched.parameter_rules, [&](const auto& of) { return of.rule == rule; });
}

TEST_CASE("every shipped plan comes back from its export") {
  for (const Section& section : ReadSections()) {
    for (const auto& [form, plan] : section.plans) {
      MatchedPlan matched;
      const ExportedPlan exported = ExportHuggingFace(Resolve(section, form, &matched));
      INFO(section.name << " " << form << "\n" << ToText(exported.findings));
      CHECK_FALSE(HasErrors(exported.findings));
      const JsonValue table = ParseJson(exported.text, "exported.json").ValueOrThrow();
      for (const auto& [key, style] : table.AsObject()) {
        INFO(key);
        REQUIRE(plan.contains(key));
        CHECK(SameStyle(style.AsString(), plan.at(key)));
      }
      for (size_t rule = 0; rule < matched.plan->rules.size(); ++rule) {
        if (matched.matches[rule] == 0 || !HasEffect(matched, static_cast<int32_t>(rule))) continue;
        INFO(matched.plan->rules[rule].pattern);
        CHECK(table.Find(matched.plan->rules[rule].pattern) != nullptr);
      }
    }
  }
}

TEST_CASE("the fixture has every style of a shipped plan, and every kind of placement") {
  std::set<std::string> styles;
  std::set<std::string> placements;
  for (const Section& section : ReadSections()) {
    for (const auto& [form, plan] : section.plans) {
      for (const auto& [key, style] : plan) styles.insert(style);
    }
    for (const auto& [form, effects] : section.effects) {
      for (const auto& [path, effect] : effects) {
        for (const auto& [name, of] : effect.parameters) placements.insert(of.placement);
      }
    }
  }
  CHECK(styles == std::set<std::string>{"all_reduce", "colwise", "colwise_gather_output", "embedding_rowwise",
                                        "ep_router", "grouped_gemm", "mla_kv_a_proj", "moe_identity_expert",
                                        "moe_tp_experts", "packed_colwise", "packed_rowwise",
                                        "replicated_with_grad_allreduce", "rowwise", "rowwise_split_input"});
  CHECK(placements == std::set<std::string>{"N", "P1", "P2", "R", "S0", "S1", "S2"});
}

}  // namespace
}  // namespace moonshard
