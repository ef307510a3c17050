// ResolveStyle: one style on one kind of module: fills in every layout and checks each alone.
// Part of compile.h.
#pragma once

#include <cstdint>
#include <optional>
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

// Fills params, redistributions, after, lookup, route and features of `layouts`. Errors go to `diagnostics`, with the
// rule's line and the module's path; `layouts` then serves further checks alone, and is not to be applied.
void ResolveStyle(const Style& style, const Landing& landing, const MeshShape& mesh, ModuleLayouts& layouts,
                  Diagnostics& diagnostics);

// Checks one parameter's placement and counts its dims from the front.
void ResolvePlacement(const Parameter& parameter, const Landing& landing, const MeshShape& mesh, Placement& placement,
                      Diagnostics& diagnostics);

// Feature sizes that follow from the module's kind and weight.
void FillFeatures(const Module& module, const ModuleTree::Signature& signature, ModuleLayouts& layouts);

// Equal parts, `packed(dim, n)`, whose sizes follow from the dim: kPackedDoesNotFit where the layout has equal parts
// that do not divide `size`. `what`: of the module, for the message.
std::optional<Diagnostic> UnequalParts(const Layout& layout, int64_t size, const Landing& landing,
                                       const std::string& what);

// Gives equal parts of so many features (-1: not known) their sizes. `reported`: the parts are known not to divide
// them.
void FillEqualParts(int64_t features, const Landing& landing, const std::string& what, bool reported,
                    std::optional<Redistribution>& redistribution, Diagnostics& diagnostics);

}  // namespace moonshard
