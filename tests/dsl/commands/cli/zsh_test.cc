// What zsh offers at a terminal with the script that `moonshard completion zsh` prints, found by its compinit as an
// installed one is. Skipped, and said so, where there is no zsh.
#include <catch2/catch.hpp>

#include "tests/support/paths.h"
#include "tests/support/process.h"
#include "tests/support/pty.h"
#include "tests/support/skip.h"

namespace moonshard::test {
namespace {

const std::string kEmptyLine = "\x15\n";  // Ctrl-U, which takes back what was typed, and Enter

TEST_CASE("zsh completes verbs, options, values, plans and files") {
  const Outcome found = RunExecutable("/bin/sh", {"-c", "command -v zsh"});
  if (found.code != 0) {
    Skip("no zsh in the PATH");
    return;
  }
  const ScratchFolder scratch;
  scratch.Write("_moonshard", RunExecutable(ExecutablePath(), {"completion", "zsh"}).out);
  Pty zsh(found.out.substr(0, found.out.find('\n')), {"-f", "-i"}, {"TERM=xterm", "HOME=" + scratch.path()});
  zsh.Type("PS1='ready%% '; fpath=(" + ShellWord(scratch.path()) + " $fpath); autoload -Uz compinit; compinit -u -D\n");
  REQUIRE(zsh.WaitFor("ready% ", 60));
  // Types the line and Tab; whether that is shown then.
  const auto completes = [&](const std::string& line, const std::string& shown) {
    zsh.Type(line + "\t");
    const bool done = zsh.WaitFor(shown, 30);
    zsh.Type(kEmptyLine);
    INFO(line << "\n" << zsh.Shown());
    CHECK(done);
    REQUIRE(zsh.WaitFor("ready% "));
  };
  completes("moonshard expl\t", "explain-finding  -- what a finding means");
  completes("moonshard explain --ran", "explain --rank ");
  completes("moonshard check --plan qwen3_m", "--plan qwen3_moe ");
  completes("moonshard eval model --dtype b", "--dtype bfloat16 ");
  completes("moonshard repl --mode js", "--mode json ");
  completes("moonshard explain-finding shards-not-m", "explain-finding shards-not-made ");
  completes("moonshard check model --mesh dp_s", "--mesh dp_shard=");
  completes("moonshard check model --mesh tp=2,dp_r", "--mesh tp=2,dp_replicate=");
  completes("moonshard completion z", "completion zsh ");
  std::string typed;
  for (const char c : scratch / "_moon") typed += c == ' ' ? std::string("\\ ") : std::string(1, c);
  completes("moonshard check " + typed, "/_moonshard ");
}

}  // namespace
}  // namespace moonshard::test
