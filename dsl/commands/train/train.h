// RunTrain: the trainer of the program, built only on `#include <moonshard/moonshard.h>`, as an example for host
// programs. train.cc is the run in its order; setup.h makes the parts.
#pragma once

#include "dsl/commands/cli/options.h"

namespace moonshard {

// Runs one rank of a training run. Returns the exit code: 0, kExitFailed if the log could not be written, or 128 plus
// the number of the signal that stopped the run. Throws PlanError for errors that a user can fix.
int RunTrain(const TrainVerb& verb);

}  // namespace moonshard
