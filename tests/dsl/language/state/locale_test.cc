// A plan's texts and numbers in a host that has set a locale.
#include <catch2/catch.hpp>
#include <clocale>
#include <cstdlib>

#include "dsl/language/sandbox/environment.h"
#include "dsl/language/state/chunk.h"
#include "dsl/language/state/script_state.h"
#include "tests/support/process.h"
#include "tests/support/skip.h"

namespace moonshard {
namespace {

bool RunText(ScriptState& state, const std::string& text) {
  return state.Run([&](lua_State* L) {
    OpenEnvironment(L);
    PushEnvironment(L);
    if (LoadChunk(L, text, "t.lua", false)) lua_call(L, 0, 0);
  });
}

// A locale with a decimal comma in which Z is behind a: nothing where localedef cannot make it.
bool UseOtherLocale(const test::ScratchFolder& folder) {
  const std::string make =
      "localedef -i de_DE -f UTF-8 " + test::ShellWord(folder / "de_DE.UTF-8") + " >/dev/null 2>&1";
  if (std::system(make.c_str()) > 256) return false;  // 1: made, with warnings
  setenv("LOCPATH", folder.path().c_str(), 1);
  return std::setlocale(LC_ALL, "de_DE.UTF-8") != nullptr;
}

TEST_CASE("what a plan computes does not depend on the host's locale") {
  const test::ScratchFolder folder;
  if (!UseOtherLocale(folder)) {
    test::Skip("localedef made no locale");
    return;
  }
  REQUIRE(std::string(std::localeconv()->decimal_point) == ",");
  ScriptState state({});
  const bool ran = RunText(state,
                           "assert('Z' < 'a', 'order of texts')\n"
                           "assert(tostring(1.5) == '1.5', tostring(1.5))\n"
                           "assert(string.format('%.2f %g', 1.5, 2.5) == '1.50 2.5', 'format')\n"
                           "assert(tonumber('1.5') == 1.5 and tonumber('1,5') == nil, 'number')\n"
                           "assert(('\\xc4'):lower() == '\\xc4', 'lower')\n");
  const std::string said = ToText(state.TakeDiagnostics());
  const bool kept = std::string(std::localeconv()->decimal_point) == ",";
  std::setlocale(LC_ALL, "C");
  unsetenv("LOCPATH");
  INFO(said);
  CHECK(ran);
  CHECK(kept);
}

}  // namespace
}  // namespace moonshard
