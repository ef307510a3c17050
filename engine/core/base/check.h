// Check: our own bugs. A condition that only a defect of moonshard can violate throws InternalError with the place;
// mistakes of a user are Diagnostics instead (diagnostic.h).
#pragma once

#include <source_location>
#include <stdexcept>
#include <string>

namespace moonshard {

// A defect of moonshard. The program ends with exit code 3 on it; an embedder sees an ordinary exception.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// Throws InternalError "FILE:LINE: what" unless `condition` holds.
inline void Check(bool condition, const std::string& what,
                  std::source_location where = std::source_location::current()) {
  if (!condition) {
    throw InternalError(std::string(where.file_name()) + ":" + std::to_string(where.line()) + ": " + what);
  }
}

}  // namespace moonshard
