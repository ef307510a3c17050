// Role: what a compiled plan does with one module, in the terms that both Hugging Face's and PyTorch's plans have styles
// for. What neither has a word for is kOther, with the reason.
// Stage before: compile. Stage after: export.h.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

struct Role {
  enum class Kind {
    kNothing,          // whole, and no move
    kColwise,          // output features in shards
    kRowwise,          // input features in shards
    kVocabRowwise,     // rows of an embedding in shards
    kPackedColwise,    // output features of two halves, each in shards
    kSequence,         // a norm on shards of the sequence
    kSummedGradient,   // whole parameters whose gradients are summed
    kRedistributions,  // whole parameters, moves alone
    kBare,             // parameters by their own names, in `bare`
    kOther,
  };
  Kind kind = Kind::kNothing;
  std::string why;                                    // of kOther
  std::vector<std::optional<Redistribution>> inputs;  // moves that do something or say what is there, by position
  std::vector<std::optional<Redistribution>> outputs;
  std::optional<Route> route;
  struct Bare {
    std::string name;
    Layout layout;
    size_t dims = 0;
    std::vector<int64_t> shape;
  };
  std::vector<Bare> bare;

  // The tp layouts of a move at a position; replicate -> replicate where there is none.
  Layout From(const std::vector<std::optional<Redistribution>>& redistributions, size_t position) const;
  Layout To(const std::vector<std::optional<Redistribution>>& redistributions, size_t position) const;
};

Role RoleOf(const CompiledPlan& plan, size_t module);

// Whether a layout shards this dim, whatever heads it is cut between.
bool Shards(const Layout& layout, int dim);

// Whether a dim of `size` is cut into two halves, each by itself.
bool InHalves(const Layout& layout, int64_t size);

}  // namespace moonshard
