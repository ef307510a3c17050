// ModulePaths: which module's call a program is in; in the backward, in whose call the running node was made. Calls tell as
// an observer of them sees them. On one thread.
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
  // The index of a path, new or known; "" is the root, what is outside of all calls.
  int32_t IndexOf(const std::string& path);
  const std::string& path(int32_t index) const { return paths_.at(static_cast<size_t>(index)); }
  size_t size() const { return paths_.size(); }

  // Whose gradient is accumulated where a parameter's turn comes.
  void AddParameter(const at::Tensor& parameter, const std::string& module);

  // The program is in a call of this path from now on, and not any more.
  void Enter(int32_t module);
  void Exit();

  // Module and phase; not the operator.
  StepPlace Where();

  // Between construction and end the program is in `path`, which need not be a module: "loss".
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
  NodeMarks marks_;                              // -1: made outside of all calls
  std::map<const void*, int32_t> of_parameter_;  // by address; only looked up
  int32_t last_ = -1;                            // of the last node that ran: hooks run between nodes
};

}  // namespace moonshard
