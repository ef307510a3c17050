// Flow: what each module declares that it takes and leaves on tp, folded to one entry for modules whose paths differ only
// in numbers; and the blocks that they stand in. What the lint passes read (lint.h).
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/base/diagnostic.h"
#include "engine/plan/compile/activation_dims.h"
#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

// Modules of one path class with the same steps.
struct Station {
  std::string path;   // of the class: numbers are 0
  size_t module = 0;  // one of them
  int64_t count = 0;  // how many
  const ModuleSteps* steps = nullptr;
  const ModuleTree::Signature* signature = nullptr;
  bool matrix = false;  // owns a parameter of two or more dims, buffers left out
  bool embedding = false;
};

class Flow {
 public:
  explicit Flow(const CompiledPlan& plan);

  const CompiledPlan& plan() const { return plan_; }
  // Sorted by path.
  const std::vector<Station>& stations() const { return stations_; }

  // The weight's tensor dim that tp cuts where the module owns a matrix `weight` in plain form; -1 where none.
  int CutOfWeight(const Station& station) const;
  // Features leave in shards: said by an output, or, where no output is said, made by a weight cut along dim 0.
  bool LeavesShards(const Station& station) const;
  // Features are taken in shards: said by an input, or, where none is said, by a Linear cut along dim 1.
  bool TakesShards(const Station& station) const;

  // All stations at or below `scope` ("": all of them) but `self`. `within_layer` false: not those in lists below it.
  std::vector<const Station*> Below(std::string_view scope, const Station* self, bool into_lists) const;
  // The smallest part of the tree around the station in which another matrix passes `other`; "" where only the whole tree
  // is that.
  std::string_view BlockOf(const Station& station, const std::function<bool(const Station&)>& other) const;

  // Whether a move passes of a rule for modules that headers do not know, so that it landed nowhere.
  bool AnyUnplacedRedistribution(const std::function<bool(const Layout& from, const Layout& to)>& passes) const;

  const SourceSpan& LineOf(const Station& station) const;
  // How far below the plan itself the rule's plan is: 0 is the plan, 1 what it extends.
  int LevelOf(const Station& station) const;
  // A finding about the station: its rule's line, its module's real path.
  Diagnostic About(Finding finding, const Station& station, std::string message) const;
  const std::string& PathOf(const Station& station) const;
  // About both: at the line that is the author's own, with the other line beside it.
  Diagnostic AboutBoth(Finding finding, const Station& station, const Station& other, std::string message) const;
  // "'a', 'b'" of the first few.
  std::string Names(const std::vector<const Station*>& stations) const;

  // Features of a norm: of a module that owns vectors of one size alone; -1 for any other.
  int64_t NormSize(const Station& station) const;
  // Whether projections stand right beside a norm: it then works within their block, on what they gathered, and not on the
  // stream.
  bool WithinBlock(const Station& norm) const;

 private:
  const CompiledPlan& plan_;
  std::vector<Station> stations_;
};

// Whether one of the path's components is a number.
bool InList(std::string_view path);
// The layout on tp of the first input as it arrives, or of the first output as it leaves; nullptr where nothing is said.
const Layout* ArrivesAs(const ModuleSteps& steps);
const Layout* LeavesAs(const ModuleSteps& steps);

}  // namespace moonshard
