// OperatorChecker: gives every tensor of a step a type for each mesh axis and checks each operator against its rule,
// forward and backward, as the operators run. One process is enough, with any process groups: the values that
// collectives return do not matter, because redistributions declare the layouts of their results (intercept/region.h).
//
//   OperatorChecker checker(axes, RuleTable::BuiltIn());
//   checker.SetLeaf(weight, type);
//   { const OperatorScope scope(checker); loss = model(ids); loss.backward(); }
//   checker.faults();
//
// An operator without a rule is unproven unless all its operands are replicated. A tensor that was made before the
// scope and is not a leaf (SetLeaf) counts as a constant, which is replicated; assumed() is the number of such tensors.
// Faults that follow from a fault are not reported, until a boundary declares a tensor's layout again (Anchor).
// Stage before: rule_table.h; intercept (OperatorScope). Stage after: prove.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/analysis/types/module_path.h"
#include "engine/analysis/types/rule_table.h"
#include "engine/analysis/types/type_fault.h"
#include "engine/analysis/types/typed_tensor.h"
#include "engine/runtime/intercept/operator_scope.h"
#include "engine/runtime/intercept/region.h"

namespace c10d {
class ProcessGroup;
}

namespace moonshard {

struct CheckedAxis {
  MeshAxis axis = MeshAxis::kTp;
  int64_t ranks = 1;
  int64_t rank = 0;
};

// One operator that ran.
struct CheckedOperator {
  const std::string& path;
  bool backward;
  const std::string& name;  // "aten::add.Tensor"
  bool computes;            // false: a view or a copy; their count depends on the memory format
  bool counts;              // the program reads a value, or a size of the results depends on values
  c10::ArrayRef<at::Tensor> outputs;
  c10::ArrayRef<TensorType> types;  // parallel to `outputs`
  // The numbers among the arguments, in the order of the arguments: scalars that are not sizes or dtypes; a Scalar that
  // was wrapped into a tensor (x / 3); for a CPU tensor that was made outside of the step, the value of its one
  // element, or a hash of its values up to 64 KiB.
  std::function<std::vector<double>()> numbers;
};

class OperatorChecker final : public OperatorHandler {
 public:
  // Keeps a reference to `rules`.
  OperatorChecker(std::vector<CheckedAxis> axes, const RuleTable& rules);
  ~OperatorChecker() override;

  ModulePath& path() { return path_; }
  const std::vector<CheckedAxis>& axes() const { return axes_; }
  // The index of `axis` in axes(); -1 if the axis is not checked.
  int IndexOf(MeshAxis axis) const { return AxisIndex(axis); }

  // Sets the type of a parameter, buffer or input; writes into it do not change the type.
  void SetLeaf(const at::Tensor& tensor, TensorType type);
  // Declares the axis of a process group that the program itself uses. The group must outlive the checker.
  void SetGroup(const c10d::ProcessGroup* group, MeshAxis axis);
  // The current type of `tensor`; unproven on every axis if the tensor has no type.
  TensorType Get(const at::Tensor& tensor) const;
  // A boundary declares the layout of `tensor` along one axis. Reports a fault if the type of the tensor is known and
  // does not agree; from then on the tensor has the declared layout. `what`: "input 0", for messages. `idle`: the
  // boundary redistributes nothing; after BelieveKnowledge a wrong idle declaration is added to untrue() instead of
  // faults(), and the tensor keeps its type.
  void Anchor(const at::Tensor& tensor, MeshAxis axis, const Layout& layout, int64_t full_size, const std::string& what,
              bool idle = false);
  // After the backward: reports a fault if the gradient of the parameter at `path` does not have the type `expected`.
  // `declared`: the parameter's layout in the plan, for messages.
  void CheckGradient(const std::string& path, const at::Tensor& gradient, MeshAxis axis, const AxisType& expected,
                     const std::string& declared);

  // Reports a fault if the loss is not replicated along an axis, because the ranks would compute different gradients.
  // Along data-parallel axes the loss may also be partial or varying.
  void CheckLoss(const at::Tensor& loss);

  // Reports that an exception ended the step, unless an operator's exception was reported already. `path`: the
  // innermost module that the exception left. `what`: its message.
  void Stopped(const std::string& path, const std::string& what);

  void BelieveKnowledge() { believes_knowledge_ = true; }
  const std::vector<TypeFault>& untrue() const { return untrue_; }
  // Call before the step if its sizes are compared with those at tp=1 afterwards.
  void ExpectSizesCompared() { sizes_compared_ = true; }
  void Observe(std::function<void(const CheckedOperator&)> observer) { observer_ = std::move(observer); }

  const std::vector<TypeFault>& faults() const { return faults_; }
  const UnprovenOperators& unproven() const { return unproven_; }
  int64_t operators() const { return operators_; }
  int64_t backward_operators() const { return backward_operators_; }
  int64_t assumed() const { return assumed_; }
  // The names of the regions whose operators were not checked.
  const std::set<std::string, std::less<>>& trusted() const { return trusted_; }

  void Handle(const c10::OperatorHandle& op, c10::Stack& stack, Next& next) override;
  void EnterRegion(const RegionInfo& region) override;
  void LeaveRegion() override;
  void RegionInput(const RegionInfo& region, const at::Tensor& tensor, const Layout& layout) override;
  void RegionOutput(const RegionInfo& region, const at::Tensor& tensor, const Layout& layout, bool summed) override;
  void RegionGradientInput(const RegionInfo& region, const at::Tensor& parameter, const at::Tensor& gradient) override;
  void RegionGradientOutput(const RegionInfo& region, const at::Tensor& parameter, const at::Tensor& sum,
                            const Layout& layout) override;
  void RegionSum(const RegionInfo& region, const at::Tensor& terms, const at::Tensor& sum) override;
  void OwnRows(const at::Tensor& ids, const at::Tensor& table) override;
  void OwnRows(const at::Tensor& ids, MeshAxis axis) override;

 private:
  // Properties of an operator, looked up once.
  struct Entry {
    std::string name;  // "aten::add_.Tensor"
    std::string base;  // "add"
    const OperatorRule* rule = nullptr;
    bool writes = false;      // writes into its first argument
    bool overwrites = false;  // writes without reading the old values
    bool strided = false;     // as_strided: its arguments are strides
    bool copies = false;
    bool keeps_copies = false;    // expanded dims stay expanded
    bool adds_features = false;   // adds the gradients of different features
    bool keeps_features = false;  // copies, slices or concatenates the features of the last dim
    bool random = false;
    bool counts = false;       // sizes of its results depend on values
    bool into_places = false;  // sizes of its result are those of its first argument
    bool collective = false;
    size_t returns = 0;
  };
  struct Call;  // one call of an operator
  struct Base;  // the base of the view that an operator writes into

  const Entry& EntryOf(const c10::OperatorHandle& op);
  int AxisIndex(MeshAxis axis) const;
  // The index in axes_ of the axis of a collective's process group; -1: unknown.
  int AxisOfGroup(const Call& call) const;
  void Judge(const Entry& entry, Call& call);
  // The base of `view`, which an operator is about to write into; nullopt if it is unknown.
  std::optional<Base> BaseOf(const at::Tensor& view) const;
  void JudgeBase(const Base& base, const Call& call) const;
  // Derives the type of a view from that of its base, after a write into the base made the view's type void.
  void RenewView(const at::Tensor& view) const;
  void JudgeAxis(const Entry& entry, Call& call, size_t axis);
  AxisTypes Apply(const Entry& entry, const Call& call, size_t axis, Operands& operands) const;
  // Returns a message if a replicated tensor that requires a gradient is combined with shards, because nothing would
  // reduce its gradient; else "".
  static std::string FullMisused(const Entry& entry, const Call& call, c10::ArrayRef<AxisType> types);
  MeshAxis FirstAxis() const { return axes_.empty() ? MeshAxis::kTp : axes_.front().axis; }
  static std::string MixedMisused(const Entry& entry, const Call& call, c10::ArrayRef<AxisType> types);
  void Blame(TypeFault fault) { Add(std::move(fault), faults_); }
  static void Add(TypeFault fault, std::vector<TypeFault>& faults);
  void NoteUnproven(const std::string& what);
  // Whether the tensor, which is not a leaf and has no type on these axes, is assumed replicated. `known`:
  // TypeOf(tensor).
  bool Assume(const at::Tensor& tensor, const TensorType* known);
  void MakeVoid(const c10::Stack& stack, size_t results) const;
  // Whether `type` is one that `layout` allows. `full_size`: of the dim that `layout` shards; -1: as in the type's map.
  bool Agrees(const AxisType& type, const Layout& layout, const at::Tensor& tensor, const CheckedAxis& axis,
              int64_t full_size, bool backward) const;

  std::vector<CheckedAxis> axes_;
  const RuleTable& rules_;
  ModulePath path_;
  std::unordered_map<const c10::FunctionSchema*, Entry> entries_;
  std::unordered_map<const c10::TensorImpl*, TensorType> leaves_;
  // By parameter: the type of its gradient between RegionGradientInput and RegionGradientOutput.
  std::unordered_map<const c10::TensorImpl*, TensorType> reduced_;
  std::vector<std::pair<const c10d::ProcessGroup*, MeshAxis>> groups_;
  std::vector<at::Tensor> kept_leaves_;  // alive, so that no address is used again
  std::function<void(const CheckedOperator&)> observer_;
  std::vector<TypeFault> faults_;
  std::vector<TypeFault> untrue_;
  bool believes_knowledge_ = false;
  UnprovenOperators unproven_;
  int64_t operators_ = 0;
  int64_t backward_operators_ = 0;
  int64_t assumed_ = 0;
  bool sizes_compared_ = false;
  bool one_element_ = false;  // the sharded dim of shards of one element was ambiguous for an operator
  std::set<std::string, std::less<>> trusted_;
  // The first input of an open region; `type` is empty before the input is declared.
  struct RegionSource {
    TensorType type;
    Layout layout;
    std::vector<int64_t> sizes;
    const void* tensor = nullptr;  // identity
  };
  // The full size of the dim of `made` that `layout` shards, computed from the region's input; -1: not known.
  static int64_t FullSize(const RegionSource& input, const Layout& layout, const at::Tensor& made,
                          const CheckedAxis& axis);
  std::vector<RegionSource> regions_;
};

}  // namespace moonshard
