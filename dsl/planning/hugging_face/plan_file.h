// PlanFile: reads the Hugging Face plans in a text. Four forms are read:
//
//   { "llama/LlamaConfig": { "kind": "config", "base_model_tp_plan": { ... } }, ... }   every plan of a release
//   { "model_type": "llama", "base_model_tp_plan": { ... } }                             config.json; also within
//                                                                                        text_config
//   { "layers.*.self_attn.q_proj": "colwise", ... }                                      a bare tp_plan, JSON or Python
//   base_model_tp_plan = { ... }                                                         Python source
//                                                                                        (configuration_*.py)
//
// A table maps keys to names of styles. The keys of a config's table (base_model_tp_plan) are relative to the base
// model; the file does not contain the path of the base model within the full model. The keys of a model class's table
// (_tp_plan) and of a bare tp_plan are relative to the full model.
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
  bool of_base = false;  // keys are relative to the base model
  bool experts = false;  // an ep_plan, which replaces the tp_plan
  std::vector<HuggingFaceRule> rules;
};

// One class, or one part of a config.json.
struct HuggingFaceEntry {
  std::string name;        // "llama/LlamaConfig"; "config.json", "config.json/text_config"; a class of a Python source
  std::string model_type;  // "" if the file has no model type
  bool is_config = false;  // a configuration, not a model class
  // Whether the config ties the input and output embeddings by default. If they are tied, the translated tp_plan
  // shards the shared tensor by its rows even if no key names the tensor, as transformers does.
  bool ties_by_default = false;
  std::vector<HuggingFaceTable> tables;

  const HuggingFaceTable* Find(bool experts) const;
};

struct HuggingFaceFile {
  std::string file;
  std::vector<HuggingFaceEntry> entries;  // in the order of the file; entries without a table are omitted
};

// Errors (with file and line): those of ParseLiteral; kBadJson for a table that is not a dict of strings and for a text
// that holds no plan.
Result<HuggingFaceFile> ReadHuggingFacePlans(std::string_view text, const std::string& file);

// The tables that make up one plan: at most one of a model class and one of a config. The pointers refer to the
// HuggingFaceFile, which must outlive this struct.
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
// Errors: kPlanNotFound: there is no such entry (the message has the nearest name), or there are several.
Result<HuggingFaceChoice> ChooseHuggingFacePlan(const HuggingFaceFile& file, std::string key, const JsonValue& config);

// Returns the path of the base model within the full model ("model." for LlamaForCausalLM), to which the keys of a
// config's tp_plan are relative. transformers has the path from its classes; here it is derived from the module names:
// it is the prefix with which the largest number of keys of the choice's base table match a module or parameter, and ""
// if no key matches or the choice has no base table. Errors (kRuleConflict): several prefixes fit equally well; the
// message names all of them.
Result<std::string> FindBasePath(const HuggingFaceChoice& choice, const ModuleTree& tree);

}  // namespace moonshard
