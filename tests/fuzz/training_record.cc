// The manifest of a saved training step, with its training record: JSON, and behind a byte 0xFF changes to make in it,
// three bytes each: which place (two of them, the low one first), and which change of tests/support/changed_json.h.
// With no JSON before them they are made in a manifest of our own. The manifest has a hash of itself, which is put
// right: without it nothing behind it would be reached. What is accepted is the same when it is written and read again,
// and goes the way of any: to a cover of every shard, and to the generators that ranks of another mesh resume from.
#include "engine/io/checkpoint/training_record.h"

#include <algorithm>
#include <filesystem>

#include "engine/core/base/hash.h"
#include "engine/io/checkpoint/cover.h"
#include "engine/io/checkpoint/lay_out.h"
#include "engine/train/training_state/random_states.h"
#include "tests/fuzz/target.h"
#include "tests/support/changed_json.h"

namespace moonshard {
namespace {

constexpr char kChangesFollow = '\xFF';
constexpr size_t kMostChanges = 8;
constexpr int64_t kMostRanks = 64;

JsonValue OwnManifest() {
  const MeshShape mesh = MeshShape::Parse("dp=2,tp=2").ValueOrThrow();
  Placement rows;
  rows[MeshAxis::kTp] = Layout::Shard(0);
  rows[MeshAxis::kDpShard] = Layout::Shard(0);
  std::vector<PlacedTensor> tensors;
  TrainingRecord record;
  record.optimizer.emplace();
  record.optimizer->kind = "adamw";
  record.optimizer->groups.resize(2);
  for (const char* name : {"up.weight", "norm.weight"}) {
    const bool cut = std::string_view(name) == "up.weight";
    const std::vector<int64_t> shape = cut ? std::vector<int64_t>{6, 4} : std::vector<int64_t>{4};
    const Placement placement = cut ? rows : Placement();
    tensors.push_back({name, DType::kF32, shape, placement});
    for (const char* moment : {"exp_avg", "exp_avg_sq"}) {
      tensors.push_back({OptimizerTensorName(moment, name), DType::kF32, shape, placement});
    }
    OptimizerRecord::Group& group = record.optimizer->groups[cut ? 0 : 1];
    group.parameters = {name};
    group.options = {{"amsgrad", false}, {"betas", JsonValue::Array{0.9, 0.95}}, {"eps", 1e-8}, {"lr", 0.001}};
  }
  record.optimizer->memories.push_back({{{"step", 2}}, {"exp_avg", "exp_avg_sq"}, {"norm.weight", "up.weight"}});
  record.step = 2;
  record.host = {{"data", "{\"rows\":16}"}};
  record.random_bytes = 512;
  record.random_hash = 7;
  Manifest manifest = LayOut(tensors, mesh, Replicas::kFirst).ValueOrThrow().manifest;
  manifest.ties = {{"up.weight", "head.weight"}};
  manifest.kept = {{"config.json", "config.json", 2, 1}};
  manifest.source = {{"model.safetensors", "moonshard/model.safetensors.header", 300, 2}};
  manifest.extra = record.ToJson();
  return ParseJson(manifest.ToText(), "own.json").ValueOrThrow();
}

// The JSON that the input stands for, if it stands for any.
std::optional<JsonValue> JsonOf(std::string_view input) {
  static const JsonValue own = OwnManifest();
  const size_t end = std::min(input.find(kChangesFollow), input.size());
  Diagnostics ignored;
  std::optional<JsonValue> json = end == 0 ? own : ParseJson(input.substr(0, end), "fuzz.json").Collect(ignored);
  const auto byte = [&](size_t at) { return static_cast<size_t>(static_cast<unsigned char>(input[at])); };
  for (size_t change = 0; json && change < kMostChanges; ++change) {
    const size_t at = end + 1 + 3 * change;
    if (at + 2 >= input.size()) break;
    const std::vector<test::JsonPlace> places = test::JsonPlaces(*json);
    std::optional<JsonValue> changed = test::Changed(*json, places[(byte(at) | byte(at + 1) << 8) % places.size()],
                                                     byte(at + 2) % test::kJsonChanges.size());
    if (changed) json = std::move(changed);
  }
  return json;
}

std::string Sealed(JsonValue json) {
  if (!json.is_object()) return WriteJson(json, 0);
  json.AsObject().erase("manifest_hash");
  const std::string hash = HashToText(HashOf(WriteJson(json, 0)));
  json.AsObject().emplace("manifest_hash", hash);
  return WriteJson(json, 0);
}

void RequireInside(const std::string& name) {
  const std::filesystem::path inside = (std::filesystem::path("/step") / name).lexically_normal();
  fuzz::Require(inside.string().starts_with("/step/"), "the file '" + name + "' lies outside");
}

void RequireConsistent(const Manifest& manifest) {
  for (const ShardLayout& layout : manifest.layouts) {
    ShardDims full;
    for (const int64_t size : layout.shape) full.push_back({{0, size}});
    fuzz::Require(CoverShard(TidyShard(full), layout.shards).has_value(), "a tensor that is not covered");
    for (const std::optional<ShardDims>& shard : layout.shards) {
      if (!shard) continue;
      const std::optional<std::vector<Overlap>> alone = CoverShard(*shard, layout.shards);
      fuzz::Require(alone && alone->size() <= 1, "a shard that is stored is not read as it is");
      for (const int64_t size : LocalShapeOf(*shard)) fuzz::Require(size >= 0, "a negative size");
    }
  }
  for (const ShardedTensor& tensor : manifest.tensors) {
    fuzz::Require(manifest.Find(tensor.name) == &tensor, "a tensor that is not found by its name");
    fuzz::Require(
        tensor.layout < manifest.layouts.size() && tensor.shard_hash.size() == manifest.LayoutOf(tensor).shards.size(),
        "a tensor without its layout");
  }
  for (const RankFile& file : manifest.rank_files) RequireInside(file.name);
  for (const KeptFile& file : manifest.kept) RequireInside(file.stored);
  for (const ModelFile& file : manifest.source) RequireInside(file.header);
}

// Some ranks drew alike, others did not; every rank of another mesh finds a state that was saved.
void RequireRandomStates(const MeshShape& saved) {
  if (saved.world_size() > kMostRanks) return;
  std::vector<std::string> states;
  for (int64_t rank = 0; rank < saved.world_size(); ++rank) states.emplace_back(rank % 3 == 0 ? "alike" : "own");
  for (const MeshShape& mesh : {saved, MeshShape(), MeshShape::Parse("dp=3,tp=2").ValueOrThrow()}) {
    for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
      const RandomChoice choice = ChooseRandomState(saved, states, mesh, rank);
      fuzz::Require(choice.rank >= 0 && choice.rank < saved.world_size(), "the state of no rank");
      fuzz::Require(mesh != saved || (choice.rank == rank && !choice.reseed) ||
                        states[static_cast<size_t>(choice.rank)] == states[static_cast<size_t>(rank)],
                    "another state on the same mesh");
    }
  }
}

void RequireSameAgain(const Manifest& manifest, const TrainingRecord& record) {
  Manifest again = manifest;
  again.extra = record.ToJson();
  const Result<TrainingRecord> read = TrainingRecord::Of(again, "again.json");
  fuzz::Require(read.ok() && read.value().ToJson() == record.ToJson(), "another record after it was written");
}

}  // namespace
}  // namespace moonshard

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moonshard;
  const std::string_view input = fuzz::TextOf(data, size);
  const Result<Manifest> as_it_is = Manifest::Parse(input, "fuzz.json");
  fuzz::Require(as_it_is.ok() || !ToText(as_it_is.diagnostics()).empty(), "no reason for what is refused");
  const std::optional<JsonValue> json = JsonOf(input);
  if (!json) return 0;
  const Result<Manifest> manifest = Manifest::Parse(Sealed(*json), "fuzz.json");
  if (!manifest.ok()) {
    fuzz::Require(!ToText(manifest.diagnostics()).empty(), "no reason for what is refused");
    return 0;
  }
  const std::string text = manifest.value().ToText();
  const Result<Manifest> again = Manifest::Parse(text, "again.json");
  fuzz::Require(again.ok() && again.value().ToText() == text, "another manifest after it was written: " + text);
  RequireConsistent(manifest.value());
  RequireRandomStates(manifest.value().mesh);
  const Result<TrainingRecord> record = TrainingRecord::Of(manifest.value(), "fuzz.json");
  if (record.ok()) {
    RequireSameAgain(manifest.value(), record.value());
  } else {
    fuzz::Require(!ToText(record.diagnostics()).empty(), "no reason for what is refused");
  }
  return 0;
}
