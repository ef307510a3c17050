// What the program prints about itself: every verb and every option of its help stands in the completions and on the
// man page; the shells take the scripts.
#include <catch2/catch.hpp>
#include <sstream>

#include "tests/support/paths.h"
#include "tests/support/process.h"

namespace moonshard::test {
namespace {

using Catch::Contains;

// For shells and what they start: of a locale that is not installed they complain on stderr.
const std::vector<std::string> kLocale = {"LC_ALL=C"};

std::string Printed(const std::vector<std::string>& words) {
  const Outcome done = RunExecutable(ExecutablePath(), words);
  INFO(done.ToText());
  REQUIRE(done.code == 0);
  CHECK(done.err.empty());
  return done.out;
}

// The first words of the lines below "Subcommands:" or that begin with "--".
std::vector<std::string> Verbs() {
  std::vector<std::string> out;
  const std::string help = Printed({"--help"});
  std::istringstream lines(help.substr(help.find("Subcommands:")));
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line)) {
    if (line.starts_with("  ") && line[2] != ' ') out.push_back(line.substr(2, line.find(' ', 2) - 2));
  }
  return out;
}

std::vector<std::string> Options(const std::string& verb) {
  std::vector<std::string> out;
  std::istringstream words(Printed({verb, "--help"}));
  for (std::string line; std::getline(words, line);) {
    const size_t at = line.find("--");
    if (!line.starts_with("  -") || at == std::string::npos || at > 7) continue;
    out.push_back(line.substr(at, line.find_first_of(" ,:{[", at) - at));
  }
  return out;
}

bool Has(const std::string& program) { return RunExecutable("/bin/sh", {"-c", "command -v " + program}).code == 0; }

TEST_CASE("every verb and option is in the completions and on the man page") {
  const std::vector<std::string> verbs = Verbs();
  CHECK(verbs.size() >= 14);
  const std::string man = Printed({"man"});
  const std::string bash = Printed({"completion", "bash"});
  const std::string zsh = Printed({"completion", "zsh"});
  const std::string fish = Printed({"completion", "fish"});
  size_t options = 0;
  for (const std::string& verb : verbs) {
    INFO(verb);
    std::string dashed;
    for (const char c : verb) dashed += c == '-' ? std::string("\\-") : std::string(1, c);
    CHECK_THAT(man, Contains("\n.SS " + dashed + "\n"));
    CHECK_THAT(bash, Contains("    " + verb + ") words='"));
    CHECK_THAT(zsh, Contains("    " + verb + ") _arguments"));
    CHECK_THAT(fish, Contains(" -f -a " + verb + " -d "));
    for (const std::string& option : Options(verb)) {
      ++options;
      INFO(option);
      CHECK_THAT(bash, Contains(option));
      CHECK_THAT(zsh, Contains("*" + option + "["));
      CHECK_THAT(fish, Contains("-l " + option.substr(2) + " "));
      std::string escaped;
      for (const char c : option) escaped += c == '-' ? std::string("\\-") : std::string(1, c);
      CHECK_THAT(man, Contains(escaped));
    }
  }
  CHECK(options > 40);
}

TEST_CASE("bash completes verbs, options, values and plans") {
  const ScratchFolder scratch;
  const std::string script = scratch.Write("completion.bash", Printed({"completion", "bash"}));
  const auto completed = [&](const std::string& words) {
    const Outcome done = RunExecutable(
        "/bin/bash",
        {"-c", "source " + ShellWord(script) + "; COMP_WORDS=(" + words +
                   "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _moonshard; printf '%s\\n' \"${COMPREPLY[@]}\""},
        kLocale);
    INFO(done.ToText());
    CHECK(done.code == 0);
    CHECK(done.err.empty());
    return " " + Replaced(done.out + "\n", "\n\n", "\n");
  };
  CHECK(completed("moonshard expl") == " explain\nexplain-finding\n");
  CHECK_THAT(completed("moonshard ''"), Contains("check\n") && Contains("repl\n"));
  CHECK(completed("moonshard explain --ran") == " --rank\n");
  CHECK(completed("moonshard eval model --dtype b") == " bfloat16\n");
  CHECK(completed("moonshard check --plan qwen3_m") == " qwen3_moe\n");
  CHECK(completed("moonshard completion z") == " zsh\n");
  CHECK(completed("moonshard explain-finding shards-not-m") == " shards-not-made\n");
  CHECK_THAT(completed("moonshard explain-finding MS03"), Contains("MS0301\n") && !Contains("MS0201"));
  CHECK(completed("moonshard check model --mesh t") == " tp=\n");
  CHECK_THAT(completed("moonshard check model --mesh ''"), Contains("dp_shard=\n") && Contains("\ntp=\n"));
  CHECK(completed("moonshard check model --mesh tp = 2,dp_s") == " 2,dp_shard=\n");  // as bash breaks words
  CHECK(completed("moonshard check model --mesh tp = 2,dp = 2,c") == " 2,cp=\n");
  CHECK(completed("moonshard check model --option ''") == " \n");
  CHECK(completed("moonshard check model --option a = ''") == " \n");
  CHECK_THAT(completed("moonshard explain " + ShellWord(scratch / "comp")), Contains("completion.bash"));
}

TEST_CASE("the shells and man read what is printed") {
  const ScratchFolder scratch;
  for (const char* shell : {"bash", "zsh", "fish"}) {
    if (!Has(shell)) continue;  // what zsh and fish make of it: zsh_test.cc and fish_test.cc, which say that they skip
    const std::string script = scratch.Write(std::string("script.") + shell, Printed({"completion", shell}));
    const Outcome read = RunExecutable("/bin/sh", {"-c", std::string(shell) + " -n " + ShellWord(script)}, kLocale);
    INFO(shell << read.ToText());
    CHECK(read.code == 0);
    CHECK(read.err.empty());
  }
  const std::string man = Printed({"man"});
  for (const char* part : {"\n.SH ENVIRONMENT\n", "\n.SH FILES\n", "\n.SH EXAMPLES\n", "NO_COLOR", "XDG_STATE_HOME",
                           "MOONSHARD_STORE", "/moonshard/history"}) {
    CHECK_THAT(man, Contains(part));
  }
  if (!Has("groff")) return;
  const std::string page = scratch.Write("moonshard.1", Printed({"man"}));
  const Outcome read = RunExecutable("/bin/sh", {"-c", "groff -man -Tascii -ww -P-cbou " + ShellWord(page)}, kLocale);
  INFO(read.ToText());
  CHECK(read.code == 0);
  CHECK(read.err.empty());
  CHECK_THAT(read.out, Contains("SYNOPSIS") && Contains("Exit codes"));
}

TEST_CASE("definitions come in four forms") {
  CHECK_THAT(Printed({"definitions"}), Catch::StartsWith("---@meta\n"));
  CHECK_THAT(Printed({"definitions", "--form", "luarc", "--library", "/opt/x"}), Contains("\"/opt/x\""));
  CHECK(Printed({"definitions", "--form", "luacheck"}) == ReadWholeFile(SourcePath(".luacheckrc")));
  CHECK_THAT(Printed({"definitions", "--form", "markdown"}), Contains("### `colwise`"));
  CHECK(RunExecutable(ExecutablePath(), {"definitions", "--form", "xml"}).code == 2);
  CHECK(RunExecutable(ExecutablePath(), {"completion"}).code == 2);
}

TEST_CASE("an untrusted plan is evaluated in a child process") {
  const ScratchFolder scratch;
  const std::string model = SourcePath("tests/parity/llama_gqa");
  const std::string plain = RunExecutable(ExecutablePath(), {"explain", model, "--mesh", "tp=2"}).out;
  const Outcome apart = RunExecutable(ExecutablePath(), {"explain", model, "--mesh", "tp=2", "--isolate"});
  INFO(apart.ToText());
  CHECK(apart.code == 0);
  CHECK(!plain.empty());
  CHECK(apart.out == plain);
  const std::string bad = scratch.Write("bad.lua", "while true do end");
  const Outcome refused = RunExecutable(ExecutablePath(), {"check", model, "--plan", bad, "--isolate"});
  CHECK(refused.code == 1);
  // Whichever limit the machine meets first.
  CHECK_THAT(refused.out, Contains("bad.lua:1: error[MS0109]: the plan took more than 20000000 steps") ||
                              Contains("bad.lua:1: error[MS0109]: the plan used more than 500 ms of CPU time"));
}

}  // namespace
}  // namespace moonshard::test
