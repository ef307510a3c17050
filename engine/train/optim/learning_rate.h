// LearningRate: the learning rate of a step. The rate depends only on the schedule and the step, so a run that is
// resumed needs no other state. Stage after: SetLearningRate (adamw.h).
#pragma once

#include <cstdint>

namespace moonshard {

struct Schedule {
  enum class Decay : uint8_t { kConstant, kLinear, kCosine };

  double peak = 3e-4;
  double lowest = 0;   // at the end of the decay and after it
  int64_t warmup = 0;  // number of warm-up steps
  int64_t steps = 1;   // the step at which the decay ends
  Decay decay = Decay::kCosine;
};

// Returns the learning rate of `step`; steps count from 0.
//
//   step < warmup      peak (step + 1) / (warmup + 1)                              above 0 also in step 0
//   then               lowest + (peak - lowest) f(p),   p = (step - warmup) / (steps - warmup), at most 1
//                      constant: f = 1    linear: f = 1 - p    cosine: f = (1 + cos(pi p)) / 2
//
// (Cosine: Loshchilov and Hutter 2017, equation 5, without restarts.)
double LearningRate(const Schedule& schedule, int64_t step);

}  // namespace moonshard
