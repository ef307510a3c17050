#include "tests/support/skip.h"

#include <iostream>

namespace moonshard::test {
namespace {

bool& Any() {
  static bool any = false;
  return any;
}

}  // namespace

void Skip(const std::string& reason) {
  Any() = true;
  std::cout << "skipped: " << reason << "\n";
}

bool Skipped() { return Any(); }

}  // namespace moonshard::test
