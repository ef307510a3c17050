// PlanInputs: everything a plan can see. Nothing in it differs between ranks.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "dsl/state/limits.h"
#include "engine/base/json.h"
#include "engine/plan/mesh_shape.h"
#include "engine/tree/module_tree.h"

namespace moonshard {

// Every member has a default, so that a host may name just those it gives: {.mesh = ..., .options = ...}.
struct PlanInputs {
  JsonValue config = {};  // the model's config.json; null: no fields
  MeshShape mesh = {};
  const ModuleTree* model = nullptr;              // for `model:has(...)`; must outlive the evaluation; may be null
  std::map<std::string, JsonValue> options = {};  // by name; a text ("true", "8") is read as the option's declared type
  std::vector<std::string> search_path = {};      // folders looked into for named plans before the built-in ones
  ScriptLimits limits = {};
};

}  // namespace moonshard
