// PlanInputs: everything that a plan can read. The inputs are the same on every rank.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "dsl/language/bind/builtins.h"
#include "dsl/language/state/limits.h"
#include "engine/core/base/json.h"
#include "engine/layout/mesh_shape.h"
#include "engine/layout/module_tree.h"

namespace moonshard {

// An option of a plan, as its first declaration in options{} defines it. A base plan that declares the same option gets
// the same value.
struct DeclaredOption {
  JsonValue value;
  JsonValue fallback;  // the default
  SourceSpan source;   // the place of the declaration
};

// The options that an evaluation declared and the files that the evaluation read. Also filled if the plan has errors.
struct EvaluationRecord {
  std::map<std::string, DeclaredOption> options;
  std::vector<std::string> files;  // paths, except those of built-in files, in the order of the first read
};

// Every member has a default, so that a caller can set only some of the members: {.mesh = ..., .options = ...}.
struct PlanInputs {
  JsonValue config = {};  // the model's config.json; null counts as a config without fields
  MeshShape mesh = {};
  const ModuleTree* model = nullptr;              // for model:has(...); must outlive the evaluation; may be null
  std::map<std::string, JsonValue> options = {};  // by name; a string ("true", "8") is parsed as the declared type
  std::vector<std::string> search_path = {};      // directories searched for named plans before the built-in plans
  ScriptLimits limits = {};
  std::span<const DeprecatedName> deprecated = DeprecatedNames();
  bool isolate = false;                // evaluate in a confined child process (dsl/language/eval/isolated.h)
  EvaluationRecord* record = nullptr;  // filled unless null; must outlive the evaluation
};

}  // namespace moonshard
