// PlanFile: the Hugging Face plans that a text holds. Four forms are read:
//
//   { "llama/LlamaConfig": { "kind": "config", "base_model_tp_plan": { ... } }, ... }   every plan of a release
//   { "model_type": "llama", "base_model_tp_plan": { ... } }                             config.json; also within
//                                                                                        text_config
//   { "layers.*.self_attn.q_proj": "colwise", ... }                                      a bare tp_plan, JSON or Python
//   base_model_tp_plan = { ... }                                                         Python source
//                                                                                        (configuration_*.py)
//
// A table maps keys to names of styles. Those of a config (base_model_tp_plan) are relative to its base model, whose
// path within the full model is not in the file; those of a model class (_tp_plan) and bare ones are relative to the
// model.
// Stage before: literal.h. Stage after: lua_text.h.
#pragma once

#include "engine/layout/module_tree.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/base/json.h"
#include "engine/core/base/result.h"

namespace moonshard {

struct HuggingFaceRule {
  std::string key;
  std::string style;
  SourceSpan where;
};

struct HuggingFaceTable {
  std::string name;      // "base_model_tp_plan"
  bool of_base = false;  // keys are within the base model
  bool experts = false;  // an ep_plan, which takes the place of the tp_plan
  std::vector<HuggingFaceRule> rules;
};

// One class, or one part of a config.json.
struct HuggingFaceEntry {
  std::string name;        // "llama/LlamaConfig"; "config.json", "config.json/text_config"; a class of a Python source
  std::string model_type;  // "" where the file has none
  bool is_config = false;  // a configuration, not a model class
  // Whether the config ties input and output embeddings by default: the embedding is then sharded too.
  bool ties_by_default = false;
  std::vector<HuggingFaceTable> tables;

  const HuggingFaceTable* Find(bool experts) const;
};

struct HuggingFaceFile {
  std::string file;
  std::vector<HuggingFaceEntry> entries;  // in the order of the file; those without a table are omitted
};

// Errors (with file and line): those of ParseLiteral; kBadJson for a table that is not a dict of strings and for a text
// that holds no plan.
Result<HuggingFaceFile> ReadHuggingFacePlans(std::string_view text, const std::string& file);

// The tables that make one plan: at most one of a model class and one of a config. Points into the HuggingFaceFile,
// which must outlive it.
struct HuggingFaceChoice {
  std::string name;
  const HuggingFaceEntry* model = nullptr;
  const HuggingFaceEntry* config = nullptr;
  bool experts = false;

  const HuggingFaceTable* model_table() const { return model == nullptr ? nullptr : model->Find(experts); }
  const HuggingFaceTable* config_table() const { return config == nullptr ? nullptr : config->Find(experts); }
};

// Selects the plan that `key` names:
//   "llama/LlamaConfig", "LlamaConfig"   that entry
//   "llama"                              a model type or directory: its ForCausalLM class, else its
//                                        ForConditionalGeneration class, else its config, else its only entry
//   ""                                   the only entry; else by `config` (a config.json; may be null): the first of
//                                        its architectures that the file has, else its model_type
// "KEY/ep", or "ep" alone, selects the ep_plan. A model class includes the table of its config.
// Errors: kPlanNotFound: no such entry (with the nearest name), or several.
Result<HuggingFaceChoice> ChooseHuggingFacePlan(const HuggingFaceFile& file, std::string key, const JsonValue& config);

// The path of the base model, which the keys of a config's tp_plan are relative to, within the full model
// ("model." in LlamaForCausalLM). transformers has it from its classes; here it is derived from the module names.
// The prefix under which the most keys of the choice's base table name a module or parameter; "" where none does, or
// where the choice has no base table. Errors (kRuleConflict): two prefixes fit equally well; both are named.
Result<std::string> FindBasePath(const HuggingFaceChoice& choice, const ModuleTree& tree);

}  // namespace moonshard
