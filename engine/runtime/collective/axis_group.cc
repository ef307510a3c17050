// A collective goes through three steps: compare, count, run. The comparison is first because c10d cannot report a
// mistake after it happened: Gloo ends the process where sizes differ, silently exchanges the wrong data where two
// collectives of equal size come in another order, and waits for its timeout where one rank calls another collective.
// Every rank sends a record of what it is about to do; all of them see all records, so that all of them throw, and none
// is left in the collective.
//
// The comparison costs a round trip. It is done on the first `checked` collectives of a group, which cover a step or
// two of training: programs repeat themselves, and a plan that fits its ranks once fits them again. Which ones are
// compared follows from their number alone, so that no rank compares while another one does not. What can still differ
// later, inputs whose shapes change from call to call, is compared by StartCheckInputs once per call, with the wait
// moved behind the local compute.
#include "engine/runtime/collective/axis_group.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <utility>

#include <ATen/ATen.h>

#include "engine/core/base/check.h"
#include "engine/core/base/text.h"
#include "engine/runtime/mesh/mesh_group.h"
#include "engine/runtime/mesh/peer_watch.h"
#include "engine/runtime/mesh/waits.h"

namespace moonshard {
namespace {

constexpr size_t kLabelBytes = 512;  // of each rank's label, exchanged when ranks disagree

Diagnostic RankLost(const std::string& group, const std::string& label, const std::string& why) {
  Diagnostic d =
      MakeDiagnostic(Finding::kRankLost, "a rank of " + group + " exited or did not respond within the timeout");
  d.path = label;
  d.declared = why;
  d.required = "every rank of the group runs every collective";
  d.help = "look at the output of the other ranks: one of them failed first";
  return d;
}

// Whether no other tensor sees a write into the tensor's memory. A collective does not bump the version counter, so
// writing into memory that autograd saved, or into a gradient that a sibling also gets, would be a silent error. Two
// counts: one tensor may have several references (autograd's saved one), and one storage several tensors (a view).
bool HasSoleOwner(const at::Tensor& tensor) {
  return tensor.is_contiguous() && tensor.use_count() == 1 && tensor.storage().use_count() == 1;
}

// What c10d may hold for a while after the collective is over (Gloo's threads do): the memory, but neither the caller's
// tensor nor its graph. Unlike detach() this makes no view, which would keep the tensor.
at::Tensor WithoutHistory(const at::Tensor& tensor) { return tensor.variable_data(); }

Announcement Announce(CollectiveKind kind, c10::ScalarType dtype, const CollectiveUse& use, uint32_t sequence) {
  Announcement a;
  a.sequence = sequence;
  a.kind = static_cast<uint8_t>(kind);
  a.direction = static_cast<uint8_t>(use.direction);
  a.dtype = static_cast<int8_t>(dtype);
  a.dims = static_cast<uint8_t>(use.shape.size());
  for (size_t i = 0; i < use.shape.size(); ++i) {
    if (i < Announcement::kMaxDims) {
      a.shape[i] = use.shape[i];
    } else {
      a.shape.back() *= use.shape[i];
    }
  }
  a.label = use.label->hash();
  a.mismatched_size = use.mismatched_size;
  return a;
}

}  // namespace

AxisGroup::AxisGroup(std::shared_ptr<const MeshGroup> group, CheckOptions check,
                     std::shared_ptr<CollectiveCounts> counts)
    : group_(std::move(group)),
      axes_(group_->axes),
      sizes_(group_->sizes),
      name_(group_->name),
      rank_(group_->rank),
      size_(group_->size()),
      check_(check),
      counts_(counts ? std::move(counts) : std::make_shared<CollectiveCounts>()) {}

AxisGroup::~AxisGroup() = default;

std::shared_ptr<AxisGroup> AxisGroup::Make(const DeviceMesh& mesh, AxisSet axes, CheckOptions check,
                                           std::shared_ptr<CollectiveCounts> counts) {
  return MakeSub(mesh, axes, mesh.shape().size(axes), check, std::move(counts));
}

std::shared_ptr<AxisGroup> AxisGroup::MakeSub(const DeviceMesh& mesh, AxisSet axes, int64_t k, CheckOptions check,
                                              std::shared_ptr<CollectiveCounts> counts) {
  return std::shared_ptr<AxisGroup>(new AxisGroup(mesh.SubGroup(axes, k), check, std::move(counts)));
}

// A group whose collective failed is not used again: c10d does not tell which of its later collectives would meet their
// peers, and a call that is a collective behind would take another's data for its own.
template <class Call>
void AxisGroup::Guard(const CollectiveLabel& label, Call&& call) {
  const auto lost = [&] { return group_->watch ? group_->watch->lost() : ""; };
  if (broken_.empty()) broken_ = lost();
  if (!broken_.empty()) throw PlanError({RankLost(name_, label.text(), broken_)});
  const Waits::Scope wait(group_->waits.get(), label.text(), name_, group_->ranks);
  try {
    call();
  } catch (const std::exception& error) {
    broken_ = lost();
    if (broken_.empty()) broken_ = ErrorText(error);
    throw PlanError({RankLost(name_, label.text(), broken_)});
  }
}

std::vector<uint8_t> AxisGroup::ExchangeBytes(const void* mine, size_t bytes) {
  RankExchange& exchange = *group_->exchange;
  return exchange.Finish(exchange.Start({static_cast<const uint8_t*>(mine), bytes}));
}

// An exchange of announcements that is under way.
struct AxisGroup::PendingCheck {
  int64_t exchange;
  CollectiveLabel label;
  std::string text;
};

void AxisGroup::Compare(const Announcement& mine, const CollectiveLabel& label, const std::string& text) {
  StartCompare(mine, label, text);
  FinishCheck();
}

void AxisGroup::StartCompare(const Announcement& mine, const CollectiveLabel& label, const std::string& text) {
  FinishCheck();
  Guard(label, [&] {
    const int64_t exchange = group_->exchange->Start({reinterpret_cast<const uint8_t*>(&mine), sizeof(mine)});
    pending_ = std::make_unique<PendingCheck>(PendingCheck{exchange, label, text});
  });
}

// Labels are long and rarely needed, so they are exchanged after a difference only. Every rank sees the same records,
// so every rank decides alike whether this second exchange takes place.
void AxisGroup::FinishCheck() {
  if (!pending_) return;
  const std::unique_ptr<PendingCheck> pending = std::move(pending_);
  const CollectiveLabel& label = pending->label;
  const std::string& text = pending->text;
  const size_t size = static_cast<size_t>(size_);
  std::vector<Announcement> all(size);
  bool agree = true;
  std::vector<std::string> labels(size);
  Guard(label, [&] {
    const std::vector<uint8_t> records = group_->exchange->Finish(pending->exchange);
    std::memcpy(all.data(), records.data(), records.size());
    for (const Announcement& other : all) agree = agree && all.front().Agrees(other);
    if (agree) return;
    std::vector<char> own(kLabelBytes, '\0');
    std::memcpy(own.data(), text.data(), std::min(text.size(), kLabelBytes - 1));
    const std::vector<uint8_t> texts = ExchangeBytes(own.data(), kLabelBytes);
    for (size_t i = 0; i < size; ++i) labels[i] = reinterpret_cast<const char*>(texts.data() + i * kLabelBytes);
  });
  if (agree) return;
  Diagnostic mismatch = MismatchError(name_, group_->ranks, all, labels);
  mismatch.path = label.text();
  throw PlanError({std::move(mismatch)});
}

template <class Call>
void AxisGroup::GuardCollective(const CollectiveLabel& label, const Announcement& what, Call&& call) {
  Guard(label, [&] {
    try {
      call();
    } catch (const std::exception& error) {
      throw std::runtime_error(ToText(what) + ": " + ErrorText(error));
    }
    if (group_->watch) group_->watch->Queued(name_, label.text());
  });
}

template <class Call>
Announcement AxisGroup::Run(CollectiveKind kind, const at::Tensor& tensor, const CollectiveUse& use, Call&& call) {
  // First the answer of a check that is under way, which may be an error of this call: on every rank, so that none runs
  // the collective. Recording groups compare nothing, since they have no peers. Where calls are not compared any more,
  // a rank whose shard does not fit throws by itself.
  FinishCheck();
  Check(group_->recording || tensor.device() == group_->device,
        "a collective of " + name_ + " for a tensor on " + tensor.device().str());
  const uint32_t sequence = sequence_++;
  const bool check = !group_->recording && (check_.mode == CheckOptions::Mode::kAlways ||
                                            (check_.mode == CheckOptions::Mode::kFirst && sequence < check_.checked));
  const Announcement mine = Announce(kind, tensor.scalar_type(), use, sequence);
  if (check) {
    Compare(mine, *use.label, use.label->text());
  } else if (use.mismatched_size >= 0) {
    throw PlanError({MismatchError(name_, std::vector{group_->ranks[static_cast<size_t>(rank_)]}, std::vector{mine},
                                   std::vector{use.label->text()})});
  }
  GuardCollective(*use.label, mine, call);
  counts_->Add(use.direction, kind, use.bytes);
  return mine;
}

// The one collective that writes into its input. Into the memory of `tensor` only if nothing else can see it; otherwise
// into a copy, since c10d does not go through autograd and no version counter would reveal the write.
at::Tensor AxisGroup::AllReduce(at::Tensor tensor, const CollectiveUse& use) {
  if (size_ == 1) return tensor.variable_data();
  const bool sole_owner = HasSoleOwner(tensor);
  std::vector<at::Tensor> buffer(1);
  Run(CollectiveKind::kAllReduce, tensor, use, [&] {
    buffer[0] = WithoutHistory(tensor);
    if (!sole_owner) buffer[0] = buffer[0].clone(at::MemoryFormat::Contiguous);
    group_->backend->allreduce(buffer)->wait();
  });
  return buffer[0];
}

c10::Device AxisGroup::device() const { return group_->device; }
const std::vector<int64_t>& AxisGroup::ranks() const { return group_->ranks; }
bool AxisGroup::recording() const { return group_->recording; }

PendingCollective AxisGroup::StartAllReduce(const at::Tensor& buffer, const CollectiveUse& use) {
  PendingCollective pending;
  pending.output_ = buffer;
  if (size_ == 1) return pending;
  Check(buffer.is_contiguous(), "all-reduce of a tensor that is not contiguous");
  pending.label_ = *use.label;
  pending.what_ = Run(CollectiveKind::kAllReduce, buffer, use, [&] {
    std::vector<at::Tensor> shared = {WithoutHistory(buffer)};
    pending.wait_ = [work = group_->backend->allreduce(shared), shared] { work->wait(); };
  });
  return pending;
}

// The handle keeps input and output alive until Finish: the backend reads and writes them on threads of its own, and a
// caller that dropped the input at once would free memory that is being sent.
PendingCollective AxisGroup::StartAllGather(const at::Tensor& shard, const CollectiveUse& use) {
  PendingCollective pending;
  pending.output_ = shard;
  if (size_ == 1) return pending;
  Check(shard.is_contiguous(), "all-gather of a tensor that is not contiguous");
  std::vector<int64_t> shape = shard.sizes().vec();
  shape.at(0) *= size_;
  pending.output_ = at::empty(shape, shard.options());
  pending.label_ = *use.label;
  pending.what_ = Run(CollectiveKind::kAllGather, shard, use, [&] {
    at::Tensor input = WithoutHistory(shard);
    pending.wait_ = [work = group_->backend->_allgather_base(pending.output_, input), input] { work->wait(); };
  });
  return pending;
}

PendingCollective AxisGroup::StartReduceScatter(const at::Tensor& blocks, const CollectiveUse& use) {
  PendingCollective pending;
  pending.output_ = blocks;
  if (size_ == 1) return pending;
  Check(blocks.is_contiguous() && blocks.size(0) % size_ == 0, "reduce-scatter of unequal blocks");
  std::vector<int64_t> shape = blocks.sizes().vec();
  shape[0] /= size_;
  pending.output_ = at::empty(shape, blocks.options());
  pending.label_ = *use.label;
  pending.what_ = Run(CollectiveKind::kReduceScatter, blocks, use, [&] {
    at::Tensor input = WithoutHistory(blocks);
    pending.wait_ = [work = group_->backend->_reduce_scatter_base(pending.output_, input), input] { work->wait(); };
  });
  return pending;
}

at::Tensor AxisGroup::Finish(PendingCollective pending) {
  Check(pending.started(), "Finish of a collective that was not started");
  if (pending.wait_) GuardCollective(*pending.label_, pending.what_, pending.wait_);
  return std::move(pending.output_);
}

at::Tensor AxisGroup::AllGather(const at::Tensor& shard, const CollectiveUse& use) {
  return Finish(StartAllGather(shard, use));
}

at::Tensor AxisGroup::ReduceScatter(const at::Tensor& blocks, const CollectiveUse& use) {
  return Finish(StartReduceScatter(blocks, use));
}

at::Tensor AxisGroup::AllToAll(const at::Tensor& blocks, const CollectiveUse& use) {
  if (size_ == 1) return blocks;
  Check(blocks.is_contiguous() && blocks.size(0) % size_ == 0, "all-to-all of unequal blocks");
  at::Tensor output = at::empty_like(blocks);
  Run(CollectiveKind::kAllToAll, blocks, use, [&] {
    at::Tensor input = WithoutHistory(blocks);
    std::vector<int64_t> equal;
    group_->backend->alltoall_base(output, input, equal, equal)->wait();
  });
  return output;
}

PendingCollective AxisGroup::StartAllToAllUneven(const at::Tensor& rows, std::vector<int64_t> send,
                                                 std::vector<int64_t> receive, const CollectiveUse& use) {
  PendingCollective pending;
  pending.output_ = rows;
  if (size_ == 1) return pending;
  const auto sum = [](const std::vector<int64_t>& numbers) {
    return std::accumulate(numbers.begin(), numbers.end(), int64_t{0});
  };
  Check(rows.is_contiguous() && sum(send) == rows.size(0), "an all-to-all of other rows than it sends");
  std::vector<int64_t> shape = rows.sizes().vec();
  shape[0] = sum(receive);
  pending.output_ = at::empty(shape, rows.options());
  pending.label_ = *use.label;
  pending.what_ = Run(CollectiveKind::kAllToAll, rows, use, [&] {
    at::Tensor input = WithoutHistory(rows);
    pending.wait_ = [work = group_->backend->alltoall_base(pending.output_, input, receive, send), input] {
      work->wait();
    };
  });
  return pending;
}

at::Tensor AxisGroup::AllToAllUneven(const at::Tensor& rows, std::vector<int64_t> send, std::vector<int64_t> receive,
                                     const CollectiveUse& use) {
  return Finish(StartAllToAllUneven(rows, std::move(send), std::move(receive), use));
}

std::vector<int64_t> AxisGroup::ExchangeNumbers(int64_t mine, const CollectiveLabel& label) {
  std::vector<int64_t> all(static_cast<size_t>(size_), mine);
  if (size_ == 1 || group_->recording) return all;
  FinishCheck();
  Guard(label, [&] {
    const std::vector<uint8_t> bytes = ExchangeBytes(&mine, sizeof(mine));
    std::memcpy(all.data(), bytes.data(), bytes.size());
  });
  return all;
}

void AxisGroup::StartCheckInputs(const CollectiveLabel& signature, const CollectiveLabel& label) {
  if (size_ == 1 || group_->recording || check_.mode == CheckOptions::Mode::kNever) return;
  Announcement mine;
  // The number of collectives so far is compared as well: a rank that left one out would pair its inputs with those of
  // the next call.
  mine.sequence = sequence_;
  mine.kind = kInputsKind;
  mine.label = signature.hash();
  StartCompare(mine, label, signature.text());
}

}  // namespace moonshard
