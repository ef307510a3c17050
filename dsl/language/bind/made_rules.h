// The rules that a plan's lines make. A rule that is in no plan does nothing, and Lua drops it in silence: at(...) on a
// line of its own, in a function without return, in a list that nobody put into the plan.
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
  // A rule that the running at() made for the user's line in its source. Rules of a plan that is built in are passed over:
  // its user cannot mend them.
  void Add(lua_State* L, const Rule& rule);
  bool any() const { return !lines_.empty(); }
  // One kLostRule for each line with a rule that is not in `plan`. A line that calls a block of stdlib counts where the
  // plan has none of the block's rules: a block may make more than it gives.
  Diagnostics LostFrom(const Plan& plan, const Sources& sources) const;

 private:
  struct Line {
    std::set<std::string> patterns;
    bool by_block = false;     // stdlib called at(), for the line
    bool in_function = false;  // the line is a function's
  };
  std::map<std::pair<std::string, int>, Line> lines_;  // by file and line
  size_t count_ = 0;
};

}  // namespace moonshard
