// The forms of findings. SARIF is checked for what its schema asks for, property by property: an unknown one, or one of
// another kind, is an error here as it is there.
#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <map>
#include <set>

#include "engine/core/base/text.h"
#include "engine/core/findings/fix.h"
#include "engine/core/findings/forms.h"

namespace moonshard {
namespace {

// Two diagnostics with everything in them that makes escaping hard, and one with nothing.
Diagnostics Hard() {
  Diagnostic first = MakeDiagnostic(Finding::kRuleConflict, "two rules claim 'a, b': 100%",
                                    {"plans/mine, too:100%.lua", 4, 7, 3, "  at(\"x\", y)"});
  first.path = "model.layers.0";
  first.declared = "one\nand two";
  first.required = "one";
  first.help = "make one of them narrower";
  first.related.push_back({"plans/base.lua", 2, 0, 0, ""});
  Diagnostic second = MakeDiagnostic(Finding::kUnusedAxis, "nothing uses 'cp'");
  Diagnostic third =
      MakeDiagnostic(Finding::kUnmatchedRule, "'ä' matches nothing", {"/tmp/ä.lua", 1, 14, 2, "at(\"äöü\", ä)"});
  third.severity = Severity::kNote;
  return {first, second, third};
}

// A word for which another was meant, behind letters of two bytes.
Diagnostic Slip() {
  Diagnostic d = MakeDiagnostic(Finding::kUnknownName, "unknown name 'colwize'",
                                {"plans/mine.lua", 3, 13, 7, "at(\"\u00e4.b\",  colwize {}),"});
  const std::vector<std::string> names = {"colwise", "rowwise"};
  d.help = DidYouMean("colwize", names);
  return d;
}

TEST_CASE("names of the forms") {
  CHECK(FindingFormFromName("text") == FindingForm::kText);
  CHECK(FindingFormFromName("json") == FindingForm::kJson);
  CHECK(FindingFormFromName("sarif") == FindingForm::kSarif);
  CHECK(FindingFormFromName("github") == FindingForm::kGithub);
  CHECK_FALSE(FindingFormFromName("xml").has_value());
}

TEST_CASE("text is what the diagnostics say, in colour where asked") {
  CHECK(WriteFindings(Hard(), FindingForm::kText) == ToText(Hard()));
  const std::string colored = WriteFindings(Hard(), FindingForm::kText, true);
  CHECK(colored.find("\033[1;31merror[MS0204]:\033[0m") != std::string::npos);
  CHECK(colored.find("\033[1;35mwarning[MS0307]:\033[0m") != std::string::npos);
  // Without its escape sequences it is the same text.
  std::string plain;
  for (size_t i = 0; i < colored.size(); ++i) {
    if (colored[i] == '\033') {
      i = colored.find('m', i);
    } else {
      plain += colored[i];
    }
  }
  CHECK(plain == ToText(Hard()));
}

TEST_CASE("JSON has what there is, and an empty list where there is nothing") {
  CHECK(WriteFindings({}, FindingForm::kJson) == "{\n  \"findings\": [],\n  \"format_version\": \"1.0\"\n}\n");
  const JsonValue json = ParseJson(WriteFindings(Hard(), FindingForm::kJson), "out").ValueOrThrow();
  const JsonValue::Array& findings = json.Find("findings")->AsArray();
  REQUIRE(findings.size() == 3);
  CHECK(findings[0].Find("id")->AsString() == "MS0204");
  CHECK(findings[0].Find("source")->AsString() == "plans/mine, too:100%.lua:4");
  CHECK(findings[0].Find("location")->Find("line")->AsInt() == 4);
  CHECK(findings[0].Find("location")->Find("column")->AsInt() == 7);
  CHECK(findings[0].Find("location")->Find("length")->AsInt() == 3);
  CHECK(findings[0].Find("related")->AsArray().at(0).AsString() == "plans/base.lua:2");
  CHECK(findings[1].Find("location") == nullptr);
  CHECK(findings[1].Keys() == std::vector<std::string>{"id", "message", "severity"});
  CHECK(findings[2].Find("severity")->AsString() == "note");
}

TEST_CASE("a diagnostic is the same after JSON, in every member") {
  std::string wrong;
  const JsonValue json = ParseJson(WriteJson(ToJson(Hard()), 0), "out").ValueOrThrow();
  const std::optional<Diagnostics> read = ReadDiagnosticsJson(json, wrong);
  INFO(wrong);
  REQUIRE(read);
  REQUIRE(read->size() == Hard().size());
  for (size_t i = 0; i < read->size(); ++i) {
    const Diagnostic& is = (*read)[i];
    const Diagnostic was = Hard()[i];
    CHECK(is.finding == was.finding);
    CHECK(is.severity == was.severity);
    CHECK(is.where == was.where);
    CHECK(is.related == was.related);
    CHECK(is.ToText() == was.ToText());
  }
}

TEST_CASE("JSON that is not a list of diagnostics is refused with the member") {
  const auto wrong_with = [](const std::string& from, const std::string& to) {
    std::string text = WriteJson(ToJson(Hard()), 0);
    REQUIRE(text.find(from) != std::string::npos);
    text.replace(text.find(from), from.size(), to);
    std::string wrong;
    CHECK_FALSE(ReadDiagnosticsJson(ParseJson(text, "out").ValueOrThrow(), wrong));
    return wrong;
  };
  CHECK(wrong_with("\"id\":\"MS0204\"", "\"id\":\"MS9999\"") == "there is no finding 'MS9999'");
  CHECK(wrong_with("\"id\":\"MS0204\"", "\"id\":4") == "'id' is a value of type integer, required: string");
  CHECK(wrong_with("\"severity\":\"error\"", "\"severity\":\"fatal\"") == "there is no severity 'fatal'");
  CHECK(wrong_with("\"message\":", "\"massage\":") == "'message' is missing");
  CHECK(wrong_with("\"column\":7", "\"column\":-7") ==
        "'column' is not a position, required: an integer from 0 to 2147483647");
  CHECK(wrong_with("\"help\":", "\"halp\":") == "a diagnostic or a location has an unknown member");
  std::string wrong;
  CHECK_FALSE(ReadDiagnosticsJson(JsonValue("text"), wrong));
  CHECK(wrong == "the diagnostics are a value of type string, required: array");
}

TEST_CASE("GitHub's annotations: one line each, with what would end a property or a line escaped") {
  CHECK(GithubAnnotations(Hard()) ==
        "::error file=plans/mine%2C too%3A100%25.lua,line=4,col=7,endColumn=10,title=MS0204 two rules claim one module"
        "::two rules claim 'a, b': 100%25%0Aat: model.layers.0%0Adeclared: one%0A        and two%0Arequired: one%0A"
        "help: make one of them narrower%0Asee: plans/base.lua:2\n"
        "::warning title=MS0307 a mesh axis that nothing uses::nothing uses 'cp'\n"
        "::notice file=/tmp/ä.lua,line=1,col=14,endColumn=16,title=MS0202 a rule that matches nothing"
        "::'ä' matches nothing\n");
  CHECK(WriteFindings({}, FindingForm::kGithub).empty());
}

// What an object of the schema (sarif-schema-2.1.0.json) may hold, of what is written here: "required" in front of "|".
struct Shape {
  std::set<std::string> required;
  std::map<std::string, std::string>
      properties;  // name -> "string", "integer", or the name of another shape; [] a list
};

const std::map<std::string, Shape> kShapes = {
    {"log", {{"version", "runs"}, {{"$schema", "string"}, {"version", "string"}, {"runs", "[]run"}}}},
    {"run",
     {{"tool"},
      {{"tool", "tool"}, {"columnKind", "string"}, {"invocations", "[]invocation"}, {"results", "[]result"}}}},
    {"invocation", {{"executionSuccessful"}, {{"executionSuccessful", "boolean"}}}},
    {"fix", {{"artifactChanges"}, {{"description", "text"}, {"artifactChanges", "[]change"}}}},
    {"change",
     {{"artifactLocation", "replacements"}, {{"artifactLocation", "artifact"}, {"replacements", "[]replacement"}}}},
    {"replacement", {{"deletedRegion"}, {{"deletedRegion", "region"}, {"insertedContent", "text"}}}},
    {"fingerprints", {{}, {{"findingAndModule/v1", "string"}}}},
    {"tool", {{"driver"}, {{"driver", "driver"}}}},
    {"driver",
     {{"name"}, {{"name", "string"}, {"version", "string"}, {"informationUri", "string"}, {"rules", "[]rule"}}}},
    {"rule",
     {{"id"},
      {{"id", "string"},
       {"name", "string"},
       {"shortDescription", "text"},
       {"fullDescription", "text"},
       {"help", "text"},
       {"helpUri", "string"},
       {"defaultConfiguration", "configuration"}}}},
    {"text", {{"text"}, {{"text", "string"}, {"markdown", "string"}}}},
    {"configuration", {{}, {{"level", "string"}}}},
    {"result",
     {{"message"},
      {{"ruleId", "string"},
       {"ruleIndex", "integer"},
       {"level", "string"},
       {"message", "text"},
       {"locations", "[]location"},
       {"relatedLocations", "[]location"},
       {"fixes", "[]fix"},
       {"partialFingerprints", "fingerprints"},
       {"properties", "bag"}}}},
    {"location",
     {{},
      {{"id", "integer"}, {"physicalLocation", "physical"}, {"logicalLocations", "[]logical"}, {"message", "text"}}}},
    {"physical", {{}, {{"artifactLocation", "artifact"}, {"region", "region"}}}},
    {"artifact", {{}, {{"uri", "string"}}}},
    {"region",
     {{}, {{"startLine", "integer"}, {"startColumn", "integer"}, {"endColumn", "integer"}, {"snippet", "text"}}}},
    {"logical", {{}, {{"fullyQualifiedName", "string"}}}},
    {"bag", {{}, {{"declared", "string"}, {"required", "string"}, {"help", "string"}}}},
};

void CheckShape(const JsonValue& value, const std::string& name) {
  INFO(name);
  if (name == "string" || name == "integer") {
    CHECK((name == "string" ? value.is_string() : value.is_int() && value.AsInt() >= 0));
    return;
  }
  if (name == "boolean") {
    CHECK(value.is_bool());
    return;
  }
  if (name.starts_with("[]")) {
    REQUIRE(value.is_array());
    for (const JsonValue& element : value.AsArray()) CheckShape(element, name.substr(2));
    return;
  }
  REQUIRE(value.is_object());
  const Shape& shape = kShapes.at(name);
  for (const std::string& key : shape.required) CHECK(value.Find(key) != nullptr);
  for (const auto& [key, member] : value.AsObject()) {
    INFO(key);
    REQUIRE(shape.properties.contains(key));
    CheckShape(member, shape.properties.at(key));
  }
}

bool IsUriReference(const std::string& text) {
  return std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("-._~!$&'()*+,;=:@/?#%[]").find(c) != std::string_view::npos;
  });
}

TEST_CASE("SARIF has the shape of the schema") {
  for (const Diagnostics& diagnostics : {Diagnostics(), Hard(), Diagnostics{Slip()}}) {
    const JsonValue log = ParseJson(WriteFindings(diagnostics, FindingForm::kSarif), "out").ValueOrThrow();
    CheckShape(log, "log");
    CHECK(log.Find("version")->AsString() == "2.1.0");
    CHECK(log.Find("runs")->AsArray().size() == 1);
  }
}

TEST_CASE("SARIF's results point at rules, lines and modules") {
  const JsonValue log = SarifLog(Hard());
  const JsonValue& run = log.Find("runs")->AsArray().at(0);
  CHECK(run.Find("columnKind")->AsString() == "unicodeCodePoints");
  const JsonValue::Array& rules = run.Find("tool")->Find("driver")->Find("rules")->AsArray();
  const JsonValue::Array& results = run.Find("results")->AsArray();
  REQUIRE(rules.size() == 3);
  REQUIRE(results.size() == 3);
  const std::set<std::string> levels = {"none", "note", "warning", "error"};
  for (const JsonValue& result : results) {
    const JsonValue& rule = rules.at(static_cast<size_t>(result.Find("ruleIndex")->AsInt()));
    CHECK(rule.Find("id")->AsString() == result.Find("ruleId")->AsString());
    CHECK(levels.contains(result.Find("level")->AsString()));
    CHECK(rule.Find("helpUri")->AsString() == "urn:moonshard:finding:" + rule.Find("id")->AsString());
    CHECK(rule.Find("help")->Find("markdown")->AsString().starts_with("# " + rule.Find("id")->AsString() + " "));
    CHECK(rule.Find("name") != nullptr);
  }
  const JsonValue& first = results[0].Find("locations")->AsArray().at(0);
  CHECK(first.Find("logicalLocations")->AsArray().at(0).Find("fullyQualifiedName")->AsString() == "model.layers.0");
  const JsonValue& where = *first.Find("physicalLocation");
  CHECK(where.Find("artifactLocation")->Find("uri")->AsString() == "plans/mine,%20too%3A100%25.lua");
  CHECK(where.Find("region")->Find("startLine")->AsInt() == 4);
  CHECK(where.Find("region")->Find("startColumn")->AsInt() == 7);
  CHECK(where.Find("region")->Find("endColumn")->AsInt() == 10);
  CHECK(results[0].Find("relatedLocations")->AsArray().size() == 1);
  CHECK(results[1].Find("locations") == nullptr);
  const JsonValue& third = *results[2].Find("locations")->AsArray().at(0).Find("physicalLocation");
  CHECK(third.Find("artifactLocation")->Find("uri")->AsString() == "file:///tmp/%C3%A4.lua");
  CHECK(IsUriReference(third.Find("artifactLocation")->Find("uri")->AsString()));
  // The 14th byte of the line begins its eleventh character, which has two.
  CHECK(third.Find("region")->Find("startColumn")->AsInt() == 11);
  CHECK(third.Find("region")->Find("endColumn")->AsInt() == 12);
}

TEST_CASE("a word for which another was meant comes with the edit") {
  const std::optional<Fix> fix = FixOf(Slip());
  REQUIRE(fix.has_value());
  CHECK(fix->text == "colwise");
  const JsonValue json = ToJson(Slip());
  CHECK(WriteJson(*json.Find("fix"), 0) ==
        R"({"column":13,"file":"plans/mine.lua","length":7,"line":3,"text":"colwise"})");
  const JsonValue log = SarifLog({Slip()});
  const JsonValue& result = log.Find("runs")->AsArray().at(0).Find("results")->AsArray().at(0);
  const JsonValue& change = result.Find("fixes")->AsArray().at(0).Find("artifactChanges")->AsArray().at(0);
  CHECK(change.Find("artifactLocation")->Find("uri")->AsString() == "plans/mine.lua");
  const JsonValue& replacement = change.Find("replacements")->AsArray().at(0);
  CHECK(WriteJson(*replacement.Find("deletedRegion"), 0) == R"({"endColumn":19,"startColumn":12,"startLine":3})");
  CHECK(replacement.Find("insertedContent")->Find("text")->AsString() == "colwise");
}

TEST_CASE("no edit where it would not be the suggested fix") {
  Diagnostic elsewhere = Slip();
  elsewhere.where.text = "at(\"\u00e4.b\",  styles[i] {}),";  // the word was put together
  CHECK_FALSE(FixOf(elsewhere).has_value());
  Diagnostic twice = Slip();  // which of them is the one is not known
  twice.where.text = "at(\"\u00e4.b\",  colwize {}), -- colwize";
  CHECK_FALSE(FixOf(twice).has_value());
  Diagnostic unsure = Slip();
  unsure.help = "one of: colwise, rowwise";
  CHECK_FALSE(FixOf(unsure).has_value());
  Diagnostic placeless = Slip();
  placeless.where.column = 0;
  CHECK_FALSE(FixOf(placeless).has_value());
  Diagnostic alternative = Slip();
  alternative.finding = Finding::kUnmatchedAlternative;
  CHECK_FALSE(FixOf(alternative).has_value());
  CHECK(ToJson(unsure).Find("fix") == nullptr);
}

std::vector<std::string> Fingerprints(const Diagnostics& diagnostics) {
  const JsonValue log = SarifLog(diagnostics);
  std::vector<std::string> out;
  for (const JsonValue& result : log.Find("runs")->AsArray().at(0).Find("results")->AsArray()) {
    out.push_back(result.Find("partialFingerprints")->Find("findingAndModule/v1")->AsString());
  }
  return out;
}

TEST_CASE("SARIF's fingerprints outlive moved lines, and tell results apart") {
  Diagnostic moved = Slip();
  moved.where.line = 40;
  CHECK(Fingerprints({Slip()}) == Fingerprints({moved}));
  Diagnostic a = MakeDiagnostic(Finding::kRuleConflict, "also claimed at plans/mine.lua:7, first");
  Diagnostic b = MakeDiagnostic(Finding::kRuleConflict, "also claimed at plans/mine.lua:19, first");
  CHECK(Fingerprints({a}) == Fingerprints({b}));
  Diagnostic other = a;
  other.path = "model.layers.0";
  CHECK(Fingerprints({a}) != Fingerprints({other}));
  const std::vector<std::string> twice = Fingerprints({a, b});
  CHECK(twice.at(0) != twice.at(1));
}

TEST_CASE("SARIF: every result has a file where the findings have a subject") {
  const JsonValue log = SarifLog(Hard(), "my plans/mine.lua");
  CheckShape(log, "log");
  const JsonValue& run = log.Find("runs")->AsArray().at(0);
  const JsonValue& second =
      *run.Find("results")->AsArray().at(1).Find("locations")->AsArray().at(0).Find("physicalLocation");
  CHECK(second.Find("artifactLocation")->Find("uri")->AsString() == "my%20plans/mine.lua");
  CHECK(run.Find("invocations")->AsArray().at(0).Find("executionSuccessful")->AsBool());
  CHECK(run.Find("tool")->Find("driver")->Find("informationUri")->AsString() == "urn:moonshard");
}

}  // namespace
}  // namespace moonshard
