// The words of `moonshard train`, which are many: a file of their own beside options.cc.
#pragma once

#include "dsl/program/cli/options.h"

namespace CLI {  // NOLINT(readability-identifier-naming): the name of CLI11
class App;
}

namespace moonshard {

// Adds to `app` every option that is train's alone.
void AddTrain(CLI::App& app, TrainVerb& train);

}  // namespace moonshard
