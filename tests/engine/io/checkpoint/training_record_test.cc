// A training record of which somebody changed something: what is wrong is named with the file, the place, the value and
// what is allowed.
#include "engine/io/checkpoint/training_record.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

namespace moonshard::test {
namespace {

using Catch::Contains;

JsonValue Good() {
  TrainingRecord record;
  record.step = 5;
  record.host["data"] = "page 3";
  record.random_bytes = 4;
  record.random_hash = 9;
  record.optimizer =
      OptimizerRecord{"adamw",
                      {{{{"lr", 0.1}, {"betas", JsonValue::Array{0.9, 0.95}}}, {"a", "b"}}, {{{"lr", 0.2}}, {"c"}}},
                      {{{{"step", 5}}, {"exp_avg", "exp_avg_sq"}, {"a", "c"}}}};
  return record.ToJson();
}

Result<TrainingRecord> Read(const JsonValue& extra) {
  Manifest manifest;
  manifest.extra = extra;
  return TrainingRecord::Of(manifest, "run/step/moonshard.json");
}

// The value behind keys and indices.
JsonValue& At(JsonValue& in, const std::vector<std::string>& way) {
  JsonValue* at = &in.AsObject().at("training");
  for (const std::string& step : way) {
    at = at->is_object() ? &at->AsObject().at(step) : &at->AsArray().at(std::stoul(step));
  }
  return *at;
}

}  // namespace

TEST_CASE("a training record that cannot be") {
  REQUIRE(Read(Good()).ok());
  struct Row {
    std::vector<std::string> way;
    JsonValue value;
    std::vector<std::string> says;
  };
  const std::vector<std::string> group = {"optimizer", "groups", "0"};
  const std::vector<std::string> memory = {"optimizer", "memories", "0"};
  const auto in = [](std::vector<std::string> way, const char* key) {
    way.emplace_back(key);
    return way;
  };
  const std::vector<Row> rows = {
      {{"step"}, -1, {"no valid \"step\"", "declared: -1", "from 0 to 9007199254740992"}},
      {{"step"}, int64_t{1} << 62, {"\"step\"", "declared: 4611686018427387904"}},
      {{"step"}, 5.0, {"\"step\"", "declared: 5.0"}},
      {{"host", "data"}, 3, {"no valid \"data\" in 'host'", "declared: 3", "required: a string"}},
      {{"host"}, nullptr, {"\"host\"", "declared: null", "an object"}},
      {{"random", "bytes"}, -1, {"\"bytes\" in 'random'", "declared: -1"}},
      {{"random", "hash"}, "x", {"\"hash\" in 'random'", "declared: \"x\"", "16 hex digits"}},
      {{"optimizer"}, "adamw", {"\"optimizer\"", "an object, or null for a run without an optimizer"}},
      {{"optimizer", "kind"}, 1, {"\"kind\" in 'optimizer'"}},
      {in(group, "options"), JsonValue::Array(), {"\"options\" in 'optimizer.groups[0]'", "an object"}},
      {in(in(group, "parameters"), "1"), 7, {"\"parameters\" in 'optimizer.groups[0]'", "declared: 7", "strings"}},
      {in(in(group, "parameters"), "1"), "", {"\"parameters\" in 'optimizer.groups[0]'", "not empty"}},
      {in(in(group, "parameters"), "1"), "a", {"in 'optimizer.groups[0]'", "declared: \"a\"", "each name once"}},
      {in(in(group, "parameters"), "1"), "c", {"in 'optimizer.groups[1]'", "declared: \"c\"", "each name once"}},
      {in(memory, "tensors"), JsonValue(), {"\"tensors\" in 'optimizer.memories[0]'", "an array"}},
      {in(in(memory, "tensors"), "1"), "exp_avg", {"\"tensors\"", "each name once"}},
      {in(in(memory, "parameters"), "1"), "a", {"\"parameters\" in 'optimizer.memories[0]'", "each name once"}},
      {in(in(memory, "parameters"), "1"), "d", {"declared: \"d\"", "parameters of the optimizer's groups"}},
      {memory, 5, {"\"values\" in 'optimizer.memories[0]'"}},
  };
  for (const Row& row : rows) {
    JsonValue changed = Good();
    At(changed, row.way) = row.value;
    INFO(WriteJson(changed, 0));
    const Result<TrainingRecord> read = Read(changed);
    REQUIRE_FALSE(read.ok());
    const std::string text = ToText(read.diagnostics());
    for (const Diagnostic& d : read.diagnostics()) CHECK(d.finding == Finding::kBadManifest);
    CHECK_THAT(text, Contains("run/step/moonshard.json: error[MS0410]: the training record has no valid "));
    for (const std::string& says : row.says) CHECK_THAT(text, Contains(says));
  }
  // A parameter in two memories.
  JsonValue twice = Good();
  JsonValue::Array& memories = At(twice, {"optimizer", "memories"}).AsArray();
  memories.push_back(memories.front());
  CHECK_THAT(ToText(Read(twice).diagnostics()),
             Contains("in 'optimizer.memories[1]'") && Contains("declared: \"a\"") && Contains("declared: \"c\""));
  for (const char* key : {"step", "host", "random", "optimizer"}) {
    JsonValue without = Good();
    At(without, {}).AsObject().erase(key);
    CHECK_THAT(ToText(Read(without).diagnostics()), Contains(std::string("\"") + key + "\"") && Contains("nothing"));
  }
}

TEST_CASE("a training record that is wrong everywhere is a page of findings, and long values are not shown") {
  JsonValue changed = Good();
  JsonValue::Array numbers;
  for (int i = 0; i < 1000; ++i) numbers.emplace_back(i);
  At(changed, {"optimizer", "groups", "0", "parameters"}) = numbers;
  CHECK(Read(changed).diagnostics().size() == 20);
  At(changed, {"optimizer", "groups", "0", "parameters"}) = Good();
  changed.AsObject().at("training").AsObject().at("step") = numbers;
  const std::string text = ToText(Read(changed).diagnostics());
  CHECK_THAT(text, Contains("declared: JSON array of 3891 bytes"));
  CHECK(text.size() < 3000);
}

}  // namespace moonshard::test
