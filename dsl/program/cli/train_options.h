// TrainOptions: the options of `moonshard train`, separate from options.cc because of their number.
#pragma once

#include "dsl/program/cli/options.h"

namespace CLI {  // NOLINT(readability-identifier-naming): the name of CLI11
class App;
}

namespace moonshard {

// Adds to `app` every option of train.
void AddTrain(CLI::App& app, TrainVerb& train);

}  // namespace moonshard
