// TrainOptions: the options of `moonshard train`, separate from options.cc because of their number.
#pragma once

#include "dsl/commands/cli/options.h"

namespace CLI {  // NOLINT(readability-identifier-naming): the name of CLI11
class App;
}

namespace moonshard {

// Adds the options of the verbs that run ranks: device, backend, timeout.
void AddRanks(CLI::App& app, RunOptions& run);

// Adds every option of `train` to `app`; parsing fills `train`, which must outlive `app`.
void AddTrain(CLI::App& app, TrainVerb& train);

// Checks the size of a step on a mesh. Errors (kBadInput): a batch that is not divisible by the number of data-parallel
// ranks times the number of micro-batches, more tokens than kMostTokens.
Diagnostics CheckStep(const TrainVerb& verb, const MeshShape& mesh);

}  // namespace moonshard
