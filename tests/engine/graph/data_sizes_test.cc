// DataSizes: the sizes that expressions of torch.export have.
#include "engine/graph/data_sizes.h"

#include <catch2/catch.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace moonshard::test {
namespace {

TEST_CASE("sizes that depend on data are computed from made-up ones") {
  const std::map<std::string, int64_t, std::less<>> symbols = {{"u0", 3}, {"s1", 8}};
  const auto value = [&](const char* text) { return graph::ValueOf(text, symbols); };
  CHECK(value("Symbol('u0', integer=True)") == 3);
  CHECK(value("Add(Integer(6), Mul(Integer(-1), Symbol('u0', integer=True)))") == 3);
  CHECK(value("Max(Integer(1), FloorDiv(Symbol('s1', positive=True, integer=True), Integer(2)))") == 4);
  CHECK(value("Mod(Symbol('s1', integer=True), Symbol('u0', integer=True))") == 2);
  CHECK(value("Pow(Symbol('u0', integer=True), Integer(2))") == 9);
  for (const char* text : {"", "Symbol('u1', integer=True)", "Add(Integer(6)", "Integer(x)", "sin(Integer(1))",
                           "FloorDiv(Integer(1), Integer(0))", "Mul(Integer(9223372036854775807), Integer(2))",
                           "Integer(1))", "Symbol(u0)", "Rational(1, 2)"}) {
    INFO(text);
    CHECK_FALSE(value(text));
  }
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "Add(";
  CHECK_FALSE(graph::ValueOf(deep, symbols));
}

}  // namespace
}  // namespace moonshard::test
