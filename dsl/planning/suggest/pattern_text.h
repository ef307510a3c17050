// PatternText: names of modules as one pattern.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace moonshard {

// A pattern that matches the text literally: characters with a meaning in patterns are in brackets. A component "*",
// which stands for the numbers of experts, is kept.
std::string Literally(const std::string& text);

// "{gate,up}_proj" for gate_proj and up_proj: the common prefix and suffix, up to a '_' or '.', are outside the braces.
std::string Braces(const std::vector<std::string>& names);

// "{0..3}" for consecutive numbers, "{0,2,5}" for others, "3" for one number.
std::string Numbers(const std::set<int64_t>& numbers);

}  // namespace moonshard
