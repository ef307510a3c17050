// Plan: the content of a plan file as a value. A Plan has the rules in source order (each with a pattern, a style and a
// source line) and the sections. A Plan does not depend on a model. dsl/language/eval creates Plans from Lua; C++ code
// can also create them directly.
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

// The positions, in a module's arguments or results, of the expert ids that a router chose and of the routing weights;
// both tensors have the same shape. If each rank owns some of the experts, the ids are replaced by the ids local to the
// rank, from 0. The id of an expert on another rank is replaced by the number of experts on this rank, and its routing
// weight by 0.
struct Route {
  bool inputs = false;  // true: positions of arguments; false: positions of results
  int ids = 0;          // position of the ids
  int weights = 0;      // position of the weights
  bool operator==(const Route&) const = default;
};

// The call of experts that ep distributes over its ranks: tokens are sent to the ranks of the chosen experts, and
// the results back, where they are multiplied by the routing weights and summed. The module's arguments are the
// tokens [N, features], the ids [N, per_token] of the chosen experts and their weights [N, per_token]; its first result
// is [N, features]. Experts are distributed as the rows of shard(0) are: rank r of ep has the r-th block of
// ceil(experts / ep) experts.
struct Exchange {
  int tokens = 0;  // positions of arguments
  int ids = 0;
  int weights = 0;
  int64_t per_token = 0;  // experts that a token chooses
  int64_t features = 0;   // of a token
  // An expert takes at most ceil(capacity * N * per_token / experts) tokens from each rank; of more, the last ones are
  // not sent to it, and their sums lack its result. 0: every token is sent.
  double capacity = 0;
  // Number of experts, where each is a module of its own ("N" within the module); the call then has ids among all of
  // them. 0: the experts are the rows of the module's parameters, and the call has ids among those of the rank.
  int64_t listed = 0;
  bool operator==(const Exchange&) const = default;
};

// Attention over tokens that cp shards, by a ring: each rank of cp attends with its own queries, and keys and values go
// from rank to rank. The style is that of the output projection, whose first argument is the result of the attention;
// the attention is computed by the module that encloses the projection.
struct Ring {
  int64_t heads = 0;     // query heads over all ranks, which are the features of the projection's argument
  int64_t kv_heads = 0;  // key and value heads over all ranks, of as many features as a query head
  // Number of positions to which a token attends, its own included; 0: all up to its own. Only predictions use it: the
  // model has its own.
  int64_t window = 0;
  bool operator==(const Ring&) const = default;
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
  std::optional<Exchange> exchange;
  std::optional<Ring> ring;
  // Number of heads in the sharded dims of `params` and in the last dim of `outputs`, for layouts that declare neither
  // heads nor parts nor an owner; 0: no heads.
  int64_t heads = 0;
  std::vector<KindStyle> kind_styles;  // by module kind; replaces the full style for that kind
  // A rule may also apply the style to a parameter, by the parameter's path; then only the placements are used.
  bool bare = false;
  // The part of the style that the engine cannot run; "": none. compile reports it as a warning, apply as an error.
  std::string missing;
  bool operator==(const Style& other) const;

  // Returns the style for modules of kind `kind`: the entry of kind_styles, or this style if there is no entry.
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
  // Of `at(pattern, layout)`, which names parameters by their full path: the placement of these parameters.
  std::optional<Placement> parameter;
  bool optional = false;  // the rule may match nothing
  bool lenient = false;   // from a lenient plan: a warning, not an error, if the rule matches nothing
  int level = 0;          // 0: the plan itself; 1: the plan that it extends; ... A lower level overrides.
  SourceSpan source;
};

struct Plan {
  std::string name;  // "llama"
  // Why the plan was selected, if the user named no plan: "plans/index.lua has it for LlamaForCausalLM".
  std::string chosen;
  int api = 1;
  // Some errors are reported as warnings, such as a rule that matches nothing and an unclaimed parameter beside sharded
  // parameters. For plans that are converted from another system, in which these cases are no errors.
  bool lenient = false;
  std::vector<Rule> rules;        // in source order; the rules of an extended plan come last
  std::optional<Style> fallback;  // default(style): for modules with parameters that no rule claims
  SourceSpan fallback_source;
  std::optional<DataParallel> data_parallel;
  // Sections of one kind are in source order; if several of them name a module, the first one applies.
  std::vector<Recomputed> recompute;
  std::optional<Precision> precision;
  std::vector<KeptDType> kept_dtypes;
  std::vector<OperatorLike> operators;  // in source order
  // In source order. Sections of one name are one adapter; if several of them name a module, the first one applies.
  std::vector<Adapter> adapters;

  // Returns one line for each rule and section, with its source position; stable, for debugging and golden files.
  std::string ToText() const;
};

// "outputs[ids=2, weights=1]", positions from 0.
std::string ToText(const Route& route);
// "inputs[tokens=0, ids=1, weights=2], features 4096, listed 8, experts 2", positions from 0; the last number is of one
// token.
std::string ToText(const Exchange& exchange);
// "heads 32, kv_heads 8, window 4096".
std::string ToText(const Ring& ring);
// Returns one line: name, parameters, inputs, outputs. Equal texts mean equal styles.
std::string ToText(const Style& style);

}  // namespace moonshard
