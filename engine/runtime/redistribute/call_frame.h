// CallFrame: one call of a hookable module, on the thread that runs it. Frames nest. A frame holds the moves that
// siblings share (shared_moves.h); the outermost one also holds the sizes of dims that were cut while it runs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

namespace moonshard {

class AxisGroup;
class SharedRedistributions;

class CallFrame {
 public:
  CallFrame();
  ~CallFrame();
  CallFrame(const CallFrame&) = delete;
  CallFrame& operator=(const CallFrame&) = delete;

  // The innermost frame of this thread; nullptr outside of any.
  static CallFrame* Current();
  bool outermost() const { return enclosing_ == nullptr; }
  // What calls made inside this frame share. Never null.
  SharedRedistributions& redistributions();

  // Notes that a dim of `size` elements was cut over `group`, until the outermost frame ends. Nothing outside of frames.
  static void NoteSize(const AxisGroup& group, int64_t dim, int64_t size);
  // The size of dim `dim` that was cut over `group`, if exactly one size was noted. Every rank runs the same moves in the
  // same frames and notes the same sizes, so the answer is the same on every rank; what fits the rank's own shard must
  // not be asked here, because 5 and 6 elements over 4 ranks fit the same shard on some ranks and not on others.
  static std::optional<int64_t> OnlySize(const AxisGroup& group, int64_t dim);

 private:
  struct Sizes;

  CallFrame* enclosing_;
  CallFrame* root_;
  std::unique_ptr<SharedRedistributions> redistributions_;
  std::unique_ptr<Sizes> sizes_;
};

}  // namespace moonshard
