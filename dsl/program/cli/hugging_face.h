// `moonshard import`: a Hugging Face plan as a plan file.
#pragma once

#include <string>

#include "dsl/program/cli/options.h"
#include "engine/core/base/result.h"

namespace moonshard {

// The text of a plan file. It has been evaluated once: a style that nobody defined is an error at FILE's line.
Result<std::string> ImportHuggingFacePlan(const ImportVerb& verb);

}  // namespace moonshard
