// `moonshard import`: a Hugging Face plan as a plan file.
#pragma once

#include <string>

#include "dsl/program/cli/options.h"
#include "engine/core/base/result.h"

namespace moonshard {

// The text of a plan file. It has been evaluated once: an undefined style is an error at its line in FILE.
Result<std::string> ImportHuggingFacePlan(const ImportVerb& verb);

}  // namespace moonshard
