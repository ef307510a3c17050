// The way of the learning rate, held against numbers worked out by hand.
#include <catch2/catch.hpp>

#include "engine/train/optim/learning_rate.h"

namespace moonshard {
namespace {

Schedule Make(Schedule::Decay decay) {
  Schedule schedule;
  schedule.peak = 1;
  schedule.lowest = 0.2;
  schedule.warmup = 3;
  schedule.steps = 11;
  schedule.decay = decay;
  return schedule;
}

TEST_CASE("up in equal parts, from above 0, then down to the lowest, and there it stays") {
  struct Row {
    Schedule::Decay decay;
    double quarter, half, end;
  };
  for (const Row& row : {Row{Schedule::Decay::kConstant, 1, 1, 1}, Row{Schedule::Decay::kLinear, 0.8, 0.6, 0.2},
                         Row{Schedule::Decay::kCosine, 0.2 + 0.8 * (1 + 0.7071067811865476) / 2, 0.6, 0.2}}) {
    const Schedule schedule = Make(row.decay);
    CHECK(LearningRate(schedule, 0) == 0.25);
    CHECK(LearningRate(schedule, 2) == 0.75);
    CHECK(LearningRate(schedule, 3) == 1);
    CHECK(LearningRate(schedule, 5) == Approx(row.quarter));
    CHECK(LearningRate(schedule, 7) == Approx(row.half));
    CHECK(LearningRate(schedule, 11) == Approx(row.end));
    CHECK(LearningRate(schedule, 1000) == Approx(row.end));
  }
}

TEST_CASE("no warm-up, and a decay that is over before it begins") {
  Schedule schedule = Make(Schedule::Decay::kLinear);
  schedule.warmup = 0;
  CHECK(LearningRate(schedule, 0) == 1);
  schedule.warmup = 20;
  CHECK(LearningRate(schedule, 20) == 1);
  CHECK(LearningRate(schedule, 21) == Approx(0.2));
}

}  // namespace
}  // namespace moonshard
