#include "engine/train/optim/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace moonshard {

// The warm-up reaches the peak at step `warmup` and begins above 0, so that the first step is not lost. The decay ends
// at `steps` with the lowest rate and stays there, for a run that is continued beyond its plan.
double LearningRate(const Schedule& schedule, int64_t step) {
  if (step < schedule.warmup) {
    return schedule.peak * static_cast<double>(step + 1) / static_cast<double>(schedule.warmup + 1);
  }
  const auto length = static_cast<double>(std::max<int64_t>(1, schedule.steps - schedule.warmup));
  const double p = std::min(1.0, static_cast<double>(step - schedule.warmup) / length);
  double f = 1;
  if (schedule.decay == Schedule::Decay::kLinear) f = 1 - p;
  if (schedule.decay == Schedule::Decay::kCosine) f = (1 + std::cos(std::numbers::pi * p)) / 2;
  return schedule.lowest + (schedule.peak - schedule.lowest) * f;
}

}  // namespace moonshard
