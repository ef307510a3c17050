// ModuleTree: the structure of a model as plain data: modules by dotted path, each with its own parameters. Read from
// a live torch::nn::Module (apply/live_tree.h) or from safetensors headers (safetensors/tree.h).
// Stage after: match.
//
// Modules that own the same parameters (names, shapes, dtypes) share a signature, and modules whose paths differ only
// in components that are numbers share a path class: later stages decide once for each signature or path class instead
// of once for each of 60,000 modules.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/core/base/diagnostic.h"
#include "engine/layout/dtype.h"

namespace moonshard {

struct CompiledPlan;
struct DataFlow;

struct Parameter {
  std::string name;            // within its module: "weight"
  std::vector<int64_t> shape;  // the full shape, not the local shape
  DType dtype = DType::kF32;
  bool is_buffer = false;
  bool operator==(const Parameter&) const = default;
  int64_t elements() const;
};

// Where the class of a module is defined; only a live model has this information. The origin determines the suggested
// fix for a module whose calls cannot be intercepted.
enum class ModuleOrigin : uint8_t {
  kUnknown,      // read from headers
  kHost,         // a class of the application
  kMoonshard,    // moonshard::nn
  kTorch,        // torch::nn
  kWithinTorch,  // a child of a torch::nn class that uses it without a call (out_proj of MultiheadAttention)
};

struct Module {
  std::string path;         // "model.layers.0.mlp"; the root is ""
  std::string kind;         // class without namespace and "Impl": "Linear"; "" if unknown
  uint32_t signature = 0;   // index into ModuleTree::signatures()
  uint32_t path_class = 0;  // index into ModuleTree::class_representatives()
  bool hookable = true;     // whether its calls can be intercepted; always true for a tree from headers
  ModuleOrigin origin = ModuleOrigin::kUnknown;
  // Of a module that holds the factors of adapters: index of the module whose weight they adapt; else -1.
  int64_t adapts = -1;
};

// One parameter of one module.
struct ParamRef {
  uint32_t module = 0;  // index into modules()
  uint32_t param = 0;   // index into the module's parameters
  auto operator<=>(const ParamRef&) const = default;
};

// A check of a compiled plan that needs information about the model's forward (the graph of an exported program:
// engine/graph/program_checks.h), which the tree does not have. The findings depend only on the plan and are the same
// on every rank.
struct PlanCheck {
  std::string name;  // name of the pass: "sizes"
  // Adds its findings to `found`; returns a description of its work for the record of the pass.
  std::function<std::string(const CompiledPlan& plan, Diagnostics& found)> run;
};

class ModuleTree {
 public:
  using Signature = std::vector<Parameter>;

  // Adds a module; its path must be new. modules() has the order in which modules are added.
  void Add(std::string path, std::string kind, Signature parameters, bool hookable = true,
           ModuleOrigin origin = ModuleOrigin::kUnknown);
  // Adds the module `name` below module `adapted`, which holds one factor for each adapter of that module (AddAdapters,
  // engine/plan/compile/adapters.h).
  void AddFactors(size_t adapted, const std::string& name, Signature factors);
  // Declares that two or more parameters are the same tensor (tied parameters). The first parameter in `same`
  // represents the tensor; the others are aliases of the first.
  void AddTie(std::vector<ParamRef> same);

  const std::vector<Module>& modules() const { return modules_; }
  const std::vector<Signature>& signatures() const { return signatures_; }
  const Signature& parameters(const Module& module) const { return signatures_[module.signature]; }
  // Returns by module the index of the parent, which is the module at ParentOf(path). If the tree does not have the
  // parent, the value is a number of at least kMissingParents, equal for all modules with this parent; for the root,
  // the value is kNoParent.
  const std::vector<uint32_t>& parents() const { return parents_; }
  static constexpr uint32_t kNoParent = UINT32_MAX;
  static constexpr uint32_t kMissingParents = uint32_t{1} << 31;
  size_t missing_parents() const { return missing_.size(); }

  // For each path class, the index of one of its modules.
  const std::vector<uint32_t>& class_representatives() const { return class_representatives_; }
  const std::vector<std::vector<ParamRef>>& ties() const { return ties_; }

  // Returns the index of the module at `path`, or -1.
  int64_t Find(std::string_view path) const;
  // Finds the parameter at a full path ("lm_head.weight"); returns false if it does not exist.
  bool FindParameter(std::string_view path, ParamRef* found) const;
  std::string PathOf(ParamRef param) const;
  const Parameter& At(ParamRef param) const;
  // Whether the tree includes modules that own no parameter: false for a tree from headers, true for any other tree.
  bool complete() const { return complete_; }
  void set_complete(bool complete) { complete_ = complete; }

  // The checks that engine/plan/resolve runs after its own passes, in order, if tp has more than one rank.
  const std::vector<PlanCheck>& checks() const { return checks_; }
  void AddCheck(PlanCheck check) { checks_.push_back(std::move(check)); }

  // The data flow between the modules (engine/layout/data_flow.h); null if it is unknown.
  const std::shared_ptr<const DataFlow>& flow() const { return flow_; }
  void SetFlow(std::shared_ptr<const DataFlow> flow) { flow_ = std::move(flow); }

  int64_t total_elements() const;  // counts each tied tensor once, and no buffers
  // Returns one module per line: path, kind, parameters with shapes and dtypes; ties are last.
  std::string ToText() const;

 private:
  uint32_t ParentNumber(std::string_view path);

  std::vector<Module> modules_;
  std::vector<uint32_t> parents_;
  std::unordered_map<std::string, uint32_t> missing_;  // path of a missing parent: its number
  std::vector<Signature> signatures_;
  std::vector<uint32_t> class_representatives_;
  std::vector<std::vector<ParamRef>> ties_;
  std::unordered_map<std::string, uint32_t> by_path_;
  std::unordered_map<std::string, uint32_t> by_signature_;
  std::unordered_map<std::string, uint32_t> by_class_;
  std::vector<PlanCheck> checks_;
  std::shared_ptr<const DataFlow> flow_;
  bool complete_ = true;
};

// Returns "model.layers.0" for "model.layers.0.mlp"; "" for a path without a dot.
std::string_view ParentOf(std::string_view path);

// Returns the path with every component that is a number replaced by "0". Modules of one path class have the same
// result.
std::string PathClassOf(std::string_view path);

}  // namespace moonshard
