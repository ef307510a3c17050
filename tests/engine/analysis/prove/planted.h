// Planted: faults put into the compiled plan of a model: what a wrong style or a wrong engine would make of it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/plan/compile/compiled_plan.h"

namespace moonshard::test {

struct Planted {
  std::string kind;    // "forward move dropped"
  std::string module;  // where
  std::function<void(CompiledPlan&)> plant;
};

// Every fault that can be planted in the modules that the plan claims outside of layers and in layer 0 (the others are
// like it).
std::vector<Planted> PlantedFaults(const CompiledPlan& plan);

}  // namespace moonshard::test
