// MadeRules: records the rules that at(...) creates, by line of the plan, and reports the rules that are not part of
// the returned plan. Lua drops the value of at(...) silently if at(...) is a statement of its own, or if its value is
// in a list that is not used or in a function that does not return the value.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>

#include "engine/core/base/diagnostic.h"
#include "engine/plan/plan/plan.h"

struct lua_State;

namespace moonshard {

class Sources;

class MadeRules {
 public:
  // Records `rule` under its source line; called while at() runs. Skips rules of built-in plans, which the user cannot
  // change, and rules beyond the first 10,000.
  void Add(lua_State* L, const Rule& rule);
  // Returns whether any rule was recorded.
  bool any() const { return !lines_.empty(); }
  // Returns one kLostRule for each line of which a rule is not in `plan`, for at most 20 lines. If a stdlib function
  // that the line calls created the rules, the line is reported only if no rule of the line is in `plan`, because a
  // stdlib function may create rules that it does not return.
  Diagnostics LostFrom(const Plan& plan, const Sources& sources) const;

 private:
  struct Line {
    std::set<std::string> patterns;
    bool by_block = false;     // a stdlib function that the line calls has called at()
    bool in_function = false;  // the line is in a function of the plan
  };
  std::map<std::pair<std::string, int>, Line> lines_;  // by file and line
  size_t count_ = 0;
};

}  // namespace moonshard
