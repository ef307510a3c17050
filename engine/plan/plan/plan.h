// Plan: the content of a plan file as a value: rules in the order they were written, each a pattern and a style with
// its source line, and sections. Independent of any model. Made by dsl/language/eval from Lua, or in C++. Stage after:
// match.
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

// A tensor arrives in one placement and leaves in another. Equal placements: no redistribution.
struct Redistribution {
  Placement from;
  Placement to;
  bool operator==(const Redistribution&) const = default;
};

// How the ids of an embedding are looked up in a weight whose rows are sharded.
enum class Lookup : uint8_t {
  kPlain,   // the ids are used as they are
  kMasked,  // ids whose row another rank owns count as zero rows
};

// Which arguments or results of a module are the ids of chosen experts and their weights, both of one shape. If each
// rank has some of the experts, ids become local ones from 0; the rank's number of experts stands for every other
// expert, whose weight becomes zero.
struct Route {
  bool inputs = false;  // among the arguments; else the results
  int ids = 0;          // position
  int weights = 0;
  bool operator==(const Route&) const = default;
};

struct KindStyle;

// What a rule does to a module that it claims. These keys are all that C++ knows; every named style is a Lua function
// that fills them.
struct Style {
  std::string name;
  std::map<std::string, Placement> params;   // by parameter (or buffer) name; "*": every parameter that is not named
  std::map<std::string, Placement> vectors;  // as params, and in place of them, for parameters of one dim
  std::map<std::string, std::map<std::string, Placement>> kinds;  // by module kind, in place of params
  std::vector<std::optional<Redistribution>> inputs;              // by argument position; none: unchanged
  std::vector<std::optional<Redistribution>> outputs;             // by position in a tuple; one tensor is 0
  std::vector<std::string>
      after;  // parameters left out of the forward and added once to the redistributed first output
  Lookup lookup = Lookup::kPlain;
  std::optional<Route> route;
  // Number of heads of the sharded dims of `params` and of the last dim of `outputs`, where those have no own number.
  int64_t heads = 0;
  std::vector<KindStyle> kind_styles;  // by module kind, in place of all of this
  bool bare = false;                   // may be given to a parameter by its path; only its params apply then
  std::string missing;                 // a part that the engine cannot run: compile warns, apply refuses
  bool operator==(const Style& other) const;

  // The style for modules of a kind: one of kind_styles, or this.
  const Style& For(const std::string& kind) const;
  // Its placement of a parameter, by name and number of dims; nullptr if it has none. Call it on the result of For().
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
  // `at(pattern, layout)`: the rule names parameters by their full path, and this is their placement.
  std::optional<Placement> parameter;
  bool optional = false;  // may match nothing
  bool lenient = false;   // of a lenient plan: matching nothing is a warning
  int level = 0;          // 0: the plan itself; 1: the plan it extends; ... A lower level wins.
  SourceSpan source;
};

struct Plan {
  std::string name;    // "llama"
  std::string chosen;  // why it was chosen, if it was not named: "plans/index.lua has it for LlamaForCausalLM"
  int api = 1;
  // Rules that match nothing, and unclaimed parameters beside sharded ones, are warnings: for plans of another system
  // that ignores both.
  bool lenient = false;
  std::vector<Rule> rules;        // in source order; those of an extended plan come last
  std::optional<Style> fallback;  // default(style): for modules with parameters that no rule claims
  SourceSpan fallback_source;
  std::optional<DataParallel> data_parallel;
  // Sections in source order; if several name a module, the first applies.
  std::vector<Recomputed> recompute;
  std::optional<Precision> precision;
  std::vector<KeptDType> kept_dtypes;
  std::vector<OperatorLike> operators;  // in source order

  // Rules one per line, with their lines: stable, for people and goldens.
  std::string ToText() const;
};

// "outputs[ids=2, weights=1]", positions from 0.
std::string ToText(const Route& route);
// One line: name, parameters, inputs, outputs; equal texts mean equal styles.
std::string ToText(const Style& style);

}  // namespace moonshard
