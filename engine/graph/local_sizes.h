// LocalSizes: the sizes that every value of an exported program has on one rank under a plan, found without running it.
//
// The graph of a program has integers. Those that depend on a size that the exporter made symbolic are computed from
// the local tensors; the others hold only for the full model (`.view(-1, 331)`). So each dim of a value has two sizes:
// the full one, of the traced example, and the local one, which follows from the plan's layouts, operator by operator,
// with the plan's redistributions at the boundaries of modules. If an operator's operands or integers fit together in
// full but not on a rank, the program cannot run under the plan, or would compute something else:
//
//   q_proj [3, 17, 32]     colwise on 2 ranks    [3, 17, 16 of 32]
//   view(3, 17, 4, 8)                            3*17*4*8 are not 3*17*16: 4 is the full model's number of heads
//   view(3, 17, 4, -1)                           fits, and makes 4 heads of 4 features of 2 heads of 8: the full dim is
//                                                sharded in its first part, so that the result must be too
//
// The results of an operator without a rule are known if its operands do not depend on a shard. Otherwise they are
// unknown, like all that is computed from them until a module's boundary declares a layout again; `unknown` counts them
// by operator. Only shapes are checked: `verify --types` runs the operators and checks the layouts of their values.
//
// Stage before: engine/io/exported_program and a compiled plan. Stage after: program_checks.h, which makes findings of
// it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/io/exported_program/exported_program.h"
#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

// What gave a dim its local size: the layout of a parameter, or a redistribution at a module's boundary.
struct ShardOrigin {
  enum class Kind : uint8_t { kParameter, kInput, kOutput };
  Kind kind = Kind::kParameter;
  uint32_t module = 0;  // index into the plan's tree
  uint32_t index = 0;   // of a parameter: into the module's signature; else the position
  int64_t dim = 0;
};

// A dim of a value: of `full` elements this rank has `local`.
struct LocalDim {
  static constexpr int32_t kNone = -1;
  struct Part {
    int64_t full = 1;
    int64_t local = 1;
    bool operator==(const Part&) const = default;
  };
  int64_t full = 1;
  int64_t local = 1;
  std::vector<Part> parts;     // of a fused dim, one after the other, each sharded by itself; empty: one
  int32_t origin = kNone;      // index into SizeConflicts::origins, where the plan gave it this size
  int32_t integer_at = kNone;  // the node with an integer that is (a factor of) this size

  bool is_sharded() const { return full != local; }
};

struct SizeConflict {
  enum class Kind : uint8_t {
    kInteger,        // an integer of the graph holds for the full size of a dim that is local here
    kCrossesShards,  // a part of a sharded dim is taken as if the dim were full
    kFollowsShard,   // the size of a shard is used for a full tensor, or as a value
    kOperands,       // operands with layouts that do not fit together
    kTerms,          // a partial tensor is the operand of a nonlinear operator
  };
  Kind kind = Kind::kInteger;
  uint32_t node = 0;                     // index into the graph: the operator that does not fit
  int32_t integer_at = LocalDim::kNone;  // the node that has the integer, if known
  std::string module;                    // whose call runs the node
  std::string message;                   // what does not fit: "64 of the graph, and 32 of 64 on a rank"
  int64_t declared = 0;                  // the size that the graph or the other operand has
  int64_t required = 0;                  // the one that a rank needs
  int32_t origin = LocalDim::kNone;
  int32_t other_origin = LocalDim::kNone;  // of the other operand
};

// The input or output of a module does not have the declared layout.
struct BoundaryConflict {
  uint32_t module = 0;  // index into the plan's tree
  bool input = true;
  uint32_t position = 0;
  int64_t dim = 0;
  int64_t full = 0;
  int64_t local = 0;                 // actual local size
  int64_t declared = 0;              // declared local size
  bool terms = false;                // it is partial, and declared not to be
  int32_t node = LocalDim::kNone;    // that made it partial; none: a module's boundary
  int32_t origin = LocalDim::kNone;  // of the local size, or of the sharded dim that was summed over
};

struct SizeConflicts {
  std::vector<SizeConflict> sizes;           // in the order of the graph
  std::vector<BoundaryConflict> boundaries;  // likewise
  std::vector<ShardOrigin> origins;
  std::map<std::string, int64_t> unknown;  // operators whose results are unknown, with their number
  int64_t nodes = 0;                       // that were followed
};

// For rank 0, along tp. `plan` must be compiled for the program's tree. Conflicts that follow from another are not
// reported.
SizeConflicts FindSizeConflicts(const ExportedProgram& program, const CompiledPlan& plan);

}  // namespace moonshard
