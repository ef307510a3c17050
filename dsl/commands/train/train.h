// RunTrain: the program's trainer, built on `#include <moonshard/moonshard.h>` alone: the example to copy.
// train.cc is the run in its order; setup.h makes the parts.
#pragma once

#include "dsl/commands/cli/options.h"

namespace moonshard {

// One rank of a training run. Returns the exit code: 0, or if a signal stopped it 128 and the signal's number.
// Throws PlanError for errors of the user.
int RunTrain(const TrainVerb& verb);

}  // namespace moonshard
