#include "tests/support/skip.h"

#include <cstdlib>
#include <iostream>
#include <stdexcept>

namespace moonshard::test {
namespace {

bool& Any() {
  static bool any = false;
  return any;
}

}  // namespace

void Skip(const std::string& reason) {
  const char* required = std::getenv("MOONSHARD_REQUIRE_GPU");
  if (required != nullptr && std::string(required) == "1")
    throw std::runtime_error("nothing may be skipped: " + reason);
  Any() = true;
  std::cout << "skipped: " << reason << "\n";
}

bool Skipped() { return Any(); }

}  // namespace moonshard::test
