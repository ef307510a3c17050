// Page: the files of page/, as they were when the program was built (embed.cmake).
#pragma once

#include <string_view>

namespace moonshard {

std::string_view PageHtml();
std::string_view PageStyle();
std::string_view PageScript();  // the *.js files, in the order of their names

}  // namespace moonshard
