// ModulePaths: which module's call a program is in; in the backward, in which call the running node was made. An
// observer of the calls calls Enter and Exit. Lives on one thread.
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
  // The index of a path, which is added if it is new; "" is the root, and what is outside of all calls.
  int32_t IndexOf(const std::string& path);
  const std::string& path(int32_t index) const { return paths_.at(static_cast<size_t>(index)); }
  size_t size() const { return paths_.size(); }

  // Attributes the accumulation of the parameter's gradient to `module`.
  void AddParameter(const at::Tensor& parameter, const std::string& module);

  // The program enters a call of the path with this index, and leaves it.
  void Enter(int32_t module);
  void Exit();

  // Module and phase; not the operator.
  StepPlace Where();

  // While it lives, the program counts as being in a path, which need not be a module's: "loss".
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
  int32_t last_ = -1;                            // of the last node that ran; hooks run between nodes
};

}  // namespace moonshard
