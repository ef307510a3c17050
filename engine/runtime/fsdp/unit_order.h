// UnitOrder: in which order a model's units are used, so that the next one is gathered while one computes, and the one
// reduce-scatter that may run beside a backward.
//
// A forward of the root is recorded, and the next one gathers ahead along it; its backward goes against it. The first
// forward gathers nothing ahead. Where a model takes another way than before, what was gathered in vain is let go, on
// every rank alike.
// Stage before: none. Stage after: unit.h, which asks at each call.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace moonshard {

class Unit;

class UnitOrder {
 public:
  // Units that are gathered ahead of the one in use; 0: none.
  UnitOrder(int64_t forward, int64_t backward) : forward_(forward), backward_(backward) {}

  // A forward of the root, which is no part of a backward.
  void BeginForward();
  void EndForward();
  bool in_forward() const { return recording_; }

  // A call of `unit` in such a forward: its place, -1 outside of one.
  int64_t Visit(const std::shared_ptr<Unit>& unit);
  // A backward through the call at a place may follow.
  void ExpectBackward(int64_t place);

  std::vector<std::shared_ptr<Unit>> AheadInForward(int64_t place) const;
  // `unit`'s backward of the call at `place` begins. None where another forward was recorded since.
  std::vector<std::shared_ptr<Unit>> AheadInBackward(const Unit& unit, int64_t place) const;

  // `unit` has begun to sum gradients: the one before it is finished first, so that memory for one is enough.
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
  std::vector<Visited> last_;  // of the last forward
  std::vector<Visited> now_;   // of the one that runs
  std::weak_ptr<Unit> reducing_;
};

}  // namespace moonshard
