// How memory is counted without any: LibTorch allocates storages of meta tensors through an allocator like all others,
// with their sizes and null pointers. The allocator here opens a record for each, and c10 calls its deleter at the
// moment at which real memory would be freed, for every reason there is: a reference that goes, a saved tensor that the
// backward drops, a storage that is resized. So lifetimes are those of the program itself and not of a model of it.
#include "engine/analysis/footprint/ledger.h"

#include <utility>

#include <c10/core/Allocator.h>

namespace moonshard {
namespace {

std::shared_ptr<MemoryLedger>& LedgerOfThread() {
  thread_local std::shared_ptr<MemoryLedger> ledger;
  return ledger;
}

}  // namespace

// A meta storage has no memory, so its DataPtr's context and deleter are free to use: the context owns the record, and
// the deleter runs when c10 releases the storage, wherever and on whichever thread that happens. The context holds the
// ledger too, because storages may outlive every scope. The data pointer stays null: code that asks for it sees a meta
// tensor.
class MeteredMetaAllocator final : public c10::Allocator {
 public:
  explicit MeteredMetaAllocator(c10::Allocator* former) : former_(former) {}

  c10::DataPtr allocate(size_t bytes) override {
    const std::shared_ptr<MemoryLedger>& ledger = LedgerOfThread();
    if (!ledger || bytes == 0) return former_->allocate(bytes);
    auto held = std::make_unique<Held>(Held{ledger, ledger->Add(static_cast<int64_t>(bytes))});
    return {nullptr, held.release(), &Release, c10::Device(c10::kMeta)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return former_->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { former_->copy_data(to, from, bytes); }

  static int64_t BlockOf(const c10::DataPtr& data, const MemoryLedger& ledger) {
    if (data.get_deleter() != &Release || data.get_context() == nullptr) return -1;
    const Held& held = *static_cast<const Held*>(data.get_context());
    return held.ledger.get() == &ledger ? static_cast<int64_t>(held.block) : -1;
  }

 private:
  struct Held {
    std::shared_ptr<MemoryLedger> ledger;
    size_t block;
  };
  static void Release(void* context) {
    const std::unique_ptr<Held> held(static_cast<Held*>(context));
    held->ledger->Remove(held->block);
  }

  c10::Allocator* former_;
};

namespace {

void RegisterAllocator() {
  static const bool registered = [] {
    // Never destroyed: storages may outlive every static.
    auto* metered = new MeteredMetaAllocator(c10::GetAllocator(c10::kMeta));
    c10::SetAllocator(c10::kMeta, metered, /*priority=*/255);
    return true;
  }();
  static_cast<void>(registered);
}

}  // namespace

// The peak is kept as an event number and not as a list of blocks: which blocks were live then follows from their birth
// and death when the step is over.
size_t MemoryLedger::Add(int64_t bytes) {
  blocks_.push_back({bytes, ++now_, -1, Where()});
  live_ += bytes;
  if (live_ > peak_) {
    peak_ = live_;
    peak_event_ = now_;
  }
  return blocks_.size() - 1;
}

void MemoryLedger::Remove(size_t block) {
  blocks_[block].died = ++now_;
  live_ -= blocks_[block].bytes;
}

void MemoryLedger::ResetPeak() {
  peak_ = live_;
  peak_event_ = now_;
}

int64_t MemoryLedger::BlockOf(const at::Tensor& tensor) const {
  if (!tensor.defined() || !tensor.has_storage()) return -1;
  return MeteredMetaAllocator::BlockOf(tensor.storage().data_ptr(), *this);
}

void MemoryLedger::Settle(const at::Tensor& result) {
  if (!result.defined() || !result.is_meta() || !result.has_storage()) return;
  c10::StorageImpl* storage = result.storage().unsafeGetStorageImpl();
  const auto bytes = static_cast<int64_t>(storage->nbytes());
  const int64_t block = BlockOf(result);
  const int64_t noted = block < 0 ? 0 : blocks_[static_cast<size_t>(block)].bytes;
  // A storage that shrank keeps its memory, as on a CPU.
  if (bytes > noted) storage->set_data_ptr_noswap(c10::GetAllocator(c10::kMeta)->allocate(static_cast<size_t>(bytes)));
}

LedgerScope::LedgerScope(std::shared_ptr<MemoryLedger> ledger) : outer_(std::move(ledger)) {
  RegisterAllocator();
  std::swap(outer_, LedgerOfThread());
}

LedgerScope::~LedgerScope() { std::swap(outer_, LedgerOfThread()); }

}  // namespace moonshard
