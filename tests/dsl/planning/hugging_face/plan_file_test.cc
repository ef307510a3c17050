// The forms in which Hugging Face plans are written, which plan of a file is meant, and what is said of files that hold
// none.
#include "dsl/planning/hugging_face/plan_file.h"

#include <catch2/catch.hpp>

#include "engine/core/base/text.h"

namespace moonshard {
namespace {

// One line an entry: name, model type, tables with their rules and lines.
std::string TextOf(const Result<HuggingFaceFile>& file) {
  if (!file.ok()) return ToText(file.diagnostics());
  std::string out;
  for (const HuggingFaceEntry& entry : file.value().entries) {
    out += entry.name + (entry.is_config ? " config " : " model ") +
           (entry.model_type.empty() ? "-" : entry.model_type) + (entry.ties_by_default ? " tied" : "");
    for (const HuggingFaceTable& table : entry.tables) {
      out += " " + table.name + (table.of_base ? "(base)" : "") + (table.experts ? "(ep)" : "");
      for (const HuggingFaceRule& rule : table.rules) {
        out += " " + rule.key + "=" + rule.style + ":" + std::to_string(rule.where.line);
      }
    }
    out += "\n";
  }
  return out;
}

TEST_CASE("the forms of a plan") {
  const auto [what, text, expected] = GENERATE(table<std::string, std::string, std::string>({
      {"a bare dict, JSON", R"({"a.*.b": "colwise",
 "c": "rowwise"})",
       "f model - tp_plan a.*.b=colwise:1 c=rowwise:2\n"},
      {"a bare dict, Python", "{\n  'a.*.b': 'colwise',  # a comment\n  'c.' 'd': \"rowwise\",\n}\n",
       "f model - tp_plan a.*.b=colwise:2 c.d=rowwise:3\n"},
      {"config.json",
       R"({"model_type": "x", "tie_word_embeddings": true, "n": 3, "base_model_tp_plan": {"a": "colwise"},
 "text_config": {"model_type": "x_text", "base_model_tp_plan": null, "base_model_ep_plan": {"b": "grouped_gemm"}},
 "vision_config": {"model_type": "x_vision", "list": [1, 2.5, -3e4, [true, null]]}})",
       "f config x tied base_model_tp_plan(base) a=colwise:1\n"
       "f/text_config config x_text base_model_ep_plan(base)(ep) b=grouped_gemm:2\n"},
      {"a release", R"({"__meta__": {"note": "n"},
 "__instance_level_deltas__": {"x": {"base_model_tp_plan_instance_delta": {"embed_tokens": "embedding_rowwise"}}},
 "x/XConfig": {"kind": "config", "model_type": "x", "base_model_pp_plan": {"a": [["i"], ["o"]]},
  "base_model_tp_plan": {"a": "colwise"}},
 "x/XForCausalLM": {"kind": "model", "model_type": "x", "_tp_plan": {"lm_head": "colwise_gather_output"}}})",
       "x/XConfig config x tied base_model_tp_plan(base) a=colwise:4\n"
       "x/XForCausalLM model x _tp_plan lm_head=colwise_gather_output:5\n"},
      {"Python source", R"("""A module."""
class XConfig(PreTrainedConfig):
    model_type = "x"
    base_model_tp_plan = {
        "a": "colwise",
    }
    base_model_ep_plan: dict[str, str] = None

class XForCausalLM(Base):
    _tp_plan = {"lm_head": "colwise_gather_output"}
)",
       "XConfig config x base_model_tp_plan(base) a=colwise:5\n"
       "XForCausalLM model - _tp_plan lm_head=colwise_gather_output:10\n"},
      {"an assignment", "tp_plan = {'a': 'colwise'}", "f model - tp_plan a=colwise:1\n"},
      {"escapes", R"({"\u0041\u00e9\u65e5\ud83c\udf19": "colwise"})",
       "f model - tp_plan A\xC3\xA9\xE6\x97\xA5\xF0\x9F\x8C\x99=colwise:1\n"},
  }));
  INFO(what);
  CHECK(TextOf(ReadHuggingFacePlans(text, "f")) == expected);
}

TEST_CASE("what is said of a text that is no plan") {
  const auto [text, place, said] = GENERATE(table<std::string, std::string, std::string>({
      {"", "f: error[MS0405]", "has no tp_plan"},
      {"{}", "f: error[MS0405]", "has no tp_plan"},
      {"import torch\n", "f: error[MS0405]", "has no tp_plan"},
      {"{\"a\": \"colwise\"", "f:1: error[MS0405]", "but the input ends"},
      {R"({"\ud83c": "colwise"})", "f:1: error[MS0405]", "unpaired UTF-16 surrogate"},
      {R"({"\udf19": "colwise"})", "f:1: error[MS0405]", "unpaired UTF-16 surrogate"},
      {R"({"\ud83c\u0041": "colwise"})", "f:1: error[MS0405]", "unpaired UTF-16 surrogate"},
      {"{\"a\": \"colwise\"\n\"b\": \"rowwise\"}", "f:2: error[MS0405]", "expected ',' or '}'"},
      {"{\"a\": \"colwise}\n", "f:1: error[MS0405]", "not closed on its line"},
      {"{\n\"a\" \"colwise\"}", "f:2: error[MS0405]", "expected ':' after the key"},
      {"{\n a: \"colwise\"}", "f:2: error[MS0405]", "expected a key, a string in quotes"},
      {"{\"a\": \"colwise\",\n\"a\": \"rowwise\"}", "f:2: error[MS0405]", "is duplicated in one dict (line 1)"},
      {"{\"a\": Colwise()}", "f:1: error[MS0405]", "'Colwise' is not a literal"},
      {"{\"a\": \"colwise\"} x", "f:1: error[MS0405]", "unexpected text after the value"},
      {"{\"a\": \"\\q\"}", "f:1: error[MS0405]", "the escape \\q"},
      {"{\"tp_plan\": [\"a\"]}", "f:1: error[MS0405]", "tp_plan is a list"},
      {"{\"tp_plan\":\n{\"a\": 3}}", "f:2: error[MS0405]", "the style of 'a' is a number"},
      {"{\"tp_plan\":\n{\"a\": \"\"}}", "f:2: error[MS0405]", "the style of 'a' is empty"},
      {"{\"tp_plan\":\n{\"\": \"colwise\"}}", "f:2: error[MS0405]", "a key of tp_plan is empty"},
      {"class X:\n  tp_plan = {\n    'a': colwise}\n", "f:3: error[MS0405]", "'colwise' is not a literal"},
      {"{\"tp_plan\": " + std::string(200, '[') + "}", "f:1: error[MS0405]", "more than 100 levels"},
  }));
  INFO(text);
  const Result<HuggingFaceFile> file = ReadHuggingFacePlans(text, "f");
  REQUIRE_FALSE(file.ok());
  const std::string message = ToText(file.diagnostics());
  INFO(message);
  CHECK(message.starts_with(place));
  CHECK(message.find(said) != std::string::npos);
}

const char* const kRelease = R"({
 "x/XConfig": {"kind": "config", "model_type": "x", "base_model_tp_plan": {"a": "colwise"}, "base_model_ep_plan": {"e": "grouped_gemm"}},
 "x/XForCausalLM": {"kind": "model", "model_type": "x", "_tp_plan": {"lm_head": "colwise_gather_output"}},
 "x/XForOther": {"kind": "model", "model_type": "x", "_tp_plan": {"head": "colwise_gather_output"}},
 "y/YTextConfig": {"kind": "config", "model_type": "y_text", "base_model_tp_plan": {"a": "colwise"}},
 "y/YForConditionalGeneration": {"kind": "model", "model_type": "y", "_tp_plan": {"lm_head": "colwise"}},
 "z/ZTextConfig": {"kind": "config", "model_type": "z_text", "base_model_tp_plan": {"a": "colwise"}},
 "z/ZAudioConfig": {"kind": "config", "model_type": "z_audio", "base_model_tp_plan": {"a": "colwise"}}})";

std::string Chosen(const std::string& key, const JsonValue& config = {}) {
  const HuggingFaceFile file = ReadHuggingFacePlans(kRelease, "f").ValueOrThrow();
  const Result<HuggingFaceChoice> choice = ChooseHuggingFacePlan(file, key, config);
  if (!choice.ok()) return ToText(choice.diagnostics());
  const auto name = [](const HuggingFaceEntry* entry) { return entry == nullptr ? std::string("-") : entry->name; };
  return name(choice.value().model) + " + " + name(choice.value().config) + (choice.value().experts ? " ep" : "");
}

TEST_CASE("which plan of a file a key means") {
  CHECK(Chosen("x") == "x/XForCausalLM + x/XConfig");
  CHECK(Chosen("x/XConfig") == "- + x/XConfig");
  CHECK(Chosen("XForOther") == "x/XForOther + x/XConfig");
  CHECK(Chosen("x/XConfig/ep") == "- + x/XConfig ep");
  CHECK(Chosen("x/ep") == "x/XForCausalLM + x/XConfig ep");
  CHECK(Chosen("y") == "y/YForConditionalGeneration + y/YTextConfig");
  CHECK(Chosen("y_text") == "- + y/YTextConfig");
  CHECK(Chosen("XConfi").find("did you mean 'x/XConfig'?") != std::string::npos);
  CHECK(Chosen("z").find("one of: z/ZTextConfig, z/ZAudioConfig") != std::string::npos);
  CHECK(Chosen("zz").find("the file has no tp_plan 'zz'") != std::string::npos);
  CHECK(Chosen("y/ep").find("the file has no ep_plan 'y'") != std::string::npos);
  CHECK(Chosen("").find("the file has 7 plans: choose one") != std::string::npos);
  const auto config = [](const char* text) { return ParseJson(text, "config.json").ValueOrThrow(); };
  CHECK(Chosen("", config(R"({"architectures": ["XForOther"], "model_type": "x"})")) == "x/XForOther + x/XConfig");
  CHECK(Chosen("", config(R"({"architectures": ["XForNobody"], "model_type": "x"})")) == "x/XForCausalLM + x/XConfig");
  CHECK(Chosen("", config(R"({"model_type": "y"})")) == "y/YForConditionalGeneration + y/YTextConfig");
}

}  // namespace
}  // namespace moonshard
