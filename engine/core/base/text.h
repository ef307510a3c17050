// Text: joining, splitting, and the nearest of some names for "did you mean".
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace moonshard {

std::string Join(std::span<const std::string> parts, std::string_view separator);
// "1 rule", "2 rules".
std::string Count(size_t count, std::string_view one);
// The parts between separators; an empty text gives one empty part.
std::vector<std::string> Split(std::string_view text, char separator);
// "[64, 32]".
std::string ShapeToString(std::span<const int64_t> shape);

// Edits (insert, delete, replace, swap of neighbours) from one text to the other: the optimal string alignment
// distance.
size_t EditDistance(std::string_view a, std::string_view b);
// The name nearest to `wanted`, ties broken by order; empty where none is near enough to be suggested (more than a
// third of its letters differ, of a short name half).
std::string NearestName(std::string_view wanted, std::span<const std::string> names);
// "did you mean 'x'?" for the nearest name; else "one of: a, b, c" for at most `most` names; else empty.
std::string DidYouMean(std::string_view wanted, std::span<const std::string> names, size_t most = 12);

}  // namespace moonshard
