// UnitOrder: the order in which a model's units are used. UnitOrder decides which units to prefetch, and finishes the
// pending reduce-scatter of gradients before the next reduce-scatter starts.
//
// The calls of units in each forward of the root are recorded. The next forward prefetches in the recorded order, the
// backward in the reverse order. The first forward prefetches nothing. If a forward deviates from the recorded one, the
// parameters that were prefetched and not used are dropped, on every rank alike.
// Stage after: unit.h, which queries the order at each call.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace moonshard {

class Unit;

class UnitOrder {
 public:
  // `forward`, `backward`: number of units to prefetch ahead of the unit in use; 0: none.
  UnitOrder(int64_t forward, int64_t backward) : forward_(forward), backward_(backward) {}

  // Begin and end a forward of the root, outside of any backward.
  void BeginForward();
  void EndForward();
  bool in_forward() const { return recording_; }
  // Begin and end a backward through calls of units.
  void BeginBackward() { in_backward_ = true; }
  void EndBackward() { in_backward_ = false; }
  // Records that an exception has ended a call of a unit or of the root.
  void Fail() { failed_ = true; }
  // Returns whether an exception has ended a call or a backward since the last TakeFailure. Forgets the recorded order
  // if so: ranks may have come to different places. Call it between a backward and the next forward.
  bool TakeFailure();

  // Records a call of `unit` and returns the place of the call in the order. Outside of a forward of the root, records
  // nothing and returns -1.
  int64_t Visit(const std::shared_ptr<Unit>& unit);
  // Records that a backward through the call at `place` may follow.
  void ExpectBackward(int64_t place);

  // Returns the units to prefetch while the call at `place` runs; none if the last forward had another unit at `place`.
  std::vector<std::shared_ptr<Unit>> AheadInForward(int64_t place) const;
  // Returns the units to prefetch in the backward of `unit`'s call at `place`; none if another forward was recorded
  // since.
  std::vector<std::shared_ptr<Unit>> AheadInBackward(const Unit& unit, int64_t place) const;

  // Call MakeRoomForReduction before the start of a reduce-scatter. It finishes the pending reduce-scatter, so that
  // only one reduce-scatter at a time holds a buffer. Call Reducing after the start.
  void MakeRoomForReduction();
  void Reducing(const std::shared_ptr<Unit>& unit) { reducing_ = unit; }

 private:
  struct Visited {
    std::weak_ptr<Unit> unit;
    bool backward = false;
  };
  int64_t forward_;
  int64_t backward_;
  bool recording_ = false;
  bool in_backward_ = false;
  bool failed_ = false;
  std::vector<Visited> last_;     // calls of the last forward
  std::vector<Visited> now_;      // calls of the current forward
  std::weak_ptr<Unit> reducing_;  // unit with a pending reduce-scatter
};

}  // namespace moonshard
