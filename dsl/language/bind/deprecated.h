// Deprecated names: words and keys that were given another name. A plan that says the old one works as it did, with a
// warning (kDeprecatedName) that says the new one. `api` (plan { api = 1 }) changes only where a plan would mean something
// else.
#pragma once

#include <span>
#include <string>

namespace moonshard {

struct DeprecatedName {
  const char* name;         // "column_wise", or a key with its word: "colwise.in_layout"
  const char* replacement;  // a word; of a key, the key alone: "input"
  const char* since;        // the version of moonshard that gave the new name: "0.2"
};

// What to say of it, beside the new name.
std::string DeprecatedHelp(const DeprecatedName& name);

// Those of this version.
std::span<const DeprecatedName> DeprecatedNames();

}  // namespace moonshard
