// What scripts cannot say: limits, files that change, programs that are started, memory of a session.
#include "dsl/commands/repl/session.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "dsl/commands/repl/history_file.h"
#include "dsl/commands/repl/reader.h"
#include "tests/dsl/commands/repl/transcript.h"
#include "tests/support/golden.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"

namespace moonshard::test {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;

const std::string kModel = SourcePath("tests/parity/llama_gqa");

Session MakeSession(const std::string& plan = "", const std::string& mesh = "tp=2") {
  SessionOptions options;
  options.model.model = kModel;
  options.model.plan = plan;
  options.model.mesh = mesh;
  return Session(options);
}

std::string PlanText(const std::string& mlp) {
  return "return plan { extends 'llama', at('model.layers.0.mlp.{gate,up,down}_proj', " + mlp + ") }\n";
}

TEST_CASE("a line that passes a limit ends, and the session goes on with its names") {
  Session session = MakeSession();
  session.Open();
  session.Feed("kept = 41");
  for (const char* hostile :
       {"while true do end", "local t = {} for i = 1, 1e9 do t[i] = i end",
        "text = string.rep('x', 1000000) while true do text = text .. text end",
        "local function f() return 1 + f() end f()", "big = {} while true do big[#big + 1] = {} end", "error({})",
        "for i = 1, 1000 do nosuch[i]() ; unknown = i + nosuch2 end", "('a'):rep(1e9)",
        "('a'):rep(1e5):find('.-.-.-.-b')"}) {
    INFO(hostile);
    const auto begin = std::chrono::steady_clock::now();
    const moonshard::Outcome outcome = session.Feed(hostile);
    CHECK(!outcome.good);
    CHECK(outcome.out.empty());
    CHECK_THAT(outcome.err, Contains("error[MS01"));
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
    CHECK(session.Feed("kept + 1").out == "42\n");
    CHECK(!session.Feed("text").good);  // what the failed line set is gone
  }
}

TEST_CASE("names that hold the session's memory are forgotten, and said so") {
  Session session = MakeSession();
  session.Open();
  moonshard::Outcome last;
  for (int i = 0; i < 80 && last.err.empty(); ++i) {
    last = session.Feed("t" + std::to_string(i) + " = string.rep('x', 1000000)");
  }
  CHECK_THAT(last.err, Contains("all assigned names were removed"));
  CHECK(session.Feed("1 + 1").out == "2\n");
  CHECK(!session.Feed("t0").good);
}

TEST_CASE("an unfinished text is dropped by Ctrl-C and said at the end") {
  Session session = MakeSession();
  session.Open();
  CHECK(session.Feed("for i = 1, 3 do").unfinished);
  CHECK(session.unfinished());
  session.Drop();
  CHECK(!session.unfinished());
  CHECK(session.Feed("5").out == "5\n");
  session.Feed("x = {");
  const moonshard::Outcome end = session.Finish();
  CHECK(!end.good);
  CHECK_THAT(end.err, Contains("input:3: error[MS0101]") && Contains("unfinished: ") && Contains("near <eof>"));
  CHECK(session.Feed("1 +").unfinished);
  CHECK_THAT(session.Finish().err, Contains("input:4: error[MS0101]: unfinished: "));
}

TEST_CASE("an unfinished text has an end, and comments begin none") {
  Session session = MakeSession();
  session.Open();
  for (int i = 0; i < 100'000; ++i) REQUIRE_FALSE(session.Feed("-- a comment").unfinished);
  CHECK(session.Feed("x = {").unfinished);
  moonshard::Outcome last;
  for (int i = 0; i < 2000 && session.unfinished(); ++i) last = session.Feed("1,");
  CHECK_FALSE(session.unfinished());
  CHECK_FALSE(last.good);
  CHECK_THAT(last.err, Contains("input:100001: error[MS0109]: the input is not complete after 2000 lines"));
  CHECK(session.Feed("5").out == "5\n");
  CHECK(session.Feed("--[[ a long").unfinished);
  CHECK(session.Feed("comment ]] return 7").out == "7\n");
}

TEST_CASE("reload shows what an edit changed; a plan with errors stays until it is mended") {
  const ScratchFolder scratch;
  const std::string plan = scratch.Write("mine.lua", PlanText("replicated {}"));
  Session session = MakeSession(plan);
  CHECK(session.Open().good);
  const moonshard::Outcome same = session.Feed(":reload");
  CHECK(same.out.empty());
  CHECK_THAT(same.err, Contains("nothing changed"));
  scratch.Write("mine.lua", "return plan { extends 'llama' }\n");
  const moonshard::Outcome changed = session.Feed(":reload");
  CHECK(changed.good);
  CHECK_THAT(changed.out, Contains("model.layers.0.mlp.up_proj") && Contains("replicated") &&
                              Contains("bytes per rank") && Contains("all_reduce forward"));
  scratch.Write("mine.lua", "return plan { extends 'llama', at('model.layers.0.mlp.upp_proj', replicated {}) }\n");
  const moonshard::Outcome broken = session.Feed(":reload");
  CHECK(!broken.good);
  CHECK_THAT(broken.err, Contains("mine.lua:1: error[MS0202]"));
  CHECK_THAT(session.Feed(":cost").err, Contains("the plan has errors"));
  scratch.Write("mine.lua", PlanText("replicated {}"));
  CHECK(session.Feed(":reload").good);  // against the last plan that was good
  CHECK(session.Feed(":cost").good);
}

TEST_CASE("a watched plan is read again when it is saved, also where the file is replaced") {
  const ScratchFolder scratch;
  const std::string plan = scratch.Write("mine.lua", PlanText("replicated {}"));
  scratch.Write("block.lua", "return { norm = at('model.norm', replicated {}) }\n");
  Session session = MakeSession(plan);
  session.Open();
  CHECK(session.CheckFiles().err.empty());
  CHECK_THAT(session.Feed(":watch").err, Contains("watching") && Contains("mine.lua"));
  const auto wait = [&] {
    for (int i = 0; i < 100; ++i) {
      moonshard::Outcome outcome = session.CheckFiles();
      if (!outcome.err.empty()) return outcome;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return moonshard::Outcome();
  };
  CHECK(wait().err.empty());
  // As editors do: another file, then a rename.
  fs::rename(scratch.Write("mine.lua~", "return plan { extends 'llama' , require('block').norm }\n"), plan);
  const moonshard::Outcome replaced = wait();
  CHECK_THAT(replaced.err, Contains("reloaded"));
  CHECK_THAT(replaced.out, Contains("model.layers.0.mlp.up_proj"));
  fs::remove(plan);
  CHECK(wait().err.empty());  // gone for a moment
  scratch.Write("mine.lua", "return plan { extends 'llama', require('block').norm }\n");
  CHECK_THAT(wait().err, Contains("reloaded"));
  // A file that the plan requires is watched too.
  scratch.Write("block.lua", "return { norm = at('model.norm', sequence_parallel {}) }\n");
  const moonshard::Outcome required = wait();
  INFO(required.err);
  CHECK_THAT(required.out, Contains("model.norm") && Contains("sequence_parallel"));
  scratch.Write("mine.lua", "return plan {\n");
  const moonshard::Outcome broken = wait();
  CHECK(!broken.good);
  CHECK_THAT(broken.err, Contains("mine.lua:2: error[MS0101]"));
  CHECK(session.Feed(":save " + (scratch / "lines.txt")).good);
  CHECK(ReadWholeFile(scratch / "lines.txt") == ":watch\n");  // what was typed, and no reload
  CHECK(session.Feed(":watch off").good);
  scratch.Write("mine.lua", "nonsense\n");
  CHECK(wait().err.empty());
}

TEST_CASE("save writes a plan with the tried rules, which does what was tried") {
  const ScratchFolder scratch;
  const std::string plan = scratch.Write("mine.lua", "return plan { extends 'llama' }\n");
  Session session = MakeSession(plan);
  session.Open();
  session.Feed("x = 1");
  session.Feed("nosuch");
  CHECK(session.Feed(":try \"model.norm\" sequence_parallel {}").good);
  CHECK(session.Feed(":try \"model.norm\" replicated").good);
  CHECK(session.Feed(":try re[[model\\.layers\\.0\\.mlp\\..*]] replicated {}").good);
  CHECK(session.Feed(":save " + (scratch / "tried.lua")).good);
  const std::string saved = ReadWholeFile(scratch / "tried.lua");
  INFO(saved);
  CHECK_THAT(saved, Contains("extends \"mine\"") && Contains("at(\"model.norm\", replicated {})") &&
                        !Contains("sequence_parallel"));
  CHECK(!session.Feed(":save " + (scratch / "tried.lua")).good);  // never over a file
  const moonshard::Outcome loaded = session.Feed(":load " + (scratch / "tried.lua"));
  INFO(loaded.err);
  CHECK(loaded.good);
  CHECK_THAT(loaded.out, Contains("model.layers.0.mlp.gate_proj"));
  CHECK(session.Feed(":save " + (scratch / "lines.txt")).good);
  CHECK(ReadWholeFile(scratch / "lines.txt").starts_with("x = 1\n:try \"model.norm\""));
  CHECK(!session.Feed(":save " + (scratch / "no/folder/x.txt")).good);
}

TEST_CASE("verify hands the session's words to the program, and fails as it does") {
  std::vector<std::string> given;
  int code = 0;
  SessionOptions options;
  options.model.model = kModel;
  options.model.mesh = "tp=2";
  options.model.options = {{"sequence_parallel", "true"}};
  options.run_moonshard = [&](const std::vector<std::string>& words) {
    given = words;
    return code;
  };
  Session session(options);
  session.Open();
  CHECK(session.Feed(":verify --tolerance 1e-3").good);
  CHECK(given == std::vector<std::string>{"verify", kModel, "--mesh", "tp=2", "--option", "sequence_parallel=true",
                                          "--tolerance", "1e-3"});
  code = 1;
  CHECK(!session.Feed(":verify").good);
  options.model.isolate = true;
  options.moonshard_arguments = {"--color", "never"};
  Session isolated(options);
  isolated.Open();
  isolated.Feed(":verify");
  CHECK(given == std::vector<std::string>{"verify", kModel, "--mesh", "tp=2", "--option", "sequence_parallel=true",
                                          "--isolate", "--color", "never"});
  SessionOptions of_program;
  of_program.model.model = SourcePath("tests/parity/programs/llama");
  of_program.model.program = of_program.model.model + "/program.pt2";
  of_program.run_moonshard = options.run_moonshard;
  code = 0;
  Session with_program(of_program);
  with_program.Open();
  CHECK(with_program.Feed(":verify").good);
  CHECK(given == std::vector<std::string>{"verify", of_program.model.model, "--mesh", "tp=1", "--program",
                                          of_program.model.program});
  // An archive alone is a model too.
  const moonshard::Outcome loaded = with_program.Feed(":load " + of_program.model.program);
  INFO(loaded.err);
  CHECK(loaded.good);
  CHECK(with_program.Feed(":verify").good);
  CHECK(given == std::vector<std::string>{"verify", of_program.model.program, "--mesh", "tp=1"});
}

TEST_CASE("findings are written in the form that was asked for, without notes between them") {
  SessionOptions options;
  options.model.model = kModel;
  options.form = FindingForm::kJson;
  Session session(options);
  session.Open();
  const moonshard::Outcome failed = session.Feed("nosuch");
  const Result<JsonValue> json = ParseJson(failed.err, "stderr");
  INFO(failed.err);
  REQUIRE(json.ok());
  CHECK(json.value().Find("findings")->AsArray().front().Find("id")->AsString() == "MS0102");
  CHECK(session.Feed("1").err.empty());
  CHECK(session.Feed(":reload").err.empty());  // a note elsewhere
  options.form = FindingForm::kText;
  options.color = true;
  Session colored(options);
  colored.Open();
  CHECK_THAT(colored.Feed("nosuch").err, Contains("\033["));
}

TEST_CASE("what is not there is said, and a session without it goes on") {
  SessionOptions options;
  options.model.model = SourcePath("tests/cases");
  Session no_model(options);
  CHECK_THAT(no_model.Open().err, Contains("config.json"));
  CHECK(!no_model.opened());
  Session bad_plan = MakeSession("nosuch");
  const moonshard::Outcome opened = bad_plan.Open();
  CHECK(!opened.good);
  CHECK(bad_plan.opened());
  CHECK(bad_plan.Feed("1 + 1").out == "2\n");
  CHECK(bad_plan.Feed(":load llama").good);
}

TEST_CASE("the history is its owner's alone, and keeps the last lines") {
  const ScratchFolder scratch;
  const std::string path = scratch / "state/moonshard/history";
  HistoryFile first(path);
  CHECK(first.Load().empty());
  first.Add("one");
  first.Add("one");
  first.Add("  ");
  HistoryFile second(path);
  second.Add("two");
  first.Add("three");
  CHECK(HistoryFile(path).Load() == std::vector<std::string>{"one", "two", "three"});
  CHECK(fs::status(path).permissions() == (fs::perms::owner_read | fs::perms::owner_write));
  fs::permissions(path, fs::perms::group_read, fs::perm_options::add);
  first.Add("four");
  CHECK(fs::status(path).permissions() == (fs::perms::owner_read | fs::perms::owner_write));
  for (int i = 0; i < 2100; ++i) first.Add("line " + std::to_string(i));
  const std::vector<std::string> kept = HistoryFile(path).Load();
  CHECK(kept.size() == 1000);
  CHECK(kept.back() == "line 2099");
  CHECK(Split(ReadWholeFile(path), '\n').size() == 1001);
  HistoryFile("").Add("nowhere");
}

TEST_CASE("the lines of a text") {
  TextReader reader("a\r\nb\n\nc");
  std::vector<std::string> lines;
  for (ReadResult read = reader.Read(""); read.status == ReadResult::Status::kLine; read = reader.Read("")) {
    lines.push_back(read.line);
  }
  CHECK(lines == std::vector<std::string>{"a", "b", "", "c"});
}

}  // namespace
}  // namespace moonshard::test
