// A session on a model of 63,201 modules answers at once: by the CPU time of this process, which a busy machine does
// not change. tests/bench/repl.cc has more lines, and wall time.
#include <catch2/catch.hpp>
#include <ctime>

#include "dsl/commands/repl/session.h"
#include "tests/bench/large_tree.h"
#include "tests/support/process.h"

namespace moonshard::test {
namespace {

#if defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
constexpr double kSlower = 1;
#else
constexpr double kSlower = 40;  // sanitizers, no optimization
#endif

double CpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <class RunLarge>
double Milliseconds(const RunLarge& run) {
  const double begin = CpuSeconds();
  run();
  return (CpuSeconds() - begin) * 1000;
}

TEST_CASE("Tab and :why answer within 50 ms, :reload within 200 ms, on 63,201 modules") {
  const ScratchFolder scratch;
  const auto tree = bench::MakeLargeTree();
  REQUIRE(tree->modules().size() == 63201);
  const std::string plan = scratch.Write("large.lua", R"(return plan {
  api = 1,
  at("model.layers.*.mlp.experts.*.{gate,up}_proj", colwise {}),
  at("model.layers.*.mlp.experts.*.down_proj", rowwise {}),
  default(replicated()),
}
)");
  Session session({});
  session.workspace().SetModel("large", JsonValue::Object{}, tree);
  REQUIRE(session.Feed(":load " + plan).good);
  REQUIRE(session.Feed(":mesh tp=8").good);
  for (const std::string line :
       {":why model.layers.6", ":why model.layers.60.mlp.experts.", ":match model.layers.*.mlp.experts.*.",
        "at(\"model.layers.{0..60}.mlp.", "colwise { ", ":help he"}) {
    INFO("Tab behind " << line);
    Completion found;
    CHECK(Milliseconds([&] { found = session.Complete(line, line.size()); }) < 50 * kSlower);
    CHECK(!found.candidates.empty());
  }
  for (const std::string line :
       {":why model.layers.60.mlp.experts.255.up_proj", ":why model.layers.3.mlp.experts.*.up_proj",
        ":why model.layers.60.mlp.experts.255.up_proj.weight"}) {
    INFO(line);
    moonshard::Outcome outcome;
    CHECK(Milliseconds([&] { outcome = session.Feed(line); }) < 50 * kSlower);
    CHECK(outcome.good);
    CHECK_THAT(outcome.out, Catch::Contains("colwise"));
  }
  moonshard::Outcome outcome;
  CHECK(Milliseconds([&] { outcome = session.Feed(":reload"); }) < 200 * kSlower);
  CHECK_THAT(outcome.err, Catch::Contains("nothing changed"));
}

}  // namespace
}  // namespace moonshard::test
