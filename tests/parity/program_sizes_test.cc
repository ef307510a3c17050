// What a program computes with sizes: arithmetic that reads one size twice, an operator whose number of results follows
// from a size, the gradient of a complex parameter, and lengths of recurrence and attention. On one rank, against numbers of programs/make_programs.py.
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

TEST_CASE("a program computes with its sizes as the model does, trains complex parameters and follows gradient modes") {
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
    const at::Tensor of_scale = program->named_parameters()["scale"].grad();
    REQUIRE(of_scale.defined());
    CHECK(RelativeError(of_scale, expected.at("scale_grad." + length)) <= kBound);
    CHECK_FALSE(program->named_parameters()["embed.weight"].grad().defined());
    const c10::NoGradGuard no_grad;  // of the caller: off everywhere
    CHECK_FALSE(program->forward(expected.at("ids." + length))["made"].requires_grad());
  }
}

TEST_CASE("recurrence and attention of torch.nn are exported for every batch and length") {
  const std::filesystem::path folder = SourcePath("tests/parity/own_modules/lengths");
  const NamedTensors expected = ReadTensors(folder / "expected.safetensors");
  for (const std::string size : {"2x5", "1x1", "1x4", "3x1", "3x7"}) {
    CAPTURE(size);
    const auto program = Program::Open(folder / "program.pt2");
    CHECK(program->exported().guards.empty());
    const at::Tensor made = program->forward(expected.at("x." + size))["made"];
    CHECK(RelativeError(made.detach(), expected.at("made." + size)) <= 1e-5);
    (made * at::linspace(-1, 1, 8)).sum().backward();
    CHECK(RelativeError(program->named_parameters()["lstm.weight_hh_l0"].grad(), expected.at("grad." + size)) <= 1e-4);
  }
}

TEST_CASE("an operator that gives more tensors than the graph has names for is an error") {
  const auto program = Program::Open(kSizes / "program.pt2");
  try {
    program->forward(at::zeros({2, 8}, at::kLong));
    FAIL("four parts where the graph has three names");
  } catch (const c10::Error& error) {
    const std::string text = error.what();
    CHECK(text.find("the operator returns 4 tensors, and the graph has 3: the program was exported for other sizes") !=
          std::string::npos);
    CHECK(text.find("aten::unsafe_split") != std::string::npos);
  }
}

}  // namespace
}  // namespace moonshard::test
