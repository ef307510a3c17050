// Sections: what a plan says beside its rules: how data-parallel ranks share the parameters, what is computed in which
// dtype, what is recomputed in the backward. Values as written; no model is known yet.
// Part of plan.h. Stage after: match, then compile.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/base/diagnostic.h"

namespace moonshard {

enum class PatternSyntax : uint8_t {
  kGlob,
  kRegex,
  kNumbered,  // `*` is one number, everything else itself: a key of a Hugging Face plan
};

// A pattern of modules that a section speaks of.
struct ModulePattern {
  std::string pattern;
  PatternSyntax syntax = PatternSyntax::kGlob;
  SourceSpan source;
};

// What `fsdp { ... }` or `ddp { ... }` says: how the ranks of the data-parallel axes, which work on different inputs,
// share the parameters.
struct DataParallel {
  static constexpr int64_t kBucketBytes = int64_t{25} << 20;

  // When a unit's parameters go back to shards after its forward. Those of the root stay whole until its backward.
  // kSome: to shards over `reshard_ranks` neighbours.
  enum class Reshard : uint8_t { kAlways, kNever, kAllButLast, kSome };

  // fsdp: every parameter lies in shards over dp_shard, cut along tensor dim 0 of what tp leaves to the rank, and is whole
  // while its unit is used. ddp: parameters are whole on every rank of the axis.
  bool shards = true;
  std::vector<ModulePattern> wrap;  // of modules that are units; parameters that no unit holds are the root's
  Reshard reshard = Reshard::kAllButLast;
  int64_t reshard_ranks = 0;
  // How many units ahead of the one in use are gathered, in the order of the last forward; in backward against it.
  int64_t prefetch_forward = 1;
  int64_t prefetch_backward = 1;
  // Gradients of micro-batches that are not the last: in shards, with a reduce-scatter each, or else whole, with none.
  bool accumulate_shards = false;
  bool offload = false;                // shards, their gradients and what an optimizer makes of them lie in host memory
  std::vector<ModulePattern> ignored;  // modules whose parameters are no unit's: whole, their gradients summed
  bool mean = true;                    // over the ranks of the axes; else the sum
  // ddp: gradients are summed in buckets of about so many bytes, each as soon as the backward has made all of it; 0: all
  // at once when the backward ends.
  int64_t bucket_bytes = kBucketBytes;
  SourceSpan source;

  const char* name() const { return shards ? "fsdp" : "ddp"; }
};

// What `recompute { ... }` says: modules whose activations are not kept for the backward but recomputed in it.
struct Recomputed {
  enum class Matmuls : uint8_t { kNone, kEverySecond, kAll };

  std::vector<ModulePattern> modules;
  // What is kept all the same: results of operators within the modules, and of everything within calls of these.
  bool keeps_attention = false;
  Matmuls keeps_matmuls = Matmuls::kNone;
  std::vector<ModulePattern> keep_modules;
  SourceSpan source;

  bool selective() const { return keeps_attention || keeps_matmuls != Matmuls::kNone || !keep_modules.empty(); }
};

// What `precision { ... }` says. Words of torch ("bfloat16"); "": as it is.
struct Precision {
  std::string parameters;   // while they are used; what is stored, and what an optimizer sees, stays
  std::string reduce;       // gradients while fsdp sums them, and while they wait for it
  std::string outputs;      // of the model
  bool cast_inputs = true;  // floating-point inputs of the model become `parameters`
  SourceSpan source;
};

// What `keep_dtype(pattern, dtype)` says: modules that are computed in a dtype of their own, with all that they hold.
struct KeptDType {
  ModulePattern modules;
  std::string dtype;
};

// What `operator_like(name, like)` says: an operator of the user's own is judged by the layout rule of another
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
// "operator_like mylib::rotate aten::silu"
std::string ToText(const OperatorLike& section);

}  // namespace moonshard
