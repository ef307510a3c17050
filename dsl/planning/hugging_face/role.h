// Role: what a compiled plan does with one module, in the terms for which both Hugging Face and PyTorch have styles.
// Anything else is kOther, with the reason. Stage before: compile. Stage after: export.h.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

struct Role {
  enum class Kind {
    kNothing,          // replicated, no redistribution
    kColwise,          // output features sharded
    kRowwise,          // input features sharded
    kVocabRowwise,     // rows of an embedding sharded
    kPackedColwise,    // output features of two halves, each sharded
    kSequence,         // a norm on shards of the sequence
    kSummedGradient,   // replicated parameters with summed gradients
    kRedistributions,  // replicated parameters, redistributions alone
    kBare,             // parameters by their own names, in `bare`
    kOther,
  };
  Kind kind = Kind::kNothing;
  std::string why;  // of kOther
  std::vector<std::optional<Redistribution>>
      inputs;  // redistributions that communicate or declare a layout, by position
  std::vector<std::optional<Redistribution>> outputs;
  std::optional<Route> route;
  struct Bare {
    std::string name;
    Layout layout;
    size_t dims = 0;
    std::vector<int64_t> shape;
  };
  std::vector<Bare> bare;

  // The tp layouts of a redistribution at a position; replicate -> replicate where there is none.
  Layout From(const std::vector<std::optional<Redistribution>>& redistributions, size_t position) const;
  Layout To(const std::vector<std::optional<Redistribution>>& redistributions, size_t position) const;
};

Role RoleOf(const CompiledPlan& plan, size_t module);

// Whether a layout shards this dim, whatever its heads.
bool Shards(const Layout& layout, int dim);

// Whether a dim of `size` is packed from two halves.
bool InHalves(const Layout& layout, int64_t size);

}  // namespace moonshard
