// The checker is an abstract interpreter that runs beside the step. Every operator that reaches the kernels, forward
// and backward, comes to Handle; for each axis a rule computes the types of the results from the types of the
// operands. Nothing is traced first and nothing is replayed: control flow of the host's language decides, as in the
// real step, which operators run, so a proof is about this step and about steps that run the same operators.
//
// An example with w1 shard(0) and w2 shard(1) on tp=2 (Linear stores [out, in]):
//
//   operator                 operands                    result
//   mm(x, t(w1))             shared, shard(1)            shard(1): each rank has some of the features
//   gelu                     shard(1)                    shard(1): each element by itself
//   mm(h, t(w2))             shard(1), shard(0)          partial: the summed dim is sharded on both sides
//   add(y, x)                partial, replicate          fault: x would count once per rank
//
// With the plan's all-reduce before the add the region declares y (checker_regions.cc), and the add is of two
// replicates.
//
// Axes are judged one by one. A collective works along one axis and leaves the others alone, so the type of a tensor
// on a mesh is one type for each axis, and k axes cost k applications of a rule and not a rule for every combination.
//
// What is trusted and what is not. Trusted: leaves (SetLeaf), since the plan places them; regions, since they are code
// of this project that declares what it makes; constants from outside (Assume), which are counted and reported. Not
// trusted: the plan's claims about activations, which Anchor compares with what was computed. What a rule does not
// cover is unproven and never assumed to be right, so a proof without faults and without unproven operators rests on
// those three alone.
//
// A fault makes its results faulty on that axis. Faulty absorbs: whatever is computed from it is faulty and is not
// reported, until a boundary anchors a tensor again. Thus one mistake in one layer gives one fault and not one for
// every operator behind it; 32 layers with the same mistake give one entry with a count (Blame).
//
// Cost: one hash lookup for the operator (EntryOf), one read of the metadata for each operand, one rule for each axis.
// The step itself can run on the meta device, so that the proof of a large model takes no memory for values.
#include "engine/analysis/types/operator_checker.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DynamicCast.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "engine/analysis/types/local_indices.h"
#include "engine/analysis/types/of_owner.h"
#include "engine/analysis/types/written_view.h"
#include "engine/core/base/check.h"
#include "engine/core/base/text.h"

namespace moonshard {
namespace {

// Calls visit(tensor, place) for each defined tensor; `place` is its index in a list.
template <class Visit>
void ForEachTensor(const c10::IValue& value, Visit&& visit, int place = 0) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor(), place);
  } else if (value.isTensorList()) {
    int at = 0;
    for (const at::Tensor& tensor : value.toTensorList()) {
      if (tensor.defined()) visit(tensor, at);
      ++at;
    }
  } else if (value.isList()) {
    int at = 0;
    for (const c10::IValue& one : value.toListRef()) ForEachTensor(one, visit, at++);
  }
}

bool HoldsTensors(const c10::IValue& value) {
  bool holds = false;
  ForEachTensor(value, [&](const at::Tensor&, int) { holds = true; });
  return holds;
}

const void* StorageOf(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

// "add_" -> "add"; "__and__" stays.
std::string WithoutUnderscore(std::string name) {
  if (name.size() > 1 && name.back() == '_' && name[name.size() - 2] != '_') name.pop_back();
  return name;
}

// What identifies the values of a small tensor on the CPU: of one real number the number, else a hash of its bytes. It
// is read from memory, since an operator that reads it would be intercepted too.
std::optional<double> NumberIn(const at::Tensor& tensor) {
  constexpr int64_t kMostBytes = 1 << 16;
  if (!tensor.is_cpu() || tensor.is_complex() || tensor.numel() == 0 || !tensor.is_non_overlapping_and_dense() ||
      !tensor.has_storage()) {
    return std::nullopt;
  }
  if (tensor.numel() == 1) return c10::fetch_and_cast<double>(tensor.scalar_type(), tensor.const_data_ptr());
  const auto bytes = static_cast<int64_t>(tensor.nbytes());
  if (bytes > kMostBytes) return std::nullopt;
  const std::string_view data(static_cast<const char*>(tensor.const_data_ptr()), static_cast<size_t>(bytes));
  return static_cast<double>(std::hash<std::string_view>()(data) >> 11);
}

// Plain arguments that are sizes of tensors or follow them: they differ between a shard and the full tensor, and the
// sizes of the results tell whether they are right. Also those that say what a tensor is made of: a dtype is no number.
bool IsSizeOrKind(std::string_view argument) {
  constexpr std::array kSizes = {"size",        "sizes",          "shape",      "end",         "length",
                                 "split_size",  "split_sizes",    "bias_sizes", "input_sizes", "normalized_shape",
                                 "num_weights", "padding_idx",    "repeats",    "groups",      "sym_sizes",
                                 "stride",      "storage_offset", "dtype",      "layout",      "memory_format"};
  return std::ranges::find(kSizes, argument) != kSizes.end();
}

void AddNumbers(const c10::IValue& value, std::vector<double>& out) {
  if (value.isDouble()) out.push_back(value.toDouble());
  if (value.isBool()) out.push_back(value.toBool() ? 1 : 0);
  if (value.isInt()) out.push_back(static_cast<double>(value.toInt()));
  if (value.isSymInt()) out.push_back(static_cast<double>(value.toSymInt().guard_int(__FILE__, __LINE__)));
  if (!value.isList()) return;
  for (const c10::IValue& one : value.toListRef()) AddNumbers(one, out);
}

// The name of one layer of several alike: "layers.*.mlp".
std::string Folded(const std::string& path) {
  std::string out;
  for (size_t i = 0; i < path.size(); ++i) {
    if (std::isdigit(static_cast<unsigned char>(path[i])) == 0) {
      out += path[i];
    } else if (out.empty() || out.back() != '*') {
      out += '*';
    }
  }
  return out;
}

// Types whose origin is worth a word: what differs between ranks.
bool HasOrigin(const AxisType& type) {
  return type.is_partial() || type.is(TypeKind::kVarying) || type.is(TypeKind::kRouted) || type.is_shard();
}

// The dims of a tensor of sizes `own` that are shards of those with one rank; 0 if a dim has another size that is not
// that of a shard. Shards of other lengths are not told from one element more or less than a shard has, so that they
// count only if this rank has such a shard of a dim of that size (`lengths`), or for `rank` >= 0, which has that of
// torch.chunk.
uint64_t LocalDims(at::IntArrayRef own, at::IntArrayRef full, int64_t ranks,
                   const std::set<std::pair<int64_t, int64_t>>& lengths, int64_t rank = -1) {
  if (own.size() != full.size()) return 0;
  uint64_t local = 0;
  for (size_t d = 0; d < std::min<size_t>(full.size(), 64); ++d) {
    if (own[d] == full[d]) continue;
    const int64_t chunk = (full[d] + ranks - 1) / ranks;
    const bool is_chunk = rank >= 0 && own[d] == std::clamp<int64_t>(full[d] - rank * chunk, 0, chunk);
    if (own[d] * ranks != full[d] && !is_chunk && !lengths.contains({own[d], full[d]})) return 0;
    local |= uint64_t{1} << d;
  }
  return local;
}

// Whether an operator gives the elements of its operand other dims, in the same order.
bool ChangesDims(std::string_view base) {
  constexpr std::array<std::string_view, 5> kNames = {"view", "_unsafe_view", "reshape", "_reshape_alias", "squeeze"};
  return std::ranges::find(kNames, base) != kNames.end();
}

// Takes operands of equal elements that are as long as a shard for that shard, of whichever indices: all of them have
// the same elements. Returns whether there are any. Of a shard of one element the dim would be ambiguous.
bool TakeAsShards(c10::ArrayRef<Operand> operands, std::span<AxisType> types) {
  bool any = false;
  for (size_t i = 0; i < types.size(); ++i) {
    AxisType& type = types[i];
    if (!type.is_replicate() || type.zero || std::popcount(type.local) != 1) continue;
    const int dim = std::countr_zero(type.local);
    const int64_t size = operands[i].sizes[static_cast<size_t>(dim)];
    if (size <= 1) continue;
    AxisType shard = AxisType::Shard(dim, size);
    shard.copies = type.uniform & ~type.local;
    shard.of_gradient = true;
    shard.by_value = type.by_value;
    shard.since = type.since;
    type = std::move(shard);
    any = true;
  }
  return any;
}

// The first operand with an origin that is as `type` is, or at all where `type` is null.
std::shared_ptr<const std::string> OriginAmong(c10::ArrayRef<AxisType> types, const AxisType* type) {
  for (const AxisType& operand : types) {
    if (operand.since != nullptr && (type == nullptr || operand.is(type->kind))) return operand.since;
  }
  return nullptr;
}

bool IsScaled(const OfBatch& batch) {
  return batch.within(Scales(BatchScale::kSum, BatchScale::kMean, BatchScale::kOwnMean));
}

}  // namespace

struct OperatorChecker::Call {
  const c10::FunctionSchema& schema;
  c10::SmallVector<Operand, 6> operands;
  c10::SmallVector<c10::IValue, 8> arguments;
  c10::SmallVector<at::Tensor, 3> outputs;
  c10::SmallVector<Product, 3> products;
  c10::SmallVector<TensorType, 1> types;  // of the outputs
  ModulePath::Place place;
  const std::vector<std::vector<int64_t>>* alone = nullptr;  // MadeAlone

  const AxisType& TypeOn(size_t operand, size_t axis) const {
    static const AxisType kNone;
    const TensorType* type = operands[operand].type;
    return type == nullptr || axis >= type->size() ? kNone : (*type)[axis];
  }
  std::vector<double> Numbers() const {
    std::vector<double> out;
    const bool box = schema.name() == "aten::as_strided";
    for (size_t a = 0; a < arguments.size(); ++a) {
      // A factory's "end" is a number (arange), a slice's a size.
      const c10::Argument& argument = schema.arguments()[a];
      const bool place = box && (argument.name() == "stride" || argument.name() == "storage_offset");
      if (place || argument.type()->kind() == c10::TypeKind::NumberType || !IsSizeOrKind(argument.name())) {
        AddNumbers(arguments[a], out);
      }
      for (const Operand& operand : operands) {
        if (operand.argument == static_cast<int>(a) && operand.number) out.push_back(*operand.number);
      }
    }
    return out;
  }
  // Whether the program gives a generator of its own, and not the default one of its device.
  bool has_generator() const {
    for (size_t a = 0; a < arguments.size(); ++a) {
      if (schema.arguments()[a].name() != "generator" || !arguments[a].isGenerator()) continue;
      const at::Generator generator = arguments[a].toGenerator();
      return generator != at::globalContext().defaultGenerator(generator.device());
    }
    return false;
  }
  // Of an operator that drops elements among other things, as attention does: whether it drops none.
  bool drops_nothing() const {
    for (size_t a = 0; a < arguments.size(); ++a) {
      if (schema.arguments()[a].name() == "dropout_p") return arguments[a].isDouble() && arguments[a].toDouble() == 0;
    }
    return schema.name().find("attention") != std::string::npos;
  }
  // Of a BatchNorm: whether it is one in training.
  bool is_training() const {
    for (size_t a = 0; a < arguments.size(); ++a) {
      if (schema.arguments()[a].name() == "training") return arguments[a].isBool() && arguments[a].toBool();
    }
    return true;
  }
  bool is_slice() const { return schema.name() == "aten::slice" && !operands.empty() && !outputs.empty(); }
  // dim, begin and step of a slice, counted from 0.
  std::array<int64_t, 3> Slice() const {
    const auto given = [&](size_t a, int64_t otherwise) {
      if (a >= arguments.size() || arguments[a].isNone()) return otherwise;
      const c10::IValue& value = arguments[a];
      return value.isSymInt() ? value.toSymInt().guard_int(__FILE__, __LINE__) : value.toInt();
    };
    const auto dims = static_cast<int64_t>(operands[0].sizes.size());
    const int64_t dim = given(1, 0) < 0 ? given(1, 0) + dims : given(1, 0);
    const int64_t size = operands[0].sizes[static_cast<size_t>(dim)];
    const int64_t begin = given(2, 0) < 0 ? given(2, 0) + size : given(2, 0);
    return {dim, std::clamp<int64_t>(begin, 0, size), given(4, 1)};
  }
  // "aten::add(partial, replicate)"; with sizes "aten::add(partial [2,3], replicate [3])".
  std::string Signature(const std::string& name, size_t axis, bool sizes = false) const {
    std::string out = name + "(";
    for (size_t i = 0; i < operands.size(); ++i) {
      out += (i == 0 ? "" : ", ") + TypeOn(i, axis).ToString();
      for (size_t d = 0; sizes && d < operands[i].sizes.size(); ++d) {
        out.append(d == 0 ? " [" : ",").append(std::to_string(operands[i].sizes[d]));
      }
      if (sizes) out += operands[i].sizes.empty() ? " []" : "]";
    }
    return out + ")";
  }
};

struct OperatorChecker::Base {
  at::Tensor tensor;
  TensorType type;               // before the write
  std::optional<BoxInBase> box;  // the view's
  int64_t version = 0;
};

OperatorChecker::OperatorChecker(std::vector<CheckedAxis> axes, const RuleTable& rules)
    : axes_(std::move(axes)), rules_(rules) {}

OperatorChecker::~OperatorChecker() = default;

void OperatorChecker::SetGroup(const c10d::ProcessGroup* group, MeshAxis axis) { groups_.emplace_back(group, axis); }

void OperatorChecker::CompareMade(MeshAxis axis, MadeAlone made, SummedAlone summed) {
  made_axis_ = AxisIndex(axis);
  made_alone_ = std::move(made);
  summed_alone_ = std::move(summed);
}

bool OperatorChecker::TakesSizes(std::string_view base) {
  constexpr std::array<std::string_view, 23> kNames = {
      "ones",     "convolution",       "zeros",         "full",
      "empty",    "empty_strided",     "new_ones",      "new_zeros",
      "new_full", "new_empty",         "slice",         "narrow",
      "expand",   "new_empty_strided", "view",          "_unsafe_view",
      "reshape",  "_reshape_alias",    "split",         "split_with_sizes",
      "repeat",   "select_backward",   "slice_backward"};
  return std::ranges::find(kNames, base) != kNames.end();
}

int OperatorChecker::AxisOfGroup(const Call& call) const {
  for (size_t a = 0; a < call.arguments.size(); ++a) {
    if (call.schema.arguments()[a].name() != "process_group") continue;
    const auto group = call.arguments[a].toCustomClass<c10d::ProcessGroup>();
    const auto found = std::ranges::find(groups_, group.get(), [](const auto& known) { return known.first; });
    if (found != groups_.end()) return AxisIndex(found->second);
  }
  return -1;
}

void OperatorChecker::SetLeaf(const at::Tensor& tensor, TensorType type) {
  Check(type.size() == axes_.size(), "the type does not have one entry for each checked axis");
  if (!leaves_.insert_or_assign(tensor.unsafeGetTensorImpl(), std::move(type)).second) return;
  leaf_places_.emplace(tensor.unsafeGetTensorImpl(), static_cast<int64_t>(kept_leaves_.size()));
  kept_leaves_.push_back(tensor);
}

Source OperatorChecker::SourceNow(const at::Tensor& tensor) const {
  if (!observer_) return {};
  const auto leaf = leaf_places_.find(tensor.unsafeGetTensorImpl());
  if (leaf != leaf_places_.end()) return {-1 - leaf->second, static_cast<int64_t>(leaves_.size())};
  return SourceOf(tensor);
}

TensorType OperatorChecker::Get(const at::Tensor& tensor) const {
  if (const auto leaf = leaves_.find(tensor.unsafeGetTensorImpl()); leaf != leaves_.end()) return leaf->second;
  const TensorType* type = WrittenApart(tensor) ? nullptr : TypeOf(tensor);
  return type != nullptr && type->size() == axes_.size() ? *type : TensorType(axes_.size());
}

Layout LayoutAlong(const Layout& layout, AxisFactor factor) {
  constexpr int kSequence = 1;
  if (factor == AxisFactor::kBoth || !layout.is_shard()) return layout;
  if (factor == AxisFactor::kOuter && !layout.zigzag && layout.inner > 1) return Layout::Zigzag(kSequence);
  Layout out = layout;
  out.inner = 1;
  if (factor == AxisFactor::kInner) out.zigzag = false;
  return out;
}

std::vector<size_t> OperatorChecker::IndicesOf(MeshAxis axis) const {
  std::vector<size_t> out;
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (axes_[i].axis == axis) out.push_back(i);
  }
  return out;
}

int OperatorChecker::AxisIndex(MeshAxis axis) const {
  const auto found = std::ranges::find(axes_, axis, &CheckedAxis::axis);
  return found == axes_.end() ? -1 : static_cast<int>(found - axes_.begin());
}

// What was made before the scope and has no gradient to lose. Any tensor without a type comes here when an operator
// first reads it; what follows separates constants from results whose type was lost:
//   has a type of this scope         typed already, or void since its memory was written to: nothing to assume
//   has a gradient and is no leaf    made by operators that this scope did not see: it stays unproven
//   else                             rotary tables, masks, scalars: the same on every rank
// Equal on every tp rank is the only useful assumption: a host that made them differently by rank would break an
// unsharded model too. Over data-parallel ranks both readings are common (a constant, or rows of this rank's batch),
// hence `outside`.
bool OperatorChecker::Assume(const at::Tensor& tensor, const TensorType* known) {
  // A constant of the host that a scope on another mesh has seen comes with that scope's type.
  if (known == nullptr && tensor.unsafeGetTensorImpl()->get_backend_meta() != nullptr) return false;
  // A leaf that needs a gradient and is no parameter is an input of the host's; any other has lost its type on the way.
  if (tensor.requires_grad() && !tensor.is_leaf()) return false;
  ++assumed_;
  TensorType type;
  for (const CheckedAxis& axis : axes_) {
    const bool own = IsDataAxis(axis.axis) && tensor.dim() > 0;
    type.push_back(own ? AxisType::Outside() : AxisType::Replicate());
  }
  NoteHostTensor(tensor, type);
  SetType(tensor, std::move(type));
  return true;
}

void OperatorChecker::NoteHostTensor(const at::Tensor& tensor, TensorType& type) const {
  const ModulePath::Place place = path_.Here();
  if (host_tensor_observer_) host_tensor_observer_(place.path, place.backward, tensor.sizes());
  if (!made_alone_ || made_axis_ < 0) return;
  const auto* const alone = made_alone_(place.path, place.backward, kHostTensor);
  if (alone == nullptr) return;
  const uint64_t local =
      LocalDims(tensor.sizes(), alone->front(), axes_[static_cast<size_t>(made_axis_)].ranks, shard_lengths_);
  if (local == 0) return;
  AxisType& here = type[static_cast<size_t>(made_axis_)];
  here = AxisType::Uniform(tensor.dim());
  here.unwritten = true;
  here.local = local;
}

// What a region makes is what it says in the end; until then nothing. A region's result may have been an operand's
// storage before (an all-reduce in place): without this the type from before the region would still be on it.
void OperatorChecker::MakeVoid(const c10::Stack& stack, size_t results) const {
  for (size_t r = 0; r < std::min(results, stack.size()); ++r) {
    ForEachTensor(stack[stack.size() - 1 - r], [&](const at::Tensor& tensor, int) {
      if (!leaves_.contains(tensor.unsafeGetTensorImpl())) SetType(tensor, TensorType(axes_.size()));
    });
  }
}

// The key is the schema's address: a dispatcher keeps one schema for each overload as long as the operator is
// registered, so neither a string is built nor hashed for an operator that ran before.
//
// A rule is found by the name without overload, in order: as it is ("copy_" has one of its own), without the
// underscore of operators in place (add_ computes what add does, and its result is its first argument), then by ATen's
// tag `pointwise`. The tag comes last because it says that elements are computed by themselves and nothing of
// linearity: add and exp both have it, and only one of them may see terms of a sum.
const OperatorChecker::Entry& OperatorChecker::EntryOf(const c10::OperatorHandle& op) {
  const auto [at, fresh] = entries_.try_emplace(&op.schema());
  if (!fresh) return at->second;
  Entry& entry = at->second;
  const std::string& name = op.schema().name();
  const std::string& overload = op.schema().overload_name();
  entry.name = overload.empty() ? name : name + "." + overload;
  const std::string plain = WithoutUnderscore(name);
  entry.base = plain.substr(plain.rfind(':') + 1);
  entry.writes = plain != name;
  entry.rule = rules_.Find(name);
  if (entry.rule == nullptr) entry.rule = rules_.Find(plain);
  if (entry.rule == nullptr && op.hasTag(at::Tag::pointwise)) entry.rule = &RuleTable::AnyPointwise();
  const auto is = [&](const char* base) { return entry.base == base; };
  entry.counts = is("nonzero") || is("masked_select") || is("_unique") || is("_unique2") || is("unique_consecutive") ||
                 is("unique_dim") || is("bincount") || is("repeat_interleave");
  entry.into_places = is("index_add") || is("index_put") || is("_index_put_impl") || is("index_copy") ||
                      is("scatter") || is("scatter_add") || is("scatter_reduce") || is("masked_scatter") ||
                      is("copy") || is("embedding_dense_backward");
  entry.copies = is("copy") || is("clone") || is("_to_copy");
  entry.keeps_copies = is("expand") || is("unsqueeze") || is("squeeze") || is("transpose") || is("permute") ||
                       is("clone") || is("_to_copy") || is("detach") || is("alias") || is("contiguous");
  entry.keeps_features = is("clone") || is("_to_copy") || is("detach") || is("alias") || is("contiguous") ||
                         is("slice") || is("narrow") || is("split") || is("split_with_sizes") || is("cat");
  entry.adds_features = is("add") || is("slice_backward");
  entry.overwrites =
      entry.writes && (is("copy") || is("zero") || is("fill") || is("uniform") || is("normal") || is("random") ||
                       is("bernoulli") || is("exponential") || is("cauchy") || is("log_normal") || is("geometric"));
  entry.strided = is("as_strided");
  entry.random = op.hasTag(at::Tag::nondeterministic_seeded);
  entry.draws = entry.random;
  entry.collective = name.starts_with("c10d::");
  entry.of_gradients = entry.base.find("_backward") != std::string::npos || is("_trilinear");
  entry.splits_apart = is("unsafe_split") || is("unsafe_split_with_sizes");
  entry.puts_back = is("select_backward") || is("slice_backward");
  entry.takes_sizes = TakesSizes(entry.base);
  entry.reads_sizes = !entry.writes && (entry.base.ends_with("_like") || entry.base.starts_with("new_"));
  entry.unwritten = entry.base.find("empty") != std::string::npos;
  entry.returns = op.schema().returns().size();
  const c10::AliasInfo* const alias = entry.returns == 0 ? nullptr : op.schema().returns()[0].alias_info();
  entry.views = !entry.writes && alias != nullptr && !alias->isWrite();
  return entry;
}

// All that a rule reads of the operands is copied before the kernel runs: an operator in place changes its argument,
// one that resizes it changes its sizes, and both may replace the metadata in which the type lies (`kept` holds a
// reference). Arguments that hold tensors are None in the list of plain arguments: a rule has them as operands. The
// results' sizes are those of this rank, real or meta.
//
// An error of the kernel is often the first sign of a wrong layout (sizes that do not fit). It is recorded with the
// layouts of the operands, as an error message of LibTorch has none, and thrown on: the step cannot continue.
void OperatorChecker::Handle(const c10::OperatorHandle& op, c10::Stack& stack, Next& next) {
  const Entry& entry = EntryOf(op);
  if (!regions_.empty()) {
    next.Run();
    MakeVoid(stack, entry.returns);
    return;
  }
  Call call{op.schema(), {}, {}, {}, {}, {}, path_.Here()};
  ++operators_;
  backward_operators_ += call.place.backward ? 1 : 0;
  const size_t count = call.schema.arguments().size();
  call.arguments.reserve(count);
  std::optional<Base> base;
  for (size_t a = 0; a < count; ++a) {
    const c10::IValue& value = stack[stack.size() - count + a];
    ForEachTensor(value, [&](const at::Tensor& tensor, int place) {
      Operand& operand = call.operands.emplace_back();
      bool assumed = false;
      operand.split = SplitOf(tensor);
      if (const auto leaf = leaves_.find(tensor.unsafeGetTensorImpl()); leaf != leaves_.end()) {
        operand.type = &leaf->second;
      } else if (!WrittenApart(tensor)) {
        operand.type = TypeOf(tensor);
        if (operand.type == nullptr && tensor.unsafeGetTensorImpl()->get_backend_meta() != nullptr) {
          RenewView(tensor);
          operand.type = TypeOf(tensor);
        }
        if (operand.type == nullptr || operand.type->size() != axes_.size()) {
          assumed = Assume(tensor, operand.type);
          operand.type = assumed ? TypeOf(tensor) : nullptr;
        }
        if (operand.type != nullptr) operand.kept = tensor.unsafeGetTensorImpl()->get_backend_meta_intrusive_ptr();
      }
      if (!call.place.backward) operand.source = SourceNow(tensor);
      const c10::AliasInfo* const alias = call.schema.arguments()[a].alias_info();
      const bool in_place = entry.writes && a == 0 && !entry.overwrites && !entry.into_places && !entry.random;
      operand.of_host = IsHostMemory(tensor);
      const bool reads_host_memory = operand.of_host && (alias == nullptr || !alias->isWrite() || in_place) &&
                                     !entry.views && !entry.reads_sizes && !entry.copies;
      const bool is_number = tensor.unsafeGetTensorImpl()->is_wrapped_number();
      const bool is_read = is_number || entry.base == "_local_scalar_dense";
      if (is_read || (observer_ && (assumed || reads_host_memory))) operand.number = NumberIn(tensor);
      operand.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
      if (entry.strided) operand.strides.assign(tensor.strides().begin(), tensor.strides().end());
      if (entry.writes && call.operands.size() == 1) base = BaseOf(tensor);
      operand.argument = static_cast<int>(a);
      operand.place = place;
      operand.needs_gradient = !tensor.is_inference() && tensor.requires_grad();
      operand.storage = StorageOf(tensor);
      operand.tensor = tensor.unsafeGetTensorImpl();
      operand.version = VersionOf(tensor);
      operand.dtype = tensor.scalar_type();
    });
    call.arguments.push_back(HoldsTensors(value) ? c10::IValue() : value);
  }
  if (entry.draws && !call.place.backward) CheckGenerator();
  try {
    next.Run();
  } catch (const c10::Error& error) {
    const std::string& text = error.msg();
    std::shared_ptr<const std::string> since;
    for (size_t i = 0; i < call.operands.size() && since == nullptr; ++i) since = call.TypeOn(i, 0).since;
    Blame({TypeFault::Kind::kThrew, call.place.path, call.place.backward, FirstAxis(),
           call.Signature(entry.name, 0, /*sizes=*/true),
           "the operator itself fails: " + text.substr(0, text.find('\n')), "", "", since ? *since : ""});
    throw;
  }
  if (entry.random && generator_ && !call.place.backward) generator_ = GeneratorNow();
  drew_ = drew_ || (entry.draws && !call.drops_nothing());
  const size_t results = std::min(entry.returns, stack.size());
  for (size_t r = 0; r < results; ++r) {
    ForEachTensor(stack[stack.size() - results + r], [&](const at::Tensor& tensor, int) {
      call.outputs.push_back(tensor);
      call.products.emplace_back().sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
    });
  }
  Judge(entry, call);
  if (base && !call.types.empty()) JudgeBase(*base, call);
}

// Autograd names one base for all views of it, views of views included, and one counter of writes. A write makes the
// types of the base and of all its views void; the base gets a new one here, and a view gets one from it when it is
// next used. Where one axis has none they stay without a type, which is noted when they are used.
std::optional<OperatorChecker::Base> OperatorChecker::BaseOf(const at::Tensor& view) const {
  if (view.is_inference() || !view.is_view()) return std::nullopt;
  const at::Tensor tensor(view._base());
  const TensorType* type = WrittenApart(tensor) ? nullptr : TypeOf(tensor);
  if (type == nullptr || type->size() != axes_.size() || leaves_.contains(tensor.unsafeGetTensorImpl())) {
    return std::nullopt;
  }
  return Base{tensor, *type, FindBox(view.sizes(), view.strides(), tensor.sizes(), tensor.strides()),
              VersionOf(tensor)};
}

void OperatorChecker::JudgeBase(const Base& base, const Call& call) const {
  TensorType type;
  for (size_t axis = 0; axis < axes_.size(); ++axis) {
    type.push_back(
        AfterWrite(base.type[axis], base.tensor.dim(), call.types[0][axis], base.box ? &*base.box : nullptr));
    if (type.back().is(TypeKind::kUnproven)) return;
  }
  SetType(base.tensor, std::move(type), base.version, /*rises=*/true);
  SetHostMemory(base.tensor, false);
}

void OperatorChecker::RenewView(const at::Tensor& view) const {
  const std::optional<Base> base = BaseOf(view);
  if (!base) return;
  TensorType type;
  for (const AxisType& axis : base->type) {
    type.push_back(TypeInBase(axis, base->box ? &*base->box : nullptr));
    if (type.back().is(TypeKind::kUnproven)) return;
  }
  SetType(view, std::move(type));
  SetHostMemory(view, IsHostMemory(base->tensor));
}

// Chunks of unsafe_split are no views of what was split, and autograd leaves it to the program not to use that again.
// Noted is, of each such memory, which tensors were written into since: the one that was split, with its views, or the
// chunks of a call, of which each counts its own writes and none has elements of another.
void OperatorChecker::NoteSplits(const Entry& entry, const Call& call) {
  if (entry.splits_apart && !call.operands.empty() && !call.outputs.empty() && call.outputs[0].has_storage()) {
    const auto [at, fresh] =
        split_.try_emplace(call.operands[0].storage, SplitMemory{call.outputs[0].storage().getWeakStorageImpl(), {}});
    // An address is not used again while it is known here.
    if (fresh && split_.size() > split_pruned_at_) {
      std::erase_if(split_, [](const auto& one) { return one.second.storage.expired(); });
      split_pruned_at_ = std::max<size_t>(64, 2 * split_.size());
    }
  }
  if (!entry.writes || split_.empty()) return;
  for (const Operand& operand : call.operands) {
    if (operand.argument != 0) break;
    const auto found = split_.find(operand.storage);
    if (found != split_.end()) found->second.written.insert(operand.split);
  }
}

bool OperatorChecker::WrittenApart(const at::Tensor& tensor) const {
  if (split_.empty()) return false;
  const auto found = split_.find(StorageOf(tensor));
  if (found == split_.end()) return false;
  const int64_t own = SplitOf(tensor);
  return std::ranges::any_of(found->second.written, [&](int64_t split) { return split != own; });
}

// The version under which a result gets its type. Handlers run below the key that keeps versions, so at this point a
// write in place has not been counted yet and a new view does not yet share the counter of what it is a view of. Both
// will be so when the operator returns. A result in an operand's storage therefore takes the operand's version from
// before, and `rises` accepts one more write, the operator's own; a second write by anyone makes the type void.
// Without it every result of add_ would lose its type at once; with any later version accepted, a write through an
// alias would go unnoticed.
void OperatorChecker::Judge(const Entry& entry, Call& call) {
  call.types.assign(call.outputs.size(), TensorType(axes_.size()));
  if (entry.takes_sizes && made_alone_) call.alone = made_alone_(call.place.path, call.place.backward, entry.name);
  for (size_t axis = 0; axis < axes_.size(); ++axis) {
    JudgeAxis(entry, call, axis);
    if (IsDataAxis(axes_[axis].axis) && !call.place.backward) FollowRows(entry, call, axis);
    if (entry.draws) CheckDraws(entry, call, axis);
  }
  bool computes = !entry.copies;
  splits_ += entry.splits_apart ? 1 : 0;
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    const at::Tensor& output = call.outputs[i];
    int64_t version = -1;
    bool rises = false;
    const void* storage = StorageOf(output);
    // The operand that the result is, else the last one in its memory: chunks of one memory may count their own writes.
    const Operand* of = nullptr;
    for (const Operand& operand : call.operands) {
      if (storage == nullptr || operand.storage != storage) continue;
      computes = computes && entry.writes;
      if (of == nullptr || of->tensor != output.unsafeGetTensorImpl()) of = &operand;
    }
    if (of != nullptr) {
      version = of->version;  // a view counts the writes of what it is a view of
      rises = entry.writes;
    }
    if (leaves_.contains(output.unsafeGetTensorImpl())) continue;
    SetType(output, call.types[i], version, rises);
    SetHostMemory(output, KeepsHostMemory(entry, call));
    if (observer_) SetSource(output, {operators_, static_cast<int64_t>(i)});
    if (of != nullptr || entry.splits_apart) SetSplit(output, entry.splits_apart ? splits_ : of->split);
  }
  NoteSplits(entry, call);
  if (!observer_) return;
  const std::optional<int64_t> begin = FullBegin(entry, call);
  const auto numbers = [&call, begin] {
    if (!call.is_slice()) return call.Numbers();
    const auto [dim, here, step] = call.Slice();
    return std::vector<double>{static_cast<double>(dim), static_cast<double>(begin.value_or(here)),
                               static_cast<double>(step)};
  };
  c10::SmallVector<Source, 6> sources;
  for (size_t k = 0; k < call.operands.size() && !call.place.backward; ++k) sources.push_back(call.operands[k].source);
  observer_({call.place.path, call.place.backward, entry.name, computes,
             entry.counts || entry.base == "_local_scalar_dense", call.outputs, call.types, numbers,
             call.operands.empty() ? at::IntArrayRef() : at::IntArrayRef(call.operands[0].sizes), begin.has_value(),
             entry.draws && !call.drops_nothing(), operators_, sources});
}

// What a rank draws for its shards it draws from its own stream, and what all ranks have from the common one. A rank
// that has no elements draws nothing: where others do, the common stream moves on after the call on those alone
// (RandomStreams::End), so that shards must be known to have elements on every rank. A generator of the program is
// seeded alike on the ranks, and knows no streams. In a backward the streams are those of its place: the common one,
// or, in a part that is recomputed, that of the forward.
void OperatorChecker::CheckDraws(const Entry& entry, Call& call, size_t axis) {
  const MeshAxis drawn_on = axes_[axis].axis;
  if (call.types.empty() || (drawn_on != MeshAxis::kTp && drawn_on != MeshAxis::kCp)) return;
  const AxisType& made = call.types[0][axis];
  if (!made.is_known() || call.drops_nothing()) return;
  const bool own = !call.has_generator() && draws_own_ && draws_own_();
  const bool alike = made.is_replicate() || made.is_partial();
  const auto on_every_rank = [](const IndexMap& map) {
    for (int64_t rank = 0; rank < map.ranks(); ++rank) {
      if (map.length(rank) == 0) return false;
    }
    return true;
  };
  const char* why = nullptr;
  if (drawn_on == MeshAxis::kCp) {
    if (!alike) why = "the ranks of cp draw the same random numbers for their own tokens";
  } else if (!draws_own_) {
    return;
  } else if (made.is_shard() && made.map != nullptr && made.map->shared()) {
    why = "random numbers for a shard of which several ranks hold the same elements";
  } else if (!alike && !own) {
    why =
        "the ranks of tp draw the same random numbers for their shards: the plan declares full tensors where the "
        "forward "
        "draws";
  } else if (!alike && (made.map == nullptr || made.by_value || !on_every_rank(*made.map))) {
    why = "a rank that has none of the elements would draw nothing, and then other common numbers than the others";
  } else if (alike && static_cast<int>(axis) == made_axis_ && call.alone != nullptr && !call.alone->empty() &&
             at::IntArrayRef(call.alone->front()) != at::IntArrayRef(call.products[0].sizes)) {
    why =
        "random numbers of other sizes than with one rank: for the elements of a shard draw them like that tensor "
        "(rand_like, empty_like)";
  } else if (alike && own) {
    why =
        "each rank of tp draws other random numbers for values that all ranks have: the plan declares shards where the "
        "forward draws";
  }
  if (why == nullptr) return;
  NoteUnproven(entry.name + ": " + why);
  for (TensorType& type : call.types) {
    const bool by_value = type[axis].by_value;
    type[axis] = AxisType::Of(TypeKind::kUnproven);
    type[axis].by_value = by_value;
  }
}

// Of the generator from which operators of the CPU draw: whatever moves it changes one of these.
OperatorChecker::GeneratorState OperatorChecker::GeneratorNow() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  at::CPUGeneratorImpl& cpu = *at::check_generator<at::CPUGeneratorImpl>(generator);
  const std::lock_guard lock(cpu.mutex_);
  const at::mt19937_data_pod data = cpu.engine().data();
  return {data.seed_, data.left_, data.next_, data.state_.front(), data.state_.back()};
}

void OperatorChecker::CheckGenerator() {
  if (!generator_ || *generator_ == GeneratorNow()) return;
  NoteUnproven(
      "the forward itself seeds a generator or draws from it, outside of operators: what the ranks draw is not "
      "followed");
}

void OperatorChecker::BeginCall() {
  if (!path_.Here().backward && shares_generator_) generator_ = GeneratorNow();
}

void OperatorChecker::EndCall() {
  if (!path_.Here().backward) CheckGenerator();
  generator_.reset();
}

OfBatch OperatorChecker::FollowedScale(const Call& call, size_t axis, const AxisType& made, size_t i) const {
  c10::SmallVector<AxisType, 6> types;
  for (size_t k = 0; k < call.operands.size(); ++k) types.push_back(call.TypeOn(k, axis));
  const Entry& entry = entries_.at(&call.schema);
  const Operands operands(entry.base, call.schema, call.operands, types, call.arguments, call.products);
  return FollowBatch(operands, i, made, [this](double number) { return IsRowCount(number); });
}

// A buffer keeps the layout that it was given, whatever is written into it (SetLeaf), so that what a write makes of it
// is noted here and judged with the loss, which may have read the buffer before: the next step reads what this one
// writes.
void OperatorChecker::FollowRows(const Entry& entry, Call& call, size_t axis) {
  for (size_t i = 0; i < call.types.size(); ++i) {
    AxisType& type = call.types[i][axis];
    type.batch = FollowedScale(call, axis, type, i);
  }
  const auto written = [&](const void* storage) {
    const auto buffer = buffer_of_.find(storage);
    if (buffer == buffer_of_.end()) return;
    Buffer& noted = buffers_[buffer->second];
    if (!noted.written.empty()) return;
    noted.written = entry.name;
    noted.where = call.place.path;
  };
  const bool follows_rows = !call.types.empty() && (!call.types[0][axis].is_replicate() || call.types[0][axis].outside);
  if (entry.writes && follows_rows && !call.operands.empty()) written(call.operands[0].storage);
  if (entry.base.find("batch_norm") != std::string::npos && follows_rows) {
    for (const Operand& operand : call.operands) {
      const std::string& argument = call.schema.arguments()[static_cast<size_t>(operand.argument)].name();
      const bool statistic = argument == "running_mean" || argument == "running_var";
      if (statistic && call.is_training()) written(operand.storage);
    }
  }
  if (entry.base != "_local_scalar_dense" || call.operands.empty()) return;
  const OfBatch read = BatchOf(call.TypeOn(0, axis));
  read_into_loss_ = Union(read_into_loss_, read.buffers);
  if (!read.is(BatchScale::kConstant) && call.operands[0].number) row_counts_.insert(*call.operands[0].number);
}

bool OperatorChecker::KeepsHostMemory(const Entry& entry, const Call& call) {
  if (entry.unwritten) return true;
  if (call.operands.empty()) return false;
  if (entry.overwrites) return entry.copies && call.operands.back().of_host;
  return call.operands.front().of_host && (entry.views || (entry.copies && !entry.writes));
}

// The rule has seen to it that the elements are an interval of the full dim, or every `step`th one of it.
std::optional<int64_t> OperatorChecker::FullBegin(const Entry& entry, const Call& call) const {
  if (made_axis_ < 0 || call.place.backward || !entry.views || !call.is_slice()) return std::nullopt;
  const AxisType& type = call.TypeOn(0, static_cast<size_t>(made_axis_));
  const auto [dim, begin, step] = call.Slice();
  if (!type.is_shard() || type.dim != dim || type.map == nullptr) return std::nullopt;
  const int64_t size = call.operands[0].sizes[static_cast<size_t>(dim)];
  if (size == 0 || type.map->length(axes_[static_cast<size_t>(made_axis_)].rank) != size) return std::nullopt;
  if (step != 1) return begin;
  if (call.products[0].sizes[static_cast<size_t>(dim)] == size) return 0;
  std::optional<int64_t> first;
  for (int64_t rank = 0; rank < type.map->ranks(); ++rank) {
    int64_t place = begin;
    const std::vector<Interval>& held = type.map->of(rank);
    size_t i = 0;
    for (; i < held.size() && place >= held[i].length; ++i) place -= held[i].length;
    if (i == held.size()) return std::nullopt;
    const int64_t index = held[i].begin + place;
    first = std::min(first.value_or(index), index);
  }
  return first;
}

namespace {
// Rows of tokens, and not weights: the number of rows depends on the routing.
bool IsRows(const Operands& o, size_t i) {
  return o.type(i).is(TypeKind::kRouted) && o.type(i).by_value && at::isFloatingType(o.dtype(i)) && o.dims(i) > 0;
}

// Whether a reduction, an operator along a dim or a transposition concerns dim 0 of its first operand.
bool ConcernsRows(const Operands& o) {
  const auto is_rows = [&](int64_t dim) { return dim == 0 || dim + o.dims(0) == 0; };
  bool named = false;
  for (const char* name : {"dim", "dims", "dim0", "dim1"}) {
    const size_t a = o.Named(name);
    if (a >= o.arguments() || o.argument(a).isNone()) continue;
    named = true;
    if (o.argument(a).isInt() && is_rows(o.Int(a))) return true;
    const std::vector<int64_t> dims = o.argument(a).isIntList() ? o.Ints(a) : std::vector<int64_t>();
    const bool moved = o.name() == "permute" && !dims.empty() && !is_rows(dims.front());
    if (moved || (o.name() != "permute" && std::ranges::any_of(dims, is_rows))) return true;
  }
  return !named;
}

// In a forward, whether an operator makes an element of several rows, which may be those of several experts: on another
// number of ranks they would be others.
bool MixesRows(const Operands& o) {
  constexpr std::array kAlong = {"sum",
                                 "mean",
                                 "amax",
                                 "amin",
                                 "prod",
                                 "logsumexp",
                                 "max",
                                 "min",
                                 "aminmax",
                                 "median",
                                 "var",
                                 "std",
                                 "var_mean",
                                 "std_mean",
                                 "norm",
                                 "linalg_vector_norm",
                                 "_softmax",
                                 "_safe_softmax",
                                 "_log_softmax",
                                 "cumsum",
                                 "cumprod",
                                 "logcumsumexp",
                                 "sort",
                                 "topk",
                                 "argsort",
                                 "transpose",
                                 "t",
                                 "permute"};
  constexpr std::array kBatches = {"native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update",
                                   "cudnn_batch_norm", "batch_norm"};
  constexpr std::array kProducts = {"mm", "bmm", "addmm", "baddbmm", "mv", "dot", "_foreach_norm"};
  const auto among = [&](const auto& names) { return std::ranges::find(names, o.name()) != names.end(); };
  size_t rows = 0;
  for (size_t i = 0; i < o.size(); ++i) rows += IsRows(o, i) ? 1 : 0;
  if (o.backward() || rows == 0) return false;
  if (among(kBatches) || o.name().starts_with("_scaled_dot_product")) return true;
  if (among(kProducts)) return rows > 1;
  return IsRows(o, 0) && among(kAlong) && ConcernsRows(o);
}

}  // namespace

// Each rank computes with its own experts and with the rows that were sent to them, which no other rank has: whatever
// the operator is, its result is a part of that, if no other operand differs between ranks. Where a term of a sum over
// the ranks is added (the gradient of a parameter that experts and the tokens of the batch use, a loss of weights), it
// is not known whether the sum would be right.
AxisType OperatorChecker::OfRouted(const Entry& entry, Operands& operands) {
  if (entry.collective) return operands.Unproven("a collective of rows of a rank's own experts");
  for (size_t i = 0; i < operands.size(); ++i) {
    const AxisType& type = operands.type(i);
    if (type.outside && operands.dims(i) > 0) {
      return operands.Unproven(
          "a tensor from outside of the step, which may be rows of the batch, meets rows of experts");
    }
    if (type.is(TypeKind::kRouted) || type.is_replicate()) continue;
    if (type.is_partial()) return operands.Unproven("a partial tensor is combined with what a rank's own experts have");
    return operands.Fault(
        "rows of a rank's own experts are combined with rows of the batch, which belong to other tokens; the results "
        "of experts return to the ranks of their tokens first");
  }
  if (MixesRows(operands)) return operands.Unproven("rows of several experts may be mixed");
  return AxisType::Of(TypeKind::kRouted);
}

AxisTypes OperatorChecker::Apply(const Entry& entry, const Call& call, size_t axis, Operands& operands) const {
  operands.SetSizesCompared(sizes_compared_.contains(axes_[axis].axis));
  operands.SetBackward(call.place.backward);
  operands.SetRanks(axes_[axis].ranks, axes_[axis].rank);
  const bool ambiguous =
      entry.base == "sum" && call.place.backward && !call.operands.empty() && operands.type(0).floating;
  if (ambiguous && summed_alone_ && static_cast<int>(axis) == made_axis_)
    operands.SetAlone(summed_alone_(call.place.path, entry.name));
  if (entry.collective && AxisOfGroup(call) < 0)
    return {operands.Unproven("the process group is not declared as a mesh axis (TypeOptions::groups)")};
  if (entry.collective && axes_[static_cast<size_t>(AxisOfGroup(call))].factor != AxisFactor::kBoth)
    return {operands.Unproven("the process group is that of an axis of two factors")};
  if (entry.collective && static_cast<size_t>(AxisOfGroup(call)) != axis) {
    // In place, each tensor keeps its layout on this axis; else the result has that of the input, the last operand.
    if (operands.products() == 1) return {operands.type(operands.size() - 1)};
    AxisTypes kept;
    for (size_t i = 0; i < operands.products(); ++i) kept.push_back(operands.type(i));
    return kept;
  }
  if (operands.Any(TypeKind::kRouted)) return {OfRouted(entry, operands)};
  for (size_t i = 0; i < operands.size() && !entry.collective; ++i) {
    if (operands.type(i).owner >= 0) return OfOwner(operands, "the ranks without elements make others of them");
  }
  if (const std::string why = LocalIndicesMisused(operands); !why.empty()) return {operands.Unproven(why)};
  if (entry.rule != nullptr) {
    AxisTypes made = (*entry.rule)(operands);
    SetLocalIndices(operands, made);
    return made;
  }
  if (operands.size() > 0 && !entry.random && operands.All(TypeKind::kReplicate)) {
    for (size_t i = 0; i < operands.size(); ++i) {
      if (operands.type(i).local != 0) return {operands.Unproven(std::string(RuleTable::kNoRuleForLocal))};
    }
    return {AxisType::Replicate()};
  }
  return {operands.Unproven("no rule")};
}

bool OperatorChecker::ReadsUnwritten(const Entry& entry, const AxisType& type, size_t i) {
  if (!type.unwritten || entry.views || entry.reads_sizes) return false;
  return i > 0 || !(entry.overwrites || entry.into_places);
}

// The sizes at one rank decide where they are known: of two dims that a view makes of one, and of the sizes that a
// program has computed. A view may have another counterpart than its own (prove/step_sizes.h), so that of a view they
// count only if they differ as a shard does.
void OperatorChecker::SetLocal(const Entry& entry, const Call& call, size_t axis, size_t i, AxisType& type) const {
  // A data-parallel rank is a step of its own.
  type.local &= type.is_replicate() && !IsDataAxis(axes_[axis].axis) ? type.uniform : 0;
  if (type.uniform == 0 || !type.is_replicate() || call.alone == nullptr || static_cast<int>(axis) != made_axis_)
    return;
  if (i >= call.alone->size() || (*call.alone)[i].size() != call.products[i].sizes.size()) return;
  // The gradient of a sum is as long as what was summed.
  const int64_t rank = entry.base == "expand" && call.place.backward ? axes_[axis].rank : -1;
  const uint64_t local = LocalDims(call.products[i].sizes, (*call.alone)[i], axes_[axis].ranks, shard_lengths_, rank);
  if (entry.views && local == 0) return;
  type.local = local & type.uniform;
}

void OperatorChecker::NoteShard(const AxisType& type, size_t axis) {
  if (!type.is_shard() || type.map == nullptr || type.map->ranks() != axes_[axis].ranks) return;
  has_owners_ = has_owners_ || (axes_[axis].axis == MeshAxis::kTp && type.map->owned());
  const int64_t own = type.map->length(axes_[axis].rank);
  if (static_cast<int>(axis) == made_axis_ && own != type.map->size()) shard_lengths_.emplace(own, type.map->size());
}

// A gradient that is expanded has the sizes of what the forward summed, and memory that the host fills is in no other
// operator's sizes: neither is compared with the step at one rank anywhere else.
bool OperatorChecker::HasUnknownLength(const Entry& entry, const Call& call, size_t axis, size_t i,
                                       const AxisType& type) const {
  const bool expands = call.place.backward && entry.base == "expand";
  const bool of_host = !call.place.backward && entry.unwritten;
  if (!(expands || of_host) || call.alone == nullptr || static_cast<int>(axis) != made_axis_) return false;
  if (!type.is_replicate() || type.zero || type.by_value || i >= call.alone->size()) return false;
  const std::vector<int64_t>& full = (*call.alone)[i];
  const auto& own = call.products[i].sizes;
  if (own.size() != full.size()) return of_host;
  for (size_t d = 0; d < own.size(); ++d) {
    const auto dim = static_cast<int64_t>(d);
    if (own[d] != full[d] && !type.local_along(dim) && (of_host || type.uniform_along(dim))) return true;
  }
  return false;
}

// The sum over a dim of one element is left out, and a view takes the dim away: with one rank the sum runs, and adds up
// what each rank has one of.
bool OperatorChecker::DropsLocalDim(const Entry& entry, c10::ArrayRef<AxisType> types, const AxisType& type) {
  return ChangesDims(entry.base) && !types.empty() && types[0].is_replicate() && types[0].local != 0 &&
         !types[0].zero && type.is_replicate() && type.local == 0;
}

// A transposed convolution without groups may be that of the one group which the rank has.
bool OperatorChecker::IsNoTerm(const Call& call, size_t axis, size_t i, const AxisType& type) const {
  if (call.place.backward || !type.is_partial() || call.alone == nullptr || static_cast<int>(axis) != made_axis_)
    return false;
  const auto& sizes = call.products[i].sizes;
  return i < call.alone->size() && call.schema.name() == "aten::convolution" &&
         at::IntArrayRef((*call.alone)[i]) != at::IntArrayRef(sizes);
}

// The gradient of values that are as long as a shard and equal along it (a parameter times ones_like of the shard),
// where the forward has taken one number of them and no sum: that of a mean, which is divided by the local length, or
// that of one element, with zeros around it on each rank. Its sum over the dim is the gradient of the number on each
// rank, and no term of it.
bool OperatorChecker::IsOfOneRank(const Entry& entry, const Call& call, size_t axis, size_t i,
                                  const AxisType& type) const {
  if (!call.place.backward || !type.is_replicate() || type.zero || static_cast<int>(axis) != made_axis_) return false;
  if (entry.base == "expand" && type.local != 0) {
    const std::shared_ptr<torch::autograd::Node> node = torch::autograd::get_current_node();
    return node != nullptr && node->name().starts_with("MeanBackward");
  }
  // Elements at indices are added to zeros that are as long as the shard.
  if (entry.base == "index_add" || entry.base == "index_put" || entry.base == "_index_put_impl" ||
      entry.base == "scatter_add") {
    const AxisType& zeros = call.TypeOn(0, axis);
    return zeros.is_replicate() && (zeros.local & ~type.local) != 0;
  }
  if (!entry.puts_back || call.alone == nullptr || i >= call.alone->size()) return false;
  const uint64_t local = LocalDims(call.products[i].sizes, (*call.alone)[i], axes_[axis].ranks, shard_lengths_);
  return (local & ~type.uniform) != 0;
}

// Gradients are often equal along a dim: a sum over it gives each element the same one. The rules of elementwise
// operators, products and views follow such elements, those of the backwards of one operator do not, and need not:
// equal elements that are as many as a shard has are that shard.
std::optional<AxisTypes> OperatorChecker::WithShards(const Call& call, std::span<AxisType> types,
                                                     const std::function<AxisTypes()>& apply,
                                                     const std::optional<Operands>& judged, AxisTypes made) {
  const auto lost = [](const AxisType& type) {
    return type.is_replicate() && (type.local & type.uniform) == 0 && !type.zero;
  };
  const bool refused = !judged->fault().empty();
  const bool lacks = judged->unproven() == RuleTable::kNoRuleForLocal;
  const bool local = std::ranges::any_of(types, [](const AxisType& type) { return type.local != 0; });
  if (!local || (!judged->unproven().empty() && !lacks)) return made;
  if (!refused && !lacks && std::ranges::none_of(made, lost)) return made;
  const c10::SmallVector<AxisType, 6> given(types.begin(), types.end());
  if (!TakeAsShards(call.operands, types)) {
    const bool values = std::ranges::any_of(types, [](const AxisType& type) { return type.local != 0 && !type.zero; });
    if (refused || lacks || !values) return made;
    return std::nullopt;
  }
  AxisTypes of_shards = apply();
  if (judged->fault().empty() && judged->unproven().empty()) return of_shards;
  std::ranges::copy(given, types.begin());
  made = apply();
  if (refused || lacks) return made;
  return std::nullopt;
}

// Whether an expand of the forward repeats a tensor as often as a shard is long, or a replicated one in another number
// that follows the ranks: a sum over the new dim would have fewer terms. In a backward the gradients tell.
bool OperatorChecker::IsRepeatedLocally(const Entry& entry, const Call& call, size_t axis, size_t i,
                                        const AxisType& type) const {
  if (entry.base != "expand" || call.place.backward || call.alone == nullptr || static_cast<int>(axis) != made_axis_)
    return false;
  // Heads that several ranks hold are repeated for the queries of each rank.
  const bool held_by_several = type.is_shard() && type.map != nullptr && type.map->shared();
  if (!(type.is_shard() || type.is_partial() || type.is_replicate()) || held_by_several || i >= call.alone->size())
    return false;
  const std::vector<int64_t>& full = (*call.alone)[i];
  const auto& sizes = call.products[i].sizes;
  const auto& from = call.operands[0].sizes;
  if (full.size() != sizes.size() || from.size() > sizes.size()) return false;
  const size_t added = sizes.size() - from.size();
  for (size_t d = 0; d < full.size(); ++d) {
    if (sizes[d] == 1 || (d >= added && from[d - added] != 1)) continue;
    const bool follows = type.is_replicate() ? sizes[d] != full[d] && !type.local_along(static_cast<int64_t>(d))
                                             : sizes[d] * axes_[axis].ranks == full[d];
    if (follows && !(type.is_replicate() && (type.zero || type.by_value))) return true;
  }
  return false;
}

// The order of the checks is that of what can be said at all. What follows from a fault is faulty and not reported
// again; what follows from something unknown is unknown. Only then a rule computes the result's type from known ones.
//
// The backward needs no second set of rules: autograd runs ordinary operators, with gradients typed by the same
// algebra. The gradient of a tensor that is used by sharded compute comes out partial, that of one used alike on every
// rank replicated, which `full` and `shared` record in the forward, where a mixture of both can still be named at its
// operator.
void OperatorChecker::JudgeAxis(const Entry& entry, Call& call, size_t axis) {
  c10::SmallVector<AxisType, 6> types;
  bool faulty = false;
  bool unproven = false;
  bool untyped = false;
  for (size_t i = 0; i < call.operands.size(); ++i) {
    types.push_back(call.TypeOn(i, axis));
    faulty = faulty || types.back().is(TypeKind::kFaulty);
    unproven = unproven || types.back().is(TypeKind::kUnproven);
    untyped = untyped || call.operands[i].type == nullptr;
    NoteShard(types.back(), axis);
  }
  bool by_value = entry.counts;
  for (size_t i = 0; i < types.size(); ++i) {
    if (entry.into_places && i > 0 && !types[i].is(TypeKind::kRouted)) break;
    by_value = by_value || types[i].by_value || (i > 0 && call.operands[i].is_mask() && entry.base == "index");
  }
  // Sizes follow values also where no layout is known.
  const auto fill = [&](TypeKind kind) {
    for (TensorType& type : call.types) {
      type[axis] = AxisType::Of(kind);
      type[axis].by_value = by_value;
    }
  };
  // What is overwritten without being read may be anything.
  if (entry.overwrites) {
    const bool source = types.size() > 1;
    faulty = source && types[1].is(TypeKind::kFaulty);
    unproven = source && types[1].is(TypeKind::kUnproven);
    untyped = source && call.operands[1].type == nullptr;
  }
  if (faulty) return fill(TypeKind::kFaulty);
  if (untyped && axis == 0) NoteUnproven(entry.name + " reads a tensor whose layout is not known");
  if (unproven) return fill(TypeKind::kUnproven);
  if (call.outputs.empty() && entry.rule == nullptr) return;

  // What may be rows of the batch or a constant can stand for any shard.
  const bool outside = std::ranges::any_of(types, &AxisType::outside);
  for (AxisType& type : types) {
    if (type.outside) type.uniform = ~uint64_t{0};
  }
  TakeAsTerms(call.operands, axes_[axis].rank, types);
  bool filled = false;
  for (size_t i = 0; i < types.size(); ++i) {
    if (!ReadsUnwritten(entry, types[i], i)) continue;
    filled = filled || types[i].local != 0;
    types[i].uniform = 0;
    types[i].local = 0;
    types[i].zero = false;
  }
  if (filled) {
    NoteUnproven(entry.name +
                 ": the elements of a tensor that the host has filled, which is as long as a shard, are not known");
    return fill(TypeKind::kUnproven);
  }
  std::optional<Operands> judged;
  const auto apply = [&] {
    judged.emplace(entry.base, call.schema, call.operands, types, call.arguments, call.products);
    return Apply(entry, call, axis, *judged);
  };
  AxisTypes made = apply();
  if (entry.of_gradients && call.place.backward) {
    std::optional<AxisTypes> of_shards = WithShards(call, types, apply, judged, std::move(made));
    if (!of_shards) {
      NoteUnproven(entry.name + ": no rule for a gradient of equal elements that is as long as a shard");
      return fill(TypeKind::kUnproven);
    }
    made = *std::move(of_shards);
  }
  // A shard of one element between two dims that were joined around it can belong to either, and so can a row of one
  // shard:
  // a view cannot tell, the operator that uses it can. The fault is that of the first guess where no guess fits.
  if (!judged->fault().empty()) {
    bool moved = false;
    const bool compared = sizes_compared_.contains(axes_[axis].axis);
    const bool terms =
        call.place.backward && (entry.base == "expand" || std::ranges::any_of(types, &AxisType::is_partial));
    for (size_t i = 0; i < types.size() && !judged->fault().empty(); ++i) {
      const AxisType guessed = types[i];
      const at::IntArrayRef sizes = call.operands[i].sizes;
      while (!judged->fault().empty() && MoveToNextReading(types[i], sizes, compared, terms)) {
        moved = true;
        made = apply();
      }
      if (!judged->fault().empty()) types[i] = guessed;
    }
    if (moved && !judged->fault().empty()) made = apply();
    // What follows from a guess is one.
    for (AxisType& type : made) type.floating = type.floating || (moved && judged->fault().empty());
    // A gradient that is terms of it has no map.
    if (!judged->fault().empty() && std::ranges::any_of(types, &AxisType::is_whole)) {
      for (AxisType& type : types) type = type.is_whole() ? AxisType::Shared() : type;
      made = apply();
    }
    if (!judged->fault().empty() && std::ranges::any_of(types, &AxisType::floating)) {
      one_element_ = true;
      NoteUnproven(entry.name +
                   ": the sharded dim of shards of one element is ambiguous; prove the step with more than one element "
                   "per rank");
      return fill(TypeKind::kUnproven);
    }
  }
  // Along the dim of a shard with an owner, the owner computes as one rank does.
  const bool refused = !judged->fault().empty() || !judged->unproven().empty();
  if (refused && judged->suggested_fix() != SuggestedFix::kAddBiasAfter) {
    if (AsOfOwner(*judged, types)) {
      made = apply();
    } else if (MeetsTermsElsewhere(*judged, types)) {
      NoteUnproven(entry.name + ": terms of a sum meet a shard that another rank owns");
      return fill(TypeKind::kUnproven);
    }
  }
  Operands& operands = *judged;
  std::string fault = operands.fault();
  SuggestedFix suggested_fix = operands.suggested_fix();
  if (fault.empty()) fault = MixedMisused(entry, call, types);
  if (fault.empty()) {
    fault = FullMisused(entry, call, types);
    suggested_fix = SuggestedFix::kShare;
  }
  // Which of the two it is would decide whether this is wrong. Rows of experts may meet both of them.
  const bool routed = std::ranges::any_of(types, [](const AxisType& type) { return type.is(TypeKind::kRouted); });
  if (!fault.empty() && outside && !routed) return fill(TypeKind::kVarying);
  // No plan shards what a data-parallel rank computes: each is a step of its own, on its own rows. What mixes those (a
  // sort of its tokens) makes values of its own, whose gradients are terms as all of them are. A sum over its rows that
  // has a gradient is a loss, or on the way to one; what has none counts something.
  const bool counts_alone = std::ranges::none_of(call.operands, &Operand::needs_gradient);
  // A loss may add constants to a mean over the rank's rows, or divide a sum over them by a number that counts them. No
  // layout describes the result; how its gradients may be reduced is followed beside the layouts.
  const bool of_rows = IsDataAxis(axes_[axis].axis) && !entry.collective && !routed && !call.place.backward &&
                       std::ranges::any_of(types, &AxisType::is_partial) && !counts_alone;
  if (of_rows && !fault.empty() && IsScaled(FollowedScale(call, axis, AxisType::Of(TypeKind::kVarying), 0)))
    return fill(TypeKind::kVarying);
  const bool own_step = IsDataAxis(axes_[axis].axis) && !entry.collective && !routed &&
                        (call.place.backward || counts_alone || std::ranges::none_of(types, &AxisType::is_partial));
  if (own_step && (!fault.empty() || !operands.unproven().empty())) {
    if (!call.place.backward) own_steps_.insert(entry.name + " in " + ModuleName(call.place.path));
    return fill(TypeKind::kVarying);
  }
  if (!fault.empty()) {
    AxisType terms = AxisType::Partial();
    std::shared_ptr<const std::string> since = OriginAmong(types, &terms);
    if (since == nullptr) since = OriginAmong(types, nullptr);
    Blame({TypeFault::Kind::kOperator, call.place.path, call.place.backward, axes_[axis].axis,
           call.Signature(entry.name, axis), fault, "", "", since ? *since : "", suggested_fix});
    return fill(TypeKind::kFaulty);
  }
  if (!operands.unproven().empty()) NoteUnproven(entry.name + ": " + operands.unproven());

  bool full = false;
  bool shared = false;
  for (size_t i = 0; i < types.size() && !call.place.backward; ++i) {
    if (!call.operands[i].needs_gradient) continue;
    full = full || (types[i].is_replicate() && types[i].full);
    shared = shared || !types[i].is_replicate() || types[i].shared;
  }
  // What is taken from one that is mixed is full, shared or mixed by its place (rules/views.cc).
  const bool mixed = std::ranges::any_of(types, &AxisType::is_mixed);
  for (size_t i = 0; i < call.types.size(); ++i) {
    AxisType& type = call.types[i][axis];
    if (made.empty()) continue;
    type = i < made.size() ? made[i] : made.back();
    has_owners_ = has_owners_ || type.owner >= 0;
    type.by_value = by_value;
    if (!entry.keeps_copies) type.copies = 0;
    SetLocal(entry, call, axis, i, type);
    // Of other sizes than the shard, it is as long only if it is longer with one rank.
    const bool shorter = type.like != nullptr && type.local_along(type.like->dim);
    if (!entry.unwritten || (!shorter && !IsDataAxis(axes_[axis].axis))) type.like = nullptr;
    if (DropsLocalDim(entry, types, type)) {
      if (!call.place.backward) {
        NoteUnproven(entry.name + ": a constant as long as a shard of one element loses the dim");
        return fill(TypeKind::kUnproven);
      }
      type = AxisType::Partial();
    }
    if (HasUnknownLength(entry, call, axis, i, type)) {
      NoteUnproven(entry.name + (call.place.backward
                                     ? ": a gradient of equal elements has another length than at tp=1, which is that "
                                       "of no shard"
                                     : ": memory has other sizes than at tp=1, which are those of no shard"));
      return fill(TypeKind::kUnproven);
    }
    // A sum over both would be one of as many terms as the square of the ranks.
    if (std::popcount(type.local) > 1) {
      NoteUnproven(entry.name + ": a constant is as long as a shard along two dims");
      return fill(TypeKind::kUnproven);
    }
    if (IsNoTerm(call, axis, i, type)) {
      NoteUnproven(entry.name + ": what the ranks have to add up has other sizes than at tp=1");
      return fill(TypeKind::kUnproven);
    }
    if (IsOfOneRank(entry, call, axis, i, type)) {
      NoteUnproven(entry.name + ": the gradient of a mean or an element of a constant that is as long as a shard");
      return fill(TypeKind::kUnproven);
    }
    if (IsRepeatedLocally(entry, call, axis, i, type)) {
      NoteUnproven(entry.name + ": values are repeated as often as a shard is long");
      return fill(TypeKind::kUnproven);
    }
    // Where an operator writes into places of it, the rest stays as it was.
    const bool written =
        entry.into_places && !entry.overwrites && type.local != 0 && !types.empty() && types[0].unwritten;
    const bool copied = entry.copies && !types.empty() && call.TypeOn(types.size() - 1, axis).unwritten;
    type.unwritten = written || copied || (type.unwritten && (entry.views || entry.unwritten));
    if (type.is_replicate() && !type.zero) type.map = nullptr;
    if (!type.is_shard()) type.chosen = nullptr;
    if (type.chosen != nullptr) {
      type.map = nullptr;
      type.uneven = true;
    }
    type.of_gradient = type.is_shard() && type.map == nullptr &&
                       (call.place.backward || std::ranges::any_of(types, &AxisType::of_gradient));
    type.outside = outside && type.is_replicate();
    if (type.outside) type.uniform = 0;
    if (type.is_replicate() && !mixed) {
      type.full = full && !shared;
      type.shared = shared;
    }
    if (!entry.keeps_features) type.zeros_behind = entry.base == "slice_backward" ? type.zeros_behind : 0;
    if (!entry.keeps_features && !(entry.adds_features && call.place.backward)) type.last = 0;
    type.since = nullptr;
    if (!HasOrigin(type)) continue;
    type.since = OriginAmong(types, &type);
    if (type.since != nullptr) continue;
    std::string origin = entry.name;
    origin.append(" in ").append(ModuleName(call.place.path)).append(call.place.backward ? " (backward)" : "");
    type.since = std::make_shared<const std::string>(std::move(origin));
  }
}

// The one rule that looks at gradients in the forward. In y = x w with x replicated and w shard(1), the backward's d x
// = d y w^T sums over sharded columns: every rank has a term. Where x is `shared`, its boundary sums these terms;
// where x is `full`, the consumers of its gradient take it as the same everywhere, and each rank would go on with its
// own term. The algebra finds the same in the backward, but many operators later and at a place that names no line of
// the plan; here the operator that mixes both is named. Without gradients (inference, a copy, no_grad) replicate and
// shared are one.
std::string OperatorChecker::FullMisused(const Entry& entry, const Call& call, c10::ArrayRef<AxisType> types) {
  if (call.place.backward || !c10::GradMode::is_enabled() || entry.base == "copy") return {};
  bool full = false;
  bool shards = false;
  for (size_t i = 0; i < call.operands.size(); ++i) {
    const AxisType& type = types[i];
    const bool needs_gradient = call.operands[i].needs_gradient;
    if (type.is_replicate()) {
      full = full || (needs_gradient && type.full);
      shards = shards || (needs_gradient && type.shared);
    } else if (type.is_known()) {
      shards = true;
    }
  }
  if (!full || !shards) return {};
  return "a replicated tensor that requires a gradient is combined with tensors that are shared or differ between "
         "ranks, so the gradient of the replicated tensor is partial and nothing reduces this gradient; declare the "
         "replicated tensor shared";
}

// Features that are used alike and features whose gradients are terms, in one tensor: only what keeps them apart is
// right.
std::string OperatorChecker::MixedMisused(const Entry& entry, const Call& call, c10::ArrayRef<AxisType> types) {
  if (entry.keeps_features || (entry.adds_features && call.place.backward) || entry.base == "copy") return {};
  for (size_t i = 0; i < types.size(); ++i) {
    if (!types[i].is_mixed()) continue;
    if (types[i].is_partial()) {
      return Phrase("a tensor that is partial in its last ", types[i].last,
                    " features only is used without a split; reduce these features first");
    }
    if (call.place.backward || !call.operands[i].needs_gradient || !c10::GradMode::is_enabled()) continue;
    return Phrase(
        "a tensor that is shared in its last ", types[i].last,
        " features only is used without a split; split off these features first, or declare the full tensor shared");
  }
  return {};
}

void OperatorChecker::Add(TypeFault fault, std::vector<TypeFault>& faults) {
  const std::string path = Folded(fault.path);
  for (TypeFault& known : faults) {
    if (known.kind == fault.kind && known.backward == fault.backward && known.what == fault.what &&
        known.message == fault.message && known.axis == fault.axis && Folded(known.path) == path) {
      ++known.count;
      return;
    }
  }
  faults.push_back(std::move(fault));
}

void OperatorChecker::NoteUnproven(const std::string& what) {
  Unproven& entry = unproven_[what];
  if (entry.count++ > 0) return;
  const ModulePath::Place place = path_.Here();
  entry.first = place.path + (place.backward ? " (backward)" : "");
}

}  // namespace moonshard
