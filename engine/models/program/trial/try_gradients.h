// TryGradients: the trial of the backward of one operator. Internal to engine/models/program/trial.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/models/program/trial/site.h"
#include "engine/models/program/trial/try_node.h"

namespace moonshard::trial {

// What the ranks have of the gradient of a value.
enum class GradientKind : uint8_t {
  kNone,     // the value has no gradient
  kUnknown,  // or ill: reported already
  kFull,     // each rank has the gradient of what it has of the value; of a partial tensor the full one
  kTerms,    // the gradients of the ranks add up; of a shard, those of the ranks that have an element
  kMixed,    // the sum of a gradient of kind kFull and one of kind kTerms, or some elements of each: neither
};

// The gradient of a value that several operators read.
GradientKind Sum(GradientKind a, GradientKind b);

// Runs the backward of the operator on the draws of its trial, in full and on every rank, with gradients of these kinds
// for its results (parallel to the node's outputs; neither kUnknown nor kMixed). Returns the kinds of the operands'
// gradients, parallel to the operands. nullopt: the ranks have neither, or the gradients of the results are of both
// kinds. A gradient that has no replicas to add up is kFull.
std::optional<std::vector<GradientKind>> TryGradients(const Site& site, const Tried& tried,
                                                      const std::vector<GradientKind>& kinds);

}  // namespace moonshard::trial
