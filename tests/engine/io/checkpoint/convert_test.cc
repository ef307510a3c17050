// A model directory taken apart and put together is the same directory, whatever its form, the mesh and the layouts; a
// rank's file holds what the rank would hold; any shard for any other mesh is found.
#include "engine/io/checkpoint/convert.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <tuple>

#include "engine/io/checkpoint/chunks.h"
#include "engine/io/checkpoint/sharded_checkpoint.h"
#include "engine/io/safetensors/read_recipe.h"
#include "engine/io/safetensors/reader.h"
#include "engine/io/safetensors/writer.h"
#include "engine/plan/compile/local_shape.h"
#include "tests/engine/io/checkpoint/faulty_storage.h"
#include "tests/engine/io/checkpoint/random_model.h"

namespace moonshard::test {
namespace {

std::string ReadLocal(const Checkpoint& checkpoint, const StoredTensor& tensor, const ShardDims& dims) {
  std::string out(static_cast<size_t>(ShardBytes(tensor.dtype, dims)), '\0');
  ShardReader reader(checkpoint);
  REQUIRE_FALSE(reader.ReadShard(tensor, dims, out.data()));
  return out;
}

// Every rank's file against the source, read the plain way.
void CheckRankFiles(const Checkpoint& source, const CompiledPlan& plan, const std::string& sharded) {
  const Manifest manifest = Manifest::Parse(ReadWholeFile(sharded + "/moonshard.json"), "m").ValueOrThrow();
  CHECK(manifest.plan_hash == plan.Hash());
  for (int64_t rank = 0; rank < plan.mesh.world_size(); ++rank) {
    const RankFile& file = manifest.rank_files[manifest.FileOfRank(rank)];
    CHECK(file.rank <= rank);
    const Checkpoint local = Checkpoint::OpenFile(sharded + "/" + file.name).ValueOrThrow();
    REQUIRE(local.tensors().size() == source.tensors().size());
    for (const StoredTensor& tensor : source.tensors()) {
      const ShardDims shard = LocalIntervals(tensor.shape, PlacementOf(plan, tensor.name), plan.mesh, rank);
      const StoredTensor* stored = local.Find(tensor.name);
      REQUIRE(stored);
      CHECK(stored->shape == LocalShapeOf(shard));
      CHECK(ReadLocal(local, *stored, FullShard(stored->shape)) == ReadLocal(source, tensor, shard));
    }
  }
}

// Every shard of another mesh and plan, read from the sharded directory.
void CheckOtherMesh(const Checkpoint& source, const std::string& sharded, Random& random) {
  const CompiledPlan other = RandomPlan(source, RandomMesh(random), random);
  ShardedCheckpoint opened = ShardedCheckpoint::Open(sharded).ValueOrThrow();
  for (const StoredTensor& tensor : source.tensors()) {
    for (int64_t rank = 0; rank < other.mesh.world_size(); ++rank) {
      const ShardDims wanted =
          TidyShard(LocalIntervals(tensor.shape, PlacementOf(other, tensor.name), other.mesh, rank));
      const ShardedTensor* stored = opened.manifest().Find(tensor.name);
      REQUIRE(stored);
      std::vector<ByteRange> ranges = opened.Locate(*stored, wanted).ValueOrThrow();
      const std::string expected = ReadLocal(source, tensor, wanted);
      std::string by_shard(expected.size() + 1, '#');
      REQUIRE_FALSE(opened.ReadShard(*stored, wanted, by_shard.data()));
      CHECK(by_shard == expected + '#');
      std::string by_range(expected.size(), '\0');
      uint64_t bytes = 0;
      for (const ByteRange& range : ranges) {
        const File file = File::Open(sharded + "/" + opened.manifest().rank_files[range.file].name).ValueOrThrow();
        REQUIRE(range.to + range.bytes <= by_range.size());
        REQUIRE_FALSE(file.Read(range.offset, by_range.data() + range.to, range.bytes));
        bytes += range.bytes;
      }
      CHECK(bytes == expected.size());  // each byte once
      CHECK(by_range == expected);
    }
  }
}

}  // namespace

TEST_CASE("shard, then merge: any directory, any mesh, any layouts") {
  for (unsigned seed = 0; seed < 60; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const ScratchFolder scratch;
    const std::string model = scratch / "model";
    const std::string sharded = scratch / "sharded";
    WriteRandomModel(model, random);
    const Checkpoint source = Checkpoint::Open(model).ValueOrThrow();
    const CompiledPlan plan = RandomPlan(source, RandomMesh(random), random);
    FaultyStorage storage;  // syncs nothing: quick
    ConvertOptions options;
    options.storage = &storage;
    const ConvertSummary done = ShardModel(source, plan, sharded, options).ValueOrThrow();
    CHECK(done.tensors == static_cast<int64_t>(source.tensors().size()));
    CHECK_FALSE(std::filesystem::exists(sharded + ".partial"));
    CheckRankFiles(source, plan, sharded);
    CheckOtherMesh(source, sharded, random);
    uint64_t written = 0;
    for (const auto& [name, content] : ContentOf(sharded)) written += content.size();
    CHECK(done.written_bytes == written);
    MergeSharded(sharded, scratch / "merged", options).ValueOrThrow();
    CHECK(ContentOf(scratch / "merged") == ContentOf(model));
    // The same again is the same to the byte.
    ShardModel(source, plan, scratch / "again", options).ValueOrThrow();
    CHECK(ContentOf(scratch / "again") == ContentOf(sharded));
  }
}

TEST_CASE("a tensor of many chunks, cut along every dim") {
  Random random(5);
  const ScratchFolder scratch;
  const std::string model = scratch / "model";
  std::filesystem::create_directory(model);
  // Rows longer than a chunk, chunks of many rows, and a dim between them.
  const std::vector<std::vector<int64_t>> shapes = {{3, 700'001}, {2001, 901}, {5, 3, 211, 401}};
  std::vector<TensorData> tensors;
  std::vector<std::string> bytes;
  for (const std::vector<int64_t>& shape : shapes) {
    bytes.push_back(RandomBytes(static_cast<size_t>(ShardBytes(DType::kBF16, FullShard(shape))), random));
  }
  for (size_t i = 0; i < shapes.size(); ++i)
    tensors.push_back({{"t" + std::to_string(i), DType::kBF16, shapes[i]}, bytes[i].data()});
  REQUIRE_FALSE(WriteSafetensors(model + "/model.safetensors", tensors));
  const Checkpoint source = Checkpoint::Open(model).ValueOrThrow();
  const MeshShape mesh = MeshShape::Parse("tp=3").ValueOrThrow();
  for (int dim = 0; dim < 2; ++dim) {
    CompiledPlan plan = RandomPlan(source, mesh, random);
    for (ModuleLayouts& layouts : plan.layouts) {
      for (Placement& placement : layouts.params) placement = Placement(Layout::Shard(dim));
    }
    const std::string sharded = scratch / ("sharded" + std::to_string(dim));
    ShardModel(source, plan, sharded).ValueOrThrow();
    CheckRankFiles(source, plan, sharded);
    MergeSharded(sharded, sharded + "-merged").ValueOrThrow();
    CHECK(ContentOf(sharded + "-merged") == ContentOf(model));
  }
}

TEST_CASE("what is there already is left, and only that") {
  Random random(11);
  const ScratchFolder scratch;
  const std::string model = scratch / "model";
  const std::string sharded = scratch / "sharded";
  const std::string merged = scratch / "merged";
  WriteRandomModel(model, random);
  const Checkpoint source = Checkpoint::Open(model).ValueOrThrow();
  const CompiledPlan plan = RandomPlan(source, MeshShape::Parse("tp=2").ValueOrThrow(), random);
  ShardModel(source, plan, sharded).ValueOrThrow();
  MergeSharded(sharded, merged).ValueOrThrow();
  CHECK(ShardModel(source, plan, sharded).ValueOrThrow().was_there);
  CHECK(MergeSharded(sharded, merged).ValueOrThrow().was_there);
  // Any byte of the source, or of what is there, that is another one.
  struct Place {
    std::string folder;
    bool by_shard;  // shard compares its content; otherwise merge
  };
  for (const auto& [folder, by_shard] : {Place{model, true}, Place{sharded, true}, Place{merged, false}}) {
    const std::string to = std::filesystem::path(folder).filename().string() + "/";
    for (const auto& [name, content] : ContentOf(folder)) {
      if (content.empty()) continue;
      INFO(folder << " " << name);
      std::string changed = content;
      changed.back() = static_cast<char>(changed.back() ^ 1);
      std::filesystem::remove(folder + "/" + name);
      scratch.Write(to + name, changed);
      CHECK_FALSE((by_shard ? ShardModel(source, plan, sharded) : MergeSharded(sharded, merged)).ok());
      std::filesystem::remove(folder + "/" + name);
      scratch.Write(to + name, content);
    }
  }
  scratch.Write("merged/more", "x");
  CHECK_FALSE(MergeSharded(sharded, merged).ok());
}

// A directory whose model has another form: the same tensors once as they are stored and once as the model has them.
struct OtherForm {
  OtherForm(const ScratchFolder& scratch, Random& random) : random_(random) {
    const WeightRecipe gate = Stack("expert.{}.gate", 3, {6, 4});
    const WeightRecipe up = Stack("expert.{}.up", 3, {6, 4});
    Add("moe.gate_up", {3, 12, 4}, Of(WeightRecipe::Kind::kConcatenate, {gate, up}, 1));
    Add("moe.down", {3, 4, 6}, Of(WeightRecipe::Kind::kPermute, {Stack("expert.{}.down", 3, {6, 4})}, 0, {0, 2, 1}));
    const WeightRecipe fused = Stored("attn.qkv", {8, 4});
    for (const auto& [name, start, stop] : {std::tuple("attn.q", 0, 4), {"attn.k", 4, 6}, {"attn.v", 6, 8}}) {
      WeightRecipe slice = Of(WeightRecipe::Kind::kSlice, {fused});
      slice.start = start;
      slice.stop = stop;
      Add(name, {stop - start, 4}, slice);
    }
    // Heads of gate and value side by side, taken apart.
    const WeightRecipe heads = Of(WeightRecipe::Kind::kReshape, {Stored("mixed", {12, 4})}, 0, {3, 2, 2, 4});
    for (int64_t i = 0; i < 2; ++i) {
      WeightRecipe one = Of(WeightRecipe::Kind::kSelect, {heads}, 1);
      one.start = i;
      Add("half_" + std::to_string(i), {6, 4}, Of(WeightRecipe::Kind::kReshape, {one}, 0, {6, 4}));
    }
    Add("renamed.weight", {5, 7}, Stored("other.name", {5, 7}));
    Stored("norm.weight", {9});
    own_.emplace_back("norm.weight");
    Write(scratch / "stored", stored_);
    Write(scratch / "of_model", of_model_);
  }

  WeightRecipes recipes;

 private:
  struct Tensor {
    std::vector<int64_t> shape;
    std::string bytes;
  };
  using Tensors = std::map<std::string, Tensor>;

  // Reads from memory; the tests of ReadRecipe show that it reads what LibTorch's operators make.
  struct Source : RecipeSource {
    explicit Source(const Tensors& tensors) : tensors(tensors) {}
    std::optional<RecipeTensor> Find(const std::string& name) const override {
      return RecipeTensor{DType::kF32, tensors.at(name).shape};
    }
    Failure Read(const std::string& name, const ShardDims& dims, void* to) override {
      // Of what is asked for in full here, each dim is one interval.
      const Tensor& tensor = tensors.at(name);
      auto* out = static_cast<char*>(to);
      std::vector<int64_t> at(dims.size(), 0);
      for (int64_t left = ShardBytes(DType::kF32, dims) / 4; left > 0; --left) {
        int64_t offset = 0;
        for (size_t d = 0; d < dims.size(); ++d) offset = offset * tensor.shape[d] + dims[d][0].begin + at[d];
        std::memcpy(out, tensor.bytes.data() + offset * 4, 4);
        out += 4;
        for (size_t d = dims.size(); d-- > 0;) {
          if (++at[d] < dims[d][0].length) break;
          at[d] = 0;
        }
      }
      return std::nullopt;
    }
    const Tensors& tensors;
  };

  static WeightRecipe Of(WeightRecipe::Kind kind, std::vector<WeightRecipe> parts, int64_t dim = 0,
                         std::vector<int64_t> shape = {}) {
    WeightRecipe out;
    out.kind = kind;
    out.parts = std::move(parts);
    out.dim = dim;
    out.shape = std::move(shape);
    return out;
  }

  WeightRecipe Stored(const std::string& name, std::vector<int64_t> shape) {
    Tensor& tensor = stored_[name];
    tensor.bytes = RandomBytes(static_cast<size_t>(ShardBytes(DType::kF32, FullShard(shape))), random_);
    tensor.shape = std::move(shape);
    WeightRecipe out;
    out.tensor = name;
    return out;
  }

  WeightRecipe Stack(const std::string& name, int64_t count, const std::vector<int64_t>& shape) {
    std::vector<WeightRecipe> parts;
    for (int64_t i = 0; i < count; ++i) {
      std::string numbered = name;
      parts.push_back(Stored(numbered.replace(numbered.find("{}"), 2, std::to_string(i)), shape));
    }
    return Of(WeightRecipe::Kind::kStack, std::move(parts));
  }

  void Add(const std::string& path, std::vector<int64_t> shape, const WeightRecipe& recipe) {
    Source source(stored_);
    Tensor& tensor = of_model_[path];
    tensor.bytes.resize(static_cast<size_t>(ShardBytes(DType::kF32, FullShard(shape))));
    REQUIRE_FALSE(ReadRecipe(recipe, source, FullShard(shape), tensor.bytes.data()));
    tensor.shape = std::move(shape);
    recipes[path].push_back(recipe);
  }

  void Write(const std::string& folder, Tensors tensors) {
    for (const std::string& name : own_) tensors[name] = stored_.at(name);
    std::filesystem::create_directory(folder);
    std::vector<TensorData> data;
    for (const auto& [name, tensor] : tensors) data.push_back({{name, DType::kF32, tensor.shape}, tensor.bytes.data()});
    REQUIRE_FALSE(WriteSafetensors(folder + "/model.safetensors", data));
  }

  Random& random_;
  Tensors stored_;
  Tensors of_model_;
  std::vector<std::string> own_;  // that both have
};

TEST_CASE("a model of another form: its shards are stored, the directory comes back as it was") {
  for (unsigned seed = 0; seed < 20; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const ScratchFolder scratch;
    const OtherForm form(scratch, random);
    const Checkpoint source = Checkpoint::Open(scratch / "stored").ValueOrThrow();
    const Checkpoint of_model = Checkpoint::Open(scratch / "of_model").ValueOrThrow();
    const CompiledPlan plan = RandomPlan(of_model, RandomMesh(random), random);
    const std::string sharded = scratch / "sharded";
    ShardModel(source, plan, sharded, {}, &form.recipes).ValueOrThrow();
    CheckRankFiles(of_model, plan, sharded);
    CheckOtherMesh(of_model, sharded, random);
    const Manifest manifest = Manifest::Parse(ReadWholeFile(sharded + "/moonshard.json"), "m").ValueOrThrow();
    CHECK(manifest.made.size() == 12);
    CHECK(manifest.ToText() == ReadWholeFile(sharded + "/moonshard.json"));
    MergeSharded(sharded, scratch / "merged").ValueOrThrow();
    CHECK(ContentOf(scratch / "merged") == ContentOf(scratch / "stored"));
    // What is there already is left; a byte of it that differs is found.
    CHECK(ShardModel(source, plan, sharded, {}, &form.recipes).ValueOrThrow().was_there);
    CHECK(MergeSharded(sharded, scratch / "merged").ValueOrThrow().was_there);
    std::string changed = ReadWholeFile(scratch / "merged/model.safetensors");
    changed.back() = static_cast<char>(changed.back() ^ 1);
    scratch.Write("merged/model.safetensors", changed);
    CHECK_FALSE(MergeSharded(sharded, scratch / "merged").ok());
    // A shard that is damaged is named, and nothing is written.
    const std::string rank_file = sharded + "/" + manifest.rank_files.front().name;
    changed = ReadWholeFile(rank_file);
    changed.back() = static_cast<char>(changed.back() ^ 1);
    scratch.Write("sharded/" + manifest.rank_files.front().name, changed);
    const Result<ConvertSummary> damaged = MergeSharded(sharded, scratch / "damaged");
    REQUIRE_FALSE(damaged.ok());
    CHECK(damaged.diagnostics().front().finding == Finding::kCorruptData);
    CHECK_FALSE(std::filesystem::exists(scratch / "damaged"));
  }
}

TEST_CASE("a model of another form that merging could not give back, or that lacks tensors") {
  Random random(1);
  const ScratchFolder scratch;
  const OtherForm form(scratch, random);
  const Checkpoint source = Checkpoint::Open(scratch / "stored").ValueOrThrow();
  const Checkpoint of_model = Checkpoint::Open(scratch / "of_model").ValueOrThrow();
  const CompiledPlan plan = RandomPlan(of_model, MeshShape::Parse("tp=2").ValueOrThrow(), random);
  const auto refuses = [&](const WeightRecipes& recipes, const std::string& says) {
    const Result<ConvertSummary> done = ShardModel(source, plan, scratch / "out", {}, &recipes);
    REQUIRE_FALSE(done.ok());
    CHECK_THAT(ToText(done.diagnostics()), Catch::Contains(says));
    CHECK_FALSE(std::filesystem::exists(scratch / "out"));
  };
  WeightRecipes recipes = form.recipes;
  recipes.erase("attn.k");
  refuses(recipes, "error[MS0506]: the model uses only a part of tensor 'attn.qkv'");
  recipes = form.recipes;
  recipes.erase("renamed.weight");
  refuses(recipes, "error[MS0406]: the checkpoint has no tensor 'renamed.weight'");
  recipes = form.recipes;
  std::swap(recipes["moe.down"], recipes["attn.q"]);
  refuses(recipes, "error[MS0407]: tensor 'attn.q' of the checkpoint does not match the model's tensor");
  recipes = form.recipes;
  recipes["moe.down"][0].parts[0].parts[1].tensor = "norm.weight";
  refuses(recipes, "error[MS0407]: the recipe of 'moe.down' cannot be applied to the tensors of the checkpoint");
}

TEST_CASE("ranks that differ along an axis that cuts nothing share a file") {
  Random random(7);
  const ScratchFolder scratch;
  WriteRandomModel(scratch / "model", random);
  const Checkpoint source = Checkpoint::Open(scratch / "model").ValueOrThrow();
  CompiledPlan plan = RandomPlan(source, MeshShape::Parse("dp_replicate=2,tp=2").ValueOrThrow(), random);
  for (ModuleLayouts& layouts : plan.layouts) {
    for (Placement& placement : layouts.params) placement = Placement();
  }
  CHECK(ShardModel(source, plan, scratch / "whole").ValueOrThrow().rank_files == 1);
}

TEST_CASE("directories that cannot be written") {
  Random random(3);
  const ScratchFolder scratch;
  const std::string model = scratch / "model";
  WriteRandomModel(model, random);
  const Checkpoint source = Checkpoint::Open(model).ValueOrThrow();
  const CompiledPlan plan = RandomPlan(source, MeshShape::Parse("tp=2").ValueOrThrow(), random);
  const auto refuses = [&](const std::string& out, Finding finding, const std::string& says) {
    const Result<ConvertSummary> done = ShardModel(source, plan, out);
    REQUIRE_FALSE(done.ok());
    CHECK(done.diagnostics().back().finding == finding);
    CHECK_THAT(ToText(done.diagnostics()), Catch::Contains(says));
  };
  refuses(model + "/sharded", Finding::kNotSupported, "the two directories are the same or nested");
  refuses(model, Finding::kNotSupported, "the two directories are the same or nested");
  refuses(scratch / "no/such", Finding::kWriteFailed, "No such file or directory");
  refuses(scratch.Write("file", "x"), Finding::kWriteFailed, "not a directory");
  const std::string full = scratch / "full";
  std::filesystem::copy(model, full, std::filesystem::copy_options::recursive);
  refuses(full, Finding::kWriteFailed, "not empty");
  CHECK(ContentOf(full) == ContentOf(model));

  ConvertOptions replace;
  replace.replace = true;
  ShardModel(source, plan, full, replace).ValueOrThrow();
  CHECK(ContentOf(full).contains("moonshard.json"));
  CHECK_FALSE(std::filesystem::exists(full + ".partial"));

  scratch.Write("model/rank-00000.safetensors", "x");
  refuses(scratch / "out", Finding::kNotSupported, "a name that is reserved for sharded checkpoints");
}

}  // namespace moonshard::test
