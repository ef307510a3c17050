// MemoryLedger: what storages of meta tensors would take, from the moment each is allocated to the moment the last reference
// to it goes. Meta storages have a size and no memory; inside a LedgerScope the allocator of the meta device notes every
// size, and the storage's own release ends it: nothing is polled, so the peak is exact at every operator.
//
// That allocator is registered with c10 by the first scope and stays; outside of scopes it is the former one.
// Stage before: none. Stage after: step_recorder.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace moonshard {

// Where a program is.
struct StepPlace {
  enum class Phase : uint8_t { kBefore, kForward, kRecompute, kBackward };
  Phase phase = Phase::kBefore;
  int32_t op = -1;      // index; -1: outside of operators
  int32_t module = -1;  // index; -1: outside of modules
};

struct MemoryBlock {
  int64_t bytes = 0;
  int64_t born = 0;   // event
  int64_t died = -1;  // event; -1: still there
  StepPlace place;    // that allocated it
};

class MemoryLedger {
 public:
  virtual ~MemoryLedger() = default;

  const std::vector<MemoryBlock>& blocks() const { return blocks_; }
  int64_t live() const { return live_; }
  // Events are allocations and releases, counted from 1.
  int64_t now() const { return now_; }
  // The most that was there since ResetPeak, and the event at which it was.
  int64_t peak() const { return peak_; }
  int64_t peak_event() const { return peak_event_; }
  void ResetPeak();

  // Index of the block in which the tensor lies; -1 for one that is not of this ledger.
  int64_t BlockOf(const at::Tensor& tensor) const;
  // For the results of an operator: on the meta device a storage changes its size without its allocator. Notes the size
  // that it has now.
  void Settle(const at::Tensor& result);

 protected:
  // Asked at every allocation.
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

// Meta storages that this thread makes are in `ledger`, until they go, which may be after the scope. Scopes nest; the
// innermost notes.
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
