// What a program computes with sizes: arithmetic that reads one size twice, an operator whose number of results follows
// from a size, and the gradient of a complex parameter. On one rank, against numbers of programs/make_programs.py.
#include <catch2/catch.hpp>

#include <filesystem>
#include <string>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include "engine/models/program/program.h"
#include "tests/engine/models/fixture.h"
#include "tests/support/paths.h"
#include "tests/support/rounding.h"

namespace moonshard::test {
namespace {

const std::filesystem::path kSizes = SourcePath("tests/parity/own_modules/sizes");

TEST_CASE("a program computes with its sizes as the model does, and trains complex parameters") {
  const NamedTensors expected = ReadTensors(kSizes / "expected.safetensors");
  constexpr double kBound = 1e-6;  // sums of a few float32
  for (const std::string length : {"5", "6"}) {
    CAPTURE(length);
    const auto program = Program::Open(kSizes / "program.pt2");
    const at::Tensor made = program->forward(expected.at("ids." + length))["made"];
    CHECK(RelativeError(made.detach(), expected.at("made." + length)) <= kBound);
    made.square().sum().backward();
    const at::Tensor grad = program->named_parameters()["turn"].grad();
    REQUIRE(grad.defined());
    CHECK(RelativeError(at::view_as_real(grad), expected.at("grad." + length)) <= kBound);
  }
}

TEST_CASE("an operator that gives more tensors than the graph has names for is an error") {
  const auto program = Program::Open(kSizes / "program.pt2");
  try {
    program->forward(at::zeros({2, 8}, at::kLong));
    FAIL("four parts where the graph has three names");
  } catch (const c10::Error& error) {
    const std::string text = error.what();
    CHECK(text.find("it gives 4 tensors, and the graph has 3: the program was exported for other sizes") !=
          std::string::npos);
    CHECK(text.find("aten::unsafe_split") != std::string::npos);
  }
}

}  // namespace
}  // namespace moonshard::test
