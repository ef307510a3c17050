// How shard and merge write their directory: through an Aside, going on where an earlier process was, and leaving what is
// there already. Stage before: what would be written is known. Stage after: aside.h.
#pragma once

#include <functional>
#include <string>

#include "engine/io/checkpoint/convert.h"
#include "engine/io/checkpoint/staging.h"

namespace moonshard {

struct StagingWork {
  std::function<bool()> is_there;          // whether the place holds just what would be written
  std::function<Failure(Staging&)> write;  // all of the directory, and its Commit
};

// `summary` with was_there set where nothing had to be written. What is wrong goes to `found`, which the answer takes;
// `write` may add to it too. Errors: those of Aside::Open and of `write`.
Result<ConvertSummary> WriteThroughStaging(const std::string& place, const StagingOptions& options,
                                           const StagingWork& work, ConvertSummary& summary, Diagnostics& found);

}  // namespace moonshard
