// What the program says about findings: the forms, colours and where they go, and explain-finding.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>

#include "engine/core/base/finding.h"
#include "engine/core/base/json.h"
#include "tests/support/process.h"
#include "tests/support/programs.h"

namespace moonshard::test {
namespace {

using Catch::Contains;

Words Check(const std::string& plan, const Words& more) {
  Words words = {"check", kModel, "--mesh", "tp=2", "--plan", plan};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// The path that a URI of a file names (RFC 3986, RFC 8089): which characters are written as %XX is left to the writer,
// where they may stand as they are.
std::string PathOfUri(const std::string& uri) {
  constexpr std::string_view kScheme = "file://";
  INFO(uri);
  REQUIRE(uri.starts_with(kScheme));
  std::string out;
  for (size_t i = kScheme.size(); i < uri.size(); ++i) {
    const bool plain = std::isalnum(static_cast<unsigned char>(uri[i])) != 0 ||
                       std::string_view("-._~/!$&'()*+,;=:@").find(uri[i]) != std::string_view::npos;
    if (plain) {
      out += uri[i];
      continue;
    }
    REQUIRE(uri[i] == '%');
    REQUIRE(i + 2 < uri.size());
    out += static_cast<char>(std::stoi(uri.substr(i + 1, 2), nullptr, 16));
    i += 2;
  }
  return out;
}

TEST_CASE("check says the same in every form, and its exit code does not depend on it") {
  const ScratchFolder folder;
  const std::string bad =
      folder.Write("bad.lua", "return plan { extends \"llama\", at(\"model.nrom\", replicated()) }\n");
  const std::string good = folder.Write("good.lua", "return plan { extends \"llama\" }\n");
  const Outcome text = Run(Check(bad, {}));
  CHECK(text.out.starts_with(bad + ":1: error[MS0202]: "));
  CHECK_THAT(text.out, Contains("^^^^^^^^^^"));
  CHECK(Run(Check(bad, {"--format", "text"})).out == text.out);
  CHECK(Run(Check(bad, {"--json"})).out == Run(Check(bad, {"--format", "json"})).out);
  for (const char* form : {"text", "json", "sarif", "github"}) {
    const Outcome wrong = Run(Check(bad, {"--format", form}));
    INFO(form << wrong.ToText());
    CHECK(wrong.code == 1);
    CHECK_THAT(wrong.out, Contains("MS0202"));
    CHECK(wrong.err.empty());
    CHECK(Run(Check(good, {"--format", form})).code == 0);
  }
  CHECK(Run(Check(good, {"--format", "xml"})).code == 2);
  const JsonValue sarif = ParseJson(Run(Check(good, {"--format", "sarif"})).out, "out").ValueOrThrow();
  CHECK(sarif.Find("runs")->AsArray().at(0).Find("results")->AsArray().empty());
  const JsonValue json = ParseJson(Run(Check(bad, {"--json"})).out, "out").ValueOrThrow();
  CHECK(json.Find("findings")->AsArray().at(0).Find("location")->Find("line")->AsInt() == 1);
  const Outcome github = Run(Check(bad, {"--format", "github"}));
  CHECK(github.out.starts_with("::error file=" + bad + ",line=1,col="));
  CHECK(std::ranges::count(github.out, '\n') == 1);
}

TEST_CASE("check in the forms for programs: the edit that mends a slip, and a file for every finding") {
  const ScratchFolder folder;
  const std::string bad =
      folder.Write("bad.lua", "return plan {\n  at(\"model.layers.*.mlp.{gate,up}_proj\", colwize {}),\n}\n");
  const JsonValue json = ParseJson(Run(Check(bad, {"--json"})).out, "out").ValueOrThrow();
  const JsonValue* fix = json.Find("findings")->AsArray().at(0).Find("fix");
  REQUIRE(fix != nullptr);
  CHECK(fix->Find("file")->AsString() == bad);
  CHECK(fix->Find("line")->AsInt() == 2);
  CHECK(fix->Find("column")->AsInt() == 43);
  CHECK(fix->Find("length")->AsInt() == 7);
  CHECK(fix->Find("text")->AsString() == "colwise");
  const std::string near =
      folder.Write("near.lua", "return plan { extends \"llama\", at(\"model.nrom\", replicated()) }\n");
  const JsonValue pattern = ParseJson(Run(Check(near, {"--json"})).out, "out").ValueOrThrow();
  CHECK(pattern.Find("findings")->AsArray().at(0).Find("fix")->Find("text")->AsString() == "model.norm");
  // A parameter that no rule claims has no line.
  const std::string part = folder.Write("part.lua", "return plan { at(\"lm_head\", replicated {}) }\n");
  const JsonValue sarif = ParseJson(Run(Check(part, {"--format", "sarif"})).out, "out").ValueOrThrow();
  const JsonValue::Array& results = sarif.Find("runs")->AsArray().at(0).Find("results")->AsArray();
  REQUIRE(!results.empty());
  for (const JsonValue& result : results) {
    const JsonValue* where = result.Find("locations")->AsArray().at(0).Find("physicalLocation");
    REQUIRE(where != nullptr);
    CHECK(PathOfUri(where->Find("artifactLocation")->Find("uri")->AsString()) == part);
  }
}

TEST_CASE("other verbs say it on stderr, in the form that was asked for") {
  const Words words = {"explain", kModel, "--mesh", "tp=2", "--plan", "lama"};
  for (const char* verb : {"explain", "shard"}) {
    Words more = words;
    more[0] = verb;
    if (std::string(verb) == "shard") more.insert(more.begin() + 2, "/nowhere/out");
    more.insert(more.end(), {"--format", "json"});
    const Outcome done = Run(more);
    INFO(done.ToText());
    CHECK(done.code == 2);
    CHECK(done.out.empty());
    const JsonValue json = ParseJson(done.err, "stderr").ValueOrThrow();
    CHECK(json.Find("findings")->AsArray().at(0).Find("id")->AsString() == "MS0112");
  }
  // Where there is nothing to say there is no document either, and no line of text in its place.
  Words good = {"explain", kModel, "--mesh", "tp=2", "--format", "sarif"};
  CHECK(Run(good).err.empty());
}

TEST_CASE("colours: never in a pipe, unless they are asked for") {
  const ScratchFolder folder;
  const std::string bad =
      folder.Write("bad.lua", "return plan { extends \"llama\", at(\"model.nrom\", replicated()) }\n");
  const auto colored = [&](const Words& more, const Words& variables) {
    return Run(Check(bad, more), variables).out.find('\033') != std::string::npos;
  };
  CHECK_FALSE(colored({}, {}));
  CHECK_FALSE(colored({"--color", "auto"}, {}));
  CHECK(colored({"--color", "always"}, {}));
  CHECK(colored({"--color", "always"}, {"NO_COLOR=1"}));
  CHECK(colored({}, {"CLICOLOR_FORCE=1"}));
  CHECK_FALSE(colored({}, {"CLICOLOR_FORCE=0"}));
  CHECK_FALSE(colored({}, {"CLICOLOR_FORCE=1", "NO_COLOR=1"}));
  CHECK(colored({}, {"CLICOLOR_FORCE=1", "NO_COLOR="}));
  CHECK_FALSE(colored({"--color", "never"}, {"CLICOLOR_FORCE=1"}));
  // Only text is for people.
  for (const char* form : {"json", "sarif", "github"})
    CHECK_FALSE(colored({"--color", "always", "--format", form}, {}));
  CHECK(Run(Check(bad, {"--color", "green"})).code == 2);
}

TEST_CASE("explain-finding lists them all, and explains each by identifier and name") {
  const Outcome list = Run({"explain-finding"});
  CHECK(list.code == 0);
  CHECK(static_cast<size_t>(std::ranges::count(list.out, '\n')) == AllFindings().size());
  const JsonValue json = ParseJson(Run({"explain-finding", "--json"}).out, "out").ValueOrThrow();
  CHECK(json.Find("format_version")->AsString() == "1.0");
  CHECK(json.Find("findings")->AsArray().size() == AllFindings().size());
  for (const JsonValue& finding : json.Find("findings")->AsArray()) {
    for (const char* key : {"id", "name", "severity", "title", "meaning", "why", "example", "suggested_fix", "cure"}) {
      INFO(finding.Find("id")->AsString() << " " << key);
      CHECK(!finding.Find(key)->AsString().empty());
    }
    CHECK_THAT(list.out, Contains(finding.Find("id")->AsString() + "  "));
  }
  const Outcome by_id = Run({"explain-finding", "MS0202"});
  CHECK(by_id.code == 0);
  CHECK(by_id.out.starts_with("MS0202 unmatched-rule (error): a rule that matches nothing\n"));
  for (const char* part : {"Why", "Example", "Suggested fix", "model.layer.*.mlp.gate_proj", "did you mean"}) {
    CHECK_THAT(by_id.out, Contains(part));
  }
  for (const char* name : {"ms0202", "unmatched-rule"}) CHECK(Run({"explain-finding", name}).out == by_id.out);
  CHECK(Run({"explain-finding", "MS0202", "--markdown"}).out.starts_with("# MS0202 unmatched-rule: "));
  CHECK_THAT(Run({"explain-finding", "--markdown"}).out, Contains("## MS0901 internal"));
}

TEST_CASE("a finding that there is not") {
  const Outcome near = Run({"explain-finding", "unmatched-rul"});
  CHECK(near.code == 2);
  CHECK(near.out.empty());
  CHECK_THAT(near.err, Contains("did you mean 'unmatched-rule'?"));
  CHECK_THAT(Run({"explain-finding", "XX"}).err, Contains("there is no finding 'XX'"));
  CHECK(Run({"explain-finding", "--json", "--markdown"}).code == 2);
}

}  // namespace
}  // namespace moonshard::test
