// Text: joins and splits texts, and finds the nearest of some names for "did you mean".
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace moonshard {

std::string Join(std::span<const std::string> parts, std::string_view separator);
// Returns "1 rule", "2 rules".
std::string Count(size_t count, std::string_view one);
// Returns the parts between the separators; an empty text gives one empty part.
std::vector<std::string> Split(std::string_view text, char separator);
// Returns how messages name the module at `path`: "'layers.0.mlp'", or "the model itself" for the root, whose path is
// empty.
std::string ModuleName(std::string_view path);
// "[64, 32]".
std::string ShapeToString(std::span<const int64_t> shape);

// Returns the number of edits (insert, delete, replace, swap of neighbours) from one text to the other: the optimal
// string alignment distance.
size_t EditDistance(std::string_view a, std::string_view b);
// Returns the name with the smallest edit distance to `wanted`, the first such name if there are several; empty if no
// name is near enough. The distance may be at most a third of the longer text (one more if the longer text has fewer
// than 6 letters) and at most half of the shorter text.
std::string NearestName(std::string_view wanted, std::span<const std::string> names);
// Returns "did you mean 'x'?" for the nearest name; if no name is near and there are at most `most` names, "one of: a,
// b, c"; else "".
std::string DidYouMean(std::string_view wanted, std::span<const std::string> names, size_t most = 12);

}  // namespace moonshard
