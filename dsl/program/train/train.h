// RunTrain: the program's trainer, built on what `#include <moonshard/moonshard.h>` gives and nothing else: the example to
// copy. train.cc is the run, in the order in which things happen; setup.h makes the parts.
#pragma once

#include "dsl/program/cli/options.h"

namespace moonshard::train {

// One rank of a training run. Returns the exit code: 0, or where a signal asked it to stop 128 and the signal's number.
// Throws PlanError for what a user can mend.
int RunTrain(const TrainVerb& verb);

}  // namespace moonshard::train
