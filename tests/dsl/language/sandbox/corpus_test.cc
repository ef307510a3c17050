// Every file of tests/cases/sandbox is a script that tries to hang, to grow, to escape or to confuse. Its first line
// says how it must end, "--- expect: MS0109 more than 20000000 steps | more than 500 ms": the finding and what its
// message holds, one of the texts where it depends on the machine which limit is passed first; or "--- expect: ok".
// Where that line would undo the attack, it stands in NAME.expect.
//
// Each runs in a process of its own (run_plan.cc) and ends in under two seconds of CPU time (wall time would measure
// what else the machine does) and 64 MiB, all of the process counted, and the next evaluation in that process is
// unharmed.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <sstream>

#include "engine/core/base/text.h"
#include "tests/dsl/inputs.h"
#include "tests/support/golden.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"

namespace moonshard {
namespace {

const std::string kFolder = test::SourcePath("tests/cases/sandbox/");

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // memory of the sanitizer's own is no measure, and time is several times longer
#else
constexpr bool kSanitized = false;
#endif

struct Expected {
  std::string id;                  // "MS0109", or "ok"
  std::vector<std::string> texts;  // one of which its message holds
};

Expected ExpectedOf(const std::string& name) {
  const std::string staging = kFolder + name.substr(0, name.rfind('.')) + ".expect";
  const std::string text = ReadWholeFile(std::filesystem::exists(staging) ? staging : kFolder + name);
  const std::string head = "--- expect: ";
  INFO(name << " does not say how it must end");
  REQUIRE(text.starts_with(head));
  const std::string line = text.substr(head.size(), text.find_first_of("\r\n") - head.size());
  const size_t space = line.find(' ');
  Expected expected{line.substr(0, space), {}};
  if (space != std::string::npos) {
    for (const std::string& one : Split(line.substr(space + 1), '|')) {
      const size_t begin = one.find_first_not_of(' ');
      expected.texts.push_back(one.substr(begin, one.find_last_not_of(' ') + 1 - begin));
    }
  }
  REQUIRE((expected.id == "ok" || !expected.texts.empty()));
  return expected;
}

struct Ran {
  long cpu_ms = -1;
  long peak_kib = -1;
  std::string next;
  std::vector<std::string> said;
};

Ran ReadRun(const std::string& out) {
  Ran ran;
  std::istringstream lines(out);
  std::string word;
  lines >> word >> ran.cpu_ms >> word >> ran.peak_kib >> word >> ran.next;
  std::getline(lines, word);
  while (std::getline(lines, word)) ran.said.push_back(word);
  return ran;
}

TEST_CASE("scripts that try to hang, grow or escape") {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    if (entry.path().extension() == ".lua") names.push_back(entry.path().filename());
  }
  std::ranges::sort(names);
  CHECK(names.size() >= 120);
  for (const std::string& name : names) {
    const Expected expected = ExpectedOf(name);
    const test::Outcome outcome = test::RunExecutable(MOONSHARD_RUN_PLAN, {kFolder + name});
    INFO(name << ": " << outcome.ToText());
    REQUIRE(outcome.code == 0);
    const Ran ran = ReadRun(outcome.out);
    CHECK(ran.cpu_ms >= 0);
    CHECK(ran.cpu_ms < (kSanitized ? 10000 : 2000));
    CHECK(ran.peak_kib > 0);
    if (!kSanitized) CHECK(ran.peak_kib < 64 * 1024);
    CHECK(ran.next == "same");
    const auto fits = [&](const std::string& line) {
      return line == expected.id ||
             (line.starts_with(expected.id + " ") && std::ranges::any_of(expected.texts, [&](const std::string& text) {
                return line.find(text) != std::string::npos;
              }));
    };
    CHECK(std::ranges::any_of(ran.said, fits));
    CHECK((expected.id == "ok") == (!ran.said.empty() && ran.said.back() == "ok"));
  }
}

// What a sandbox of Lua must hold against, and scripts that try each. (The child process is tested in
// tests/dsl/language/eval/isolated_test.cc, destructors under Lua's errors in
// tests/dsl/language/state/script_state_test.cc.)
TEST_CASE("every rule of the sandbox has a script that tries to break it") {
  const std::vector<std::pair<std::string, std::vector<std::string>>> rules = {
      {"memory is counted, whoever holds it",
       {"memory_tables", "memory_patterns", "one_gigabyte_of_layouts", "rep_many"}},
      {"steps and CPU time both end a script, also within an instruction", {"endless_while", "joined_long_texts"}},
      {"nothing outlives the end of a script", {"close_loop", "poison_loop", "absent_pcall", "absent_coroutine"}},
      {"a library's work is bounded before it is done",
       {"rep_empty", "pattern_backtracking", "sort_slow", "unpack_huge"}},
      {"no finalizer", {"gc_metamethod", "absent_setmetatable", "absent_collectgarbage"}},
      {"nothing that loads or reaches out",
       {"absent_load", "absent_io", "absent_os", "absent_debug", "absent_package"}},
      {"text alone, of bounded size and depth, read in bounded time",
       {"bytecode", "byte_order_mark", "nul_byte", "deep_tables", "parse_and_chain", "parse_nested_functions"}},
      {"libraries, words and the metatable of strings are read only",
       {"string_library_is_read_only", "environment_is_read_only", "metatable_field_is_locked", "escape_stdlib_write"}},
      {"the same on every rank", {"no_addresses", "format_pointer", "absent_math_random", "time_pairs_of_many"}},
      {"files of its own directory alone", {"require_outside", "escape_require_dotdot", "escape_extends_device"}},
      {"what comes after the evaluation is bounded too", {"match_many_rules", "match_ranges", "match_deep_braces"}},
      {"what is said reaches no terminal", {"escape_terminal"}},
  };
  for (const auto& [rule, scripts] : rules) {
    for (const std::string& script : scripts) {
      INFO(rule << ": " << script);
      CHECK(std::filesystem::exists(kFolder + script + ".lua"));
    }
  }
}

TEST_CASE("a text longer than allowed is not read") {
  const std::string text = "return plan {} --" + std::string(size_t{1} << 20, '-');
  CHECK(TextOf(EvaluatePlan(text, "long.lua", LlamaInputs(2))) ==
        "long.lua: error[MS0101]: the text has 1048593 bytes; at most 1048576 are allowed\n");
}

TEST_CASE("a script cannot reach the next evaluation") {
  const std::string text = "return plan { at(\"a\", colwise {}) }";
  const std::string before = TextOf(EvaluatePlan(text, "t.lua", LlamaInputs(2)));
  CHECK(!EvaluatePlan("string.rep = nil; colwise = nil; shard = nil; plan = nil", "bad.lua", LlamaInputs(2)).ok());
  CHECK(TextOf(EvaluatePlan(text, "t.lua", LlamaInputs(2))) == before);
}

}  // namespace
}  // namespace moonshard
