// MemoryLedger: the memory that the storages of meta tensors would occupy. Meta storages have a size and no memory.
// Inside a LedgerScope the allocator of the meta device records each storage with its size, and the deleter of the
// storage ends the record when the last reference is released. Every allocation and release is recorded, so the peak is
// exact even within an operator.
//
// The first scope registers this recording allocator with c10 for the rest of the process. Outside of scopes the
// recording allocator calls the allocator that was registered before.
// Stage after: step_recorder.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace moonshard {

// The point that execution has reached: the phase of the step, the operator and the module.
struct StepPlace {
  enum class Phase : uint8_t { kBefore, kForward, kRecompute, kBackward };
  Phase phase = Phase::kBefore;
  int32_t op = -1;      // index; -1: outside of operators
  int32_t module = -1;  // index; -1: outside of modules
};

struct MemoryBlock {
  int64_t bytes = 0;
  int64_t born = 0;   // event of the allocation
  int64_t died = -1;  // event of the release; -1: still live
  StepPlace place;    // of the allocation
};

class MemoryLedger {
 public:
  virtual ~MemoryLedger() = default;

  const std::vector<MemoryBlock>& blocks() const { return blocks_; }
  int64_t live() const { return live_; }
  // Events are allocations and releases, counted from 1.
  int64_t now() const { return now_; }
  // The largest number of live bytes since ResetPeak, and the event at which it was reached.
  int64_t peak() const { return peak_; }
  int64_t peak_event() const { return peak_event_; }
  void ResetPeak();

  // The index of the block of the tensor's storage; -1 if the storage is not in this ledger.
  int64_t BlockOf(const at::Tensor& tensor) const;
  // Call Settle for each result of an operator, because a resize on the meta device changes the size of a storage
  // without calling the allocator. If the storage of `result` has grown, Settle records the storage again with its
  // current size.
  void Settle(const at::Tensor& result);

 protected:
  // Returns the place to which an allocation is attributed. The ledger calls Where at every allocation.
  virtual StepPlace Where() = 0;

 private:
  friend class MeteredMetaAllocator;
  size_t Add(int64_t bytes);
  void Remove(size_t block);

  std::vector<MemoryBlock> blocks_;
  int64_t live_ = 0;
  int64_t now_ = 0;
  int64_t peak_ = 0;
  int64_t peak_event_ = 0;
};

// Records in `ledger` the meta storages that this thread allocates while the scope exists. The record of a storage ends
// when the storage is freed, which may be after the scope. Scopes nest; only the innermost scope records.
class LedgerScope {
 public:
  explicit LedgerScope(std::shared_ptr<MemoryLedger> ledger);
  ~LedgerScope();
  LedgerScope(const LedgerScope&) = delete;
  LedgerScope& operator=(const LedgerScope&) = delete;

 private:
  std::shared_ptr<MemoryLedger> outer_;
};

}  // namespace moonshard
