// ResolveStyle: resolves one style for one kind of module: fills in every layout and checks each layout by itself.
// Part of compile.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/core/base/diagnostic.h"
#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

// The module that a style is resolved for. It represents all modules of the rule with the same signature and kind.
struct Landing {
  const Module* module = nullptr;
  const ModuleTree::Signature* signature = nullptr;
  std::string pattern;  // of the rule; for messages
  SourceSpan source;    // of the rule
};

// Fills in style, params, inputs, outputs, after, lookup, route, exchange, ring, experts and missing of `layouts`. Call
// FillFeatures(layouts) first. Adds errors to `diagnostics`, with the rule's line and the module's path. After an error
// `layouts` is only for further checks and must not be applied.
void ResolveStyle(const Style& style, const Landing& landing, const MeshShape& mesh, ModuleLayouts& layouts,
                  Diagnostics& diagnostics);

// Checks one parameter's placement, counts its dims from the front and fills in the sizes of its equal parts. Adds
// errors to `diagnostics`; a layout with a bad dim or bad parts becomes replicate.
void ResolvePlacement(const Parameter& parameter, const Landing& landing, const MeshShape& mesh, Placement& placement,
                      Diagnostics& diagnostics);

// Returns kStyleDoesNotFit if the module is a recurrent layer of LibTorch (LSTM, GRU, RNN and their cells), whose
// parameters no rule can shard on tp; else nullopt. `declared`: the layout that a rule gives one of them.
std::optional<Diagnostic> RefuseRecurrence(const Landing& landing, const std::string& declared);

// Sets in_features and out_features of `layouts` as far as they follow from the module's kind and weight.
void FillFeatures(const Module& module, const ModuleTree::Signature& signature, ModuleLayouts& layouts);

// Returns kPackedDoesNotFit if the layout has equal parts, `packed(dim, n)`, and n does not divide `size`, the size of
// the dim; else nullopt. `what` names the tensor of the module in the message: "input 0".
std::optional<Diagnostic> UnequalParts(const Layout& layout, int64_t size, const Landing& landing,
                                       const std::string& what);

// Fills in the sizes of equal parts of a redistribution whose tensor has `features` features (-1: not known, nothing is
// filled in). Reports a number of parts that does not divide the features, unless `reported` is true: an error of the
// style was reported before. Such parts become a plain shard.
void FillEqualParts(int64_t features, const Landing& landing, const std::string& what, bool reported,
                    std::optional<Redistribution>& redistribution, Diagnostics& diagnostics);

}  // namespace moonshard
