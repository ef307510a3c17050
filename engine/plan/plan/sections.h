// Sections: the parts of a plan besides its rules: how data-parallel ranks share parameters, what is computed in which
// dtype, what is recomputed in the backward. Values as written, independent of any model.
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
  kNumbered,  // `*` is one number, everything else itself: a key of a Hugging Face plan
};

// A pattern of modules in a section.
struct ModulePattern {
  std::string pattern;
  PatternSyntax syntax = PatternSyntax::kGlob;
  SourceSpan source;
};

// `fsdp { ... }` or `ddp { ... }`: how the ranks of the data-parallel axes, which work on different inputs, share the
// parameters.
struct DataParallel {
  static constexpr int64_t kBucketBytes = int64_t{25} << 20;

  // Whether a unit's parameters are resharded after its forward. Those of the root stay full until its backward.
  // kSome: resharded over `reshard_ranks` neighbours.
  enum class Reshard : uint8_t { kAlways, kNever, kAllButLast, kSome };

  // fsdp: every parameter is sharded over dp_shard, along tensor dim 0 of its tp shard, and full while its unit is
  // used. ddp: parameters are full on every rank of the axis.
  bool shards = true;
  std::vector<ModulePattern> wrap;  // modules that are units; parameters outside of all units belong to the root
  Reshard reshard = Reshard::kAllButLast;
  int64_t reshard_ranks = 0;
  // How many units ahead of the one in use are gathered, in the order of the last forward; in backward against it.
  int64_t prefetch_forward = 1;
  int64_t prefetch_backward = 1;
  // Gradients of micro-batches that are not the last: in shards, with a reduce-scatter each, or else full, with none.
  bool accumulate_shards = false;
  bool offload = false;                // shards, their gradients and the optimizer state are in host memory
  std::vector<ModulePattern> ignored;  // modules whose parameters are no unit's: replicated, their gradients summed
  bool mean = true;                    // over the ranks of the axes; else the sum
  // ddp: gradients are summed in buckets of about so many bytes, each as soon as the backward has made all of it; 0:
  // all at once when the backward ends.
  int64_t bucket_bytes = kBucketBytes;
  SourceSpan source;

  const char* name() const { return shards ? "fsdp" : "ddp"; }
};

// `recompute { ... }`: modules whose activations are recomputed in the backward instead of kept.
struct Recomputed {
  enum class Matmuls : uint8_t { kNone, kEverySecond, kAll };

  std::vector<ModulePattern> modules;
  // Selective recomputation: results of operators in the modules, and everything in calls of these modules, are kept.
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
  std::string parameters;   // while they are used; stored parameters, which the optimizer updates, keep their dtype
  std::string reduce;       // gradients while fsdp sums and accumulates them
  std::string outputs;      // of the model
  bool cast_inputs = true;  // floating-point inputs of the model become `parameters`
  SourceSpan source;
};

// `keep_dtype(pattern, dtype)`: modules that compute in a dtype of their own, with everything inside them.
struct KeptDType {
  ModulePattern modules;
  std::string dtype;
};

// `operator_like(name, like)`: a user's own operator is checked by the layout rule of another (types/rule_table.h).
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
// "operator_like mylib::rotate aten::silu"
std::string ToText(const OperatorLike& section);

}  // namespace moonshard
