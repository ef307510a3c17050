// Names that a model, a plan or a directory brings along, with what a terminal, a log or GitHub would take for more
// than text: through every verb, in every form. The report's page has a test of its own (report_page).
#include <catch2/catch.hpp>

#include <algorithm>
#include <filesystem>
#include <functional>

#include "engine/core/base/json.h"
#include "engine/core/base/quoted.h"
#include "engine/core/base/text.h"
#include "engine/core/base/visible.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"
#include "tests/support/programs.h"

namespace moonshard::test {
namespace {

using Catch::Contains;

// A line end and a command of GitHub, a terminal's escape, its one-byte form as U+009B, a reversed text, a line end of
// Unicode, characters without a width, delete and bell.
const std::string kStrange =
    "na\n::error file=x::injected\r\n\x1b[31m\xC2\x9B"
    " ##[error]##vso[x]2J\xE2\x80\xAEgnp\xE2\x80\xA8\xE2\x80\x8B\xF3\xA0\x80\x81\xEF\xBB\xBF\x7f\x07\tme";
// As a file name.
const std::string kStrangeFile = "na\n::error file=x::injected\r\x1b[31m\xC2\x9B\xE2\x80\xAE\x7fme";

uint64_t HeaderLength(const std::string& safetensors) {
  uint64_t length = 0;
  for (size_t i = 8; i-- > 0;) length = length << 8 | static_cast<unsigned char>(safetensors[i]);
  return length;
}

// The file with its tensors under other names, and one of no elements more.
std::string Renamed(const std::string& safetensors, const std::function<std::string(const std::string&)>& name,
                    const std::string& more) {
  const uint64_t length = HeaderLength(safetensors);
  const std::string data = safetensors.substr(8 + length);
  const JsonValue header = ParseJson(safetensors.substr(8, length), "header").ValueOrThrow();
  JsonValue::Object changed;
  for (const auto& [key, value] : header.AsObject()) changed[key == "__metadata__" ? key : name(key)] = value;
  if (!more.empty()) {
    const auto end = static_cast<int64_t>(data.size());
    changed[more] = JsonValue::Object{{"dtype", "F32"},
                                      {"shape", JsonValue::Array{JsonValue(int64_t{0})}},
                                      {"data_offsets", JsonValue::Array{JsonValue(end), JsonValue(end)}}};
  }
  std::string text = WriteJson(changed, 0);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string out;
  for (uint64_t rest = text.size(), i = 0; i < 8; ++i, rest >>= 8) out += static_cast<char>(rest & 0xFF);
  return out + text + data;
}

// The second line of kStrange as it is shown.
constexpr const char* kSecondLine = "\\x3a:error file=x::injected";
constexpr const char* kIndent = "    ";

// Every character of both streams is one that may be shown, and no line is a command of GitHub but those of `check`. A
// further line of a strange text is deeper than what begins a line of ours, and than its labels.
std::string Problem(const std::string& stream, bool annotations) {
  for (const std::string& line : Split(stream, '\n')) {
    if (line.starts_with(kSecondLine) || line.starts_with(kIndent + std::string(kSecondLine))) return line;
    const bool own = annotations && line.starts_with("::") && !line.starts_with("::error file=x");
    const std::string rest = own ? line.substr(2) : line;
    if (VisibleLines(rest) != rest) return VisibleLines(rest);
  }
  return "";
}

void CheckShown(const Words& words, const Outcome& done) {
  const bool annotations = std::ranges::find(words, "github") != words.end();
  INFO(Visible(Catch::StringMaker<Words>::convert(words)) << "\n" << VisibleLines(done.ToText()));
  CHECK_FALSE(done.timed_out);
  CHECK(done.signal == 0);
  CHECK(done.code != 3);
  for (const std::string* stream : {&done.out, &done.err}) CHECK(Problem(*stream, annotations).empty());
}

Outcome Shown(const Words& words) {
  Outcome done = Run(words);
  CheckShown(words, done);
  return done;
}

const std::vector<std::string> kForms = {"text", "json", "sarif", "github"};
const std::vector<std::string> kModes = {"table", "json", "csv", "md"};

struct Folder {
  ScratchFolder scratch;
  std::string model;  // of the layout of llama_vocab331, every name with kStrange within

  Folder() {
    model = scratch.CopyOf(kParity + "llama_vocab331", "model " + kStrangeFile);
    const std::string weights = ReadWholeFile(model + "/model.safetensors");
    const std::string config = ReadWholeFile(model + "/config.json");
    std::filesystem::remove(model + "/model.safetensors");
    std::filesystem::remove(model + "/config.json");
    const auto strange = [](const std::string& name) {
      return name.starts_with("model.") ? "model" + kStrange + name.substr(5) : name;
    };
    Write("model.safetensors", Renamed(weights, strange, "::error file=x::extra" + kStrange));
    Write("config.json",
          Replaced(Replaced(config, "\"LlamaForCausalLM\"", JsonQuoted("Strange" + kStrange + "ForCausalLM")),
                   "\"model_type\": \"llama\"", "\"model_type\": " + JsonQuoted("strange" + kStrange)));
  }
  void Write(const std::string& name, const std::string& content) const {
    std::filesystem::copy_file(scratch.Write("new", content), model + "/" + name);
  }
};

TEST_CASE("strange names through the verbs that read headers") {
  const Folder folder;
  const std::string plan = folder.scratch / (kStrangeFile + ".lua");
  const Outcome suggested = Shown({"suggest", folder.model});
  REQUIRE(suggested.code == 0);
  CHECK_THAT(suggested.out, Contains("\\u{202e}gnp"));  // the paths, in a plan that means them
  REQUIRE(Shown({"suggest", folder.model, "-o", plan}).code == 0);
  REQUIRE(ReadWholeFile(plan) == suggested.out);
  const std::string wrong = folder.scratch.Write(
      "wrong.lua", "return plan {\n  at(" + Quoted("model" + kStrange + ".nothing") + ", colwise()),\n  at(" +
                       Quoted("model" + kStrange + ".norm") + ", { name = 2 }),\n}\n");
  const std::string raw =
      folder.scratch.Write("raw.lua", "return plan { nothing = '\x1b[31m\xE2\x80\xAE' } -- \xC2\x9B\n");
  const std::string thrown = folder.scratch.Write("thrown.lua", "error(" + Quoted(kStrange) + ")\n");
  for (const std::string& form : kForms) {
    CHECK(Shown({"check", folder.model, "--plan", plan, "--mesh", "tp=2", "--format", form}).code == 0);
    for (const std::string& bad : {wrong, raw, thrown, kStrange, folder.model}) {
      CHECK(Shown({"check", folder.model, "--plan", bad, "--mesh", "tp=2", "--format", form}).code == 1);
    }
    CHECK(Shown({"check", folder.model, "--mesh", "tp=2", "--format", form}).code == 0);
    CHECK(Shown({"check", kModel, "--plan", plan, "--mesh", "tp=2", "--format", form}).code == 1);
    CHECK(Shown({"check", folder.model, "--plan", plan, "--option", kStrange + "=1", "--format", form}).code == 1);
  }
  const Words model = {folder.model, "--plan", plan, "--mesh", "tp=2,dp=2"};
  const auto with = [&](const std::string& verb, const Words& more) {
    Words words = model;
    words.insert(words.begin(), verb);
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  CHECK_THAT(Shown(with("explain", {})).out, Contains("\\u{202e}gnp"));
  CHECK(Shown(with("explain", {"--passes"})).code == 0);
  CHECK(Shown(with("explain", {"--html", folder.scratch / (kStrangeFile + ".html")})).code == 0);
  // JSON means the names as they are.
  const Outcome json = Shown(with("explain", {"--json", "--passes"}));
  REQUIRE(json.code == 0);
  CHECK_THAT(WriteJson(ParseJson(json.out, "out").ValueOrThrow(), 0), Contains(JsonQuoted(kStrange).substr(1, 20)));
  for (const char* form : {"hf", "torch"}) (void)Shown(with("export", {"--to", form}));
  for (const std::string& text : {kStrange, "-" + kStrange, "--" + kStrange + "=1", "--mesh=" + kStrange}) {
    (void)Shown({text});
    (void)Shown({"explain", folder.model, text});
    (void)Shown({"explain-finding", text});
    (void)Shown({"completion", text});
    (void)Shown({"help", text});
  }
  (void)Shown(
      {"import", folder.scratch.Write("tp.json", "{ \"base_model_tp_plan\": { " + JsonQuoted("layers." + kStrange) +
                                                     ": \"colwise\", \"x\": " + JsonQuoted(kStrange) + " } }")});
}

TEST_CASE("strange names through the REPL") {
  const Folder folder;
  const std::string plan = folder.scratch / "plan.lua";
  REQUIRE(Run({"suggest", folder.model, "-o", plan}).code == 0);
  const std::string path = "model*.layers.0.self_attn.q_proj";
  for (const std::string& mode : kModes) {
    Words words = {"repl", folder.model, "--plan", plan, "--mesh", "tp=2", "--mode", mode, "--no-history"};
    for (const std::string& line : {std::string(":load"),
                                    std::string(":tree"),
                                    ":tree " + path,
                                    ":match " + path,
                                    ":match " + kStrange,
                                    ":why model" + kStrange + ".norm",
                                    ":try \"" + path + "\" replicated()",
                                    std::string(":unmatched"),
                                    std::string(":conflicts"),
                                    std::string(":flow model*.layers.0"),
                                    std::string(":cost 1,8"),
                                    ":diff " + plan,
                                    ":help " + kStrange,
                                    ":load " + kStrange,
                                    ":option " + kStrange + "=1",
                                    ":" + kStrange,
                                    "return " + Quoted(kStrange),
                                    "{ [" + Quoted(kStrange) + "] = " + Quoted(kStrange) + " }",
                                    "error(" + Quoted(kStrange) + ")",
                                    "print(" + Quoted(kStrange) + ")"}) {
      words.insert(words.end(), {"-c", line});
    }
    const Outcome done = Shown(words);
    CHECK_THAT(done.out, Contains(mode == "json" ? "\\u202egnp" : "\\u{202e}gnp"));
  }
}

TEST_CASE("strange names through the verbs with tensors", "[torch]") {
  const Folder folder;
  const std::string plain = kParity + "llama_vocab331/model.safetensors";
  const std::string strange = folder.model + "/model.safetensors";
  (void)Shown({"compare", strange, strange});
  (void)Shown({"compare", plain, strange});
  const std::string plan = folder.scratch / "plan.lua";
  REQUIRE(Run({"suggest", folder.model, "-o", plan}).code == 0);
  const std::string out = folder.scratch / ("out" + kStrangeFile);
  CHECK(Shown({"shard", folder.model, out, "--plan", plan, "--mesh", "tp=2", "--json"}).code == 0);
  CHECK(Shown({"shard", folder.model, out, "--plan", plan, "--mesh", "tp=2"}).code == 0);  // it was there
  CHECK(Shown({"merge", out, folder.scratch / ("merged" + kStrangeFile)}).code == 0);
  for (const Words& words :
       {Words{"eval", folder.model, "--plan", plan, "--mesh", "tp=2", "--input", strange},
        Words{"eval", kModel, "--mesh", "tp=2", "--input", strange},
        Words{"verify", folder.model, "--plan", plan, "--mesh", "tp=2"},
        Words{"train", folder.model, "--plan", plan, "--data", strange, "--steps", "1"},
        Words{"train", kModel, "--data", kStrange, "--steps", "1"},
        Words{"train", kModel, "--data", strange, "--steps", "1", "--log", folder.scratch / kStrange},
        Words{"explain", folder.model, "--plan", plan, "--mesh", "tp=2", "--memory"}}) {
    (void)Shown(words);
  }
}

}  // namespace
}  // namespace moonshard::test
