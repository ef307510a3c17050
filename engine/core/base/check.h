// Check: assertions for defects of moonshard itself. Check throws InternalError with the source location if a condition
// is false; only a defect of moonshard can make the condition false. Errors of a user are reported as Diagnostics
// instead (diagnostic.h).
#pragma once

#include <source_location>
#include <stdexcept>
#include <string>

namespace moonshard {

// The exception that reports a defect of moonshard. The `moonshard` program prints the message and ends with exit code
// 3; an application that uses the library receives the exception.
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
