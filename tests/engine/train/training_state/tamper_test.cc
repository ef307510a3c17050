// A saved step of which somebody changed one thing and put the hash right: every field of the manifest with the
// training record in it, the header and the bytes of the file of random states, `latest`. Each is changed to what
// readers get wrong (changed_json.h), and the step is loaded and merged. What comes of it is one of three:
//
//   refused        by findings that name the step, with the model, the optimizer and the texts as they were, unless
//                  bytes of a tensor or a random state are not what was written
//   the same       to the bit
//   what it says   with a warning, or as another run could have saved it (a learning rate): what differs is in the
//                  record, and the next step is one of finite numbers
//
//   MOONSHARD_CHANGES=all test_train_layer "a changed*"     each of them, half an hour, by hand; some hundred in CI
//   MOONSHARD_SEED=7                                        others than those of CI
#include <catch2/catch.hpp>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <mutex>
#include <random>
#include <set>

#include "engine/core/base/hash.h"
#include "engine/io/checkpoint/convert.h"
#include "engine/io/checkpoint/manifest.h"
#include "engine/io/checkpoint/training_record.h"
#include "engine/io/safetensors/header.h"
#include "engine/train/training_state/step_writer.h"
#include "tests/engine/io/checkpoint/random_model.h"
#include "tests/engine/train/training_state/run.h"
#include "tests/support/changed_json.h"

namespace moonshard::test {
namespace {

namespace fs = std::filesystem;

constexpr double kMostSeconds = 5;

double CpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void WriteBytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

// The text of a manifest, with the hash of what it says.
std::string Sealed(JsonValue manifest) {
  if (!manifest.is_object()) return WriteJson(manifest, 1);
  manifest.AsObject().erase("manifest_hash");
  const std::string hash = HashToText(HashOf(WriteJson(manifest, 0)));
  manifest.AsObject().emplace("manifest_hash", hash);
  return WriteJson(manifest, 1) + "\n";
}

// A number is one whether it was written as 1 or as 1.0.
bool SameNumbers(const JsonValue& a, const JsonValue& b) {
  if (a.is_number() && b.is_number()) return a.AsDouble() == b.AsDouble();
  if (!a.is_array() || !b.is_array() || a.AsArray().size() != b.AsArray().size()) return a == b;
  return std::ranges::equal(a.AsArray(), b.AsArray(), SameNumbers);
}

bool SameNumbers(const JsonValue::Object& a, const JsonValue::Object& b) {
  return std::ranges::equal(
      a, b, [](const auto& x, const auto& y) { return x.first == y.first && SameNumbers(x.second, y.second); });
}

// What a user must not see of an error: LibTorch's own words, and that it was our defect.
std::string BareWords(const std::string& text) {
  for (const char* words :
       {"Exception raised from", "c10::", "at::", "INTERNAL ASSERT", "std::", "Expected ", "MS0901"}) {
    if (text.find(words) != std::string::npos) return words;
  }
  return "";
}

// Which of `count` changes are tried, in the order of their numbers: all of them, or so many.
std::vector<size_t> Chosen(size_t count, size_t in_ci) {
  std::vector<size_t> all(count);
  for (size_t i = 0; i < count; ++i) all[i] = i;
  const char* changes = std::getenv("MOONSHARD_CHANGES");
  if (changes != nullptr && std::string(changes) == "all") return all;
  const char* seed = std::getenv("MOONSHARD_SEED");
  std::mt19937_64 random(seed == nullptr ? 1 : std::strtoull(seed, nullptr, 10));
  for (size_t i = 0; i < std::min(in_ci, count); ++i) std::swap(all[i], all[i + random() % (count - i)]);
  all.resize(std::min(in_ci, count));
  std::ranges::sort(all);
  return all;
}

// A change to a step: its name, and the files that it writes anew, by path within the step.
struct Change {
  std::string what;
  std::map<std::string, std::string> files;
  // Whether it is of an option, of which the largest are as good as any other to LibTorch, and to us.
  bool of_option = false;
};

// A run of two steps, saved after each; and the second one again, which nobody changes.
class SavedRun {
 public:
  explicit SavedRun(const RunSetup& setup) {
    TrainingCheckpointOptions options;
    options.model_files = {{"config.json", "{\"model_type\": \"net\"}"}, {"notes.txt", "of the model"}};
    RunRanks(setup.mesh, [&](DeviceMesh& mesh) {
      Trainer trainer(setup, mesh);
      trainer.state.host = {{"data", "{\"rows\": 16}"}, {"schedule", "warm"}};
      for (const char* name : {"run", "good"}) {
        TrainingCheckpoints checkpoints = TrainingCheckpoints::Open(scratch_ / name, mesh, options);
        for (const int64_t step : {1, 2}) {
          trainer.Steps(step);
          checkpoints.Save(trainer.state, step);
        }
      }
    });
    content_ = ContentOf(step());
    manifest_ = ParseJson(content_.at(kManifestFile), kManifestFile).ValueOrThrow();
  }

  std::string folder() const { return scratch_ / "run"; }
  std::string good() const { return scratch_ / "good"; }
  std::string step() const { return folder() + "/step_00000002"; }
  std::string scratch(const std::string& name) const { return scratch_ / name; }
  const JsonValue& manifest() const { return manifest_; }
  const std::string& File(const std::string& name) const { return content_.at(name); }

  void Make(const Change& change) const {
    for (const auto& [name, bytes] : change.files) WriteBytes(step() + "/" + name, bytes);
  }
  void Undo(const Change& change) const {
    for (const auto& [name, bytes] : change.files) WriteBytes(step() + "/" + name, content_.at(name));
  }

 private:
  ScratchFolder scratch_;
  std::map<std::string, std::string> content_;  // of the step
  JsonValue manifest_;
};

std::vector<Change> ChangesOfManifest(const SavedRun& run, size_t in_ci) {
  const std::vector<JsonPlace> places = JsonPlaces(run.manifest());
  std::vector<Change> out;
  for (const size_t i : Chosen(places.size() * kJsonChanges.size(), in_ci)) {
    const JsonPlace& place = places[i / kJsonChanges.size()];
    const std::optional<JsonValue> changed = Changed(run.manifest(), place, i % kJsonChanges.size());
    if (!changed) continue;
    const bool of_hash = place == JsonPlace{"manifest_hash"};
    out.push_back({ToText(place, i % kJsonChanges.size()),
                   {{kManifestFile, of_hash ? WriteJson(*changed, 1) : Sealed(*changed)}},
                   std::ranges::find(place, "options") != place.end()});
  }
  return out;
}

// The bytes in place of the file of random states, which the manifest knows.
Change RandomFile(const SavedRun& run, const std::string& what, const std::string& bytes) {
  JsonValue manifest = run.manifest();
  JsonValue::Object& training = manifest.AsObject().at("extra").AsObject().at("training").AsObject();
  training.at("random") = JsonValue::Object{{"bytes", bytes.size()}, {"hash", HashToText(HashOf(bytes))}};
  return {what, {{kRandomFile, bytes}, {kManifestFile, Sealed(manifest)}}};
}

std::vector<Change> ChangesOfRandomStates(const SavedRun& run, size_t in_ci) {
  const std::string& file = run.File(kRandomFile);
  const Header parsed = ParseHeader(file, file.size(), kRandomFile).ValueOrThrow();
  const std::string head = file.substr(kHeaderLengthBytes, parsed.data_begin - kHeaderLengthBytes);
  const std::string data = file.substr(parsed.data_begin);
  const JsonValue header = ParseJson(head, kRandomFile).ValueOrThrow();
  const auto with_header = [&](const std::string& what, std::string text, const std::string& bytes) {
    text.resize((text.size() + 7) / 8 * 8, ' ');
    const uint64_t length = text.size();
    return RandomFile(run, what, std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text + bytes);
  };
  const std::vector<JsonPlace> places = JsonPlaces(header);
  std::vector<Change> out;
  for (const size_t i : Chosen(places.size() * kJsonChanges.size(), in_ci)) {
    const JsonPlace& place = places[i / kJsonChanges.size()];
    const std::optional<JsonValue> changed = Changed(header, place, i % kJsonChanges.size());
    if (!changed) continue;
    out.push_back(
        with_header("random states, " + ToText(place, i % kJsonChanges.size()), WriteJson(*changed, 0), data));
  }
  // States that are shorter, longer or of other bytes than any generator's.
  const std::string name = RandomName(0, "dropout");
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{16}, data.size() - 1, data.size() + 1}) {
    const JsonValue one = JsonValue::Object{
        {name, JsonValue::Object{
                   {"dtype", "U8"}, {"shape", JsonValue::Array{bytes}}, {"data_offsets", JsonValue::Array{0, bytes}}}}};
    std::string of_state = data;
    of_state.resize(bytes, 'x');
    out.push_back(with_header("a random state of " + std::to_string(bytes) + " bytes", WriteJson(one, 0), of_state));
  }
  out.push_back(with_header("random states of zeros", head, std::string(data.size(), '\0')));
  out.push_back(with_header("random states of ones", head, std::string(data.size(), '\xFF')));
  out.push_back(RandomFile(run, "no random states", ""));
  out.push_back(RandomFile(run, "random states of nothing", with_header("", "{}", "").files.at(kRandomFile)));
  return out;
}

// One rank's view of loading what was changed.
class Loader {
 public:
  Loader(const SavedRun& run, const RunSetup& setup, DeviceMesh& mesh)
      : run_(run),
        rank_(mesh.rank()),
        trainer_(setup, mesh),
        changed_(TrainingCheckpoints::Open(run.folder(), mesh)),
        good_(TrainingCheckpoints::Open(run.good(), mesh)) {
    good_.Load(trainer_.state, 2);
    want_ = trainer_.Everything();
    host_ = trainer_.state.host;
  }

  // How it went, in a word or two. Fails the rank where it went otherwise than it may.
  std::string Try(const Change& change) {
    if (rank_ == 0) run_.Make(change);
    changed_.Latest();  // the ranks wait for each other
    const double begin = CpuSeconds();
    std::string verdict;
    try {
      verdict = Accepted(change, changed_.Load(trainer_.state, 2));
    } catch (const PlanError& error) {
      verdict = Refused(change, error);
    }
    Expect(CpuSeconds() - begin < kMostSeconds,
           change.what + ": it took " + std::to_string(CpuSeconds() - begin) + " s");
    good_.Latest();
    if (rank_ == 0) run_.Undo(change);
    return verdict;
  }

 private:
  std::string Refused(const Change& change, const PlanError& error) {
    const std::string text = error.what();
    Expect(BareWords(text).empty(), change.what + ": '" + BareWords(text) + "' in: " + text);
    Expect(text.find("step_00000002") != std::string::npos, change.what + ": nothing says which step: " + text);
    const auto of_bytes = [](const Diagnostic& d) { return d.finding == Finding::kCorruptData; };
    if (std::ranges::any_of(error.diagnostics(), of_bytes) || text.find(kRandomFile) != std::string::npos) {
      good_.Load(trainer_.state, 2);
      return "bytes refused";
    }
    Expect(Differences().empty(), change.what + ": refused, and still changed: " + Differences() + "\n" + text);
    return "refused";
  }

  std::string Accepted(const Change& change, const LoadedStep& step) {
    const std::string text = ToText(step.findings);
    Expect(BareWords(text).empty(), change.what + ": '" + BareWords(text) + "' in: " + text);
    const std::string differs = Differences();
    if (differs.empty()) return "the same";
    if (step.findings.empty()) ExpectAsRecorded(change);
    try {
      trainer_.Step();
    } catch (const std::exception& error) {
      Expect(false, change.what + ": the next step throws " + error.what());
    }
    for (const auto& [name, tensor] : trainer_.Everything()) {
      const bool finite = change.of_option || !tensor.is_floating_point() || at::isfinite(tensor).all().item<bool>();
      Expect(finite, change.what + ": not finite after a step: " + name);
    }
    good_.Load(trainer_.state, 2);
    Expect(Differences().empty(), change.what + ": it lasts: " + Differences());
    return step.findings.empty() ? "what it says" : "a warning";
  }

  // Names of what this rank does not hold as the step that nobody changed.
  std::string Differences() const {
    std::string out = trainer_.state.host == host_ ? "" : "the host's texts; ";
    const std::map<std::string, at::Tensor> now = trainer_.Everything();
    for (const auto& [name, tensor] : want_) {
      const auto found = now.find(name);
      if (found == now.end() || !at::equal(found->second, tensor)) out += name + "; ";
    }
    for (const auto& [name, tensor] : now) out += want_.contains(name) ? "" : name + " too much; ";
    return out;
  }

  // Options, numbers and texts are those of the changed record, and every tensor is as it was.
  void ExpectAsRecorded(const Change& change) const {
    const Manifest manifest = Manifest::Parse(change.files.at(kManifestFile), kManifestFile).ValueOrThrow();
    const TrainingRecord record = TrainingRecord::Of(manifest, kManifestFile).ValueOrThrow();
    Expect(record.host == trainer_.state.host, change.what + ": other texts of the host than recorded");
    const Result<std::unique_ptr<OptimizerAdapter>> adapter = AdapterOf(*trainer_.optimizer);
    for (size_t g = 0; g < record.optimizer->groups.size(); ++g) {
      const JsonValue::Object options = adapter.value()->OptionsOf(g);
      Expect(SameNumbers(options, record.optimizer->groups[g].options),
             change.what + ": other options than recorded: " + WriteJson(options, 0));
    }
    for (const LiveParameter& p : trainer_.model.applied().parameters()) {
      const std::optional<ParameterMemory> memory = adapter.value()->MemoryOf(p.tensor);
      for (const MemoryRecord& recorded : record.optimizer->memories) {
        if (std::ranges::find(recorded.parameters, p.path) == recorded.parameters.end()) continue;
        Expect(memory && SameNumbers(memory->values, recorded.values), change.what + ": other numbers for " + p.path);
      }
    }
    std::map<std::string, at::Tensor> want = want_;
    if (change.files.contains(kRandomFile)) want["generator"] = StateIn(change.files.at(kRandomFile));
    const std::map<std::string, at::Tensor> now = trainer_.Everything();
    for (const auto& [name, tensor] : want) {
      if (name.starts_with("options ") || name.starts_with("values of ")) continue;
      Expect(now.contains(name) && at::equal(now.at(name), tensor), change.what + ": accepted with another " + name);
    }
  }

  // This rank's state in a file of them.
  at::Tensor StateIn(const std::string& file) const {
    const Header header = ParseHeader(file, file.size(), kRandomFile).ValueOrThrow();
    const auto found = std::ranges::find(header.tensors, RandomName(rank_, "dropout"), &HeaderTensor::name);
    Expect(found != header.tensors.end(), "a state of this rank");
    return Trainer::TextTensor(file.substr(header.data_begin + found->begin, found->end - found->begin));
  }

  const SavedRun& run_;
  int64_t rank_;
  Trainer trainer_;
  TrainingCheckpoints changed_;
  TrainingCheckpoints good_;
  std::map<std::string, at::Tensor> want_;
  std::map<std::string, std::string> host_;
};

// Each change on every rank, one after the other; a table of how they went. All failures are reported.
void LoadEach(const SavedRun& run, const RunSetup& setup, const std::vector<Change>& changes) {
  std::mutex mutex;
  std::map<std::string, int64_t> table;
  std::vector<std::string> failures;
  RunRanks(setup.mesh, [&](DeviceMesh& mesh) {
    auto loader = std::make_unique<Loader>(run, setup, mesh);
    for (const Change& change : changes) {
      std::string failure;
      std::string verdict = "failed";
      try {
        verdict = loader->Try(change);
      } catch (const std::exception& error) {
        failure = error.what();
      }
      const std::lock_guard lock(mutex);
      if (mesh.rank() == 0) ++table[verdict];
      if (failure.empty()) continue;
      failures.push_back(failure);
      if (mesh.shape().world_size() > 1) throw std::runtime_error(failure);  // the ranks may be apart now
      run.Undo(change);
      loader = std::make_unique<Loader>(run, setup, mesh);
    }
  });
  std::cout << setup.mesh << ":";
  for (const auto& [verdict, count] : table) std::cout << " " << verdict << " " << count;
  std::cout << "\n";
  for (const std::string& failure : failures) FAIL_CHECK(failure);
  CHECK(table["refused"] + table["bytes refused"] > 0);
}

struct Row {
  std::string what;
  RunSetup saved;
  std::string loaded;  // mesh
  size_t in_ci = 100;
};

TEST_CASE("a changed manifest is refused, or the step is what it says") {
  const std::vector<Row> rows = {
      {"two ranks", {"tp=2"}, "tp=1"},
      {"two dims cut", {"dp=2,tp=2"}, "tp=1"},
      {"replicas", {"dp_replicate=2", false}, "tp=1"},
      {"the ranks that saved", {"tp=2"}, "tp=2", 60},
      {"amsgrad", {"tp=1", true, Kind::kAmsgrad}, "tp=1"},
      {"Adam", {"tp=1", true, Kind::kAdam}, "tp=1", 40},
      {"SGD", {"tp=1", true, Kind::kSgd}, "tp=1"},
      {"plain SGD", {"tp=1", true, Kind::kPlainSgd}, "tp=1", 40},
      {"Adagrad", {"tp=1", true, Kind::kAdagrad}, "tp=1"},
      {"RMSprop", {"tp=1", true, Kind::kRmsprop}, "tp=1"},
      {"a layer that no step reached", {"tp=1", true, Kind::kAdamW, {.skip_last = true}}, "tp=1", 40},
  };
  for (const Row& row : rows) {
    DYNAMIC_SECTION(row.what) {
      const SavedRun run(row.saved);
      RunSetup loaded = row.saved;
      loaded.mesh = row.loaded;
      LoadEach(run, loaded, ChangesOfManifest(run, row.in_ci));
    }
  }
}

TEST_CASE("changed random states are refused, or generators go on from them") {
  for (const char* mesh : {"tp=1", "dp=2"}) {
    DYNAMIC_SECTION(mesh) {
      const SavedRun run({"dp=2"});
      LoadEach(run, {mesh}, ChangesOfRandomStates(run, 60));
    }
  }
}

TEST_CASE("a changed manifest is not merged, or every file is what it was") {
  for (const char* mesh : {"tp=2", "dp=2,tp=2"}) {
    const SavedRun run({mesh});
    MergeSharded(run.step(), run.scratch("merged")).ValueOrThrow();
    const std::map<std::string, std::string> want = ContentOf(run.scratch("merged"));
    int64_t merged = 0;
    for (const Change& change : ChangesOfManifest(run, 150)) {
      INFO(change.what);
      fs::remove_all(run.scratch("merged"));
      fs::remove_all(run.scratch("merged.partial"));
      run.Make(change);
      const double begin = CpuSeconds();
      const Result<ConvertSummary> done = MergeSharded(run.step(), run.scratch("merged"));
      CHECK(CpuSeconds() - begin < kMostSeconds);
      run.Undo(change);
      const std::string text = ToText(done.diagnostics());
      INFO(text);
      CHECK(BareWords(text).empty());
      CHECK(done.ok() == fs::exists(run.scratch("merged")));
      if (!done.ok()) continue;
      ++merged;
      // Which files the model directory had is the manifest's to say: one more under another name, or one less.
      const bool of_files = change.what.starts_with("kept") || change.what.starts_with("source");
      const std::map<std::string, std::string> got = ContentOf(run.scratch("merged"));
      if (!of_files) CHECK(got == want);
      for (const auto& [name, bytes] : got) {
        INFO(name);
        const std::string original = name.ends_with(".copy") ? name.substr(0, name.size() - 5) : name;
        CHECK((want.contains(original) && want.at(original) == bytes));
      }
    }
    CHECK(merged > 0);
  }
}

TEST_CASE("a step with a changed record is not a valid step to go back to") {
  const SavedRun run({"tp=1"});
  REQUIRE(RunDirectory(run.folder()).LastGoodBefore(3) == 2);
  const JsonPlace place = {"extra", "training", "step"};
  const auto minus = static_cast<size_t>(std::ranges::find(kJsonChanges, std::string("-1")) - kJsonChanges.begin());
  run.Make({"", {{kManifestFile, Sealed(Changed(run.manifest(), place, minus).value())}}});
  CHECK(RunDirectory(run.folder()).LastGoodBefore(3) == 1);
  CHECK_THAT(ToText(CheckSharded(run.step())), Catch::Contains("MS0410") && Catch::Contains("declared: -1"));
}

TEST_CASE("a changed 'latest' names a step that is there, or is refused") {
  const SavedRun run({"tp=1"});
  const std::string path = run.folder() + "/latest";
  const std::string good = ReadWholeFile(path);
  const std::string hash = good.substr(good.find(' '));
  struct Row {
    std::string text;
    std::optional<int64_t> step;
  };
  const std::vector<Row> rows = {
      {good, 2},
      {"step_00000001\n", 1},
      {"step_00000002", 2},
      {"step_00000002 " + HashToText(HashOf("step_00000002")) + "\n\n", 2},
      {"", {}},
      {"\n", {}},
      {" ", {}},
      {"x", {}},
      {"2", {}},
      {"null", {}},
      {"step_2\n", {}},
      {"step_00000003\n", {}},
      {"step_00000001" + hash, {}},
      {"step_00000002 \n", {}},
      {"step_00000002 x\n", {}},
      {"step_-0000002\n", {}},
      {"step_00000002/../step_00000001\n", {}},
      {"../run/step_00000002\n", {}},
      {"step_9223372036854775807\n", {}},
      {"step_9223372036854775808\n", {}},
      {"step_00000002.partial\n", {}},
      {std::string("step_00000002\0", 14), {}},
      {std::string(1 << 20, 's'), {}},
      {std::string(1 << 20, '\n'), {}},
  };
  RunRanks("tp=1", [&](DeviceMesh& mesh) {
    Trainer trainer({"tp=1"}, mesh);
    TrainingCheckpoints checkpoints = TrainingCheckpoints::Open(run.folder(), mesh);
    for (const Row& row : rows) {
      WriteBytes(path, row.text);
      const std::string what = JsonQuoted(row.text.substr(0, 60));
      std::optional<int64_t> step;
      std::string error;
      try {
        step = checkpoints.Load(trainer.state).step;
      } catch (const PlanError& thrown) {
        error = thrown.what();
      }
      Expect(step == row.step, what + ": " + (step ? std::to_string(*step) : error));
      if (row.step) continue;
      Expect(error.find("MS0410") != std::string::npos && error.find("step_00000002") != std::string::npos,
             what + ": " + error);
    }
  });
}

}  // namespace
}  // namespace moonshard::test
