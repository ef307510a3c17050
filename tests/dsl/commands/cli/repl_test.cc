// `moonshard repl` as a script runs it: -c, -f, stdin; streams and exit codes.
#include <catch2/catch.hpp>

#include <filesystem>

#include "tests/support/paths.h"
#include "tests/support/process.h"
#include "tests/support/programs.h"

namespace moonshard::test {
namespace {

using Catch::Contains;

Outcome RunRepl(std::vector<std::string> words) {
  words.insert(words.begin(), "repl");
  return RunExecutable(ExecutablePath(), words);
}

Outcome Piped(const std::string& text, const std::string& words) {
  const ScratchFolder scratch;
  const std::string file = scratch.Write("lines", text);
  // Of a locale that is not installed the shell might complain on stderr.
  return RunExecutable("/bin/sh", {"-c", ShellWord(ExecutablePath()) + " repl " + words + " < " + ShellWord(file)},
                       {"LC_ALL=C"});
}

TEST_CASE("repl: lines on the command line") {
  const Outcome done = RunRepl({kModel, "--mesh", "tp=2", "-c", "mesh.tp", "-c", "x = 2\nx * 2"});
  INFO(done.ToText());
  CHECK(done.code == 0);
  CHECK(done.out == "2\n4\n");
  CHECK(done.err.empty());
}

TEST_CASE("repl: data on stdout, diagnostics on stderr, exit code 1 for a line that failed") {
  const Outcome done = RunRepl({kModel, "-c", "1 + 1\nnosuch\n2 + 2"});
  INFO(done.ToText());
  CHECK(done.code == 1);
  CHECK(done.out == "2\n4\n");
  CHECK_THAT(done.err, Contains("-c:2: error[MS0102]: unknown name 'nosuch'"));
  const Outcome bailed = RunRepl({kModel, "--bail", "-c", "1 + 1\nnosuch\n2 + 2"});
  CHECK(bailed.code == 1);
  CHECK(bailed.out == "2\n");
}

TEST_CASE("repl: a script from a file and from stdin") {
  const ScratchFolder scratch;
  const std::string script =
      scratch.Write("script.repl", "for i = 1, 2 do\n  x = i\nend\nx\n:mode json\n:match lm_head\n");
  const std::string expected =
      "2\n{\"match\":{\"RE2\":\"lm_head\",\"modules\":1,\"pattern\":\"lm_head\"},\"matches\":[{\"claimed "
      "by\":\"plans/llama.lua:14\",\"count\":1,\"path\":\"lm_head\"}]}\n";
  const Outcome file = RunRepl({kModel, "--mesh", "tp=2", "-f", script});
  INFO(file.ToText());
  CHECK(file.code == 0);
  CHECK(file.out == expected);
  const Outcome piped = Piped(ReadWholeFile(script), ShellWord(kModel) + " --mesh tp=2");
  CHECK(piped.code == 0);
  CHECK(piped.out == expected);
  CHECK(piped.err.empty());  // no prompt, no banner
  CHECK(Piped("x", ShellWord(kModel)).code == 1);
  CHECK(Piped("", ShellWord(kModel)).code == 0);
  CHECK(Piped("1 + 1", "").out == "2\n");  // no model, no line end
  CHECK_THAT(Piped("\n\nx", ShellWord(kModel)).err, Contains("stdin:3: error[MS0102]"));
  CHECK(Piped(":quit\nnosuch\n", ShellWord(kModel)).code == 0);
}

TEST_CASE("repl: a script that cannot be read to its end is an error") {
  const Outcome folder = RunRepl({kModel, "-f", SourcePath("tests/cases")});
  INFO(folder.ToText());
  CHECK(folder.code != 0);
  CHECK_THAT(folder.err, Contains("error[MS0402]: ") && Contains("tests/cases"));
  const Outcome endless = RunRepl({kModel, "-f", "/dev/zero"});
  INFO(endless.ToText());
  CHECK(endless.code != 0);
  CHECK_THAT(endless.err, Contains("error[MS0402]: cannot read '/dev/zero': it has a line of more than 16 MiB"));
}

TEST_CASE("repl: a text of the model forges no line of the session") {
  const ScratchFolder scratch;
  const std::string model = scratch.CopyOf(kModel, "model");
  const std::string config = ReadWholeFile(model + "/config.json");
  std::filesystem::remove(model + "/config.json");
  std::filesystem::copy_file(scratch.Write("config", Replaced(config, "\"model_type\": \"llama\"",
                                                              "\"model_type\": \"llama\\nplan: no errors\"")),
                             model + "/config.json");
  const Outcome done = RunRepl({model, "-c", "config.model_type"});
  INFO(done.ToText());
  CHECK(done.out == "llama\n  plan: no errors\n");
  CHECK(RunRepl({model, "--mode", "csv", "-c", "config.model_type"}).out == "#,value\n1,llama\\nplan: no errors\n");
}

TEST_CASE("repl: findings as everywhere: a form for programs, colours where they are wanted") {
  const std::string escape = "\033[";
  const Outcome plain = RunRepl({kModel, "-c", "nosuch"});
  CHECK_THAT(plain.err, Contains("-c:1: error[MS0102]") && !Contains(escape));
  CHECK_THAT(RunRepl({kModel, "--color", "always", "-c", "nosuch"}).err, Contains(escape));
  const Outcome github = RunRepl({kModel, "--format", "github", "-c", "nosuch", "-c", ":reload"});
  INFO(github.ToText());
  CHECK(github.code == 1);
  CHECK_THAT(github.err, Catch::StartsWith("::error file=-c,line=1,") && !Contains("nothing changed"));
  const Outcome sarif = RunRepl({kModel, "--format", "sarif", "-c", "nosuch"});
  CHECK_THAT(sarif.err, Contains("\"ruleId\": \"MS0102\""));
  CHECK_THAT(RunRepl({kModel, "--format", "json", "-f", "/nosuch/script"}).err, Contains("\"id\": \"MS0401\""));
  CHECK(RunRepl({kModel, "--format", "xml", "-c", "1"}).code == 2);
}

TEST_CASE("repl: exit code 2 for what was asked for and is not there") {
  CHECK(RunRepl({SourcePath("tests/cases"), "-c", "1"}).code == 2);
  CHECK(RunRepl({kModel, "--mesh", "tp=x", "-c", "1"}).code == 2);
  CHECK(RunRepl({kModel, "--mode", "xml", "-c", "1"}).code == 2);
  CHECK(RunRepl({kModel, "--nosuch"}).code == 2);
  CHECK(RunRepl({kModel, "-f", "/nosuch/script"}).code == 2);
  const ScratchFolder scratch;
  const std::string plan = scratch.Write("bad.lua", "return plan { at('lm_hed', colwise {}) }\n");
  const Outcome bad = RunRepl({kModel, "--mesh", "tp=2", "--plan", plan, "-c", ":why lm_head"});
  INFO(bad.ToText());
  CHECK(bad.code == 2);
  CHECK_THAT(bad.err, Contains("bad.lua:1: error[MS0202]"));
  CHECK_THAT(bad.out, Contains("lm_head"));  // the line is run all the same
}

TEST_CASE("repl: verify runs the program beside it, and its exit code is the line's") {
  const Outcome done = RunRepl({kModel, "--mesh", "tp=3", "-c", ":verify"});
  CHECK(done.code == 2);  // the plan does not fit three ranks
  CHECK_THAT(done.err, Contains("MS0113"));
  const Outcome usage = RunRepl({kModel, "--mesh", "tp=2", "-c", ":verify --nosuch"});
  INFO(usage.ToText());
  CHECK(usage.code == 1);
  CHECK_THAT(usage.err, Contains("there is no option '--nosuch'") && Contains("exit code 2"));
}

TEST_CASE("repl: the help names the verb") {
  const Outcome help = RunExecutable(ExecutablePath(), {"--help"});
  CHECK_THAT(help.out, Contains("repl"));
  CHECK_THAT(RunExecutable(ExecutablePath(), {"help", "repl"}).out, Contains("--bail") && Contains("--no-history"));
}

}  // namespace
}  // namespace moonshard::test
