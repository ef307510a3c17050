// OperatorChecker: gives every tensor of a step a type for each mesh axis and checks each operator against its rule,
// forward and backward, as the operators run. One process is enough, with any process groups: the values that
// collectives return do not matter, because redistributions declare the layouts of their results (intercept/region.h).
//
//   OperatorChecker checker(axes, RuleTable::BuiltIn());
//   checker.SetLeaf(weight, type);
//   { const OperatorScope scope(checker); loss = model(ids); loss.backward(); }
//   checker.faults();
//
// An operator without a rule is unproven unless all its operands are replicated. A tensor that was created before the
// scope and is not a leaf (SetLeaf) counts as a replicated constant; along the data-parallel axes the tensor may also
// be rows of the batch (`outside` in axis_type.h). assumed() is the number of such tensors. Faults that follow from a
// fault are not reported, until a boundary declares the layout of a tensor again (Anchor).
// Stage before: rule_table.h; intercept (OperatorScope). Stage after: prove.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include "engine/analysis/types/follow_batch.h"
#include "engine/analysis/types/module_path.h"
#include "engine/analysis/types/rule_table.h"
#include "engine/analysis/types/type_fault.h"
#include "engine/analysis/types/typed_tensor.h"
#include "engine/runtime/intercept/operator_scope.h"
#include "engine/runtime/intercept/region.h"
#include "engine/runtime/intercept/routed_rows.h"

namespace c10d {
class ProcessGroup;
}

namespace moonshard {

struct CheckedAxis {
  MeshAxis axis = MeshAxis::kTp;
  int64_t ranks = 1;
  int64_t rank = 0;
  bool zigzag = false;  // the axis shards the tokens of a sequence in zigzag
  // Of cp=2x4 two axes are checked: the outer factor, which shards the tokens of a sequence in zigzag, and behind it
  // the inner one, which shards what the outer one has left of them, or the heads. `ranks` and `rank` are then those of
  // the factor.
  AxisFactor factor = AxisFactor::kBoth;
};

// Returns the layout along one factor of an axis of what has `layout` on the axis. Of heads that the inner factor
// shards, in an activation [batch, sequence, features], the outer factor has the tokens in zigzag.
Layout LayoutAlong(const Layout& layout, AxisFactor factor);

// One operator that ran.
struct CheckedOperator {
  const std::string& path;
  bool backward;
  const std::string& name;  // "aten::add.Tensor"
  bool computes;            // false: a view or a copy; the number of views and copies depends on the memory format
  bool counts;              // the operator reads a value, or a size of a result depends on values
  c10::ArrayRef<at::Tensor> outputs;
  c10::ArrayRef<TensorType> types;  // parallel to `outputs`
  // Returns the numbers among the arguments, in the order of the arguments: scalars that are not sizes or dtypes;
  // scalars that were wrapped into a tensor (x / 3); and a number for each CPU tensor that was created outside of the
  // step, or whose memory the host may have filled, which is the value of a tensor of one element, or a hash of the
  // values of a tensor of up to 64 KiB. Of a slice: dim, begin and step, counted from 0; see `full_place`.
  std::function<std::vector<double>()> numbers;
  at::IntArrayRef from = {};  // the sizes of the first tensor operand; empty if there is none
  // Of a slice of a forward along a dim that the compared axis shards (CompareMade): whether the begin among the
  // numbers is that of the full dim.
  bool full_place = false;
  bool draws = false;  // random numbers
  int64_t call = 0;    // the number of the call, from 1
  // Of a forward: what each tensor among the operands is, in order; of the same tensors in a list too.
  c10::ArrayRef<Source> sources = {};
};

class OperatorChecker final : public OperatorHandler, public RoutedRowsHandler {
 public:
  // Keeps a reference to `rules`.
  OperatorChecker(std::vector<CheckedAxis> axes, const RuleTable& rules);
  ~OperatorChecker() override;

  ModulePath& path() { return path_; }
  const std::vector<CheckedAxis>& axes() const { return axes_; }
  // The indices in axes() of `axis`, of both of its factors; none if the axis is not checked.
  std::vector<size_t> IndicesOf(MeshAxis axis) const;

  // Sets the type of a parameter, buffer or input. Writes into the tensor do not change its type.
  void SetLeaf(const at::Tensor& tensor, TensorType type);
  // Declares the axis of a process group that the program itself uses. The group must outlive the checker.
  void SetGroup(const c10d::ProcessGroup* group, MeshAxis axis);
  // The current type of `tensor`; unproven on every axis if the tensor has no type.
  TensorType Get(const at::Tensor& tensor) const;
  // Call when a boundary declares the layout of `tensor` along one axis, with both of its factors. Reports a fault if
  // the type of the tensor is known and does not agree; from then on the tensor has the declared layout. `full_size` is
  // the full size of the sharded dim; -1: unknown. `what`: "input 0", for messages. `idle`: whether the boundary
  // redistributes nothing; after BelieveKnowledge a wrong idle declaration is added to untrue() instead of faults(),
  // and the tensor keeps its type.
  void Anchor(const at::Tensor& tensor, MeshAxis axis, const Layout& layout, int64_t full_size, const std::string& what,
              bool idle = false);
  // Call after the backward. Reports a fault if the gradient of the parameter at `path` does not have the type
  // `expected` along axes()[index]. `declared`: the parameter's layout in the plan, for messages.
  void CheckGradient(const std::string& path, const at::Tensor& gradient, size_t index, const AxisType& expected,
                     const std::string& declared);

  // Reports a fault if the loss is not replicated along an axis, because the ranks would compute different gradients.
  // Along data-parallel axes the loss may also be partial or varying; there it is compared with how its gradients are
  // reduced (ExpectGradients): a fault if this is known not to fit, unproven if it is not known whether it does.
  void CheckLoss(const at::Tensor& loss);
  // Call before the step: how gradients are reduced over the data-parallel axes, and, if it is not to be found from the
  // operators, what the loss is there: a sum over the rank's rows or a mean.
  enum class LossScale : uint8_t { kFollowed, kSum, kMean };
  void ExpectGradients(bool mean, LossScale loss) {
    reduces_mean_ = mean;
    loss_scale_ = loss;
  }
  // Whether CheckLoss relied on the LossScale that was given.
  bool relied_on_loss_scale() const { return relied_on_loss_scale_; }
  // Call before the step: `draws_own` tells whether operators draw from the random stream of this rank of tp at the
  // moment, and not from the one that the ranks have in common. `shares_generator`: the streams are not switched, so
  // that only operators may move the default generator.
  void FollowStream(std::function<bool()> draws_own, bool shares_generator) {
    draws_own_ = std::move(draws_own);
    shares_generator_ = shares_generator;
  }
  // Call where a call of the model begins and ends: between its operators nothing else may move the default generator.
  void BeginCall();
  void EndCall();
  // Whether an operator has drawn random numbers.
  bool drew() const { return drew_; }
  // Declares that inputs of the step have `rows` rows of the batch on this rank.
  void NoteRows(int64_t rows) { row_counts_.insert(static_cast<double>(rows)); }
  // Declares that a leaf is a buffer, or another parameter without a gradient. Along data-parallel axes a buffer into
  // which the step writes what follows the rank's own rows differs between ranks afterwards.
  void SetBuffer(const at::Tensor& leaf, const std::string& path);
  // Call after the step. Notes as unproven the buffers that are written from the rank's own rows and read into a loss
  // of CheckLoss, in whichever order.
  void CheckBuffers();
  // Notes as unproven that an input of the model was computed from tensors that are not known to be rows of the batch.
  void CheckModelInput(const at::Tensor& tensor, const std::string& what);

  // Reports that an exception ended the step, unless the checker reported an exception of an operator already. `path`:
  // the innermost module that the exception left. `what`: the message of the exception.
  void Stopped(const std::string& path, const std::string& what);

  void BelieveKnowledge() { believes_knowledge_ = true; }
  const std::vector<TypeFault>& untrue() const { return untrue_; }
  // Whether a result had AxisType::owner, or one rank of tp has all of a sharded dim: what the other ranks compute
  // shows there alone (of_owner.h).
  bool has_owners() const { return has_owners_; }
  // Call before the step with the axes along which the sizes of the step are compared, after it, with the sizes that it
  // has with one rank on the axis.
  void ExpectSizesCompared(AxisSet axes) { sizes_compared_ = axes; }
  // Call before the step with the results that an operator has with one rank on `axis`: `made` returns the sizes of the
  // results of the next call of `name`, in the same module and direction, or null if it is not known. It is called once
  // for each operator that TakesSizes. A dim of equal elements that is longer there is as long as a shard here
  // (AxisType::local). Without `made`, only constants that take their sizes from a shard (ones_like) are known to have
  // them.
  using MadeAlone = std::function<const std::vector<std::vector<int64_t>>*(const std::string& path, bool backward,
                                                                           std::string_view name)>;
  // `summed` returns the sizes that every sum of the name `name` in the backward of the module returns there, or null
  // if they are not known or not equal: they tell whether a sum was over the ambiguous dim of a shard of one element.
  using SummedAlone = std::function<const std::vector<int64_t>*(const std::string& path, std::string_view name)>;
  void CompareMade(MeshAxis axis, MadeAlone made, SummedAlone summed);
  // The name under which MadeAlone has the sizes of tensors that were created outside of the step, in the order of
  // their first use; and an observer that is called for each of them.
  static constexpr std::string_view kHostTensor = "tensor of the host";
  using HostTensorObserver = std::function<void(const std::string& path, bool backward, at::IntArrayRef sizes)>;
  void ObserveHostTensors(HostTensorObserver observer) { host_tensor_observer_ = std::move(observer); }
  // Whether an operator, by its name without overload and namespace ("ones"), gives its result sizes that are among its
  // arguments, or that follow them (the groups of a convolution).
  static bool TakesSizes(std::string_view base);
  void Observe(std::function<void(const CheckedOperator&)> observer) { observer_ = std::move(observer); }

  // Calls `observer` at the end of each region, with the path of the module, the direction and the region's name.
  using RegionObserver = std::function<void(const std::string& path, bool backward, std::string_view region)>;
  void ObserveRegions(RegionObserver observer) { region_observer_ = std::move(observer); }

  const std::vector<TypeFault>& faults() const { return faults_; }
  const UnprovenOperators& unproven() const { return unproven_; }
  int64_t operators() const { return operators_; }
  int64_t backward_operators() const { return backward_operators_; }
  int64_t assumed() const { return assumed_; }
  // The operators of forwards, each with its module, that mix the rows of one data-parallel rank (a BatchNorm in
  // training, a maximum over the batch, a mean over the targets that are not ignored): right for the rank's own rows,
  // and not what one rank computes of the rows of all.
  const std::set<std::string>& own_steps() const { return own_steps_; }
  // The names of the regions whose operators were not checked.
  const std::set<std::string, std::less<>>& trusted() const { return trusted_; }

  void Handle(const c10::OperatorHandle& op, c10::Stack& stack, Next& next) override;
  void EnterRegion(const RegionInfo& region) override;
  void LeaveRegion() override;
  void RegionInput(const RegionInfo& region, const at::Tensor& tensor, const Layout& layout) override;
  void RegionOutput(const RegionInfo& region, const at::Tensor& tensor, const Layout& layout, bool summed) override;
  void RegionMean(const RegionInfo& region, const at::Tensor& tensor) override;
  void RegionMoved(const RegionInfo& region, const at::Tensor& tensor) override;
  void RegionGradientInput(const RegionInfo& region, const at::Tensor& parameter, const at::Tensor& gradient) override;
  void RegionGradientOutput(const RegionInfo& region, const at::Tensor& parameter, const at::Tensor& sum,
                            const Layout& layout) override;
  // Reports a fault if `parts` are not the views of `full` at the indices that `layout` gives to this rank.
  void RegionAttention(const RegionInfo& region, const std::array<at::Tensor, 3>& heads,
                       const at::Tensor& gradient) override;
  void RegionGradientOf(const RegionInfo& region, const at::Tensor& gradient, const at::Tensor& of,
                        const at::Tensor& result) override;
  void RegionSlice(const RegionInfo& region, const at::Tensor& full, at::TensorList parts, const at::Tensor& shard,
                   const Layout& layout) override;
  // Reports a fault if `from` are no rows of the batch along an axis of the region.
  void RowsSent(const RegionInfo& region, const at::Tensor& from, const at::Tensor& rows) override;
  // Reports a fault if `rows` are not routed along an axis of the region.
  void RowsReturned(const RegionInfo& region, const at::Tensor& rows, const at::Tensor& tokens,
                    const at::Tensor& result) override;
  void Groups(const at::Tensor& rows) override;
  void RegionSum(const RegionInfo& region, const at::Tensor& terms, const at::Tensor& sum) override;
  void OwnRows(const at::Tensor& ids, const at::Tensor& table) override;
  void OwnRows(const at::Tensor& ids, MeshAxis axis) override;
  // Reports a fault if the predicate is not replicated along an axis other than the data-parallel axes.
  void Predicate(const at::Tensor& predicate) override;

 private:
  // What the tensor is, where operators are observed; not known otherwise.
  Source SourceNow(const at::Tensor& tensor) const;
  // Properties of an operator, looked up once.
  struct Entry {
    std::string name;  // "aten::add_.Tensor"
    std::string base;  // "add"
    const OperatorRule* rule = nullptr;
    bool writes = false;      // writes into its first argument
    bool overwrites = false;  // writes without reading the old values
    bool strided = false;     // as_strided: the rule reads the strides of the operand
    bool copies = false;
    bool keeps_copies = false;    // expanded dims stay expanded
    bool adds_features = false;   // adds the gradients of different features
    bool keeps_features = false;  // copies, slices or concatenates the features of the last dim
    bool random = false;
    bool draws = false;        // random numbers for each element of its first result
    bool counts = false;       // the sizes of the results depend on values
    bool into_places = false;  // the result has the sizes of the first argument
    bool collective = false;
    bool of_gradients = false;  // computes gradients: the backward of one operator
    bool splits_apart = false;  // the results are chunks that count their own writes
    bool puts_back = false;     // the gradient of some elements along a dim, with zeros around
    bool takes_sizes = false;   // TakesSizes
    bool reads_sizes = false;   // reads the sizes of a tensor operand, and none of its elements
    bool views = false;         // the result is a view of the first argument
    bool unwritten = false;     // returns memory that it does not write to
    size_t returns = 0;
  };
  struct Call;  // one call of an operator
  struct Base;  // the base of the view that an operator writes into
  // Memory that unsafe_split has taken apart. `written`: the numbers of the splits (SplitOf) whose tensors operators
  // have written into since; 0: of the tensor that was split.
  struct SplitMemory {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    std::set<int64_t> written;
  };

  const Entry& EntryOf(const c10::OperatorHandle& op);
  int AxisIndex(MeshAxis axis) const;
  // The indices in axes_ of the axes of a region.
  std::vector<size_t> AxesOf(const RegionInfo& region) const;
  // The layout along axes_[index] of a tensor that has `layout` in a region.
  Layout LayoutIn(const RegionInfo& region, const Layout& layout, size_t index) const;
  // Anchor along axes_[index]; `declared`: the layout in the plan, for messages.
  void AnchorAlong(const at::Tensor& tensor, size_t index, const Layout& layout, int64_t full_size,
                   const std::string& what, bool idle, const std::string& declared);
  // Reports a fault if `all`, the type of a region's input, does not agree on axes_[index] with the declared layout.
  void CheckRegionInput(const RegionInfo& region, const at::Tensor& tensor, const Layout& layout, const TensorType& all,
                        size_t index);
  // Returns the type on `axis`, which takes no rows of the batch, of the rows `made` that a region makes of the rows
  // `from` of type `here`.
  AxisType OfRows(const RegionInfo& region, AxisType here, const at::Tensor& from, const at::Tensor& made,
                  const CheckedAxis& axis);
  // Returns the index in axes_ of the axis of a collective's process group; -1: not among the checked axes.
  int AxisOfGroup(const Call& call) const;
  void Judge(const Entry& entry, Call& call);
  // Returns the base of `view` before an operator writes into the view; nullopt if the base or its type is unknown.
  std::optional<Base> BaseOf(const at::Tensor& view) const;
  void JudgeBase(const Base& base, const Call& call) const;
  // Sets the type of a view from the type of its base, after a write into the base made the type of the view void.
  void RenewView(const at::Tensor& view) const;
  // Notes the memory that an operator takes apart, and writes into memory that was taken apart.
  void NoteSplits(const Entry& entry, const Call& call);
  // Whether the memory of `tensor` was written to through a tensor that counts its writes apart.
  bool WrittenApart(const at::Tensor& tensor) const;
  void JudgeAxis(const Entry& entry, Call& call, size_t axis);
  // Sets what the results of an operator of a forward are of the rows of the batch (follow_batch.h), and notes the
  // buffers that it writes and the numbers that the program reads.
  void FollowRows(const Entry& entry, Call& call, size_t axis);
  // Returns what result `i` of an operator, of type `made`, is along a data-parallel axis.
  OfBatch FollowedScale(const Call& call, size_t axis, const AxisType& made, size_t i) const;
  // Whether the program may have computed `number` from the number of the rank's rows, or read it from their values.
  bool IsRowCount(double number) const;
  // Whether the random numbers of an operator of a forward are those that its result needs: other ones on each rank for
  // shards, the same ones for what all ranks have.
  void CheckDraws(const Entry& entry, Call& call, size_t axis);
  // Compares the type of a loss along a data-parallel axis with how gradients are reduced.
  void CheckScale(const AxisType& loss, size_t axis);
  // Returns the types of the results of an operator of gradients, `made` by its rule, with operands of equal elements
  // that are as long as a shard taken for that shard, if the rule has not said along which dims the results are as long
  // as one. `apply` applies the rule to `types` and sets `judged`. Returns nullopt if they are not known.
  static std::optional<AxisTypes> WithShards(const Call& call, std::span<AxisType> types,
                                             const std::function<AxisTypes()>& apply,
                                             const std::optional<Operands>& judged, AxisTypes made);
  // Returns the type of what an operator makes of routed tensors, on the axis of the experts.
  static AxisType OfRouted(const Entry& entry, Operands& operands);
  AxisTypes Apply(const Entry& entry, const Call& call, size_t axis, Operands& operands) const;
  // Whether the host may have filled memory of type `type`, operand `i`, before the operator reads it.
  static bool ReadsUnwritten(const Entry& entry, const AxisType& type, size_t i);
  // Sets the dims of result `i` that are as long as a shard.
  bool IsRepeatedLocally(const Entry& entry, const Call& call, size_t axis, size_t i, const AxisType& type) const;
  void SetLocal(const Entry& entry, const Call& call, size_t axis, size_t i, AxisType& type) const;
  // Whether the host may have filled the memory of an operator's results, and no operator has written into it.
  static bool KeepsHostMemory(const Entry& entry, const Call& call);
  // Of a slice along a sharded dim, the begin in the full dim of what all ranks take; nullopt: it is not known.
  std::optional<int64_t> FullBegin(const Entry& entry, const Call& call) const;
  // Notes the length that this rank has of a sharded dim, and whether one rank has all of it.
  void NoteShard(const AxisType& type, size_t axis);
  // Whether a dim of result `i`, a gradient of equal elements or memory that the host may fill, has another size than
  // with one rank, and is not known to be as long as a shard.
  bool HasUnknownLength(const Entry& entry, const Call& call, size_t axis, size_t i, const AxisType& type) const;
  // Whether the operator takes away the dim along which its operand, of the first of `types`, is as long as a shard of
  // one element. `type`: of its result.
  static bool DropsLocalDim(const Entry& entry, c10::ArrayRef<AxisType> types, const AxisType& type);
  // Whether result `i` of a convolution is typed as terms of a sum, and has other sizes with one rank.
  bool IsNoTerm(const Call& call, size_t axis, size_t i, const AxisType& type) const;
  // Whether result `i`, the gradient of a constant that is as long as a shard, is no gradient of a shard.
  bool IsOfOneRank(const Entry& entry, const Call& call, size_t axis, size_t i, const AxisType& type) const;
  // Returns a message if a replicated tensor that requires a gradient is combined with tensors that differ between
  // ranks, because nothing would reduce the gradient of the replicated tensor; else "".
  static std::string FullMisused(const Entry& entry, const Call& call, c10::ArrayRef<AxisType> types);
  MeshAxis FirstAxis() const { return axes_.empty() ? MeshAxis::kTp : axes_.front().axis; }
  // Returns a message if an operator uses a tensor whose last features alone are shared or partial without separating
  // these features; else "".
  static std::string MixedMisused(const Entry& entry, const Call& call, c10::ArrayRef<AxisType> types);
  void Blame(TypeFault fault) { Add(std::move(fault), faults_); }
  static void Add(TypeFault fault, std::vector<TypeFault>& faults);
  void NoteUnproven(const std::string& what);
  // Call for a tensor that is not a leaf and has no type on these axes; `known`: TypeOf(tensor). If the tensor can be a
  // constant, sets its type (replicated, along data-parallel axes `outside`) and returns true.
  bool Assume(const at::Tensor& tensor, const TensorType* known);
  // Sets the dims of a tensor of the host that are as long as a shard.
  void NoteHostTensor(const at::Tensor& tensor, TensorType& type) const;
  void MakeVoid(const c10::Stack& stack, size_t results) const;
  // Whether `layout` allows `type`. `full_size` is the full size of the dim that `layout` shards; -1: the size of the
  // map of `type`. `nested`: the map that `layout` gives the dim if another axis shards it too; null: as without one.
  bool Agrees(const AxisType& type, const Layout& layout, const at::Tensor& tensor, const CheckedAxis& axis,
              int64_t full_size, bool backward, const IndexMapPtr& nested = nullptr) const;
  // Whether `type`, of `tensor`, is a constant of equal elements along the dim that `layout` shards, which is not known
  // to be as long as a shard. `moves`: whether the tensor is redistributed; else one element stands for any number.
  bool IsFullConstant(const AxisType& type, const Layout& layout, const at::Tensor& tensor, size_t index,
                      bool moves) const;
  // Returns the map along axis `index` of a dim that this axis shards in zigzag and other axes after it, by the other
  // types of the tensor; null if no other axis shards the dim, or if its shards are not of one length.
  IndexMapPtr NestedZigzag(const TensorType& type, size_t index) const;
  // Whether axes_[index] and another axis shard the dim of `layout`, in a tensor of `dims` dims, and the shards of one
  // of them are of other lengths.
  bool IsUnevenNested(const TensorType& type, size_t index, const Layout& layout, int64_t dims) const;

  std::vector<CheckedAxis> axes_;
  const RuleTable& rules_;
  ModulePath path_;
  std::unordered_map<const c10::FunctionSchema*, Entry> entries_;
  std::unordered_map<const c10::TensorImpl*, TensorType> leaves_;
  std::unordered_map<const c10::TensorImpl*, int64_t> leaf_places_;  // in the order of SetLeaf
  // By parameter: the type of its gradient between RegionGradientInput and RegionGradientOutput.
  std::unordered_map<const c10::TensorImpl*, TensorType> reduced_;
  std::vector<std::pair<const c10d::ProcessGroup*, MeshAxis>> groups_;
  std::vector<at::Tensor> kept_leaves_;                 // keeps the leaves alive, so that no address is used again
  std::unordered_map<const void*, SplitMemory> split_;  // by storage
  int64_t splits_ = 0;
  size_t split_pruned_at_ = 64;  // number of entries at which those of memory that is gone are left out
  std::function<void(const CheckedOperator&)> observer_;
  RegionObserver region_observer_;
  std::vector<TypeFault> faults_;
  std::vector<TypeFault> untrue_;
  bool believes_knowledge_ = false;
  UnprovenOperators unproven_;
  int64_t operators_ = 0;
  int64_t backward_operators_ = 0;
  int64_t assumed_ = 0;
  AxisSet sizes_compared_;
  int made_axis_ = -1;  // the axis along which `made_alone_` has one rank
  MadeAlone made_alone_;
  SummedAlone summed_alone_;
  HostTensorObserver host_tensor_observer_;
  // Along made_axis_: the lengths of shards on this rank, each with the size of the full dim, if these differ.
  std::set<std::pair<int64_t, int64_t>> shard_lengths_;
  std::function<bool()> draws_own_;  // null: tp has one rank
  bool shares_generator_ = false;
  struct GeneratorState {
    uint64_t seed;
    int left;
    uint32_t next;
    uint32_t first;
    uint32_t last;
    bool operator==(const GeneratorState&) const = default;
  };
  static GeneratorState GeneratorNow();
  void CheckGenerator();
  std::optional<GeneratorState> generator_;  // in a call of the model: behind its last operator that draws
  bool drew_ = false;
  // Along the data-parallel axes: how gradients are reduced; none: not by the plan.
  std::optional<bool> reduces_mean_;
  LossScale loss_scale_ = LossScale::kFollowed;
  bool relied_on_loss_scale_ = false;
  std::set<double> row_counts_;  // of inputs, and numbers that the program has read from values of the rank's own rows
  // A buffer, and the first operator that writes what follows the rank's own rows into it; "": none.
  struct Buffer {
    std::string path;
    std::string written;
    std::string where;
  };
  std::vector<Buffer> buffers_;
  std::unordered_map<const void*, size_t> buffer_of_;  // by storage
  BufferSet read_into_loss_;                           // or by the host, which may compute with them
  bool one_element_ = false;  // the sharded dim of shards of one element was ambiguous for an operator
  bool has_owners_ = false;
  std::set<std::string> own_steps_;
  std::set<std::string, std::less<>> trusted_;
  // The first input of an open region; `type` is empty before the input is declared.
  struct RegionSource {
    TensorType type;
    Layout layout;
    std::vector<int64_t> sizes;
    const void* tensor = nullptr;  // identity
    std::string name;              // of the region
    Source source;
  };
  // What a region does along axes_[index]: local sizes and layouts before and after it.
  struct Move {
    size_t index = 0;
    Layout from;
    Layout to;
    std::vector<int64_t> before;
    std::vector<int64_t> after;
  };
  // The moves of a region with `input` that makes a tensor of size `made` with `layout`, in an order in which each
  // changes the dims of the one before: two for the two factors of an axis.
  std::vector<Move> MovesOf(const RegionInfo& region, const RegionSource& input, const Layout& layout,
                            at::IntArrayRef made) const;
  // Returns the full size of the dim that `move.to` shards, computed from the input, which has the type `type` along
  // the axis; -1: not known.
  static int64_t FullSize(const Move& move, const AxisType& type, const CheckedAxis& axis);
  // Sets the types along the other axes of what a move makes of its input: where it changes the size of a dim that
  // another axis shards too.
  void KeepNested(const RegionInfo& region, const Move& move, TensorType& type);
  std::vector<RegionSource> regions_;
};

}  // namespace moonshard
