// MadeRules: the rules that the lines of a plan make. A rule that is in no plan has no effect, and Lua drops it
// silently: at(...) on a line of its own, in a function without return, or in a list that is not part of the plan.
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
  // A rule that the running at() made for the line of the user in its source. Rules of built-in plans are skipped,
  // because the user cannot change them.
  void Add(lua_State* L, const Rule& rule);
  bool any() const { return !lines_.empty(); }
  // One kLostRule for each line with a rule that is not in `plan`. A line that calls a block of stdlib is reported if
  // the plan has none of the rules of the block, because a block may make rules that it does not return.
  Diagnostics LostFrom(const Plan& plan, const Sources& sources) const;

 private:
  struct Line {
    std::set<std::string> patterns;
    bool by_block = false;     // a stdlib function called at() for the line
    bool in_function = false;  // the line is in a function
  };
  std::map<std::pair<std::string, int>, Line> lines_;  // by file and line
  size_t count_ = 0;
};

}  // namespace moonshard
