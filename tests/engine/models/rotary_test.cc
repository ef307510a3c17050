// Rotary frequencies of every type against what transformers makes of the same config.
#include "engine/models/rotary.h"

#include <torch/torch.h>
#include <catch2/catch.hpp>

#include "engine/base/json.h"
#include "tests/engine/models/fixture.h"

namespace moonshard {

TEST_CASE("frequencies are those of transformers for every form of config") {
  const JsonValue cases = ReadJsonFile(MOONSHARD_SOURCE_DIR "/tests/parity/rope_cases.json").ValueOrThrow();
  REQUIRE(cases.AsArray().size() >= 12);
  for (const JsonValue& recorded : cases.AsArray()) {
    INFO(WriteJson(recorded, 0));
    const DecoderConfig config = ParseDecoderConfig(*recorded.Find("config")).ValueOrThrow();
    std::vector<float> expected;
    for (const JsonValue& value : recorded.Find("frequencies")->AsArray()) {
      expected.push_back(static_cast<float>(value.AsDouble()));
    }
    const at::Tensor found = RotaryFrequencies(config.rope, config.head_dim);
    REQUIRE(found.scalar_type() == at::kFloat);
    CHECK(test::RelativeError(found / torch::tensor(expected), torch::ones({found.size(0)})) < 1e-6);
    CHECK(config.rope.attention_factor == Approx(recorded.Find("factor")->AsDouble()).epsilon(1e-12));
  }
}

TEST_CASE("applying the tables turns pairs of dims by position times frequency") {
  const at::Tensor frequencies = torch::tensor({0.5F, 0.25F});
  const at::Tensor positions = torch::tensor({{0, 3}});
  const RotaryTables tables = MakeRotaryTables(frequencies, 2.0, positions, at::kDouble);
  torch::manual_seed(3);
  const at::Tensor heads = torch::randn({1, 1, 2, 4}, at::kDouble);
  const at::Tensor turned = ApplyRotary(heads, tables);
  for (int pair = 0; pair < 2; ++pair) {
    const double angle = 3 * frequencies[pair].item<double>();
    const double x = heads[0][0][1][pair].item<double>(), y = heads[0][0][1][pair + 2].item<double>();
    CHECK(turned[0][0][1][pair].item<double>() == Approx(2 * (x * std::cos(angle) - y * std::sin(angle))).margin(1e-6));
    CHECK(turned[0][0][1][pair + 2].item<double>() ==
          Approx(2 * (y * std::cos(angle) + x * std::sin(angle))).margin(1e-6));
    CHECK(turned[0][0][0][pair].item<double>() == Approx(2 * heads[0][0][0][pair].item<double>()));
  }
}

}  // namespace moonshard
