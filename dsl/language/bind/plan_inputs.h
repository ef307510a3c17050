// PlanInputs: everything a plan can see. Nothing in it differs between ranks.
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

// An option as options{} declared it first; the plans below it, which it extends, get the same value.
struct DeclaredOption {
  JsonValue value;
  JsonValue fallback;  // what it is where nothing was given
  SourceSpan source;
};

// What an evaluation declared and read, also one that failed.
struct EvaluationRecord {
  std::map<std::string, DeclaredOption> options;
  std::vector<std::string> files;  // that are not built in, in the order in which they were first read
};

// Every member has a default, so that a host may name just those it gives: {.mesh = ..., .options = ...}.
struct PlanInputs {
  JsonValue config = {};  // the model's config.json; null: no fields
  MeshShape mesh = {};
  const ModuleTree* model = nullptr;              // for `model:has(...)`; must outlive the evaluation; may be null
  std::map<std::string, JsonValue> options = {};  // by name; a text ("true", "8") is read as the option's declared type
  std::vector<std::string> search_path = {};      // directories looked into for named plans before the built-in ones
  ScriptLimits limits = {};
  std::span<const DeprecatedName> deprecated = DeprecatedNames();
  bool isolate = false;                // in a child process under limits of the system (dsl/language/eval/isolated.h)
  EvaluationRecord* record = nullptr;  // filled where it is given; must outlive the evaluation
};

}  // namespace moonshard
