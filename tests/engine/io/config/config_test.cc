#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <limits>
#include <utility>

#include "engine/io/config/config.h"
#include "engine/io/config/config_ranges.h"
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
  for (const char* names : {"\"Llama\"", "[1]", "{\"a\": \"b\"}", "3"}) {
    folder.Write("config.json", std::string("{\"architectures\": ") + names + "}");
    const Diagnostics found = ModelConfig::Read(folder.path()).diagnostics();
    REQUIRE(found.size() == 1);
    CHECK(found.front().path == "architectures");
    CHECK(found.front().finding == Finding::kUnsupportedModel);
  }
  for (const char* names : {"null", "[]", "[\"Llama\"]"}) {
    folder.Write("config.json", std::string("{\"architectures\": ") + names + "}");
    CHECK(ModelConfig::Read(folder.path()).ok());
  }
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

TEST_CASE("config.json: each size is accepted up to its largest value, also in a section") {
  const ScratchFolder folder;
  for (const ConfigRange& range : ConfigRanges()) {
    const std::string field = "{\"" + std::string(range.field) + "\": ";
    INFO(range.field);
    CHECK(MostOf(range.field) == range.most);
    const auto read = [&](const std::string& text) {
      folder.Write("config.json", text);
      return ModelConfig::Read(folder.path());
    };
    CHECK(read(field + std::to_string(range.most) + "}").ok());
    for (const std::string& value : {std::to_string(range.most + 1), std::string("4611686018427387904"),
                                     std::string("1e300"), std::string("NaN")}) {
      for (const auto& [before, after] : {std::pair("", "}"), {"{\"text_config\": ", "}}"}}) {
        const Result<ModelConfig> config = read(before + field + value + after);
        REQUIRE_FALSE(config.ok());
        const Diagnostic& d = config.diagnostics().front();
        CHECK(d.finding == Finding::kUnsupportedModel);
        CHECK(d.path == (*before == 0 ? "" : "text_config.") + std::string(range.field));
        CHECK(d.message == "config field '" + d.path + "' is out of range");
        CHECK(d.required == "at most " + std::to_string(range.most));
        CHECK(d.where.file == folder / "config.json");
      }
    }
  }
  CHECK(MostOf("sliding_window") == 2147483647);
  CHECK(std::ranges::is_sorted(ConfigRanges(), {}, &ConfigRange::field));
}

TEST_CASE("config.json: a file of many megabytes is refused by its size") {
  const ScratchFolder folder;
  folder.Write("config.json", "{}");
  std::filesystem::resize_file(folder / "config.json", 132'000'000);
  const Result<ModelConfig> config = ModelConfig::Read(folder.path());
  REQUIRE_FALSE(config.ok());
  CHECK(config.diagnostics().front().finding == Finding::kFileUnreadable);
  CHECK(config.diagnostics().front().declared == "132000000 bytes");
}

}  // namespace
}  // namespace moonshard
