// Which labels the losses of exported programs count, by their graphs.
#include <catch2/catch.hpp>

#include <optional>
#include <string>
#include <vector>

#include "engine/graph/counted_labels.h"
#include "engine/io/exported_program/program_archive.h"
#include "tests/support/paths.h"

namespace moonshard::test {
namespace {

TEST_CASE("the labels that a loss counts are read from the graph") {
  struct Case {
    std::string path;
    std::string input;
    bool shifted;
    std::optional<int64_t> classes;
  };
  for (const Case& one : std::vector<Case>{{"programs/llama/program.pt2", "labels", true, 48},
                                           {"programs/llama/inputs", "labels", true, 48},
                                           {"programs/qwen2_5_vl/program.pt2", "labels", true, 48},
                                           {"programs/mixtral/program.pt2", "labels", true, 48},
                                           {"programs/t5/program.pt2", "labels", false, std::nullopt},
                                           {"examples/masked_lm.pt2", "labels", false, 48},
                                           {"examples/classifier.pt2", "labels", false, 5},
                                           {"examples/regression.pt2", "labels", false, std::nullopt},
                                           {"own_modules/balanced/program.pt2", "labels", true, std::nullopt},
                                           {"own_modules/modes/program.pt2", "labels", false, std::nullopt},
                                           {"own_modules/nested/program.pt2", "", false, std::nullopt}}) {
    INFO(one.path);
    const ExportedProgram program = ReadProgramPath(SourcePath("tests/parity/" + one.path)).ValueOrThrow();
    const CountedLabels counted = CountedLabelsOf(program);
    CHECK(counted.input == one.input);
    CHECK(counted.shifted == one.shifted);
    CHECK(counted.ignored == -100);
    CHECK(counted.of_logits == (one.input != "" && one.path != "examples/regression.pt2"));
    CHECK(counted.classes == one.classes);
  }
}

}  // namespace
}  // namespace moonshard::test
