#include "dsl/language/bind/names.h"

#include <catch2/catch.hpp>
#include <set>
#include <sstream>

#include "tests/dsl/inputs.h"
#include "tests/support/golden.h"

namespace moonshard {
namespace {

TEST_CASE("the environment of a plan holds the names of the table and no others") {
  // The plan walks its own environment and raises what it found.
  const Result<Plan> walk = EvaluatePlan(
      "local found = {}\n"
      "for name, value in pairs(_ENV) do\n"
      "  if type(value) == 'table' then\n"
      "    for field in pairs(value) do found[#found + 1] = name .. '.' .. field end\n"
      "  else\n"
      "    found[#found + 1] = name\n"
      "  end\n"
      "end\n"
      "error('FOUND ' .. table.concat(found, ' '))\n",
      "walk.lua", LlamaInputs(2));
  REQUIRE(!walk.ok());
  std::istringstream text(walk.diagnostics().front().message);
  std::string word;
  text >> word;
  REQUIRE(word == "FOUND");
  std::set<std::string> found;
  while (text >> word) found.insert(word);
  std::set<std::string> listed;
  for (const NameInfo& info : AllNames()) {
    const std::string name = info.name;
    if (name.find(':') == std::string::npos) CHECK(listed.insert(name).second);
  }
  CHECK(found == listed);
}

TEST_CASE("the methods of the table exist") {
  PlanInputs inputs = LlamaInputs(2);
  const ModuleTree model = SmallLlama();
  inputs.model = &model;
  for (const NameInfo& info : AllNames()) {
    const std::string name = info.name;
    const size_t colon = name.find(':');
    if (colon == std::string::npos) continue;
    const std::string text = "local f = " + name.substr(0, colon) + "." + name.substr(colon + 1) +
                             "\nreturn plan { type(f) ~= 'function' and divides(2, 1) }";
    INFO(name);
    CHECK(TextOf(EvaluatePlan(text, "method.lua", inputs)) == "plan method api=1\n");
  }
}

TEST_CASE("every name has a signature that starts with it and a line of explanation") {
  for (const NameInfo& info : AllNames()) {
    INFO(info.name);
    const std::string signature = info.signature;
    CHECK((signature.starts_with(info.name) || signature == "layout" || signature.starts_with("re\"") ||
           signature.starts_with("mesh.")));
    CHECK(std::string(info.doc).size() > 5);
    CHECK(std::string(info.doc).find('\n') == std::string::npos);
  }
}

TEST_CASE("the luacheck configuration is made from the table") {
  CheckGolden(MOONSHARD_SOURCE_DIR "/.luacheckrc", LuacheckConfig());
}

}  // namespace
}  // namespace moonshard
