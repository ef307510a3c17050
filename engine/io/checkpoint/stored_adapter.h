// StoredAdapter: an adapter in the two files that PEFT writes, adapter_config.json and adapter_model.safetensors, as
// sections of a plan and the tensors of its factors. The inverse of adapter_files.h.
//
//   base_model.model.PATH.lora_A.weight [rank, in], .lora_B.weight [out, rank]           factors of Linear module PATH
//   base_model.model.PATH.lora_embedding_A [rank, rows], .lora_embedding_B [out, rank]   factors of lookup PATH
//
// Factors of stacked experts, which PEFT has for `target_parameters`, become those of each expert of a model whose
// experts are modules in a list. For mixtral, with E experts and BLOCK = model.layers.N:
//
//   BLOCK.mlp.experts.base_layer.lora_A.weight [rank * E, hidden], .lora_B.weight [2 * size, rank * E]   gate_up_proj
//   BLOCK.mlp.experts.lora_A.weight [rank * E, size], .lora_B.weight [hidden, rank * E]                  down_proj
//
//   A of BLOCK.block_sparse_moe.experts.e.w1 and .w3: the rows rank * e ... rank * (e + 1)
//   B of these: the first and the last `size` rows of the columns e, E + e, 2 E + e, ...
//
// Stage before: files of PEFT 0.17 or later. Stages after: the plan's `adapters`; LoadAdapter (sharded_model/load.h).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/base/result.h"
#include "engine/io/config/config.h"
#include "engine/io/safetensors/checkpoint.h"
#include "engine/io/safetensors/read_recipe.h"
#include "engine/plan/plan/plan.h"

namespace moonshard {

// The model that an adapter is for, as far as it decides how factors of stacked experts are read.
struct AdaptedModel {
  std::string type;                // model_type of its config.json; "": not known
  std::optional<int64_t> experts;  // of a block, by config.json; nullopt: the default of transformers for the type
  bool is_program = false;         // an exported program, whose experts are stacked
};

// `experts` is the field num_local_experts or num_experts.
AdaptedModel AdaptedModelOf(const ModelConfig& config, bool is_program = false);

struct StoredAdapter {
  std::string name;
  // One for each rank and alpha; each names its modules by path. All have the name of the adapter.
  std::vector<Adapter> sections;
  Checkpoint checkpoint;
  std::map<std::string, size_t> section_of;     // path of an adapted module -> index in `sections`
  std::map<std::string, WeightRecipe> made_of;  // path of a factor, "PATH.lora_A.NAME" -> tensors of `checkpoint`
};

// Reads the files in the directory `folder` as the adapter `name` (IsAdapterName). The adapted modules are those with
// factors in the file; the scale follows from lora_alpha, use_rslora and alpha_pattern, whose keys are the ends of
// paths, as expressions, as in PEFT.
// Errors, all that are found: those of ReadJsonFile and Checkpoint::OpenFile; kUnsupportedModel: the config asks for
// what no plan can declare (DoRA, biases, modules_to_save), has a field of the wrong type, or has several keys of
// alpha_pattern for one module; kMissingTensor: a module has only one factor, or factors of both forms, or a tensor is
// no factor; kTensorMismatch: the shapes of the factors do not fit together, or the rank is not that of the config.
// Factors of stacked experts are kUnsupportedModel for programs and for any type but mixtral, qwen2_moe and qwen3_moe,
// and kTensorMismatch if they are not those of as many experts as the model has.
Result<StoredAdapter> ReadAdapter(const std::string& folder, HeaderOptions options = {},
                                  const std::string& name = Adapter().name, const AdaptedModel& model = {});

// The tensors of an adapter, for ReadRecipe. It keeps the last four tensors that were read in full: the factors of each
// of the experts of a stack are made of the same ones.
class FactorSource final : public RecipeSource {
 public:
  // `checkpoint` and `reader` must outlive the object.
  FactorSource(const Checkpoint& checkpoint, ShardReader& reader) : file_(checkpoint, reader) {}
  std::optional<RecipeTensor> Find(const std::string& name) const override;
  Failure Read(const std::string& name, const std::vector<std::vector<Interval>>& dims, void* to) override;

 private:
  static constexpr size_t kMostKept = 4;
  struct Kept {
    std::string name;
    std::vector<char> bytes;
  };
  CheckpointSource file_;
  std::vector<Kept> kept_;  // the oldest first
};

}  // namespace moonshard
