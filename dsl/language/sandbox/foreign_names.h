// Foreign names: words of other languages and other systems that people write into a plan, and what they are here.
#pragma once

#include <string>
#include <string_view>

namespace moonshard {

// "false and true are written small"; "" for a name that is nobody's.
std::string HelpForForeignName(std::string_view name);

}  // namespace moonshard
