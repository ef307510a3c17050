// AdapterFiles: the active adapter of a training run, in the two files of PEFT, as part of the form of the run's model
// directory. So merging a step gives a model directory with the frozen weights, and a directory `adapter` that
// peft.PeftModel.from_pretrained(model, "OUT/adapter") loads:
//
//   adapter/adapter_config.json          rank, alpha, dropout and the full paths of the adapted modules
//   adapter/adapter_model.safetensors    base_model.model.PATH.lora_A.weight [rank, in], .lora_B.weight [out, rank];
//                                        of a lookup PATH.lora_embedding_A [rank, rows], .lora_embedding_B [out, rank]
//
// Stage before: compile. Stage after: WriteForm (model_form.h).
#pragma once

#include <map>
#include <string>

#include "engine/core/base/diagnostic.h"
#include "engine/io/checkpoint/manifest.h"
#include "engine/io/checkpoint/model_form.h"
#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

inline constexpr const char* kAdapterConfigFile = "adapter/adapter_config.json";
inline constexpr const char* kAdapterModelFile = "adapter/adapter_model.safetensors";

struct AdapterFiles {
  std::string config;                            // of adapter_config.json; "": the plan has no adapters
  std::map<std::string, std::string> stored_as;  // name of a tensor in PEFT's file -> name in the manifest
};

// Returns the files of the plan's active adapter. If its sections differ in rank or alpha, the most frequent rank is r,
// and the others are in rank_pattern and alpha_pattern. If they differ in rslora, alpha is the one that gives the scale
// of each module without it. The dropout is that of the first section.
//
// PEFT makes the projections of experts in a list (PATH.experts.N.NAME) factors of two stacks, with r and lora_alpha
// and without the patterns. So if the adapter has experts, r and lora_alpha are the most frequent of the experts,
// use_rslora is false, since PEFT doubles r and lora_alpha of gate and up projections, and lora_dropout is 0, without
// which PEFT refuses the files.
AdapterFiles AdapterFilesOf(const CompiledPlan& plan);

// Returns warnings for what PEFT does not read of these files: in a model with experts, PEFT takes any module that is
// named gate_proj, up_proj or down_proj for a projection of its experts, and drops the factors of such modules outside
// of them (dense layers of qwen3_moe, shared experts). At most one warning (kNotSupported).
Diagnostics PeftWarnings(const CompiledPlan& plan);

// Adds the files to the form, in place of files of these names. The tensors must be in the manifest.
void AddAdapterFiles(const AdapterFiles& adapter, const Manifest& manifest, ModelForm& form);

}  // namespace moonshard
