// UnitOrder: the order in which a model's units are used, for prefetching, and the one reduce-scatter that may overlap
// a backward.
//
// Each forward of the root is recorded. The next forward gathers ahead in the recorded order, the backward in its
// reverse. The first forward gathers nothing ahead. Where a forward deviates from the recorded one, what was gathered
// for nothing is dropped, on every rank alike.
// Stage after: unit.h, which queries it at each call.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace moonshard {

class Unit;

class UnitOrder {
 public:
  // Number of units gathered ahead of the one in use; 0: none.
  UnitOrder(int64_t forward, int64_t backward) : forward_(forward), backward_(backward) {}

  // A forward of the root, outside of any backward.
  void BeginForward();
  void EndForward();
  bool in_forward() const { return recording_; }

  // Records a call of `unit` in such a forward and returns its place; -1 outside of one.
  int64_t Visit(const std::shared_ptr<Unit>& unit);
  // A backward through the call at a place may follow.
  void ExpectBackward(int64_t place);

  // The units to gather ahead while the call at `place` runs; none where the last forward had another unit there.
  std::vector<std::shared_ptr<Unit>> AheadInForward(int64_t place) const;
  // The same for the backward of `unit`'s call at `place`; none where another forward was recorded since.
  std::vector<std::shared_ptr<Unit>> AheadInBackward(const Unit& unit, int64_t place) const;

  // Call around the start of a reduce-scatter: the one under way is finished first, so that memory for one is enough.
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
  std::vector<Visited> now_;   // of the current one
  std::weak_ptr<Unit> reducing_;
};

}  // namespace moonshard
