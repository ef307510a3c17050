#include "dsl/language/state/script_state.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>

#include "dsl/language/sandbox/environment.h"
#include "dsl/language/state/chunk.h"
#include "dsl/language/state/userdata.h"
#include "tests/dsl/inputs.h"
#include "tests/support/process.h"

namespace moonshard {
namespace {

// Runs a chunk with the sandbox's environment and one more function, `probe`.
bool RunChunk(ScriptState& state, const std::string& text, lua_CFunction probe = nullptr) {
  return state.Run([&](lua_State* L) {
    OpenEnvironment(L);
    if (probe != nullptr) {
      lua_pushcfunction(L, probe);
      SetName(L, "probe");
    }
    PushEnvironment(L);
    if (LoadChunk(L, text, "t.lua", false)) lua_call(L, 0, 0);
  });
}

struct Counted {
  static inline int alive = 0;
  Counted() { ++alive; }
  Counted(Counted&&) noexcept { ++alive; }
  ~Counted() { --alive; }
};

int ThrowsStandard(lua_State*) { throw std::runtime_error("from C++"); }

int RaisesWithAnObjectAlive(lua_State* L) {
  Counted here;
  return luaL_error(L, "from Lua");
}

int PushesCounted(lua_State* L) {
  Userdata<Counted>::Register(L, "counted");
  Userdata<Counted>::Push(L, Counted(), 1000);
  return 1;
}

TEST_CASE("a C++ exception passes through Lua and comes out as itself") {
  ScriptState state({});
  CHECK_THROWS_WITH(RunChunk(state, "probe()", &Guarded<&ThrowsStandard>), "from C++");
}

TEST_CASE("destructors run when Lua raises") {
  ScriptState state({});
  CHECK(!RunChunk(state, "probe()", &Guarded<&RaisesWithAnObjectAlive>));
  CHECK(Counted::alive == 0);
  CHECK(ToText(state.TakeDiagnostics()) == "t.lua:1: error[MS0108]: from Lua\n    1 | probe()\n");
}

TEST_CASE("userdata are destroyed with the state, and their memory is counted while they live") {
  {
    ScriptState state({});
    CHECK(RunChunk(state, "local kept = {} for i = 1, 100 do kept[i] = probe() end", &Guarded<&PushesCounted>));
    CHECK(Counted::alive > 0);
    CHECK(state.memory_peak() > 100 * 1000);
  }
  CHECK(Counted::alive == 0);
}

TEST_CASE("memory is counted exactly: what a script let go of is free again") {
  ScriptState state({});
  CHECK(RunChunk(state, "local t = {} for i = 1, 100000 do t[i] = i end"));
  const size_t peak = state.memory_peak();
  CHECK(peak > 100000 * 16);
  size_t after = 0;
  CHECK(state.Run([&](lua_State* L) {
    lua_gc(L, LUA_GCCOLLECT);
    after = state.memory_used();
  }));
  CHECK(after < 100 * 1024);
}

TEST_CASE("the limits hold to the byte and to the step") {
  ScriptLimits limits;
  limits.memory_bytes = size_t{1} << 20;
  ScriptState small(limits);
  CHECK(!RunChunk(small, "local t = {} for i = 1, 1000000 do t[i] = i end"));
  CHECK(small.memory_peak() <= limits.memory_bytes);
  CHECK(small.TakeDiagnostics().front().message == "the plan needs more than 1 MiB of memory");

  limits = {};
  limits.steps = 10'000;
  ScriptState few(limits);
  CHECK(RunChunk(few, "for i = 1, 1000 do end"));
  ScriptState none(limits);
  CHECK(!RunChunk(none, "for i = 1, 100000 do end"));
  CHECK(none.TakeDiagnostics().front().message == "the plan took more than 10000 steps");

  limits = {};
  limits.steps = INT64_MAX;
  limits.time = std::chrono::milliseconds(50);
  ScriptState late(limits);
  CHECK(!RunChunk(late, "while true do end"));
  CHECK(late.TakeDiagnostics().front().message == "the plan used more than 50 ms of CPU time");
}

TEST_CASE("a comparison function that raises gives the memory of the sort back") {
  ScriptState state({});
  const std::string text = "local t = {} for i = 1, 10000 do t[i] = i end table.sort(t, function() error('no') end)";
  size_t before = 0;
  for (int i = 0; i < 3; ++i) {
    CHECK(!RunChunk(state, text));
    state.Renew();
    if (i == 0) before = state.memory_used();
  }
  CHECK(state.memory_used() < before + 10000 * 2 * sizeof(lua_Integer));
}

TEST_CASE("a syntax error is one, whatever the names in it and in the path") {
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"t.lua", "x = 1\nreturn { overflow overflow }"},
      {"a: b:7: c/t.lua", "x = 1\nreturn { y z }"},
      {std::string(80, 'd') + ": 5: /t.lua", "x = 1\nreturn { y z }"},
      {"t.lua", "x = 1\ngoto overflow"},
  };
  for (const auto& [name, text] : rows) {
    ScriptState state({});
    state.Run([&, &chunk = name, &code = text](lua_State* L) {
      OpenEnvironment(L);
      PushEnvironment(L);
      CHECK_FALSE(LoadChunk(L, code, chunk, false));
    });
    const Diagnostics found = state.TakeDiagnostics();
    REQUIRE(found.size() == 1);
    INFO(found.front().ToText());
    CHECK(found.front().finding == Finding::kSyntax);
    CHECK(found.front().where.line == 2);
    CHECK(found.front().message.find("t.lua") == std::string::npos);
  }
}

TEST_CASE("a text that is nested too deeply is an error at the line where it is") {
  const std::string open(300, '(');
  const std::string close(300, ')');
  for (const auto& [text, line] : std::vector<std::pair<std::string, int>>{
           {"return " + open + "1" + close, 1},
           {"\n\nreturn " + open + "1" + close + "\n\n\n", 3},
           {"x = 1 --" + std::string(255, 'x') + "\n" + std::string(1000, ' ') + "return " + open + "1" + close + "\n",
            2}}) {
    ScriptState state({});
    state.Run([&code = text](lua_State* L) {
      OpenEnvironment(L);
      PushEnvironment(L);
      CHECK_FALSE(LoadChunk(L, code, "t.lua", false));
    });
    const Diagnostics found = state.TakeDiagnostics();
    REQUIRE(found.size() == 1);
    CHECK(found.front().finding == Finding::kScriptLimit);
    CHECK(found.front().message == "the text is nested too deeply");
    CHECK(found.front().where.line == line);
  }
}

TEST_CASE("running out of memory at any moment is a diagnostic") {
  PlanInputs inputs = LlamaInputs(2);
  const std::string full = TextOf(LoadPlanFile("llama", inputs));
  int failed = 0;
  bool evaluated = false;
  for (size_t bytes = 0; bytes < 400'000 && !evaluated; bytes += 509) {
    inputs.limits.memory_bytes = bytes;
    std::string text;
    try {
      text = TextOf(LoadPlanFile("llama", inputs));
    } catch (const PlanError& error) {
      text = error.what();
    }
    evaluated = text == full;
    if (!evaluated) {
      ++failed;
      REQUIRE(text.find("error[MS0109]: the plan needs more than 0 MiB of memory") != std::string::npos);
    }
  }
  CHECK(evaluated);
  CHECK(failed > 50);
}

}  // namespace
}  // namespace moonshard
