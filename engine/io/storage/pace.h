// Pace: whether bytes pass through the page cache slower than a disk takes them. Where that is so (a virtual
// machine whose host allocates memory page by page: 350 MB/s, where the disk has 1,500), pages that are done with are
// released, and the next ones reuse them. Elsewhere everything stays cached for the next reader.
// Part of storage.cc and checkpoint/convert_files.h.
#pragma once

#include <chrono>
#include <cstdint>

namespace moonshard {

class Pace {
 public:
  using Clock = std::chrono::steady_clock;

  // Bytes that took from `begin` until now. Measured over a few megabytes at a time.
  void Add(uint64_t bytes, Clock::time_point begin) {
    bytes_ += bytes;
    seconds_ += std::chrono::duration<double>(Clock::now() - begin).count();
    if (bytes_ < kMeasuredBytes) return;
    slow_ = static_cast<double>(bytes_) < kSlowBytesPerSecond * seconds_;
    bytes_ = 0;
    seconds_ = 0;
  }
  bool slow() const { return slow_; }

 private:
  static constexpr uint64_t kMeasuredBytes = uint64_t{8} << 20;
  static constexpr double kSlowBytesPerSecond = 800e6;

  uint64_t bytes_ = 0;
  double seconds_ = 0;
  bool slow_ = false;
};

}  // namespace moonshard
