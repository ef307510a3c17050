// Where the sandbox has functions of its own, they answer as Lua's do: the same chunk runs in the host's Lua and in the
// sandbox, in one program.
#include <algorithm>
#include <catch2/catch.hpp>
#include <sstream>

#include "dsl/language/sandbox/environment.h"
#include "dsl/language/state/chunk.h"
#include "tests/dsl/language/sandbox/host_lua.h"
#include "tests/support/golden.h"
#include "tests/support/paths.h"

namespace moonshard {
namespace {

std::string RunInSandbox(const std::string& text) {
  ScriptState state({});
  std::string out;
  const bool done = state.Run([&](lua_State* L) {
    OpenEnvironment(L);
    PushEnvironment(L);
    if (!LoadChunk(L, text, "same.lua", false)) return;
    lua_call(L, 0, 1);
    size_t size = 0;
    const char* answer = lua_tolstring(L, -1, &size);
    out.assign(answer, size);
  });
  return done && state.TakeDiagnostics().empty() ? out : "error: " + ToText(state.TakeDiagnostics());
}

TEST_CASE("the sandbox's functions answer as Lua's own") {
  for (const char* name : {"functions.lua", "patterns.lua"}) {
    const std::string text = ReadWholeFile(test::SourcePath("tests/cases/lua_same/") + name);
    const std::string expected = RunHostLua(text);
    INFO(name);
    REQUIRE(expected.size() > 400);
    REQUIRE(!expected.starts_with("error"));
    const std::string answer = RunInSandbox(text);
    const auto [differs, unused] = std::ranges::mismatch(answer, expected);
    const auto at = static_cast<size_t>(differs - answer.begin());
    INFO("Lua: ..." << expected.substr(at < 80 ? 0 : at - 80, 160));
    INFO("sandbox: ..." << answer.substr(at < 80 ? 0 : at - 80, 160));
    CHECK((answer == expected));
  }
}

// Whether an error is raised, and not its text: the sandbox's has a place and a help.
TEST_CASE("a call gives Lua's own values, or an error where Lua raises one") {
  const std::string head =
      "local function values(...)\n"
      "  local out = {}\n"
      "  for i = 1, select('#', ...) do out[i] = type((select(i, ...))) .. ' ' .. tostring((select(i, ...))) end\n"
      "  return table.concat(out, ', ')\n"
      "end\n"
      "return values(";
  const auto without_text = [](const std::string& answer) { return answer.starts_with("error") ? "error" : answer; };
  std::istringstream lines(ReadWholeFile(test::SourcePath("tests/cases/lua_same/calls.txt")));
  int calls = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('#')) continue;
    ++calls;
    INFO(line);
    CHECK(without_text(RunInSandbox(head + line + ")")) == without_text(RunHostLua(head + line + ")")));
  }
  CHECK(calls > 200);
}

}  // namespace
}  // namespace moonshard
