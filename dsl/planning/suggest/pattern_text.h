// PatternText: names of modules as one pattern.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace moonshard {

// The text as a pattern that means just it: what a pattern has a meaning for stands in brackets.
// A component that is "*", which stands for experts, stays one.
std::string Literally(const std::string& text);

// "{gate,up}_proj" for gate_proj and up_proj: what all begin and end in, up to a '_' or '.', stands outside the braces.
std::string Braces(const std::vector<std::string>& names);

// "{0..3}", "{0,2,5}", or the number where it is one.
std::string Numbers(const std::set<int64_t>& numbers);

}  // namespace moonshard
