// Role: classifies what a compiled plan does with one module, by the styles that both Hugging Face and PyTorch have. A
// module that fits none of these styles is kOther, with the reason. Stage before: compile. Stage after: export.h.
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
    kPackedColwise,    // output features in two halves, each half sharded
    kSequence,         // a norm on shards of the sequence
    kSummedGradient,   // replicated parameters with summed gradients
    kRedistributions,  // replicated parameters, only redistributions
    kBare,             // parameters that are sharded by name, listed in `bare`
    kOther,
  };
  Kind kind = Kind::kNothing;
  std::string why;  // kOther: the reason
  // Redistributions that communicate or declare a layout, by position.
  std::vector<std::optional<Redistribution>> inputs;
  std::vector<std::optional<Redistribution>> outputs;
  std::optional<Route> route;
  struct Bare {
    std::string name;
    Layout layout;
    size_t dims = 0;
    std::vector<int64_t> shape;
  };
  std::vector<Bare> bare;

  // The tp layouts before and after the redistribution at a position; replicate if there is no redistribution.
  Layout From(const std::vector<std::optional<Redistribution>>& redistributions, size_t position) const;
  Layout To(const std::vector<std::optional<Redistribution>>& redistributions, size_t position) const;
};

Role RoleOf(const CompiledPlan& plan, size_t module);

// Whether the layout shards dim `dim`, with or without heads.
bool Shards(const Layout& layout, int dim);

// Whether the layout is packed and its parts are the two halves of a dim of `size`.
bool InHalves(const Layout& layout, int64_t size);

}  // namespace moonshard
