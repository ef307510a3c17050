// A process that is killed, a full disk and a power cut at every single call that changes the disk: a reader finds what
// was there before or all of the new content, and the same work done again succeeds.
#include <catch2/catch.hpp>
#include <filesystem>
#include <functional>

#include "engine/io/checkpoint/convert.h"
#include "engine/io/checkpoint/merge_adapter.h"
#include "engine/io/checkpoint/stored_adapter.h"
#include "engine/io/storage/staging.h"
#include "tests/engine/io/checkpoint/faulty_storage.h"
#include "tests/support/paths.h"

namespace moonshard::test {
namespace {

using Fault = FaultyStorage::Fault;
using Content = std::map<std::string, std::string>;
// Something that writes a directory.
using Work = std::function<Result<ConvertSummary>(const std::string& out, const ConvertOptions& options)>;

std::optional<Content> ContentIfThere(const std::string& folder) {
  return std::filesystem::exists(folder) ? std::optional(ContentOf(folder)) : std::nullopt;
}

// Runs the work once for each call it makes, stopping it there.
void StopEverywhere(const Work& work, const Content& wanted, bool over_old, Fault fault, bool lose_power) {
  const ScratchFolder scratch;
  int64_t resumed = 0;
  int64_t calls = 1;
  for (int64_t at = 0; at < calls; ++at) {
    INFO("call " << at << " of " << calls);
    const std::string out = scratch / std::to_string(at);
    if (over_old) {
      std::filesystem::create_directory(out);
      scratch.Write(std::to_string(at) + "/old", "old");
    }
    const std::optional<Content> before = ContentIfThere(out);
    {
      FaultyStorage counting;
      ConvertOptions options;
      options.replace = over_old;
      options.storage = &counting;
      if (at == 0) {
        const std::string unfaulted = scratch / "unfaulted";
        if (over_old) std::filesystem::copy(out, unfaulted, std::filesystem::copy_options::recursive);
        work(unfaulted, options).ValueOrThrow();
        calls = counting.calls();
        REQUIRE(ContentOf(unfaulted) == wanted);
      }
    }
    Random random(static_cast<unsigned>(at));
    FaultyStorage faulty(fault, at);
    ConvertOptions options;
    options.replace = over_old;
    options.storage = &faulty;
    if (fault == Fault::kCrash) {
      CHECK_THROWS_AS(work(out, options), Crash);
    } else {
      const Result<ConvertSummary> failed = work(out, options);
      REQUIRE_FALSE(failed.ok());
      CHECK(failed.diagnostics().back().finding == Finding::kWriteFailed);
      CHECK_THAT(failed.diagnostics().back().message, Catch::Contains("No space left on device"));
    }
    if (lose_power) faulty.LosePower(random);
    const std::optional<Content> after = ContentIfThere(out);
    CHECK((after == before || after == wanted));
    FaultyStorage faultless;
    ConvertOptions again;
    again.storage = &faultless;
    again.replace = over_old;
    const Result<ConvertSummary> done = work(out, again);
    INFO(ToText(done.diagnostics()));
    REQUIRE((done.ok() || after == wanted));
    CHECK(ContentOf(out) == wanted);
    if (done.ok()) {
      CHECK_FALSE(std::filesystem::exists(out + ".partial"));
      resumed += static_cast<int64_t>(done.value().resumed_bytes);
    }
    std::filesystem::remove_all(out);
    std::filesystem::remove_all(out + ".partial");
  }
  if (!lose_power) CHECK(resumed > 0);
}

struct Made {
  Made() {
    Random random(23);
    WriteRandomModel(scratch / "model", random);
    source = std::make_unique<Checkpoint>(Checkpoint::Open(scratch / "model").ValueOrThrow());
    plan = RandomPlan(*source, MeshShape::Parse("dp_shard=2,tp=2").ValueOrThrow(), random);
    ShardModel(*source, plan, scratch / "sharded").ValueOrThrow();
  }
  ScratchFolder scratch;
  std::unique_ptr<Checkpoint> source;
  CompiledPlan plan;
};

}  // namespace

TEST_CASE("shard: stopped at every call") {
  const Made made;
  const Work work = [&](const std::string& out, const ConvertOptions& options) {
    return ShardModel(*made.source, made.plan, out, options);
  };
  const Content wanted = ContentOf(made.scratch / "sharded");
  StopEverywhere(work, wanted, false, Fault::kCrash, false);
  StopEverywhere(work, wanted, false, Fault::kError, false);
  StopEverywhere(work, wanted, false, Fault::kCrash, true);
  StopEverywhere(work, wanted, true, Fault::kCrash, true);
}

TEST_CASE("merge: stopped at every call") {
  const Made made;
  const Work work = [&](const std::string& out, const ConvertOptions& options) {
    return MergeSharded(made.scratch / "sharded", out, options);
  };
  const Content wanted = ContentOf(made.scratch / "model");
  StopEverywhere(work, wanted, false, Fault::kCrash, false);
  StopEverywhere(work, wanted, false, Fault::kError, false);
  StopEverywhere(work, wanted, false, Fault::kCrash, true);
  StopEverywhere(work, wanted, true, Fault::kCrash, true);
}

TEST_CASE("merging an adapter: stopped at every call") {
  const ScratchFolder scratch;
  const Checkpoint model = Checkpoint::Open(SourcePath("tests/parity/llama_gqa")).ValueOrThrow();
  const StoredAdapter adapter = ReadAdapter(SourcePath("tests/parity/adapters/rslora")).ValueOrThrow();
  const Work work = [&](const std::string& out, const ConvertOptions& options) {
    return MergeAdapter(model, adapter, out, options);
  };
  MergeAdapter(model, adapter, scratch / "merged").ValueOrThrow();
  const Content wanted = ContentOf(scratch / "merged");
  StopEverywhere(work, wanted, false, Fault::kCrash, false);
  StopEverywhere(work, wanted, false, Fault::kError, false);
  StopEverywhere(work, wanted, false, Fault::kCrash, true);
}

TEST_CASE("a staging directory of another plan is not resumed") {
  const Made made;
  const std::string out = made.scratch / "out";
  FaultyStorage faulty(Fault::kCrash, 60);
  ConvertOptions options;
  options.storage = &faulty;
  CHECK_THROWS_AS(ShardModel(*made.source, made.plan, out, options), Crash);
  REQUIRE(std::filesystem::exists(out + ".partial/journal"));
  Random random(99);
  const CompiledPlan other = RandomPlan(*made.source, MeshShape::Parse("tp=3").ValueOrThrow(), random);
  CHECK(ShardModel(*made.source, other, out).ValueOrThrow().resumed_bytes == 0);
  MergeSharded(out, made.scratch / "merged").ValueOrThrow();
  CHECK(ContentOf(made.scratch / "merged") == ContentOf(made.scratch / "model"));
}

}  // namespace moonshard::test
