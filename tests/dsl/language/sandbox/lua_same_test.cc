// Where the sandbox has functions of its own, they answer as Lua's do: the same chunk runs in the host's Lua and in the
// sandbox, in one program.
#include <algorithm>
#include <catch2/catch.hpp>

#include "dsl/language/sandbox/environment.h"
#include "dsl/language/state/chunk.h"
#include "tests/dsl/language/sandbox/host_lua.h"
#include "tests/support/golden.h"

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
    const std::string text = ReadWholeFile(std::string(MOONSHARD_SOURCE_DIR "/tests/cases/lua_same/") + name);
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

}  // namespace
}  // namespace moonshard
