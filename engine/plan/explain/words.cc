#include "engine/plan/explain/words.h"

#include <array>
#include <cstdio>
#include <vector>

#include "engine/core/base/text.h"
#include "engine/layout/redistributions.h"
#include "engine/plan/compile/cost.h"

namespace moonshard {

std::string BytesText(int64_t bytes) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; (value >= 1024 || value <= -1024) && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  std::array<char, 32> text = {};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.2f %s", value, kUnits[unit]);
  return text.data();
}

std::string CollectiveText(const Redistribution& move, const MeshShape& mesh, Direction direction) {
  const std::optional<MeshAxis> axis = MovingAxis(move, mesh);
  if (!axis) return "";
  const std::optional<RedistributionRow> row = RowOf(move.from[*axis], move.to[*axis]);
  Check(row.has_value(), "a compiled move without a row");
  const std::optional<CollectiveKind> kind = CollectiveOf(*row, direction);
  return kind ? ToString(*kind) : "";
}

std::string CollectivesText(const Redistribution& move, const MeshShape& mesh) {
  std::vector<std::string> collectives;
  for (Direction direction : {Direction::kForward, Direction::kBackward}) {
    const std::string kind = CollectiveText(move, mesh, direction);
    if (!kind.empty()) collectives.push_back(kind + " " + ToString(direction));
  }
  return Join(collectives, ", ");
}

std::string RedistributionText(const Redistribution& move) {
  return move.from == move.to ? move.from.ToText() : move.from.ToText() + " -> " + move.to.ToText();
}

}  // namespace moonshard
