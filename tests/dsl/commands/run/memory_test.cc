// `explain --memory`: what stands on which stream, the same bytes every time, and what a plan's options do to the peak.
#include <catch2/catch.hpp>

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "engine/core/base/json.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"
#include "tests/support/programs.h"

namespace moonshard::test {
namespace {

using Catch::Contains;

Outcome Explain(const std::string& model, const Words& more) {
  Words words = {"explain", model, "--memory"};
  words.insert(words.end(), more.begin(), more.end());
  return RunExecutable(ExecutablePath(), words);
}

JsonValue Json(const Words& more) {
  Words words = {"--json", "--tokens", "2,64", "--mesh", "tp=2"};
  words.insert(words.end(), more.begin(), more.end());
  const Outcome done = Explain(kModel, words);
  INFO(done.ToText());
  REQUIRE(done.code == 0);
  CHECK(Explain(kModel, words).out == done.out);
  return ParseJson(done.out, "stdout").ValueOrThrow();
}

int64_t Peak(const JsonValue& json) { return json.Find("peak")->Find("step_bytes")->AsInt(); }

TEST_CASE("explain --memory says where the memory of a step goes") {
  const Outcome done = Explain(kModel, {"--mesh", "tp=2", "--tokens", "2,64"});
  INFO(done.ToText());
  CHECK(done.code == 0);
  CHECK_THAT(done.err, Contains("plan llama: "));
  CHECK_THAT(done.out, Contains("plan llama on tp=2, rank 0: a training step of 2 x 64 tokens, float32\n") &&
                           Contains("activations") && Contains("model.layers.{0,1}.mlp.gate_proj\n") &&
                           Contains("reduced by: recompute; sequence_parallel;") && Contains("collectives backward: "));
}

// Of the bytes of parameters that the first layer's experts have on a rank.
int64_t BytesOfExperts(const JsonValue& json) {
  int64_t bytes = 0;
  for (const auto& [path, module] : json.Find("modules")->AsObject()) {
    const JsonValue* kinds = module.Find("bytes");
    const JsonValue* parameters = kinds == nullptr ? nullptr : kinds->Find("parameters");
    if (parameters != nullptr && path.starts_with("model.layers.0.") && path.find(".experts.") != std::string::npos) {
      bytes += parameters->AsInt();
    }
  }
  return bytes;
}

TEST_CASE("explain --memory takes experts in shards, experts with owners and experts behind an exchange") {
  const auto explained = [](const Words& more) {
    Words words = {"--json", "--tokens", "2,64"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome done = Explain(kParity + "mixtral", words);
    INFO(done.ToText());
    REQUIRE(done.code == 0);
    return ParseJson(done.out, "stdout").ValueOrThrow();
  };
  const int64_t all = BytesOfExperts(explained({"--mesh", "tp=1"}));
  CHECK(all > 0);
  const std::vector<std::tuple<std::string, std::string, int64_t>> rows = {
      {"tp=2", "exchange=true", 2},        {"tp=2", "expert_parallel=true", 2},
      {"tp=4", "expert_parallel=true", 4}, {"dp=2,tp=2", "expert_parallel=true", 4},
      {"ep=2", "exchange=true", 2},        {"ep=4", "exchange=true", 4},
      {"ep=2,tp=2", "exchange=true", 4}};
  for (const auto& [mesh, option, share] : rows) {
    for (const char* rank : {"0", "1"}) {
      INFO(mesh << " " << option << ", rank " << rank);
      const JsonValue json = explained({"--mesh", mesh, "--option", option, "--rank", rank});
      CHECK(BytesOfExperts(json) * share == all);
      const JsonValue* sent = json.Find("collectives")->Find("forward")->Find("all_to_all");
      CHECK((sent != nullptr && sent->Find("count")->AsInt() > 0) == mesh.starts_with("ep"));
    }
  }
}

TEST_CASE("its JSON holds the same bytes in every run, and kinds add up") {
  const JsonValue json = Json({});
  CHECK(json.Find("format_version")->AsString() == "1.0");
  CHECK(json.Find("dtype")->AsString() == "float32");
  int64_t sum = 0;
  for (const auto& [kind, bytes] : json.Find("peak")->Find("by_kind")->AsObject()) sum += bytes.AsInt();
  CHECK(sum == json.Find("peak")->Find("bytes")->AsInt());
  int64_t of_modules = 0;
  for (const auto& [path, module] : json.Find("modules")->AsObject()) {
    const JsonValue* bytes = module.Find("bytes");
    if (bytes == nullptr) continue;
    for (const auto& [kind, count] : bytes->AsObject()) of_modules += count.AsInt();
  }
  CHECK(of_modules == sum);
  CHECK(json.Find("largest")->AsArray().size() == 20);
}

TEST_CASE("the peak follows the plan") {
  const int64_t plain = Peak(Json({}));
  CHECK(Peak(Json({"--option", "sequence_parallel=true"})) < plain);
  CHECK(Peak(Json({"--dtype", "float64"})) > plain * 3 / 2);
  const Outcome other = Explain(kModel, {"--mesh", "tp=2", "--rank", "1", "--json"});
  CHECK_THAT(other.out, Contains("\"rank\": 1"));
}

// The last rank, which attends to all blocks of a ring of plain chunks.
TEST_CASE("the peak falls with the number of ranks that share the tokens") {
  for (const std::string context : {"ulysses", "ring", "plain_ring"}) {
    std::map<int64_t, int64_t> peaks;
    for (const int64_t cp : {1, 2, 4}) {
      const Outcome done =
          Explain(kModel, {"--json", "--tokens", "1,4096", "--mesh", "cp=" + std::to_string(cp), "--rank",
                           std::to_string(cp - 1), "--option", "context=" + context, "--option", "loss_parallel=true"});
      INFO(done.ToText());
      REQUIRE(done.code == 0);
      peaks[cp] = Peak(ParseJson(done.out, "stdout").ValueOrThrow());
    }
    INFO(context << ": " << peaks[1] << ", " << peaks[2] << ", " << peaks[4]);
    for (const int64_t cp : {2, 4}) CHECK(peaks[cp] * cp < peaks[1] * 11 / 10);
  }
}

TEST_CASE("the peak falls with the tokens of a rank on two factors of cp, and is that of one factor") {
  const auto peak = [](const std::string& mesh, const std::string& context) {
    const Outcome done = Explain(kModel, {"--tokens", "1,4096", "--mesh", mesh, "--option", "context=" + context,
                                          "--option", "loss_parallel=true", "--json"});
    INFO(done.ToText());
    REQUIRE(done.code == 0);
    return Peak(ParseJson(done.out, "stdout").ValueOrThrow());
  };
  const int64_t alone = peak("tp=1", "ulysses_ring");
  const int64_t factors = peak("cp=2x2", "ulysses_ring");
  INFO(alone << ", " << factors << ", " << peak("cp=4", "ring"));
  CHECK(factors * 4 < alone * 13 / 10);
  CHECK(factors * 4 > alone * 7 / 10);
}

TEST_CASE("experts are assumed to get equal parts, which is said") {
  const Outcome done = Explain(SourcePath("tests/parity/mixtral"), {"--mesh", "tp=2"});
  INFO(done.ToText());
  CHECK(done.code == 0);
  CHECK_THAT(done.out, Contains("each of 4 experts gets the same number of tokens"));
}

TEST_CASE("the losses of routers communicate as in a step") {
  const auto sums = [](const std::string& model, const std::string& mesh) {
    const Outcome done = Explain(SourcePath("tests/parity/" + model), {"--mesh", mesh, "--json"});
    INFO(done.ToText());
    REQUIRE(done.code == 0);
    const JsonValue* forward =
        ParseJson(done.out, "stdout").ValueOrThrow().Find("collectives")->Find("forward")->Find("all_reduce");
    return forward == nullptr ? std::pair<int64_t, int64_t>()
                              : std::pair(forward->Find("count")->AsInt(), forward->Find("bytes")->AsInt());
  };
  CHECK(sums("mixtral", "dp=2").first == 0);
  CHECK(sums("routers/mixtral", "dp=2") == std::pair<int64_t, int64_t>(1, (2 * 4 + 2) * 8));
}

TEST_CASE("what cannot be told is an error of the command line or of the model") {
  CHECK_THAT(Explain(kModel, {"--mesh", "tp=2", "--rank", "2"}).err, Contains("there is no rank 2"));
  CHECK(Explain(kModel, {"--html", "-"}).code == 2);
  CHECK_THAT(Explain(kModel, {"--tokens", "5"}).err, Contains("MS0107"));
  const Outcome none = Explain(SourcePath("tests/cases/newcomer"), {"--plan", "default"});
  INFO(none.ToText());
  CHECK(none.code == 2);
  CHECK_THAT(none.err, Contains("has no reference implementation in moonshard"));
}

}  // namespace
}  // namespace moonshard::test
