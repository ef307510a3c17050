// Sections: the parts of a plan besides its rules: data parallelism (fsdp, ddp), recomputation, dtypes (precision,
// keep_dtype), low-rank adapters (lora), and layout rules for a user's operators (operator_like). They hold the values
// as the plan declares them, independent of a model.
// Part of plan.h.
// Stage after: match, then compile.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/base/diagnostic.h"

namespace moonshard {

enum class PatternSyntax : uint8_t {
  kGlob,
  kRegex,
  kNumbered,  // a key of a Hugging Face tp_plan: `*` matches one number, any other character itself
};

// A pattern in a section, which names modules.
struct ModulePattern {
  std::string pattern;
  PatternSyntax syntax = PatternSyntax::kGlob;
  SourceSpan source;
};

// `fsdp { ... }` or `ddp { ... }`: how the ranks of the data-parallel axes, which work on different inputs, share the
// parameters.
struct DataParallel {
  static constexpr int64_t kBucketBytes = int64_t{25} << 20;

  // The fsdp units whose parameters are resharded after the forward of the unit. The root unit is never among them: its
  // parameters stay gathered until the backward of the root ends. kAllButLast: all units except the last unit of each
  // list of modules. kSome: all units, but each over groups of `reshard_ranks` neighbouring ranks instead of all ranks.
  enum class Reshard : uint8_t { kAlways, kNever, kAllButLast, kSome };

  // True (fsdp): every parameter is sharded over dp_shard, along tensor dim 0 of its tp shard, and gathered while its
  // unit is in use. False (ddp): parameters are replicated over the data-parallel axes.
  bool shards = true;
  std::vector<ModulePattern> wrap;  // modules that are fsdp units; all other parameters belong to the root unit
  Reshard reshard = Reshard::kAllButLast;
  int64_t reshard_ranks = 0;
  // The number of fsdp units that are gathered ahead of the unit in use. The forward follows the order of the previous
  // forward; the backward follows the reverse order.
  int64_t prefetch_forward = 1;
  int64_t prefetch_backward = 1;
  // How gradients are accumulated before the last micro-batch. True: in shards, with a reduce-scatter for each
  // micro-batch. False: in full, without communication.
  bool accumulate_shards = false;
  bool offload = false;                // shards, their gradients and the optimizer state are in host memory
  std::vector<ModulePattern> ignored;  // modules whose parameters are in no unit: replicated, with summed gradients
  bool mean = true;                    // gradients are averaged over the ranks of the axes; else summed
  // ddp: the maximum size of a gradient bucket in bytes; a larger parameter has a bucket of its own. The all-reduce of
  // a bucket starts when the backward has computed all gradients of the bucket. 0: no limit, so there is one bucket for
  // each dtype, and another one for the gradients of the dtype that are summed over tp first.
  int64_t bucket_bytes = kBucketBytes;
  // Which value full states and checkpoints have of a buffer (a running statistic) whose values differ between ranks.
  // kFirst: that of the first rank. kMean: the mean of the ranks. kRefuse: none, which is an error.
  // runtime/sharded_model/buffers.h has the details.
  enum class Buffers : uint8_t { kFirst, kMean, kRefuse };
  Buffers buffers = Buffers::kFirst;
  SourceSpan source;

  const char* name() const { return shards ? "fsdp" : "ddp"; }
};

// `recompute { ... }`: modules whose activations are recomputed in the backward instead of stored.
struct Recomputed {
  enum class Matmuls : uint8_t { kNone, kEverySecond, kAll };

  std::vector<ModulePattern> modules;
  // Selective recomputation: the results of these operators inside the modules, and all results inside calls of
  // `keep_modules`, are stored and not recomputed.
  bool keeps_attention = false;
  Matmuls keeps_matmuls = Matmuls::kNone;
  std::vector<ModulePattern> keep_modules;
  SourceSpan source;

  bool selective() const { return keeps_attention || keeps_matmuls != Matmuls::kNone || !keep_modules.empty(); }
};

// The dtypes that precision and keep_dtype accept, by torch's names.
inline constexpr std::array<std::string_view, 4> kPrecisionDTypes = {"float32", "bfloat16", "float16", "float64"};

inline bool IsPrecisionDType(std::string_view name) {
  return std::ranges::find(kPrecisionDTypes, name) != kPrecisionDTypes.end();
}

// `precision { ... }`. Dtypes by torch's names ("bfloat16"); "": unchanged.
struct Precision {
  std::string parameters;   // of parameters while they are used; the optimizer updates them in their stored dtype
  std::string reduce;       // of gradients while fsdp sums and accumulates them
  std::string outputs;      // of the model's outputs
  bool cast_inputs = true;  // floating-point inputs of the model are cast to `parameters`
  SourceSpan source;
};

// `keep_dtype(pattern, dtype)`: modules that compute in a dtype of their own, with all modules inside them.
struct KeptDType {
  ModulePattern modules;
  std::string dtype;
};

// `lora { ... }`: a low-rank adapter of modules. A module with weight W [out, in] computes with
// W + scale() B A, where A [rank, in] and B [out, rank] are trained and all other parameters of the model are frozen
// (Hu et al., LoRA, arXiv:2106.09685).
struct Adapter {
  static constexpr int64_t kMostRank = int64_t{1} << 20;

  std::string name = "default";
  std::vector<ModulePattern> modules;
  int64_t rank = 8;
  double alpha = 8;
  double dropout = 0;   // probability that an element of the input of A is dropped, in training
  bool rslora = false;  // scale by the square root of the rank (Kalajdzievski, arXiv:2312.03732)
  std::string dtype;    // of A and B, by torch's name; "": float32 for a 16-bit weight, else the dtype of the weight
  SourceSpan source;

  // alpha / rank; with rslora alpha / sqrt(rank).
  double scale() const;
};

// Whether a text can be the name of an adapter: not empty, of letters, digits, '_' and '-'.
bool IsAdapterName(std::string_view name);

// `operator_like(name, like)`: the checks use the layout rule of operator `like` for the user's operator `name`
// (types/rule_table.h).
struct OperatorLike {
  std::string name;  // "mylib::rotate"
  std::string like;  // "aten::silu"
  SourceSpan source;
};

// "fsdp wrap=[model.layers.*] reshard=all_but_last gradients=mean"
std::string ToText(const DataParallel& section);
// "recompute [model.layers.*.mlp]"
std::string ToText(const Recomputed& section);
// "precision parameters=bfloat16 reduce=float32"
std::string ToText(const Precision& section);
// "keep_dtype [model.norm] float32"
std::string ToText(const KeptDType& section);
// "lora default [model.layers.*.self_attn.q_proj] rank=8 alpha=16"
std::string ToText(const Adapter& section);
// "rank=8 alpha=16", and the keys that have another value than the default
std::string SettingsText(const Adapter& section);
// Returns the shortest text that is the same number: "0.1", "8".
std::string ShortestText(double number);
// "operator_like mylib::rotate aten::silu"
std::string ToText(const OperatorLike& section);

}  // namespace moonshard
