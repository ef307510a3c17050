// ModulePaths: the module to which memory and work are attributed: in the forward, the module whose call is running; in
// the backward, the module whose call created the autograd node that is running. A CallObserver calls Enter and Exit.
// Use on one thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/analysis/footprint/ledger.h"
#include "engine/runtime/intercept/node_marks.h"

namespace moonshard {

class ModulePaths {
 public:
  // Returns the index of a path; adds the path if it is new. "": the root module, and code outside of all calls.
  int32_t IndexOf(const std::string& path);
  const std::string& path(int32_t index) const { return paths_.at(static_cast<size_t>(index)); }
  size_t size() const { return paths_.size(); }

  // Attributes the accumulation of the parameter's gradient to `module`.
  void AddParameter(const at::Tensor& parameter, const std::string& module);

  // Enter: a call of the module with this index begins. Exit: the innermost call ends.
  void Enter(int32_t module);
  void Exit();

  // Returns the current module and phase; `op` of the result is not set.
  StepPlace Where();

  // While an Inside exists, memory and work are attributed to the path with index `module`. The path need not be the
  // path of a module; an example is "loss".
  class Inside {
   public:
    Inside(std::shared_ptr<ModulePaths> paths, int32_t module);
    ~Inside();
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    std::shared_ptr<ModulePaths> paths_;
  };

 private:
  void Mark() { marks_.Mark(inside_.empty() ? -1 : inside_.back()); }

  std::vector<std::string> paths_;
  std::map<std::string, int32_t> index_;
  std::vector<int32_t> inside_;                  // innermost last
  NodeMarks marks_;                              // -1: the node was created outside of all calls
  std::map<const void*, int32_t> of_parameter_;  // keyed by address; never iterated, as the order of addresses varies
  int32_t last_ = -1;                            // the module of the last node, for hooks, which run between nodes
};

}  // namespace moonshard
