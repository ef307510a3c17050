// CountingAllocator: the CPU allocator of a test, which knows how many bytes of tensors are alive and were at most.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <new>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

namespace moonshard::test {

// From its construction to its end the process's; one thread makes tensors. What is `left_out` bytes long is not
// counted.
class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(int64_t left_out = -1) : left_out_(left_out) {
    Current() = this;
    c10::SetCPUAllocator(this, /*priority=*/1);
  }
  ~CountingAllocator() override {
    c10::SetCPUAllocator(c10::GetDefaultCPUAllocator(), /*priority=*/1);
    Current() = nullptr;
  }
  CountingAllocator(const CountingAllocator&) = delete;
  CountingAllocator& operator=(const CountingAllocator&) = delete;

  int64_t live() const { return live_; }
  int64_t peak() const { return peak_; }
  void ResetPeak() { peak_ = live_; }

  c10::DataPtr allocate(size_t bytes) override {
    const size_t rounded = (bytes + 2 * kAhead - 1) / kAhead * kAhead;
    auto* block = static_cast<char*>(std::aligned_alloc(kAhead, rounded));
    const int64_t counted = static_cast<int64_t>(bytes) == left_out_ ? 0 : static_cast<int64_t>(bytes);
    new (block) int64_t(counted);
    live_ += counted;
    peak_ = std::max(peak_, live_);
    void* const data = block + kAhead;
    return {data, data, &Free, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  static constexpr size_t kAhead = 64;  // a block's size lies in front of it
  static CountingAllocator*& Current() {
    static CountingAllocator* current = nullptr;
    return current;
  }
  static void Free(void* data) {
    char* const block = static_cast<char*>(data) - kAhead;
    if (Current() != nullptr) Current()->live_ -= *reinterpret_cast<int64_t*>(block);
    std::free(block);
  }

  int64_t left_out_;
  int64_t live_ = 0;
  int64_t peak_ = 0;
};

}  // namespace moonshard::test
