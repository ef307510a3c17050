// WriteText: a small text as a file, in place of what was there. Checkpoints are written by engine/io/checkpoint, which leaves no
// half of one.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "engine/core/base/diagnostic.h"

namespace moonshard {

// Nothing where it was written; else kWriteFailed with the system's reason.
std::optional<Diagnostic> WriteText(const std::string& path, std::string_view text);

}  // namespace moonshard
