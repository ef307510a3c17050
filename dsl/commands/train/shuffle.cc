#include "dsl/commands/train/shuffle.h"

namespace moonshard {
namespace {

// splitmix64's output function (Steele et al. 2014).
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

// A Feistel network permutes the numbers of 2 * half bits whatever its round function is: each round replaces one half
// by itself xor a function of the other half, which the other half can undo. So any mixing function will do, and the
// permutation depends on the seed and the pass through the round keys alone.
// There are at least n numbers of 2 * half bits and at most 4 n. A result that is not below n is permuted again. This
// walk along a cycle of the permutation ends, since the cycle leads back to i, which is below n; and it is a
// permutation of [0, n), since from each number below n it leads to the next one below n on the same cycle. It takes at
// most four steps on average.
int64_t Shuffled(uint64_t seed, int64_t pass, int64_t n, int64_t i) {
  int half = 1;
  while (half < 31 && (int64_t{1} << (2 * half)) < n) ++half;
  const uint64_t mask = (uint64_t{1} << half) - 1;
  const uint64_t key = Mix(seed ^ Mix(static_cast<uint64_t>(pass)));
  auto x = static_cast<uint64_t>(i);
  do {
    uint64_t left = x >> half;
    uint64_t right = x & mask;
    for (uint64_t round = 0; round < 4; ++round) {
      const uint64_t next = left ^ (Mix(key + (round << 32) + right) & mask);
      left = right;
      right = next;
    }
    x = left << half | right;
  } while (x >= static_cast<uint64_t>(n));
  return static_cast<int64_t>(x);
}

}  // namespace moonshard
