#include "dsl/language/bind/deprecated.h"

#include <array>

namespace moonshard {

std::span<const DeprecatedName> DeprecatedNames() {
  static constexpr std::array<DeprecatedName, 0> kNames = {};
  return kNames;
}

std::string DeprecatedHelp(const DeprecatedName& name) {
  return "since moonshard " + std::string(name.since) + "; the old name goes away in a later version";
}

}  // namespace moonshard
