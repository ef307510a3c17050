// Foreign names: names of other languages and libraries that occur in plans by mistake, and their equivalents.
#pragma once

#include <string>
#include <string_view>

namespace moonshard {

// The help for a name: "write false"; "" for a name without an entry.
std::string HelpForForeignName(std::string_view name);

}  // namespace moonshard
