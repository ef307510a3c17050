#include "tests/engine/io/checkpoint/random_model.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "engine/core/base/json.h"
#include "engine/io/checkpoint/chunks.h"
#include "engine/io/checkpoint/manifest.h"
#include "engine/io/config/config.h"
#include "engine/io/safetensors/reader.h"
#include "engine/io/safetensors/tree.h"
#include "engine/io/safetensors/writer.h"
#include "engine/layout/shards.h"
#include "engine/plan/compile/local_shape.h"
#include "engine/plan/compile/module_steps.h"

namespace moonshard::test {
namespace {

namespace fs = std::filesystem;

constexpr DType kDTypes[] = {DType::kBF16, DType::kF32,  DType::kU8,    DType::kF64,
                             DType::kF4,   DType::kBool, DType::kF8E4M3};

void WriteText(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

// Sizes that divide, that do not, 1 and, now and then, 0.
std::vector<int64_t> RandomShape(DType dtype, Random& random) {
  constexpr int64_t kSizes[] = {1, 2, 3, 5, 6, 8, 12, 16, 24, 31};
  std::vector<int64_t> shape;
  for (int64_t d = Between(random, 0, 3); d > 0; --d) shape.push_back(kSizes[random() % 10]);
  if (!shape.empty() && random() % 20 == 0) shape[random() % shape.size()] = 0;
  if (dtype == DType::kF4) shape.push_back(2 * Between(random, 1, 12));
  return shape;
}

// The file with a space more in its header: what only somebody else's writer would have written.
void LoosenHeader(const std::string& path) {
  std::string text = ReadWholeFile(path);
  const auto length = static_cast<unsigned char>(text[0]) + 256 * static_cast<unsigned char>(text[1]);
  text.insert(8 + 1, 8, ' ');
  text[0] = static_cast<char>((length + 8) & 0xFF);
  text[1] = static_cast<char>((length + 8) >> 8);
  WriteText(path, text);
}

Layout RandomCut(int64_t size, int dim, int64_t ranks, bool plain, Random& random) {
  Layout layout = Layout::Shard(dim);
  switch (plain ? 0 : random() % 4) {
    case 1: layout = Layout::Shard(dim, random() % 2 == 0 ? ranks * 2 : 1); break;
    case 2: {
      const int64_t first = Between(random, 0, size);
      layout = Layout::Packed(dim, {{first, 0}, {size - first, 0}});
      break;
    }
    case 3: layout = Layout::Owned(dim, Between(random, 0, ranks - 1)); break;
    default: break;
  }
  return DimShards::Make(layout, size, ranks).ok() ? layout : Layout::Shard(dim);
}

Placement RandomPlacement(const StoredTensor& tensor, const MeshShape& mesh, Random& random) {
  Placement placement;
  if (tensor.shape.empty()) return placement;
  std::vector<int> cut;
  for (MeshAxis axis : kMeshAxes) {
    if (mesh.size(axis) == 1 || random() % 3 == 0) continue;
    const int dim = static_cast<int>(random() % tensor.shape.size());
    // A dim that is cut twice is cut plainly: shards of shards have no heads to count.
    const bool plain = axis != MeshAxis::kTp || std::ranges::find(cut, dim) != cut.end();
    placement[axis] = RandomCut(tensor.shape[static_cast<size_t>(dim)], dim, mesh.size(axis), plain, random);
    cut.push_back(dim);
  }
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    if (!ShardsAtBytes(tensor.shape, tensor.dtype, TidyShard(LocalIntervals(tensor.shape, placement, mesh, rank))))
      return {};
  }
  return placement;
}

}  // namespace

int64_t Between(Random& random, int64_t least, int64_t most) {
  return least + static_cast<int64_t>(random() % static_cast<uint64_t>(most - least + 1));
}

std::string RandomBytes(size_t count, Random& random) {
  std::string out(count, '\0');
  for (char& c : out) c = static_cast<char>(random());
  return out;
}

std::map<std::string, std::string> ContentOf(const std::string& folder) {
  std::map<std::string, std::string> content;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().lexically_relative(folder).string();
    if (entry.is_directory()) {
      content[name + "/"];
    } else {
      content[name] = ReadWholeFile(entry.path().string());
    }
  }
  return content;
}

void WriteRandomModel(const std::string& folder, Random& random) {
  fs::create_directories(folder);
  const int64_t files = random() % 2 == 0 ? 1 : Between(random, 2, 3);
  JsonValue::Object weight_map;
  for (int64_t f = 0; f < files; ++f) {
    const std::string name = files == 1 ? kCheckpointFile : "model-" + std::to_string(f) + ".safetensors";
    std::vector<TensorData> tensors;
    std::vector<std::string> bytes;
    const int64_t count = Between(random, 1, 8);
    bytes.reserve(static_cast<size_t>(count));
    for (int64_t t = 0; t < count; ++t) {
      TensorSpec spec{"layer." + std::to_string(f) + "." + std::to_string(t) + ".weight", kDTypes[random() % 7], {}};
      spec.shape = RandomShape(spec.dtype, random);
      bytes.push_back(RandomBytes(static_cast<size_t>(ShardBytes(spec.dtype, FullShard(spec.shape))), random));
      weight_map.emplace(spec.name, name);
      tensors.push_back({spec, bytes.back().data()});
    }
    REQUIRE_FALSE(WriteSafetensors(folder + "/" + name, tensors, {{"format", "pt"}, {"by", std::to_string(f)}}));
    if (random() % 2 == 0) LoosenHeader(folder + "/" + name);
  }
  if (files > 1) {
    WriteText(folder + "/" + kCheckpointIndex, WriteJson(JsonValue::Object{{"weight_map", std::move(weight_map)}}, 4));
  }
  WriteText(folder + "/config.json", "{}\n");
  WriteText(folder + "/tokenizer.bin", RandomBytes(random() % 5000, random));
  WriteText(folder + "/empty.txt", "");
  fs::create_directories(folder + "/sub/nothing");
  WriteText(folder + "/sub/merges.txt", "a b\n");
}

MeshShape RandomMesh(Random& random) {
  const std::pair<std::string, int64_t> axes[] = {
      {"tp", Between(random, 1, 4)}, {"dp_shard", Between(random, 1, 3)}, {"dp_replicate", 1 + (random() % 4 == 0)}};
  MeshShape mesh = MeshShape::Make(axes).ValueOrThrow();
  return mesh.world_size() <= 12 ? mesh : MeshShape::Make(std::span(axes).first(2)).ValueOrThrow();
}

CompiledPlan RandomPlan(const Checkpoint& checkpoint, const MeshShape& mesh, Random& random) {
  CompiledPlan plan;
  auto text = std::make_shared<Plan>();
  text->name = "random";
  plan.plan = std::move(text);
  plan.tree = std::make_shared<const ModuleTree>(TreeFromCheckpoint(checkpoint, ModelConfig()));
  plan.mesh = mesh;
  for (const Module& module : plan.tree->modules()) {
    ModuleLayouts layouts;
    layouts.signature = module.signature;
    for (const Parameter& parameter : plan.tree->parameters(module)) {
      const std::string name = (module.path.empty() ? "" : module.path + ".") + parameter.name;
      const StoredTensor* tensor = checkpoint.Find(name);
      layouts.params.push_back(tensor ? RandomPlacement(*tensor, mesh, random) : Placement());
    }
    plan.layouts_of.push_back(static_cast<uint32_t>(plan.layouts.size()));
    plan.layouts.push_back(std::move(layouts));
  }
  CompileSteps(plan);
  return plan;
}

const Placement& PlacementOf(const CompiledPlan& plan, const std::string& tensor) {
  ParamRef param;
  Check(plan.tree->FindParameter(tensor, &param), "a tensor without a parameter");
  return plan.LayoutsOf(param.module).params[param.param];
}

}  // namespace moonshard::test
