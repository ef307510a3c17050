#include "engine/layout/ring_steps.h"

#include <algorithm>

namespace moonshard {

// Between the last key of the block `step` ranks before and the first query of a block are (step - 1) * chunk + 1
// positions, since every block but the last is full. The query attends to the key if these are at most window - 1.
RingSteps::RingSteps(int64_t length, std::optional<int64_t> window, int64_t ranks)
    : length_(length), chunk_((length + ranks - 1) / ranks), count_(0) {
  if (length <= 0) return;
  count_ = (length + chunk_ - 1) / chunk_ - 1;
  if (window) count_ = std::min(count_, *window < 2 ? 0 : (*window - 2) / chunk_ + 1);
}

Interval RingSteps::Block(int64_t rank) const {
  const int64_t begin = std::min(length_, rank * chunk_);
  return {begin, std::min(length_, begin + chunk_) - begin};
}

bool RingSteps::Attends(int64_t rank, int64_t step) const {
  return step <= count_ && step <= rank && Block(rank).length > 0;
}

CollectiveCount RingForward(const RingSteps& steps, int64_t rank, int64_t token_bytes) {
  CollectiveCount out{steps.count(), 0};
  for (int64_t step = 1; step <= steps.count(); ++step) {
    if (steps.Attends(rank + 1, step)) out.bytes += steps.Block(rank + 1 - step).length * token_bytes;
  }
  return out;
}

CollectiveCount RingBackward(const RingSteps& steps, int64_t rank, int64_t token_bytes, int64_t gradient_bytes) {
  CollectiveCount out = RingForward(steps, rank, token_bytes);
  out.count *= 2;
  for (int64_t step = 1; step <= steps.count(); ++step) {
    if (steps.Attends(rank, step)) out.bytes += steps.Block(rank - step).length * gradient_bytes;
  }
  return out;
}

}  // namespace moonshard
