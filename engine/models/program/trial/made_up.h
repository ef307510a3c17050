// MadeUp: operands of a trial, drawn at random. Internal to engine/models/program/trial.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "engine/models/program/trial/site.h"

namespace moonshard::trial {

// How the operands of one draw are made up.
struct Drawing {
  enum class Floats : uint8_t {
    kNormal,    // of mean 0 and deviation 1
    kPositive,  // from 0.5 to 1.5
    kScaled,    // of mean 0 and deviation `scale`
    kBetween,   // from `scale` to `end`
  };
  Floats floats = Floats::kNormal;
  double scale = 1;
  double end = 1;
  int64_t below = 2;  // integers are at least 0 and less than this
  bool wide = true;   // floats are float64, whatever they are in the program
  uint64_t seed = 0;  // other numbers of the same kind
};

// What an operator reads, parallel to NodeCall::reads().
struct Operands {
  std::vector<c10::IValue> full;
  std::vector<std::vector<c10::IValue>> local;  // by rank
};

// The bounds of integers that are worth a try: the sizes of the operands' dims, largest first; {2} without integers.
std::vector<int64_t> BoundsOf(const Site& site);

// The draws of a site: normal, positive, and scaled to the largest number between 1 and 1e6 that the operator computes
// with, if there is one: values on both sides of its thresholds.
std::vector<Drawing> DrawingsOf(const Site& site, bool wide);

// Further draws for operands that may all lie where an operator is constant or not defined: normal, of a small scale
// and of those of the numbers that the operator computes with, and between two such numbers.
std::vector<Drawing> MoreDrawingsOf(const Site& site, const Drawing& like);

// Draws the operands of the site; equal calls draw equal ones. A constant has its value, a zero tensor is zero. Throws
// c10::Error for a parameter that is to be added later and is not along the last dim of the tensor that lacks it.
Operands DrawOperands(const Site& site, const Drawing& drawing);

// The value that the parameter `value` of the program has in this drawing.
at::Tensor DrawParameter(const Site& site, uint32_t value, at::ScalarType type, const Drawing& drawing);

// Terms or slices of a full gradient `full` of a tensor with this spread, by rank (try_gradients.h): with `as_terms`,
// ranks that have the same elements have terms that add up to them.
std::vector<at::Tensor> DrawGradients(const Spread& spread, const at::Tensor& full, bool as_terms, int64_t ranks);

}  // namespace moonshard::trial
