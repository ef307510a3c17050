// ModulePath: the module that the current operator belongs to: in a forward, the innermost module that has been
// entered; in a backward, the module whose forward created autograd's current node.
// Stage before: prove/type_scope.h, which enters modules. Stage after: operator_checker.h.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/runtime/intercept/node_marks.h"

namespace moonshard {

class ModulePath {
 public:
  ModulePath();

  // Enter: a call of the module at `path` begins. Leave: the innermost call ends.
  void Enter(const std::string& path);
  void Leave();

  struct Place {
    const std::string& path;  // "": the root, or outside of all calls; owned by the ModulePath
    bool backward = false;
  };
  // Returns the module and direction of the current operator. Copies no string, because the checker calls Here for each
  // operator.
  Place Here() const;

 private:
  const std::string& path(int32_t index) const { return paths_[static_cast<size_t>(index)]; }

  std::deque<std::string> paths_;  // each path once; references into it stay valid
  std::unordered_map<std::string, int32_t> index_;
  std::vector<int32_t> entered_;  // innermost last
  NodeMarks marks_;
};

}  // namespace moonshard
