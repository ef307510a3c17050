// CallFrame: one call of a hookable module, on the thread that runs it. Frames nest. A frame owns the redistributions
// that the calls inside it share (shared_redistributions.h); the outermost one also the sizes of dims that were sharded
// while it runs.
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
  // What calls inside this frame share.
  SharedRedistributions& redistributions();

  // Notes that a dim of `size` elements was sharded over `group`, until the outermost frame ends. Nothing outside of
  // frames.
  static void NoteSize(const AxisGroup& group, int64_t dim, int64_t size);
  // The size of dim `dim` that was sharded over `group`, if exactly one was noted. Every rank runs the same
  // redistributions in the same frames, so the answer is the same on every rank. It must not be chosen by what fits the
  // rank's own shard: over 4 ranks 5 and 6 elements give the same shard on some ranks and different ones on others.
  static std::optional<int64_t> OnlySize(const AxisGroup& group, int64_t dim);

 private:
  struct Sizes;

  CallFrame* enclosing_;
  CallFrame* root_;
  std::unique_ptr<SharedRedistributions> redistributions_;
  std::unique_ptr<Sizes> sizes_;
};

}  // namespace moonshard
