// MadeRules: the rules that at(...) makes, by line of the plan, in order to report those that are not part of the
// returned plan. Lua drops such a rule silently: at(...) on a line of its own, in a function without return, or in a
// list that is not used.
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
  // Records `rule` under the line in its source; called while at() runs. Skips rules of built-in plans, which the user
  // cannot change, and rules beyond the first 10,000.
  void Add(lua_State* L, const Rule& rule);
  // Whether a rule was recorded.
  bool any() const { return !lines_.empty(); }
  // Returns one kLostRule for each line, at most 20, with a rule that is not in `plan`. A line that calls a block of
  // stdlib is reported only if `plan` has none of the block's rules, because a block may make rules that it does not
  // return.
  Diagnostics LostFrom(const Plan& plan, const Sources& sources) const;

 private:
  struct Line {
    std::set<std::string> patterns;
    bool by_block = false;     // a stdlib function, called on the line, called at()
    bool in_function = false;  // the line is in a function of the plan
  };
  std::map<std::pair<std::string, int>, Line> lines_;  // by file and line
  size_t count_ = 0;
};

}  // namespace moonshard
