// JoinFirst: writes a list in a message, shortened if the list is long.
#pragma once

#include <span>
#include <string>

namespace moonshard {

// Returns "a, b, c" for up to `most` parts; for more parts the first `most` and a count of the others: "a, b and 3
// more".
std::string JoinFirst(std::span<const std::string> parts, size_t most);

}  // namespace moonshard
