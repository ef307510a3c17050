// Siblings: the modules of one parent that have the same redistribution of the same argument, and the modules that
// enclose calls. Such siblings are called with one tensor (queries, keys, values; gate and up), so one of them runs the
// redistribution and the others use its result. Part of CompileSteps (module_steps.h).
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

class Siblings {
 public:
  // Finds the siblings in the plan's tree by the plan's layouts; keeps references to both.
  explicit Siblings(const CompiledPlan& plan);

  // Siblings with the same redistribution of the same argument.
  struct Group {
    uint32_t redistribution = 0;  // its number; equal redistributions have equal numbers
    int32_t position = 0;         // of the argument
    uint32_t first = 0;           // module that runs the redistribution: the first in the tree
    int32_t uses = 0;             // modules in the group
    uint32_t next = 0;            // index of the next group of the same parent
  };
  // Returns the group of the module's n-th input, from 0, that is redistributed on an axis of more than one rank;
  // nullptr if the module has fewer such inputs.
  const Group* Of(uint32_t module, size_t n) const;
  // Whether any module redistributes more than one input.
  bool has_more() const { return !more_.empty(); }

  // Whether the module encloses a module whose calls must be intercepted (encloses), or a module that redistributes
  // (shares).
  bool encloses(uint32_t module) const { return encloses_[module]; }
  bool shares(uint32_t module) const { return shares_[module]; }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Moving {
    int32_t position = 0;
    uint32_t redistribution = 0;
  };

  void FindMoving();
  uint32_t GroupOf(uint32_t& first_of_parent, const Moving& moving, uint32_t module);
  void MarkAncestors(uint32_t module, std::vector<bool>& marked);
  void MarkFromHeaders(std::string_view path, std::vector<bool>& marked);

  const CompiledPlan& plan_;
  const std::vector<uint32_t>& parents_;
  std::vector<std::vector<Moving>> moving_;  // by layouts
  std::vector<bool> needs_calls_;            // by layouts
  std::vector<bool> moves_;                  // by layouts
  std::vector<Group> groups_;
  std::vector<uint32_t> group_;                               // by module: of its first input that is redistributed
  std::unordered_map<uint32_t, std::vector<uint32_t>> more_;  // of its further inputs
  std::vector<bool> encloses_;                                // by module
  std::vector<bool> shares_;                                  // by module
};

}  // namespace moonshard
