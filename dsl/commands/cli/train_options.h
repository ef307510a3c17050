// TrainOptions: the options of `moonshard train`, separate from options.cc because of their number.
#pragma once

#include "dsl/commands/cli/options.h"

namespace CLI {  // NOLINT(readability-identifier-naming): the name of CLI11
class App;
}

namespace moonshard {

// Adds to `app` every option of train.
void AddTrain(CLI::App& app, TrainVerb& train);

// What is wrong with the step that the options ask for on a mesh. Errors (kBadInput): a batch that the data-parallel
// ranks and micro-batches do not divide, more tokens than kMostTokens.
Diagnostics CheckStep(const TrainVerb& verb, const MeshShape& mesh);

}  // namespace moonshard
