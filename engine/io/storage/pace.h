// Pace: measures whether file transfers are slower than 800 MB/s. Writes into the page cache are that slow in virtual
// machines whose hypervisor allocates memory page by page (measured: 350 MB/s, with a disk of 1,500 MB/s); reads are
// that slow only if the bytes are not in the page cache. If the transfers are slow, the caller releases pages that it
// no longer needs, so that the next bytes reuse these pages. Otherwise all bytes stay in the page cache for the next
// reader.
// Used by storage.cc and checkpoint/convert_files.h.
#pragma once

#include <chrono>
#include <cstdint>

namespace moonshard {

class Pace {
 public:
  using Clock = std::chrono::steady_clock;

  // Records that `bytes` bytes were transferred from `begin` until now. The rate is computed whenever at
  // least 8 MiB were transferred since the last rate.
  void Add(uint64_t bytes, Clock::time_point begin) {
    bytes_ += bytes;
    seconds_ += std::chrono::duration<double>(Clock::now() - begin).count();
    if (bytes_ < kMeasuredBytes) return;
    slow_ = static_cast<double>(bytes_) < kSlowBytesPerSecond * seconds_;
    bytes_ = 0;
    seconds_ = 0;
  }
  // Whether the last measured rate was less than 800 MB/s.
  bool slow() const { return slow_; }

 private:
  static constexpr uint64_t kMeasuredBytes = uint64_t{8} << 20;
  static constexpr double kSlowBytesPerSecond = 800e6;

  uint64_t bytes_ = 0;
  double seconds_ = 0;
  bool slow_ = false;
};

}  // namespace moonshard
