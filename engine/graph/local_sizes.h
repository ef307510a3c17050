// LocalSizes: the sizes that every value of an exported program has on one rank under a plan, found without running it.
//
// The graph of a program contains integers. An integer that depends on a symbolic size is computed from the local
// tensors; any other integer is valid only for the full model (`.view(-1, 331)`). Each dim of a value therefore has two
// sizes: the full size, which the traced example has, and the local size, which follows from the plan's layouts,
// operator by operator, with the plan's redistributions at the boundaries of modules. If an operator's operands or
// integers fit together in the full model but not on a rank, the program cannot run under the plan, or would compute a
// wrong result:
//
//   q_proj [3, 17, 32]     colwise on 2 ranks    [3, 17, 16 of 32]
//   view(3, 17, 4, 8)                            3*17*4*8 elements are not 3*17*16: 4 is the number of heads of the
//                                                full model
//   view(3, 17, 4, -1)                           the number of elements fits, but the 2 local heads of 8 features
//                                                become 4 heads of 4: the heads must be sharded in the result too
//
// A number of the graph that is computed from sizes (`n**-0.5`) has two values too. A number that an operator uses as
// a value, such as a factor, must have the same value on a rank as in the full model. A ratio of two local sizes may;
// the size of a shard does not.
//
// The results of an operator without a rule are known if the operands do not depend on a shard. Otherwise the results
// are unknown, as are all values computed from them, until the boundary of a module declares a layout;
// SizeConflicts::unknown counts such operators. Sizes, partial tensors, and which elements of a dim a rank has are
// followed, but no values: `verify --types` runs the operators and checks the layouts of their values.
//
// Stage before: engine/io/exported_program and a compiled plan. Stage after: program_checks.h, which converts the
// conflicts to findings.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/io/exported_program/exported_program.h"
#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

// The origin of the local size of a dim: the layout of a parameter, or a redistribution at the boundary of a module.
struct ShardOrigin {
  enum class Kind : uint8_t { kParameter, kInput, kOutput };
  Kind kind = Kind::kParameter;
  uint32_t module = 0;  // index into the plan's tree
  uint32_t index = 0;   // of a parameter: in the module's signature; of an input or output: its position
  int64_t dim = 0;
};

// A dim of a value: the rank holds `local` of the `full` elements.
struct LocalDim {
  static constexpr int32_t kNone = -1;
  struct Part {
    int64_t full = 1;
    int64_t local = 1;
    bool operator==(const Part&) const = default;
  };
  int64_t full = 1;
  int64_t local = 1;
  std::vector<Part> parts;     // of a fused dim, in order; each part is sharded by itself; empty: not fused
  bool in_order = true;        // false: the elements of the shard are neither consecutive nor told by `parts`
  int32_t origin = kNone;      // index into SizeConflicts::origins: what determines the local size
  int32_t integer_at = kNone;  // the node with an integer that is (a factor of) this size

  bool is_sharded() const { return full != local; }
};

struct SizeConflict {
  enum class Kind : uint8_t {
    kInteger,        // an integer of the graph is valid for the full size of a dim that is sharded
    kCrossesShards,  // a part of a sharded dim is selected as if the dim were full
    kNeedsFullDim,   // the results depend on all elements of a dim that is sharded, each of them once
    kFollowsShard,   // the size of a shard is used for a full tensor, or as a value
    kComputed,       // a number that is computed from the size of a shard is used as a value
    kOperands,       // operands with layouts that do not fit together
    kTerms,          // a partial tensor is the operand of a nonlinear operator
    kLate,           // a parameter that is added after the output is reduced is not the last that the module adds
  };
  Kind kind = Kind::kInteger;
  uint32_t node = 0;                     // index into the graph: the operator that does not fit
  int32_t integer_at = LocalDim::kNone;  // the node that has the integer, if known
  std::string module;                    // the module whose call runs the node
  bool of_loss = false;                  // only the output "loss" depends on the node
  std::string message;                   // "it reshapes [3, 17, 16 of 32] to [3, 17, 4, 8]"
  // The size or number that the graph or the other operand has, and the one that a rank needs; nullopt: not known.
  std::optional<double> declared;
  std::optional<double> required;
  int32_t origin = LocalDim::kNone;
  int32_t other_origin = LocalDim::kNone;  // the origin of the other operand
  int32_t parameter = LocalDim::kNone;     // of kLate: the value of the parameter
};

// The input or output of a module does not have the declared layout.
struct BoundaryConflict {
  enum class Kind : uint8_t {
    kSizes,     // another local size along `dim`
    kElements,  // the local size is right, but other elements of `dim` are on a rank
    kTerms,     // the tensor is partial, but is declared with another layout
    kFull,      // the tensor is declared to be partial, but is the same on every rank
  };
  Kind kind = Kind::kSizes;
  uint32_t module = 0;  // index into the plan's tree
  bool input = true;
  uint32_t position = 0;
  int64_t dim = 0;
  int64_t full = 0;
  int64_t local = 0;                 // actual local size
  int64_t declared = 0;              // declared local size
  int64_t parts = 1;                 // of kElements: number of parts of the dim, each sharded by itself
  int32_t node = LocalDim::kNone;    // the node that makes it partial; kNone: a module boundary makes it partial
  int32_t origin = LocalDim::kNone;  // of the local size; of kTerms: of the sharded dim that was summed over
};

// A condition of the program on sizes of parameters that does not hold for the local sizes.
struct GuardConflict {
  uint32_t guard = 0;  // index into the program's guards
  int32_t origin = LocalDim::kNone;
};

struct SizeConflicts {
  MeshAxis axis = MeshAxis::kTp;             // along which the tensors are sharded
  std::vector<GuardConflict> guards;         // in the order of the program
  std::vector<SizeConflict> sizes;           // in the order of the graph
  std::vector<BoundaryConflict> boundaries;  // in the order of the graph
  std::vector<ShardOrigin> origins;
  std::map<std::string, int64_t> unknown;  // operators with unknown results: name, number of nodes
  // Of these, without the look-ups of a rank's experts, whose ids are local to the rank (Route).
  std::map<std::string, int64_t> unchecked;
  int64_t nodes = 0;       // number of operators of the graph
  bool plain_loss = true;  // the nodes that only the output "loss" depends on are of a plain loss (plain_loss.h)
};

// Returns the conflicts on the first rank of `axis` (followed_axis.h), or, if it has none and shards are uneven, on the
// last rank, which has the shortest shards. `plan` must be compiled for the module tree of `program`. A conflict that
// follows from another conflict is not reported.
SizeConflicts FindSizeConflicts(const ExportedProgram& program, const CompiledPlan& plan,
                                MeshAxis axis = MeshAxis::kTp);

// What the rules tell of a tensor of the graph, as the operator that computes it makes it.
struct LocalValue {
  bool known = false;
  bool partial = false;
  std::vector<LocalDim> dims;
};

// Returns for each value of the program what FindSizeConflicts finds of it on the first rank; unknown if shards are
// uneven, for inputs and parameters, and for numbers.
std::vector<LocalValue> FindLocalValues(const ExportedProgram& program, const CompiledPlan& plan,
                                        MeshAxis axis = MeshAxis::kTp);

// Returns the layout along `axis` in which each output of the program leaves, from the same propagation. nullopt: the
// output is no tensor, its sizes are unknown, more than one of its dims is sharded, or the archives of the program
// differ.
std::vector<std::optional<Layout>> OutputLayouts(const ExportedProgram& program, const CompiledPlan& plan,
                                                 MeshAxis axis = MeshAxis::kTp);

}  // namespace moonshard
