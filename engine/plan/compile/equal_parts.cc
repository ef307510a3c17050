// packed(0, 3) is three parts of one size, whatever it is; the size comes from the module's own features, which only
// compile knows. Parts that do not divide it are an error here: rounding would move rows from one part to the next, as
// queries to keys. A redistribution continues as a plain shard after the error, so that the checks
// behind it run.
#include "engine/plan/compile/resolve_style.h"

#include <utility>

namespace moonshard {

std::optional<Diagnostic> UnequalParts(const Layout& layout, int64_t size, const Landing& landing,
                                       const std::string& what) {
  const auto count = static_cast<int64_t>(layout.parts.size());
  if (!layout.has_equal_parts() || size % count == 0) return std::nullopt;
  Diagnostic d = MakeDiagnostic(Finding::kPackedDoesNotFit,
                                what + " of '" + landing.module->path + "': a dim of " + std::to_string(size) +
                                    " elements cannot be divided into " + std::to_string(count) + " equal parts",
                                landing.source);
  d.path = landing.module->path;
  d.declared = layout.ToText();
  d.required = "a number of parts that divides " + std::to_string(size) + ", or the size of each part";
  d.help =
      "packed(" + std::to_string(layout.dim) + ", { size, ... }) with sizes that add up to " + std::to_string(size);
  return d;
}

void FillEqualParts(int64_t features, const Landing& landing, const std::string& what, bool said,
                    std::optional<Redistribution>& move, Diagnostics& diagnostics) {
  if (!move || features < 0) return;
  for (Placement* placement : {&move->from, &move->to}) {
    for (Layout& layout : placement->by_axis) {
      if (layout.dim != -1) continue;
      if (std::optional<Diagnostic> unequal = UnequalParts(layout, features, landing, what)) {
        if (!said) diagnostics.push_back(*std::move(unequal));
        said = true;
        layout = Layout::Shard(layout.dim);
      }
      layout = layout.Sized(features);
    }
  }
}

}  // namespace moonshard
