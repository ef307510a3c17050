// Rotary frequencies of every type against what transformers makes of the same config.
#include "engine/models/rotary.h"

#include <torch/types.h>
#include <torch/utils.h>
#include <catch2/catch.hpp>

#include "engine/core/base/json.h"
#include "engine/models/causal_lm.h"
#include "tests/engine/models/fixture.h"
#include "tests/support/paths.h"

namespace moonshard {

TEST_CASE("frequencies are those of transformers for every form of config") {
  const JsonValue cases = ReadJsonFile(test::SourcePath("tests/parity/rope_cases.json")).ValueOrThrow();
  REQUIRE(cases.AsArray().size() >= 17);
  for (const JsonValue& recorded : cases.AsArray()) {
    INFO(WriteJson(recorded, 0));
    const DecoderSpec spec = ReadDecoderSpec(*recorded.Find("config")).ValueOrThrow();
    const RopeConfig& rope = spec.config.kinds[0].rope;
    std::vector<float> expected;
    for (const JsonValue& value : recorded.Find("frequencies")->AsArray()) {
      expected.push_back(static_cast<float>(value.AsDouble()));
    }
    const at::Tensor found = RotaryFrequencies(rope, recorded.Find("length")->AsInt());
    REQUIRE(found.scalar_type() == at::kFloat);
    CHECK(test::RelativeError(found / torch::tensor(expected), torch::ones({found.size(0)})) < 1e-6);
    CHECK(rope.attention_factor == Approx(recorded.Find("factor")->AsDouble()).epsilon(1e-12));
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

TEST_CASE("heads turned in part keep the rest") {
  const RotaryTables tables = MakeRotaryTables(torch::tensor({0.5F}), 1.0, torch::tensor({{1, 7}}), at::kDouble);
  torch::manual_seed(3);
  const at::Tensor heads = torch::randn({1, 3, 2, 6}, at::kDouble);
  const at::Tensor turned = ApplyRotary(heads, tables);
  CHECK(torch::equal(turned.slice(-1, 2), heads.slice(-1, 2)));
  CHECK(torch::equal(turned.slice(-1, 0, 2), ApplyRotary(heads.slice(-1, 0, 2), tables)));
  CHECK_FALSE(torch::allclose(turned.slice(-1, 0, 2), heads.slice(-1, 0, 2)));
}

TEST_CASE("a rope that depends on the length takes it from the positions") {
  RopeConfig rope;
  rope.type = RopeConfig::Type::kLongrope;
  rope.dims = 4;
  rope.original_max_position_embeddings = 6;
  rope.short_factor = {1, 1};
  rope.long_factor = {2, 4};
  Rotary rotary(rope);
  const at::Tensor positions = torch::tensor({{0, 5}});
  const at::Tensor within = rotary.Tables(positions, at::kDouble, std::nullopt).first;
  CHECK(torch::equal(within, rotary.Tables(positions, at::kDouble, 6).first));
  const at::Tensor beyond = rotary.Tables(positions, at::kDouble, 7).first;
  CHECK(
      torch::equal(beyond, rotary.Tables(torch::tensor({{0, 5, 6}}), at::kDouble, std::nullopt).first.slice(1, 0, 2)));
  CHECK(beyond[0][1][0].item<double>() == Approx(std::cos(5.0 / 2)));
  CHECK(within[0][1][0].item<double>() == Approx(std::cos(5.0)));
}

}  // namespace moonshard
