// LearningRate: the learning rate of a step. Numbers in, a number out: a run that is resumed needs nothing but the
// step. Stage after: SetLearningRate (adamw.h).
#pragma once

#include <cstdint>

namespace moonshard {

struct Schedule {
  enum class Decay : uint8_t { kConstant, kLinear, kCosine };

  double peak = 3e-4;
  double lowest = 0;   // at the end of the decay, and after it
  int64_t warmup = 0;  // steps of the way up
  int64_t steps = 1;   // where the decay ends, counted from the first step
  Decay decay = Decay::kCosine;
};

// Steps count from 0.
//
//   step < warmup      peak (step + 1) / (warmup + 1)                              never 0: the first step learns too
//   then               lowest + (peak - lowest) f(p),   p = (step - warmup) / (steps - warmup), at most 1
//                      constant: f = 1    linear: f = 1 - p    cosine: f = (1 + cos(pi p)) / 2
//
// (Cosine: Loshchilov and Hutter 2017, equation 5, without restarts.)
double LearningRate(const Schedule& schedule, int64_t step);

}  // namespace moonshard
