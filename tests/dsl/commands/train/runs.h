// Training runs as a user starts them, on a model and tokens small enough for a second.
#pragma once

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/base/json.h"
#include "tests/dsl/commands/train/token_bytes.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"
#include "tests/support/rounding.h"

namespace moonshard::test {

using Words = std::vector<std::string>;

inline const std::string kModel = SourcePath("tests/parity/llama_gqa");  // a vocabulary of 64

// `more`, and for what it does not say rows of 16 tokens, 8 a step.
inline Words TrainWords(const ScratchFolder& folder, const Words& more, const std::string& model = kModel) {
  const std::string data = folder.Write("tokens.bin", RawTokens<uint16_t>(SomeTokens(4000, 64)));
  Words words = {"train", model, "--data", data};
  words.insert(words.end(), more.begin(), more.end());
  for (const auto& [name, value] : {std::pair("--sequence", "16"), {"--batch", "8"}, {"--lr", "3e-3"}}) {
    if (std::ranges::count(more, name) == 0) words.insert(words.end(), {name, value});
  }
  return words;
}

// One thread per rank: what threads do to sums is not what is looked at.
inline Outcome RunTraining(const Words& words, const Words& variables = {}) {
  Words all = {"OMP_NUM_THREADS=1"};
  all.insert(all.end(), variables.begin(), variables.end());
  return RunExecutable(ExecutablePath(), words, all, 120);
}

// The lines of a log with this event, in order.
inline std::vector<JsonValue> LogLines(const std::string& path, const std::string& event = "step") {
  std::vector<JsonValue> out;
  std::istringstream lines(ReadWholeFile(path));
  for (std::string line; std::getline(lines, line);) {
    JsonValue value = ParseJson(line, path).ValueOrThrow();
    if (value.Find("event")->AsString() == event) out.push_back(std::move(value));
  }
  return out;
}

inline std::vector<double> Losses(const std::string& path) {
  std::vector<double> out;
  for (const JsonValue& line : LogLines(path)) out.push_back(line.Find("loss")->AsDouble());
  return out;
}

// What a log says of the steps, without what depends on the clock and the machine.
inline std::string Numbers(const std::string& path) {
  std::string out;
  for (JsonValue& line : LogLines(path)) {
    for (const char* name : {"seconds", "tokens_per_second", "examples_per_s", "memory_bytes"})
      line.AsObject().erase(name);
    out += WriteJson(line, 0) + "\n";
  }
  return out;
}

// How far two right curves of kModel under TrainWords may be apart where they compute in float32.
inline double BoundOfCurve(const std::vector<double>& losses) {
  return CurveBound(ChainOf(kModel + "/expected_1.safetensors"), {.parameters = 7e4,
                                                                  .steps = static_cast<double>(losses.size()),
                                                                  .learning_rate = 3e-3,
                                                                  .loss = *std::ranges::max_element(losses)});
}

inline void ExpectNear(const std::vector<double>& got, const std::vector<double>& want, double tolerance) {
  REQUIRE(got.size() == want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    INFO("step " << i + 1 << ": " << got[i] << " for " << want[i]);
    CHECK(std::abs(got[i] - want[i]) <= tolerance);
  }
}

}  // namespace moonshard::test
