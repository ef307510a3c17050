// Resolve: one style on one kind of module. The part of compile that fills in every layout and checks each alone.
#pragma once

#include <string>

#include "engine/core/base/diagnostic.h"
#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

// Where a style lands: the module that stands for all of its signature and kind under the rule.
struct Landing {
  const Module* module = nullptr;
  const ModuleTree::Signature* signature = nullptr;
  std::string pattern;  // of the rule; for messages
  SourceSpan source;    // of the rule
};

// Fills params, redistributions, after, lookup, route and features of `steps`. What is wrong goes to `diagnostics`,
// with the rule's line and the module's path; `steps` is then fit for further checks, not for use.
void ResolveStyle(const Style& style, const Landing& landing, const MeshShape& mesh, ModuleSteps& steps,
                  Diagnostics& diagnostics);

// Checks one parameter's placement and counts its dims from the front.
void ResolvePlacement(const Parameter& parameter, const Landing& landing, const MeshShape& mesh, Placement& placement,
                      Diagnostics& diagnostics);

// Feature sizes that follow from the module's kind and weight.
void FillFeatures(const Module& module, const ModuleTree::Signature& signature, ModuleSteps& steps);

}  // namespace moonshard
