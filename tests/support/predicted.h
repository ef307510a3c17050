// Whether the collectives of a step were those that its plan predicts. Within a rank of ranks.h.
#pragma once

#include <string>

#include "engine/plan/compile/cost.h"
#include "engine/runtime/apply/applied_plan.h"
#include "tests/support/ranks.h"

namespace moonshard::test {

// `applied` has counted one step on inputs of `tokens`.
inline void ExpectPredicted(const AppliedPlan& applied, int64_t rank, Tokens tokens) {
  const PlanTotals totals = TotalsOf(applied.plan(), rank, tokens);
  const CollectiveCounts counts = applied.counts();
  for (Direction direction : {Direction::kForward, Direction::kBackward}) {
    for (CollectiveKind kind : kCollectiveKinds) {
      const CollectiveCount& got = counts.of(direction, kind);
      const CollectiveCount& want = totals.collectives.of(direction, kind);
      Expect(got.count == want.count && got.bytes == want.bytes,
             std::string(ToString(direction)) + " " + ToString(kind) + ": " + std::to_string(got.count) + " of " +
                 std::to_string(got.bytes) + " bytes, predicted " + std::to_string(want.count) + " of " +
                 std::to_string(want.bytes));
    }
  }
}

}  // namespace moonshard::test
