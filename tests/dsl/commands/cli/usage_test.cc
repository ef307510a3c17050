// The command line: help, version, and every way to get it wrong. A wrong one is said on stderr alone, with exit code
// 2.
#include <catch2/catch.hpp>

#include "tests/support/process.h"
#include "tests/support/programs.h"

namespace moonshard::test {
namespace {

using Catch::Contains;

TEST_CASE("help and version are data") {
  const Outcome version = Run({"--version"});
  CHECK(version.code == 0);
  CHECK_THAT(version.out, Catch::Matches("moonshard [0-9]+\\.[0-9]+\\.[0-9]+\n"));
  const Outcome help = Run({"--help"});
  CHECK(help.code == 0);
  CHECK(help.err.empty());
  for (const char* word : {"explain", "check", "eval", "train", "Exit codes"}) CHECK_THAT(help.out, Contains(word));
  CHECK(Run({"help"}).out == help.out);
  const Outcome verb = Run({"eval", "--help"});
  CHECK(verb.code == 0);
  for (const char* word : {"--input", "--grads", "--stats"}) CHECK_THAT(verb.out, Contains(word));
  CHECK(Run({"help", "eval"}).out == verb.out);
  const Outcome train = Run({"train", "--help"});
  CHECK(train.code == 0);
  for (const char* word : {"--data", "--init", "--micro-batches", "--resume", "--loss-chunk", "under autocast"}) {
    CHECK_THAT(train.out, Contains(word));
  }
}

TEST_CASE("wrong command lines") {
  struct Row {
    std::vector<std::string> words;
    std::vector<std::string> said;
  };
  const std::vector<Row> rows = {
      {{}, {"a verb is needed", "explain, check, eval"}},
      {{"explian", kModel}, {"there is no verb 'explian'", "did you mean 'explain'?"}},
      {{"explain"}, {"MODEL is required"}},
      {{"explain", kModel, "--ran", "1"}, {"there is no option '--ran'", "did you mean '--rank'?"}},
      {{"explain", kModel, "--rank=x"}, {"--rank"}},
      {{"explain", kModel, "--rank"}, {"--rank"}},
      {{"explain", kModel, "more"}, {"more"}},
      {{"check", kModel, "--stict"}, {"did you mean '--strict'?"}},
      {{"check", kModel, "--option", "sequence_parallel"}, {"--option sequence_parallel", "name=value"}},
      {{"eval", kModel, "--output", "x"}, {"--input is required"}},
      {{"eval", kModel, "--input", "x"}, {"--output is required"}},
      {{"eval", kModel, "--input", "x", "--output", "y", "--device", "tpu"}, {"--device", "tpu", "cuda"}},
      {{"eval", kModel, "--input", "x", "--output", "y", "--dtype", "int8"}, {"--dtype", "int8", "bfloat16"}},
      {{"eval", kModel, "--input", "x", "--output", "y", "--micro-batches", "0"},
       {"--micro-batches: '0' is not an integer from 1 to 1048576 (parts)"}},
      {{"verify", kModel, "--tolerance", "nan"}, {"--tolerance: 'nan' is not a number from 0 to 1e+30"}},
      {{"verify", kModel, "--types", "--loss-scale", "median"}, {"--loss-scale", "median", "mean"}},
      {{"verify", kModel, "--loss-scale", "mean"}, {"--loss-scale", "--types"}},
      {{"compare", "x", "y", "--tolerance", "-1"}, {"--tolerance: '-1' is not a number from 0"}},
      {{"train", kModel, "--data", "x", "--steps", "99999999999999999999"},
       {"--steps: '99999999999999999999' is not an integer from 1 to 1000000000000 (steps)"}},
      {{"train", kModel, "--data", "x", "--steps", "1", "--betas", "0.9,1"}, {"--betas: '1' is not", "below 1"}},
  };
  for (const Row& row : rows) {
    const Outcome done = Run(row.words);
    INFO(done.ToText());
    CHECK(done.code == 2);
    CHECK(done.out.empty());
    for (const std::string& said : row.said) CHECK_THAT(done.err, Contains(said));
    CHECK_THAT(done.err, Contains("--help") || Contains("name=value"));
  }
}

}  // namespace
}  // namespace moonshard::test
