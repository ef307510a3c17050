// Tensors that are made of several tensors of a checkpoint: any part of one is that part of the full tensor, the
// checkpoint's tensors are made of them again, and a sharded model loads its shards of them.
#include <catch2/catch.hpp>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "engine/core/base/text.h"
#include "engine/io/safetensors/invert_recipes.h"
#include "engine/io/safetensors/read_recipe.h"
#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/sharded_model/initialize.h"
#include "engine/runtime/sharded_model/load.h"
#include "engine/runtime/sharded_model/state.h"
#include "tests/engine/runtime/fsdp/net.h"
#include "tests/support/process.h"
#include "tests/support/ranks.h"

namespace moonshard::test {
namespace {

using Kind = WeightRecipe::Kind;
using Shape = std::vector<int64_t>;
using Indices = std::vector<std::vector<Interval>>;
using Stored = std::map<std::string, at::Tensor>;

WeightRecipe Source(std::string name) {
  WeightRecipe out;
  out.tensor = std::move(name);
  return out;
}

WeightRecipe Made(Kind kind, std::vector<WeightRecipe> parts, int64_t dim = 0, int64_t start = 0, int64_t stop = 0,
                  Shape shape = {}) {
  WeightRecipe out;
  out.kind = kind;
  out.parts = std::move(parts);
  out.dim = dim;
  out.start = start;
  out.stop = stop;
  out.shape = std::move(shape);
  return out;
}

// What LibTorch's operators make of the stored tensors.
at::Tensor FullResult(const WeightRecipe& recipe, const Stored& stored) {
  if (recipe.kind == Kind::kTensor) return stored.at(recipe.tensor);
  std::vector<at::Tensor> parts;
  for (const WeightRecipe& part : recipe.parts) parts.push_back(FullResult(part, stored));
  switch (recipe.kind) {
    case Kind::kStack: return at::stack(parts, recipe.dim);
    case Kind::kConcatenate: return at::cat(parts, recipe.dim);
    case Kind::kSlice: return parts[0].slice(recipe.dim, recipe.start, recipe.stop);
    case Kind::kSelect: return parts[0].select(recipe.dim, recipe.start);
    case Kind::kPermute: return parts[0].permute(recipe.shape);
    default: return parts[0].reshape(recipe.shape);
  }
}

at::Tensor Part(at::Tensor full, const Indices& dims) {
  for (size_t d = 0; d < dims.size(); ++d) {
    std::vector<int64_t> indices;
    for (const Interval& one : dims[d]) {
      for (int64_t i = 0; i < one.length; ++i) indices.push_back(one.begin + i);
    }
    full = full.index_select(static_cast<int64_t>(d), torch::tensor(indices, torch::kLong));
  }
  return full;
}

class RecipeMaker {
 public:
  explicit RecipeMaker(uint32_t seed) : random_(seed) {}

  int64_t Below(int64_t count) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(count)); }

  // A recipe for a tensor of this shape; its sources are added to `stored`.
  WeightRecipe Make(const Shape& shape, int depth, Stored& stored) {
    const auto dims = static_cast<int64_t>(shape.size());
    const auto kind = static_cast<Kind>(depth == 0 ? 0 : Below(7));
    used_.insert(kind);
    const auto part = [&](const Shape& its) { return Make(its, depth - 1, stored); };
    switch (dims == 0 && kind != Kind::kSelect && kind != Kind::kReshape ? Kind::kTensor : kind) {
      case Kind::kTensor:
      case Kind::kUnsupported: break;
      case Kind::kStack: {
        const int64_t dim = Below(dims);
        Shape inner = shape;
        inner.erase(inner.begin() + dim);
        if (shape[static_cast<size_t>(dim)] == 0) break;
        std::vector<WeightRecipe> parts;
        for (int64_t i = 0; i < shape[static_cast<size_t>(dim)]; ++i) parts.push_back(part(inner));
        return Made(Kind::kStack, std::move(parts), Either(dim, dims));
      }
      case Kind::kConcatenate: {
        const int64_t dim = Below(dims);
        Shape inner = shape;
        int64_t rest = shape[static_cast<size_t>(dim)];
        std::vector<WeightRecipe> parts;
        while (rest > 0 || parts.empty()) {
          inner[static_cast<size_t>(dim)] = Below(rest + 1);  // none too
          rest -= inner[static_cast<size_t>(dim)];
          parts.push_back(part(inner));
        }
        return Made(Kind::kConcatenate, std::move(parts), Either(dim, dims));
      }
      case Kind::kSlice: {
        const int64_t dim = Below(dims);
        const int64_t start = Below(3);
        Shape inner = shape;
        inner[static_cast<size_t>(dim)] += start + Below(3);
        const int64_t stop = start + shape[static_cast<size_t>(dim)];
        return Made(Kind::kSlice, {part(inner)}, Either(dim, dims), start, stop);
      }
      case Kind::kSelect: {
        const int64_t dim = Below(dims + 1);
        const int64_t size = 1 + Below(3);
        Shape inner = shape;
        inner.insert(inner.begin() + dim, size);
        return Made(Kind::kSelect, {part(inner)}, Either(dim, dims + 1), Below(size));
      }
      case Kind::kPermute: {
        std::vector<int64_t> order(shape.size());
        for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
        std::shuffle(order.begin(), order.end(), random_);
        Shape inner(shape.size());
        for (size_t i = 0; i < order.size(); ++i) inner[static_cast<size_t>(order[i])] = shape[i];
        return Made(Kind::kPermute, {part(inner)}, 0, 0, 0, order);
      }
      case Kind::kReshape: {
        int64_t elements = 1;
        for (const int64_t size : shape) elements *= size;
        const Shape inner = elements % 2 == 0 ? Shape{elements / 2, 1, 2} : Shape{elements};
        return Made(Kind::kReshape, {part(inner)}, 0, 0, 0, shape);
      }
    }
    const std::string name = "t" + std::to_string(stored.size());
    int64_t elements = 1;
    for (const int64_t size : shape) elements *= size;
    stored[name] = torch::arange(next_, next_ + elements).to(torch::kFloat32).reshape(shape);
    next_ += elements;
    return Source(name);
  }

  // In order or not, apart or touching, said twice, empty ones too.
  std::vector<Interval> Intervals(int64_t size) {
    if (Below(4) == 0) return {{0, size}};
    std::vector<Interval> out;
    for (int64_t i = Below(4); i > 0; --i) {
      const int64_t begin = Below(size + 1);
      out.push_back({begin, Below(size - begin + 1)});
    }
    return out;
  }

  const std::set<Kind>& used() const { return used_; }

 private:
  // From the front or from the end.
  int64_t Either(int64_t dim, int64_t dims) { return Below(2) == 0 ? dim : dim - dims; }

  std::mt19937 random_;
  int64_t next_ = 0;
  std::set<Kind> used_;
};

TEST_CASE("a part of what a recipe makes is that part of the full tensor") {
  const ScratchFolder folder;
  RecipeMaker maker(7);
  for (int round = 0; round < 150; ++round) {
    Shape shape;
    for (int64_t dims = maker.Below(4); dims > 0; --dims) shape.push_back(maker.Below(6));
    Stored stored;
    const WeightRecipe recipe = maker.Make(shape, 3, stored);
    const at::Tensor full = FullResult(recipe, stored);
    REQUIRE(full.sizes() == at::IntArrayRef(shape));
    const std::string file = folder / ("x" + std::to_string(round) + ".safetensors");
    SaveState(file, stored);
    const Checkpoint checkpoint = Checkpoint::OpenFile(file).ValueOrThrow();
    ShardReader reader(checkpoint);
    CheckpointSource source(checkpoint, reader);
    REQUIRE(HasSources(recipe, source));
    std::string why;
    REQUIRE(MadeBy(recipe, source, why) == RecipeTensor{DType::kF32, shape});
    for (int part = 0; part < 8; ++part) {
      Indices dims;
      for (const int64_t size : shape)
        dims.push_back(part == 0 ? std::vector<Interval>{{0, size}} : maker.Intervals(size));
      const at::Tensor want = Part(full, dims);
      at::Tensor read = at::full(want.sizes(), -1, at::TensorOptions().dtype(at::kFloat));
      INFO("round " << round << ", part " << part);
      REQUIRE(ShardShape(dims) == want.sizes().vec());
      REQUIRE_FALSE(ReadRecipe(recipe, source, dims, read.mutable_data_ptr()));
      REQUIRE(read.equal(want));
    }
  }
  CHECK(maker.used().size() == 7);
}

// Tensors of a model that are made of some tensors, each element of which is in one of them; of a few of them, some
// tensors are not all there.
TEST_CASE("the checkpoint's tensors are made of the model's again, or are named") {
  const ScratchFolder folder;
  RecipeMaker maker(11);
  int64_t inverted_tensors = 0;
  int64_t incomplete_tensors = 0;
  for (int round = 0; round < 150; ++round) {
    INFO("round " << round);
    Stored stored;
    Stored model;
    std::map<std::string, WeightRecipe> recipes;
    for (int64_t i = 0; i < 3; ++i) {
      Shape shape;
      for (int64_t dims = maker.Below(4); dims > 0; --dims) shape.push_back(1 + maker.Below(5));
      WeightRecipe recipe = maker.Make(shape, 3, stored);
      // Two parts of a tensor, in different tensors of the model.
      if (i == 0 && !shape.empty() && shape[0] > 1) {
        const int64_t middle = 1 + maker.Below(shape[0] - 1);
        recipes["b" + std::to_string(i)] = Made(Kind::kSlice, {recipe}, 0, middle, shape[0]);
        recipe = Made(Kind::kSlice, {recipe}, 0, 0, middle);
      }
      recipes["a" + std::to_string(i)] = std::move(recipe);
    }
    std::map<std::string, const WeightRecipe*> made;
    for (const auto& [path, recipe] : recipes) {
      model[path] = FullResult(recipe, stored).contiguous();
      made[path] = &recipe;
    }
    const auto file = [&](const char* name) { return folder / (name + std::to_string(round) + ".safetensors"); };
    SaveState(file("stored"), stored);
    SaveState(file("model"), model);
    const Checkpoint checkpoint = Checkpoint::OpenFile(file("stored")).ValueOrThrow();
    const Checkpoint of_model = Checkpoint::OpenFile(file("model")).ValueOrThrow();
    ShardReader reader(checkpoint);
    ShardReader model_reader(of_model);
    CheckpointSource source(of_model, model_reader);
    const InvertedRecipes inverted = InvertRecipes(made, CheckpointSource(checkpoint, reader));
    for (const auto& [name, tensor] : stored) {
      // Elements have different numbers: those that the model lacks, and whether there are any.
      std::set<float> left;
      for (int64_t i = 0; i < tensor.numel(); ++i) left.insert(tensor.flatten()[i].item<float>());
      for (const auto& [path, part] : model) {
        for (int64_t i = 0; i < part.numel(); ++i) left.erase(part.flatten()[i].item<float>());
      }
      INFO(name);
      const bool named = std::ranges::binary_search(inverted.incomplete, name);
      REQUIRE(named != inverted.recipes.contains(name));
      if (named) {
        ++incomplete_tensors;
        REQUIRE((tensor.numel() == 0 || !left.empty()));
        continue;
      }
      ++inverted_tensors;
      const WeightRecipe& recipe = inverted.recipes.at(name);
      std::string why;
      REQUIRE(HasSources(recipe, source));
      REQUIRE(MadeBy(recipe, source, why) == RecipeTensor{DType::kF32, tensor.sizes().vec()});
      at::Tensor read = at::full(tensor.sizes(), -1, at::TensorOptions().dtype(at::kFloat));
      REQUIRE_FALSE(ReadRecipe(recipe, source, FullShard(tensor.sizes().vec()), read.mutable_data_ptr()));
      REQUIRE(read.equal(tensor));
    }
  }
  CHECK(inverted_tensors > 300);
  CHECK(incomplete_tensors > 50);
}

TEST_CASE("what does not fit has no shape but a reason") {
  const ScratchFolder folder;
  const std::string file = folder / "x.safetensors";
  SaveState(file, {{"a", torch::ones({4, 6})},
                   {"b", torch::ones({4, 3})},
                   {"s", torch::ones({})},
                   {"h", torch::ones({4, 6}, torch::kHalf)}});
  const Checkpoint checkpoint = Checkpoint::OpenFile(file).ValueOrThrow();
  ShardReader reader(checkpoint);
  const CheckpointSource source(checkpoint, reader);
  const auto shape = [&](const WeightRecipe& recipe) {
    std::string why;
    const std::optional<RecipeTensor> out = MadeBy(recipe, source, why);
    CHECK(out.has_value() == why.empty());
    return out ? ShapeToString(out->shape) : why;
  };
  const WeightRecipe a = Source("a");
  const WeightRecipe b = Source("b");
  const WeightRecipe s = Source("s");
  CHECK(shape(a) == "[4, 6]");
  CHECK(shape(Made(Kind::kStack, {a, a}, 2)) == "[4, 6, 2]");
  CHECK(shape(Made(Kind::kStack, {s, s}, -1)) == "[2]");
  CHECK(shape(Made(Kind::kStack, {a, b})) == "a stacked tensor has the shape [4, 3] (first tensor: shape [4, 6])");
  CHECK(shape(Made(Kind::kStack, {a}, 3)) == "there is no dim 3 (first tensor: shape [4, 6])");
  CHECK(shape(Made(Kind::kStack, {a}, -4)) == "there is no dim -4 (first tensor: shape [4, 6])");
  CHECK(shape(Made(Kind::kConcatenate, {a, b}, 1)) == "[4, 9]");
  CHECK(shape(Made(Kind::kConcatenate, {a, b}, 0)) ==
        "a concatenated tensor has the shape [4, 3] (first tensor: shape [4, 6])");
  CHECK(shape(Made(Kind::kConcatenate, {a, s}, 0)) ==
        "a concatenated tensor has the shape [] (first tensor: shape [4, 6])");
  CHECK(shape(Made(Kind::kConcatenate, {s, s}, 0)) == "there is no dim 0 (first tensor: shape [])");
  CHECK(shape(Made(Kind::kSlice, {a}, 1, 2, 6)) == "[4, 4]");
  CHECK(shape(Made(Kind::kSlice, {a}, 1, 3, 3)) == "[4, 0]");
  CHECK(shape(Made(Kind::kSlice, {a}, 1, 2, 7)) ==
        "the slice from 2 to 7 is out of range (first tensor: shape [4, 6])");
  CHECK(shape(Made(Kind::kSlice, {a}, 1, 3, 2)) ==
        "the slice from 3 to 2 is out of range (first tensor: shape [4, 6])");
  CHECK(shape(Made(Kind::kSlice, {a}, 2, 0, 1)) == "there is no dim 2 (first tensor: shape [4, 6])");
  CHECK(shape(Made(Kind::kSelect, {a}, 0, 3)) == "[6]");
  CHECK(shape(Made(Kind::kSelect, {a}, 0, 4)) == "index 4 is out of range (first tensor: shape [4, 6])");
  CHECK(shape(Made(Kind::kSelect, {a}, 0, -1)) == "index -1 is out of range (first tensor: shape [4, 6])");
  CHECK(shape(Made(Kind::kPermute, {a}, 0, 0, 0, {1, 0})) == "[6, 4]");
  CHECK(shape(Made(Kind::kPermute, {a}, 0, 0, 0, {0})) ==
        "[0] is not an order of the dims (first tensor: shape [4, 6])");
  CHECK(shape(Made(Kind::kPermute, {a}, 0, 0, 0, {0, 0})) ==
        "[0, 0] is not an order of the dims (first tensor: shape [4, 6])");
  CHECK(shape(Made(Kind::kPermute, {s})) == "[]");
  CHECK(shape(Made(Kind::kReshape, {a}, 0, 0, 0, {2, 12})) == "[2, 12]");
  CHECK(shape(Made(Kind::kReshape, {a}, 0, 0, 0, {5, 5})) ==
        "the shape [5, 5] has another number of elements (first tensor: shape [4, 6])");
  CHECK(shape(Made(Kind::kReshape, {a}, 0, 0, 0, {-4, -6})) ==
        "the shape [-4, -6] has another number of elements (first tensor: shape [4, 6])");
  const int64_t huge = int64_t{1} << 32;
  CHECK(shape(Made(Kind::kReshape, {a}, 0, 0, 0, {huge, huge})) ==
        "the shape [4294967296, 4294967296] has another number of elements (first tensor: shape [4, 6])");
  CHECK(shape(Made(Kind::kStack, {})) == "an operation of the recipe has 0 inputs; it needs at least one");
  CHECK(shape(Made(Kind::kSlice, {a, a})) == "an operation of the recipe has 2 inputs; it takes exactly one");
  CHECK(shape(Made(Kind::kStack, {Made(Kind::kSelect, {a}, 5)})) == "there is no dim 5 (first tensor: shape [4, 6])");
  CHECK_FALSE(HasSources(Made(Kind::kStack, {a, Source("c")}), source));
  WeightRecipe computes = Made(Kind::kUnsupported, {a, b});
  computes.reason = "Merge: aten.mul";
  CHECK(shape(computes) == "the conversion is not supported: Merge: aten.mul");
  CHECK(shape(Made(Kind::kStack, {Made(Kind::kUnsupported, {a})})) == "the conversion is not supported: ");
  CHECK(shape(Made(Kind::kStack, {a, Source("h")})) == "tensors of the dtypes float32 and float16 are joined");
}

// The weights of the net in other forms: one row per tensor, two halves of which one has more than is wanted, turned.
TEST_CASE("a sharded model loads what recipes make, of the shards' bytes or in full") {
  const ScratchFolder folder;
  Stored want;
  Stored stored;
  const Net net = MakeNet({});
  for (const auto& parameter : net->named_parameters()) want[parameter.key()] = parameter.value().detach();
  NameRules rules;
  for (const auto& [path, tensor] : want) {
    std::vector<WeightRecipe>& recipes = rules.recipes[path];
    recipes.push_back(Source("not there"));
    if (path.ends_with("up.weight")) {
      std::vector<WeightRecipe> rows;
      for (int64_t i = 0; i < tensor.size(0); ++i) {
        rows.push_back(Source(path + "." + std::to_string(i)));
        stored[rows.back().tensor] = tensor[i].clone();
      }
      recipes.push_back(Made(Kind::kStack, rows));
    } else if (path.ends_with("down.weight")) {
      const int64_t half = tensor.size(1) / 2;
      stored[path + ".a"] = tensor.narrow(1, 0, half).contiguous();
      stored[path + ".b"] = at::cat({tensor.narrow(1, 0, 1), tensor.narrow(1, half, tensor.size(1) - half)}, 1);
      recipes.push_back(
          Made(Kind::kConcatenate,
               {Source(path + ".a"), Made(Kind::kSlice, {Source(path + ".b")}, 1, 1, 1 + tensor.size(1) - half)}, 1));
    } else if (tensor.dim() == 2) {
      stored[path + ".turned"] = tensor.t().contiguous().reshape({-1});
      recipes.push_back(Made(
          Kind::kPermute, {Made(Kind::kReshape, {Source(path + ".turned")}, 0, 0, 0, {tensor.size(1), tensor.size(0)})},
          0, 0, 0, {1, 0}));
    } else {
      stored[path] = tensor;  // of its own name, as its recipe does not hold
    }
  }
  SaveState(folder / "x.safetensors", stored);
  const auto plan = [](const DeviceMesh& mesh) {
    Plan out = NetRules();
    if (mesh.shape().size(MeshAxis::kDpShard) > 1) out.data_parallel.emplace().wrap = {{"layer_*"}};
    return out;
  };
  for (const char* mesh_text : {"tp=1", "tp=2", "tp=4", "dp=2,tp=2"}) {
    DYNAMIC_SECTION(mesh_text) {
      RunRanks(mesh_text, [&](DeviceMesh& mesh) {
        const Checkpoint checkpoint = Checkpoint::OpenFile(folder / "x.safetensors").ValueOrThrow();
        auto model = Parallelize(MakeNet({}), plan(mesh), mesh);
        Initialize(model, 5);
        const Diagnostics warnings = LoadCheckpoint(model, checkpoint, rules);
        Expect(warnings.empty(), ToText(warnings));
        const Stored got = FullState(model);
        Expect(got.size() == want.size(), "as many tensors");
        for (const auto& [path, tensor] : want) ExpectEqual(got.at(path), tensor.to(got.at(path).scalar_type()), path);
      });
    }
  }
  RunRanks("tp=2", [&](DeviceMesh& mesh) {
    const Checkpoint checkpoint = Checkpoint::OpenFile(folder / "x.safetensors").ValueOrThrow();
    auto model = Parallelize(MakeNet({}), plan(mesh), mesh);
    const Stored before = FullState(model);
    NameRules wrong = rules;
    wrong.recipes["layer_0.up.weight"][1].parts.pop_back();
    std::string text;
    try {
      LoadCheckpoint(model, checkpoint, wrong);
    } catch (const PlanError& error) {
      text = error.what();
    }
    Expect(text.find("the recipe of 'layer_0.up.weight' makes a tensor that does not match the model's tensor") !=
               std::string::npos,
           text);
    // A conversion that computes holds where its tensors are there, and then nothing is loaded in its place.
    wrong = rules;
    wrong.recipes["layer_0.up.weight"][1].kind = Kind::kUnsupported;
    wrong.recipes["layer_0.up.weight"][1].reason = "Merge: aten.mul";
    text.clear();
    try {
      LoadCheckpoint(model, checkpoint, wrong);
    } catch (const PlanError& error) {
      text = error.what();
    }
    Expect(text.find("the conversion is not supported: Merge: aten.mul") != std::string::npos, text);
    const Stored after = FullState(model);
    for (const auto& [path, tensor] : before) ExpectEqual(after.at(path), tensor, path);
  });
}

}  // namespace
}  // namespace moonshard::test
