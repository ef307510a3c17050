#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "engine/io/config/config.h"
#include "tests/support/process.h"

namespace moonshard {
namespace {

using test::ScratchFolder;

TEST_CASE("config.json: a field that is null is there, one of another type reads as absent") {
  const ScratchFolder folder;
  folder.Write("config.json",
               R"({"model_type": "llama", "architectures": ["LlamaForCausalLM", "Other"], "tie_word_embeddings": null,
                   "rope_theta": 1e4})");
  const ModelConfig config = ModelConfig::Read(folder.path()).ValueOrThrow();
  CHECK(config.model_type() == "llama");
  CHECK(config.architecture() == "LlamaForCausalLM");
  CHECK_FALSE(config.tie_word_embeddings().has_value());
  REQUIRE(config.Get("tie_word_embeddings") != nullptr);
  CHECK(config.Get("tie_word_embedding") == nullptr);
  CHECK(config.Get("rope_theta")->AsDouble() == 1e4);

  const ModelConfig odd(ParseJson(R"({"model_type": 3, "architectures": [], "tie_word_embeddings": true})", "x")
                            .ValueOrThrow()
                            .AsObject());
  CHECK(odd.model_type().empty());
  CHECK(odd.architecture().empty());
  CHECK(odd.tie_word_embeddings() == true);
}

TEST_CASE("config.json: an absent file, a broken one and one that is not an object are errors of their own") {
  const ScratchFolder folder;
  CHECK(ModelConfig::Read(folder.path()).diagnostics().at(0).finding == Finding::kFileNotFound);
  folder.Write("config.json", "{\"model_type\": ");
  CHECK(ModelConfig::Read(folder.path()).diagnostics().at(0).finding == Finding::kBadJson);
  folder.Write("config.json", "[1]");
  CHECK(ModelConfig::Read(folder.path()).diagnostics().at(0).finding == Finding::kBadJson);
}

TEST_CASE("config.json: numbers that are not finite, as Python and as transformers write them") {
  const ScratchFolder folder;
  folder.Write("config.json", R"({"time_step_limit": [0.0, Infinity], "limits": [{"__float__": "Infinity"},
    {"__float__": "-Infinity"}, {"__float__": "other"}], "deep": {"x": {"__float__": "NaN"}}, "low": -Infinity})");
  const ModelConfig config = ModelConfig::Read(folder.path()).ValueOrThrow();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  CHECK(config.Get("time_step_limit")->AsArray().at(1).AsDouble() == kInfinity);
  CHECK(config.Get("limits")->AsArray().at(0).AsDouble() == kInfinity);
  CHECK(config.Get("limits")->AsArray().at(1).AsDouble() == -kInfinity);
  CHECK(config.Get("limits")->AsArray().at(2).is_object());
  CHECK(std::isnan(config.Get("deep")->Find("x")->AsDouble()));
  CHECK(config.Get("low")->AsDouble() == -kInfinity);
}

}  // namespace
}  // namespace moonshard
