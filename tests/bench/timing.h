// Timing of pairs: two ways of doing one thing, in turn within one run, so that a machine whose speed drifts gives a
// ratio that holds all the same.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

namespace moonshard::bench {

inline double MillisecondsOf(const std::function<void()>& run) {
  const auto begin = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

inline double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct PairTimes {
  double a_ms = 0;   // median
  double b_ms = 0;   // median
  double ratio = 0;  // median of a / b over the pairs
};

// Runs a and b in turn, `pairs` times after `warmup` pairs; which of the two goes first alternates.
inline PairTimes TimePairs(const std::function<void()>& a, const std::function<void()>& b, int pairs, int warmup = 3) {
  std::vector<double> as;
  std::vector<double> bs;
  std::vector<double> ratios;
  for (int i = -warmup; i < pairs; ++i) {
    const bool a_first = i % 2 == 0;
    const double first = MillisecondsOf(a_first ? a : b);
    const double second = MillisecondsOf(a_first ? b : a);
    if (i < 0) continue;
    as.push_back(a_first ? first : second);
    bs.push_back(a_first ? second : first);
    ratios.push_back(as.back() / bs.back());
  }
  return {Median(as), Median(bs), Median(ratios)};
}

}  // namespace moonshard::bench
