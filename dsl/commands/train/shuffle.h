// Shuffle: the order of the rows of the data in one pass. The permutation is computed, not stored, so that a run can
// resume anywhere in it, and a billion rows need no memory.
#pragma once

#include <cstdint>

namespace moonshard {

// The index at position `i` of permutation number `pass` of [0, n), 0 <= i < n. A four-round Feistel network over the
// smallest even number of bits that holds n, applied again until the result is below n (cycle walking; Black and
// Rogaway 2002, section 3).
int64_t Shuffled(uint64_t seed, int64_t pass, int64_t n, int64_t i);

}  // namespace moonshard
