// PatternText: names of modules as one pattern.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace moonshard {

// The text as a pattern that matches it literally: characters with a meaning in patterns are in brackets. A component
// "*", which stands for experts, is kept.
std::string Literally(const std::string& text);

// "{gate,up}_proj" for gate_proj and up_proj: the common prefix and suffix, up to a '_' or '.', are outside the braces.
std::string Braces(const std::vector<std::string>& names);

// "{0..3}", "{0,2,5}", or the number where it is one.
std::string Numbers(const std::set<int64_t>& numbers);

}  // namespace moonshard
