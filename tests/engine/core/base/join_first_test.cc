// A list in a message, in full or shortened.
#include "engine/core/base/join_first.h"

#include <catch2/catch.hpp>

#include <vector>

using namespace moonshard;

TEST_CASE("a list names as many as asked for, and counts the rest") {
  const std::vector<std::string> parts = {"a", "b", "c"};
  CHECK(JoinFirst(parts, 4) == "a, b, c");
  CHECK(JoinFirst(parts, 3) == "a, b, c");
  CHECK(JoinFirst(parts, 2) == "a, b and 1 more");
  CHECK(JoinFirst(parts, 1) == "a and 2 more");
  CHECK(JoinFirst({}, 3).empty());
}
