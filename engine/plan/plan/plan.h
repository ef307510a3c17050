// Plan: the content of a plan file as a value: the rules in source order, each with a pattern, a style and its source
// line, and the sections. A plan does not depend on a model. dsl/language/eval makes plans from Lua; C++ code can make
// them too.
// Stage after: match.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/base/diagnostic.h"
#include "engine/layout/layout.h"
#include "engine/plan/plan/sections.h"

namespace moonshard {

// A change of a tensor's placement from `from` to `to`. Equal placements: no change.
struct Redistribution {
  Placement from;
  Placement to;
  bool operator==(const Redistribution&) const = default;
};

// How an embedding looks up ids in its weight.
enum class Lookup : uint8_t {
  kPlain,   // the ids are used as they are
  kMasked,  // the weight's rows are sharded; ids whose row another rank owns give rows of zeros
};

// The positions, in a module's arguments or results, of the ids of a router's chosen experts and of their weights; both
// tensors have one shape. If each rank owns some of the experts, the ids are replaced by the rank's local ids, from 0.
// The id of another rank's expert is replaced by the rank's number of experts, and its weight by 0.
struct Route {
  bool inputs = false;  // the positions are those of arguments; else of results
  int ids = 0;          // position of the ids
  int weights = 0;      // position of the weights
  bool operator==(const Route&) const = default;
};

struct KindStyle;

// What a rule declares for a module that it claims. Every named style (colwise, rowwise, ...) is a Lua function that
// sets these fields.
struct Style {
  std::string name;
  std::map<std::string, Placement> params;   // by parameter (or buffer) name; "*": every parameter that is not named
  std::map<std::string, Placement> vectors;  // as params, for parameters of one dim; overrides params
  std::map<std::string, std::map<std::string, Placement>> kinds;  // by module kind; replaces params for that kind
  std::vector<std::optional<Redistribution>> inputs;              // by argument position; nullopt: unchanged
  std::vector<std::optional<Redistribution>> outputs;  // by position in the result tuple; a single tensor is 0
  std::vector<std::string>
      after;  // parameters that the forward leaves out, added once to the redistributed first output
  Lookup lookup = Lookup::kPlain;
  std::optional<Route> route;
  // Number of heads of the sharded dims of `params` and of the last dim of `outputs`, if their layouts declare none; 0:
  // none.
  int64_t heads = 0;
  std::vector<KindStyle> kind_styles;  // by module kind; replaces the full style for that kind
  bool bare = false;    // a rule may apply it to a parameter by the parameter's path; only placements apply then
  std::string missing;  // a part that the engine cannot run: a warning of compile, an error of apply; "": none
  bool operator==(const Style& other) const;

  // Returns the style for modules of kind `kind`: its entry of kind_styles, or this style.
  const Style& For(const std::string& kind) const;
  // Returns the placement that this style declares for a parameter with this name and number of dims; nullptr if it
  // declares none. Call it on the result of For().
  const Placement* PlacementOf(const std::string& module_kind, const std::string& parameter, size_t dims) const;
};

struct KindStyle {
  std::string kind;
  Style style;
  bool operator==(const KindStyle&) const = default;
};

struct Rule {
  std::string pattern;
  PatternSyntax syntax = PatternSyntax::kGlob;
  Style style;
  // `at(pattern, layout)`: the rule names parameters by their full path; this is their placement.
  std::optional<Placement> parameter;
  bool optional = false;  // the rule may match nothing
  bool lenient = false;   // of a lenient plan: it is a warning if the rule matches nothing
  int level = 0;          // 0: the plan itself; 1: the plan it extends; ... A lower level wins.
  SourceSpan source;
};

struct Plan {
  std::string name;    // "llama"
  std::string chosen;  // why it was selected, if the user named no plan: "plans/index.lua has it for LlamaForCausalLM"
  int api = 1;
  // Some errors are only warnings, such as a rule that matches nothing and an unclaimed parameter beside sharded ones:
  // for plans that are converted from another system, which ignores both.
  bool lenient = false;
  std::vector<Rule> rules;        // in source order; those of an extended plan come last
  std::optional<Style> fallback;  // default(style): for modules with parameters that no rule claims
  SourceSpan fallback_source;
  std::optional<DataParallel> data_parallel;
  // Sections of one kind are in source order; if several of them name a module, the first one applies.
  std::vector<Recomputed> recompute;
  std::optional<Precision> precision;
  std::vector<KeptDType> kept_dtypes;
  std::vector<OperatorLike> operators;  // in source order

  // Returns one line for each rule and section, with its source position; stable, for debugging and golden files.
  std::string ToText() const;
};

// "outputs[ids=2, weights=1]", positions from 0.
std::string ToText(const Route& route);
// Returns one line: name, parameters, inputs, outputs. Equal texts mean equal styles.
std::string ToText(const Style& style);

}  // namespace moonshard
