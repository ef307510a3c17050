// StoredAdapter: an adapter in the two files that PEFT writes, adapter_config.json and adapter_model.safetensors, as
// sections of a plan and the tensors of its factors. The inverse of adapter_files.h.
//
//   base_model.model.PATH.lora_A.weight [rank, in], .lora_B.weight [out, rank]   factors of module PATH
//
// Stage before: files of PEFT 0.17 or later. Stages after: the plan's `adapters` (plan.h); LoadAdapter
// (engine/runtime/sharded_model/load.h).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/core/base/result.h"
#include "engine/io/safetensors/checkpoint.h"
#include "engine/plan/plan/plan.h"

namespace moonshard {

struct StoredAdapter {
  std::string name;
  // One for each rank and alpha; each names its modules by path. All have the name of the adapter.
  std::vector<Adapter> sections;
  Checkpoint checkpoint;
  std::map<std::string, size_t> section_of;      // path of an adapted module -> index in `sections`
  std::map<std::string, std::string> stored_as;  // path of a factor, "PATH.lora_A.NAME" -> tensor of `checkpoint`
};

// Reads the files in the directory `folder` as the adapter `name` (IsAdapterName). The adapted modules are those with
// factors in the file; the scale follows from lora_alpha, use_rslora and alpha_pattern, whose keys are the ends of
// paths, as expressions, as in PEFT.
// Errors, all that are found: those of ReadJsonFile and Checkpoint::OpenFile; kUnsupportedModel: the config asks for
// what no plan can declare (DoRA, biases, modules_to_save), has a field of the wrong type, or has several keys of
// alpha_pattern for one module; kMissingTensor: a module has only one factor, or a tensor is no factor of a Linear;
// kTensorMismatch: the shapes of the factors do not fit together, or the rank is not that of the config.
Result<StoredAdapter> ReadAdapter(const std::string& folder, HeaderOptions options = {},
                                  const std::string& name = Adapter().name);

}  // namespace moonshard
