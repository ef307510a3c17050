// ModulePath: where in the model the program is: in a forward, in the modules that have been entered; in a backward, in the
// module in whose forward autograd's current node was made.
//
// Nodes are numbered as they are made, on each thread: the numbers at which modules were entered and left tell the rest.
// Stage before: whoever enters modules (prove/type_scope.h). Stage after: operator_checker.h.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace moonshard {

class ModulePath {
 public:
  ModulePath();

  void Enter(std::string path);
  void Leave();

  struct Place {
    std::string path;  // "": the root, or outside of all
    bool backward = false;
  };
  Place Here() const;

 private:
  void Mark();

  std::vector<std::string> entered_;
  std::map<std::pair<uint64_t, uint64_t>, std::string> since_;  // (thread, number of the first node) -> path
};

}  // namespace moonshard
