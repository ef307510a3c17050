// `suggest` and `explain --html` as a process: what stands on which stream, and what is not overwritten.
#include <catch2/catch.hpp>
#include <filesystem>

#include "engine/core/base/json.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"
#include "tests/support/programs.h"

namespace moonshard::test {
namespace {

using Catch::Contains;

const std::string kNewcomer = SourcePath("tests/cases/newcomer");

TEST_CASE("suggest: the plan is on stdout, or in a file that was not there") {
  ScratchFolder scratch;
  const Outcome said = Run({"suggest", kNewcomer});
  INFO(said.ToText());
  CHECK(said.code == 0);
  CHECK_THAT(said.out, Contains("return plan {") && Contains("-- guess: "));
  CHECK_THAT(said.err,
             Contains("suggested.lua: 4 blocks sure, 2 guesses, 0 not understood; check passes on tp = 1, 2, 4, 8"));
  const std::string file = scratch / "my.lua";
  const Outcome written = Run({"suggest", kNewcomer, "-o", file});
  CHECK(written.code == 0);
  CHECK(written.out.empty());
  CHECK(ReadWholeFile(file) == said.out);
  CHECK(Run({"check", kNewcomer, "--mesh", "tp=4", "--plan", file, "--option", "sequence_parallel=true"}).code == 0);
  scratch.Write("my.lua", "-- mine\n");
  const Outcome there = Run({"suggest", kNewcomer, "-o", file});
  CHECK(there.code == 1);
  CHECK_THAT(there.err, Contains("MS0409") && Contains("already exists") && Contains("--replace"));
  CHECK(ReadWholeFile(file) == "-- mine\n");
  CHECK(Run({"suggest", kNewcomer, "-o", file, "--replace"}).code == 0);
  CHECK(ReadWholeFile(file) == said.out);
  CHECK(Run({"suggest", kNewcomer, "-o", scratch / "no/such/folder.lua"}).code == 1);
  CHECK(Run({"suggest", scratch.path()}).code == 2);
}

TEST_CASE("suggest: on a mesh with cp the plan shards the sequence, with the attention that its bytes choose") {
  const ScratchFolder scratch;
  const std::string file = scratch / "context.lua";
  const auto suggest = [&](const Words& more) {
    Words words = {"suggest", kModel, "-o", file, "--replace"};
    words.insert(words.end(), more.begin(), more.end());
    return Run(words);
  };
  const auto check = [&](const std::string& mesh) {
    return Run({"check", kModel, "--mesh", mesh, "--plan", file, "--option", "sequence_parallel=true"}).code;
  };
  const Outcome chosen = suggest({"--mesh", "cp=4,tp=2"});
  INFO(chosen.ToText());
  CHECK(chosen.code == 0);
  CHECK_THAT(chosen.err, Contains("context = \"ulysses\" on cp=4,tp=2"));
  CHECK_THAT(ReadWholeFile(file), Contains("context = \"ulysses\" }") && Contains("\"ring\" sends "));
  CHECK(check("cp=4,tp=2") == 0);
  CHECK(check("tp=2") == 0);
  const Outcome asked = suggest({"--mesh", "cp=4", "--context", "ring"});
  CHECK_THAT(asked.err, Contains("context = \"ring\" on cp=4"));
  CHECK_THAT(ReadWholeFile(file), Contains("context = \"ring\" }") && Contains("as asked for"));
  CHECK(check("cp=4") == 0);
  CHECK(suggest({"--mesh", "cp=4", "--context", "none"}).code == 0);
  CHECK_THAT(ReadWholeFile(file), !Contains("context"));
  const Outcome program =
      Run({"suggest", SourcePath("tests/parity/programs/llama") + "/program.pt2", "--mesh", "cp=2"});
  CHECK(program.code == 0);
  CHECK_THAT(program.out, Contains("-- No context parallelism: "));
  CHECK_THAT(program.err, Contains("warning[MS0506]") && Contains("cannot shard the sequence on cp=2"));
  const Outcome without = suggest({"--mesh", "tp=2"});
  CHECK(without.code == 2);
  CHECK_THAT(without.err, Contains("MS0508") && Contains("a mesh with cp"));
  CHECK(suggest({"--context", "ring"}).code == 2);
}

// 8 query heads on 16 ranks: heads cannot be exchanged.
TEST_CASE("suggest: an attention that is not possible is an error if it is named, and no plan is written") {
  const ScratchFolder scratch;
  const std::string file = scratch / "none.lua";
  const Outcome named = Run({"suggest", kModel, "--mesh", "cp=16", "--context", "ulysses", "-o", file});
  INFO(named.ToText());
  CHECK(named.code == 1);
  CHECK_THAT(named.err, Contains("error[MS0506]: the plan cannot shard the sequence on cp=16: \"ulysses\" is not "
                                 "possible") &&
                            Contains("at: --context"));
  CHECK(named.out.empty());
  CHECK_FALSE(std::filesystem::exists(file));
  CHECK(Run({"suggest", kModel, "--mesh", "cp=16"}).code == 0);
}

TEST_CASE("suggest: a sequence that cannot be sharded is a warning if no attention is named") {
  const std::string program = SourcePath("tests/parity/programs/llama") + "/program.pt2";
  const Outcome json = Run({"suggest", program, "--mesh", "cp=2", "--format", "json"});
  INFO(json.ToText());
  CHECK(json.code == 0);
  const JsonValue findings = ParseJson(json.err, "stderr").ValueOrThrow();
  CHECK_THAT(WriteJson(findings, 0), Contains("MS0506") && Contains("warning") && Contains("\"--mesh\""));
  CHECK_THAT(Run({"suggest", program, "--mesh", "cp=2"}).err, !Contains("no context parallelism"));
  const Outcome not_wanted = Run({"suggest", program, "--mesh", "cp=2", "--context", "none", "--format", "json"});
  CHECK(not_wanted.err.empty());
}

TEST_CASE("suggest: a program, or a directory and its program, give one plan") {
  const std::string llama = SourcePath("tests/parity/programs/llama");
  const Outcome archive = Run({"suggest", llama + "/program.pt2"});
  INFO(archive.ToText());
  REQUIRE(archive.code == 0);
  CHECK(Run({"suggest", llama + "/inputs"}).out == archive.out);
  CHECK(Run({"suggest", llama, "--program", llama + "/program.pt2"}).out == archive.out);
  // Names that tell nothing: only the data flow of a program shows which projection ends a block.
  const Outcome unnamed = Run({"suggest", SourcePath("tests/dsl/planning/suggest/unnamed.pt2"), "--sure"});
  INFO(unnamed.ToText());
  CHECK(unnamed.code == 0);
  CHECK_THAT(unnamed.out, Contains("rowwise"));
}

TEST_CASE("explain --html: a page in a file or on stdout") {
  ScratchFolder scratch;
  const std::string file = scratch / "report.html";
  const Outcome done = Run({"explain", kNewcomer, "--plan", "default", "--html", file});
  INFO(done.ToText());
  CHECK(done.code == 0);
  CHECK(done.out.empty());
  const std::string page = ReadWholeFile(file);
  CHECK_THAT(page, Catch::StartsWith("<!doctype html>") && Contains("\"model\":\"newcomer\""));
  CHECK(Run({"explain", kNewcomer + "/", "--plan", "default", "--html", "-"}).out == page);
  const Outcome nowhere = Run({"explain", kNewcomer, "--plan", "default", "--html", scratch / "no/such.html"});
  CHECK(nowhere.code == 1);
  CHECK_THAT(nowhere.err, Contains("error[MS0409]: cannot write '" + scratch / "no/such.html" + "': No such file"));
  CHECK_THAT(Run({"explain", kNewcomer, "--plan", "default", "--html", file, "--json"}).out,
             Contains("\"format_version\""));
}

TEST_CASE("explain --html of a plan with errors: a page with what is wrong, and 2") {
  const ScratchFolder scratch;
  const std::string bad = scratch.Write("bad.lua", "return plan { at(\"predict\", colwize {}) }\n");
  const std::string file = scratch / "bad.html";
  const Outcome done = Run({"explain", kNewcomer, "--plan", bad, "--html", file});
  INFO(done.ToText());
  CHECK(done.code == 2);
  CHECK_THAT(done.err, Contains("unknown name 'colwize'") && Contains(file + ": a report of a plan with errors"));
  CHECK_THAT(ReadWholeFile(file),
             Contains("\"failed\":true") && Contains("unknown name 'colwize'") && Contains("\"model\":\"newcomer\""));
  // A wrong word of the command line is none of the plan's.
  CHECK(Run({"explain", kNewcomer, "--plan", "default", "--rank", "7", "--html", scratch / "none.html"}).code == 2);
  CHECK_FALSE(std::filesystem::exists(scratch / "none.html"));
  CHECK_THAT(Run({"explain", "/nowhere", "--html", "-"}).out, Contains("there is no directory '/nowhere'"));
}

TEST_CASE("suggest tells what is wrong in the form that was asked for") {
  const ScratchFolder scratch;
  const std::string model = SourcePath("tests/cases/newcomer");
  const std::string there = scratch.Write("plan.lua", "");
  const Outcome done = RunExecutable(ExecutablePath(), {"suggest", model, "-o", there, "--format", "github"});
  INFO(done.ToText());
  CHECK(done.code == 1);
  CHECK_THAT(done.err, Catch::StartsWith("::error ") && Catch::Contains("already exists"));
  const Outcome good =
      RunExecutable(ExecutablePath(), {"suggest", model, "-o", scratch / "new.lua", "--format", "json"});
  CHECK(good.code == 0);
  CHECK(good.err.empty());  // nothing was found
}

}  // namespace
}  // namespace moonshard::test
