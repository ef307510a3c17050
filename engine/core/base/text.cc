#include "engine/core/base/text.h"

#include <algorithm>
#include <limits>

namespace moonshard {

std::string Join(std::span<const std::string> parts, std::string_view separator) {
  std::string out;
  for (const std::string& part : parts) {
    if (&part != parts.data()) out += separator;
    out += part;
  }
  return out;
}

std::string Count(size_t count, std::string_view one) {
  return std::to_string(count) + " " + std::string(one) + (count == 1 ? "" : "s");
}

std::vector<std::string> Split(std::string_view text, char separator) {
  std::vector<std::string> out;
  size_t begin = 0;
  for (size_t end; (end = text.find(separator, begin)) != std::string_view::npos; begin = end + 1) {
    out.emplace_back(text.substr(begin, end - begin));
  }
  out.emplace_back(text.substr(begin));
  return out;
}

std::string ModuleName(std::string_view path) {
  return path.empty() ? "the model itself" : "'" + std::string(path) + "'";
}

std::string ShapeToString(std::span<const int64_t> shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += (i ? ", " : "") + std::to_string(shape[i]);
  return out + "]";
}

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1] ? 1 : 0)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

std::string NearestName(std::string_view wanted, std::span<const std::string> names) {
  std::string best;
  size_t best_distance = std::numeric_limits<size_t>::max();
  for (const std::string& name : names) {
    const size_t longer = std::max(name.size(), wanted.size());
    const size_t shorter = std::min(name.size(), wanted.size());
    if (longer - shorter > longer / 3 + 1) continue;
    const size_t distance = EditDistance(wanted, name);
    // Of a short name half may differ: "tq" is near "tp", and "len" is not near "on".
    const bool near = distance <= longer / 3 + (longer < 6 ? 1 : 0) && 2 * distance <= shorter;
    if (distance < best_distance && near) {
      best = name;
      best_distance = distance;
    }
  }
  return best;
}

std::string DidYouMean(std::string_view wanted, std::span<const std::string> names, size_t most) {
  const std::string nearest = NearestName(wanted, names);
  if (!nearest.empty()) return "did you mean '" + nearest + "'?";
  if (names.empty() || names.size() > most) return "";
  return "one of: " + Join(names, ", ");
}

}  // namespace moonshard
