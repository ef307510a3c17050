// Merging a step gives the model directory that the run began from, with the weights as they are.
#include <catch2/catch.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "engine/io/checkpoint/convert.h"
#include "engine/io/safetensors/checkpoint.h"
#include "engine/io/safetensors/reader.h"
#include "engine/io/safetensors/writer.h"
#include "engine/runtime/sharded_model/load.h"
#include "tests/engine/io/checkpoint/random_model.h"
#include "tests/engine/train/training_state/run.h"

namespace moonshard::test {
namespace {

// A net whose head is tied to its embedding.
struct TiedImpl : torch::nn::Module {
  TiedImpl() : net(register_module("net", MakeNet({}))) { net->head->TieWeight(net->embed->weight); }
  Net net;
};

// The parameters of MakeNet as a model directory of two files, in an order of its own, with a tensor that the net
// lacks.
void WriteModel(const std::string& folder) {
  std::filesystem::create_directories(folder);
  Net net = MakeNet({});
  std::map<std::string, at::Tensor> tensors;
  for (const auto& entry : net->named_parameters()) tensors[entry.key()] = entry.value().detach();
  std::map<std::string, std::string> places;
  for (const char* file : {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}) {
    std::vector<TensorData> data;
    for (const auto& [name, tensor] : tensors) {
      const bool first = name < "layer_1";
      if (first != (std::string(file).find("00001-of") != std::string::npos)) continue;
      data.push_back({{name, DType::kF64, tensor.sizes().vec()}, tensor.const_data_ptr()});
      places[name] = file;
    }
    REQUIRE_FALSE(WriteSafetensors(folder + "/" + file, data, {{"format", "pt"}, {"made", "here"}}));
  }
  JsonValue::Object map;
  for (const auto& [name, file] : places) map.emplace(name, file);
  std::ofstream(folder + "/model.safetensors.index.json")
      << WriteJson(JsonValue::Object{{"metadata", JsonValue::Object{{"total_size", 1234}}}, {"weight_map", map}}, 4);
  std::ofstream(folder + "/config.json") << "{\"model_type\": \"net\"}\n";
  std::filesystem::create_directories(folder + "/sub/empty");
  std::ofstream(folder + "/sub/tokenizer.json") << "[1, 2]";
}

void Merge(const std::string& step, const std::string& out) {
  const Result<ConvertSummary> merged = MergeSharded(step, out);
  INFO(ToText(merged.diagnostics()));
  REQUIRE(merged.ok());
}

// A tensor of a model directory.
at::Tensor Stored(const std::string& folder, const std::string& name) {
  const Checkpoint checkpoint = Checkpoint::Open(folder).ValueOrThrow();
  const StoredTensor* stored = checkpoint.Find(name);
  REQUIRE(stored != nullptr);
  at::Tensor out = at::empty(stored->shape, stored->dtype == DType::kF64 ? at::kDouble : at::kFloat);
  REQUIRE_FALSE(ShardReader(checkpoint).ReadFull(*stored, out.mutable_data_ptr()));
  return out;
}

TEST_CASE("a model that was not trained merges to its directory, byte for byte") {
  const ScratchFolder scratch;
  WriteModel(scratch / "model");
  for (const RunSetup& setup : {RunSetup{"tp=1"}, RunSetup{"dp=2,tp=2"}, RunSetup{"dp_replicate=2", false}}) {
    RunRanks(setup.mesh, [&](DeviceMesh& mesh) {
      Trainer trainer(setup, mesh);
      LoadCheckpoint(trainer.model.applied(), Checkpoint::Open(scratch / "model").ValueOrThrow());
      TrainingCheckpointOptions options;
      options.model_folder = scratch / "model";
      TrainingCheckpoints::Open(scratch / ("run " + setup.mesh), mesh, options).Save(trainer.state, 0);
    });
    const std::string out = scratch / ("merged " + setup.mesh);
    Merge(scratch / ("run " + setup.mesh + "/step_00000000"), out);
    CHECK(ContentOf(out) == ContentOf(scratch / "model"));
  }
}

TEST_CASE("a trained model merges to the same form with other weights, also after a run that was resumed without it") {
  const ScratchFolder scratch;
  WriteModel(scratch / "model");
  std::map<std::string, at::Tensor> want;
  RunRanks("dp=2", [&](DeviceMesh& mesh) {
    Trainer trainer({"dp=2"}, mesh);
    TrainingCheckpointOptions options;
    options.model_folder = scratch / "model";
    trainer.Steps(2);
    TrainingCheckpoints::Open(scratch / "run", mesh, options).Save(trainer.state, 2);
  });
  std::filesystem::rename(scratch / "model", scratch / "elsewhere");
  RunRanks("tp=2", [&](DeviceMesh& mesh) {
    Trainer trainer({"tp=2"}, mesh);
    TrainingCheckpoints checkpoints = TrainingCheckpoints::Open(scratch / "run", mesh);
    trainer.step = checkpoints.Load(trainer.state).step;
    trainer.Steps(4);
    checkpoints.Save(trainer.state, 4);
    const std::map<std::string, at::Tensor> full = FullState(trainer.model);
    if (mesh.rank() == 0) want = full;
  });
  Merge(scratch / "run/step_00000004", scratch / "merged");
  for (const auto& [name, tensor] : want) {
    INFO(name);
    CHECK(at::equal(Stored(scratch / "merged", name), tensor));
  }
  const std::map<std::string, std::string> source = ContentOf(scratch / "elsewhere");
  const std::map<std::string, std::string> merged = ContentOf(scratch / "merged");
  for (const auto& [name, content] : source) {
    INFO(name);
    REQUIRE(merged.contains(name));
    CHECK(merged.at(name).size() == content.size());
    if (!name.ends_with(".safetensors")) CHECK(merged.at(name) == content);
  }
  CHECK(merged.size() == source.size());
}

TEST_CASE("another dtype, a parameter that is new and one that is gone change the headers and the index") {
  const ScratchFolder scratch;
  WriteModel(scratch / "model");
  {  // the index and the second file get a tensor that the net does not have
    std::vector<TensorData> more;
    const double zero = 0;
    more.push_back({{"rotary.inv_freq", DType::kF64, {1}}, &zero});
    REQUIRE_FALSE(WriteSafetensors(scratch / "model/model-00003.safetensors", more));
    std::string index = ContentOf(scratch / "model").at("model.safetensors.index.json");
    index.replace(index.find("\"weight_map\": {"), 15,
                  "\"weight_map\": {\"rotary.inv_freq\": \"model-00003.safetensors\",");
    std::ofstream(scratch / "model/model.safetensors.index.json") << index;
  }
  RunRanks("dp=2", [&](DeviceMesh& mesh) {
    Net net = MakeNet({});
    net->register_parameter("extra", torch::full({4, 3}, 0.25, torch::kFloat));
    net->register_buffer("cache", torch::ones({2}));
    net->layers[0]->to(torch::kFloat);
    auto model = Parallelize(net, PlanOf({"dp=2"}), mesh);
    TrainingState state;
    state.model = &model.applied();
    TrainingCheckpointOptions options;
    options.model_folder = scratch / "model";
    TrainingCheckpoints::Open(scratch / "run", mesh, options).Save(state, 1);
  });
  Merge(scratch / "run/step_00000001", scratch / "merged");
  Net net = MakeNet({});
  CHECK(at::equal(Stored(scratch / "merged", "layer_0.up.weight"), net->layers[0]->up->weight.to(torch::kFloat)));
  CHECK(at::equal(Stored(scratch / "merged", "layer_2.up.weight"), net->layers[2]->up->weight));
  CHECK(at::equal(Stored(scratch / "merged", "extra"), torch::full({4, 3}, 0.25, torch::kFloat)));
  const Result<Checkpoint> merged = Checkpoint::Open(scratch / "merged");
  CHECK(merged.diagnostics().empty());
  CHECK(merged.value().Find("rotary.inv_freq") == nullptr);
  CHECK(merged.value().Find("cache") == nullptr);
  uint64_t bytes = 0;
  for (const StoredTensor& tensor : merged.value().tensors()) bytes += tensor.bytes;
  const JsonValue index = ReadJsonFile(scratch / "merged/model.safetensors.index.json").ValueOrThrow();
  CHECK(index.Find("metadata")->Find("total_size")->AsInt() == static_cast<int64_t>(bytes));
}

TEST_CASE("tied parameters merge under the names that the source had, and under one where there was none") {
  for (const std::vector<std::string>& names : std::vector<std::vector<std::string>>{
           {"net.embed.weight"}, {"net.head.weight"}, {"net.embed.weight", "net.head.weight"}, {}}) {
    const ScratchFolder scratch;
    at::Tensor tied;
    {
      std::filesystem::create_directories(scratch / "model");
      const at::Tensor zeros = torch::zeros({kVocabulary, kHidden}, torch::kFloat64);
      std::vector<TensorData> data;
      for (const std::string& name : names) {
        data.push_back({{name, DType::kF64, {kVocabulary, kHidden}}, zeros.const_data_ptr()});
      }
      if (!names.empty()) REQUIRE_FALSE(WriteSafetensors(scratch / "model/model.safetensors", data));
      std::ofstream(scratch / "model/config.json") << "{}";
    }
    RunRanks("tp=1", [&](DeviceMesh& mesh) {
      const auto root = std::make_shared<TiedImpl>();
      Plan plan;
      const auto applied = ParallelizeModule(*root, plan, mesh);
      tied = root->net->embed->weight.detach().clone();
      TrainingState state;
      state.model = applied.get();
      TrainingCheckpointOptions options;
      options.model_folder = scratch / "model";
      TrainingCheckpoints::Open(scratch / "run", mesh, options).Save(state, 1);
    });
    Merge(scratch / "run/step_00000001", scratch / "merged");
    const Checkpoint merged = Checkpoint::Open(scratch / "merged").ValueOrThrow();
    for (const char* name : {"net.embed.weight", "net.head.weight"}) {
      const bool wanted = names.empty() ? std::string(name) == "net.embed.weight"
                                        : std::find(names.begin(), names.end(), name) != names.end();
      CHECK((merged.Find(name) != nullptr) == wanted);
      if (wanted) CHECK(at::equal(Stored(scratch / "merged", name), tied));
    }
    CHECK(merged.Find("net.layer_2.down.weight") != nullptr);
  }
}

TEST_CASE("a run without a model directory merges to one file") {
  const ScratchFolder scratch;
  RunRanks("dp=2,tp=2", [&](DeviceMesh& mesh) {
    Trainer trainer({"dp=2,tp=2"}, mesh);
    TrainingCheckpoints::Open(scratch / "run", mesh).Save(trainer.state, 1);
  });
  Merge(scratch / "run/step_00000001", scratch / "merged");
  CHECK(ContentOf(scratch / "merged").size() == 1);
  Net net = MakeNet({});
  for (const auto& entry : net->named_parameters()) {
    CHECK(at::equal(Stored(scratch / "merged", entry.key()), entry.value()));
  }
}

}  // namespace
}  // namespace moonshard::test
