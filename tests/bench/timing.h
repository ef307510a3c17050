// Timing of pairs: two ways of doing one thing, in turn within one run, so that a machine whose speed drifts gives a
// ratio that holds all the same. And what a bench is called with: every bench takes --short, one round of each thing
// that it measures, so that a test can run it (tests/bench/CMakeLists.txt); what it then prints measures nothing.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
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

// The words of a command line but --short.
class Arguments {
 public:
  Arguments(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
      if (std::string(argv[i]) == "--short") {
        short_ = true;
      } else {
        words_.emplace_back(argv[i]);
      }
    }
  }

  const std::vector<std::string>& words() const { return words_; }
  bool short_round() const { return short_; }
  // How often something is run: the number that is word `index` where there is one, else `usual`; once in a short
  // round.
  int Times(size_t index, int usual) const {
    if (short_) return 1;
    return index < words_.size() ? std::stoi(words_[index]) : usual;
  }

 private:
  std::vector<std::string> words_;
  bool short_ = false;
};

struct PairTimes {
  double a_ms = 0;   // median
  double b_ms = 0;   // median
  double ratio = 0;  // median of a / b over the pairs
};

// Runs a and b in turn, `pairs` times after `warmup` pairs, at most as many; which of the two goes first alternates.
inline PairTimes TimePairs(const std::function<void()>& a, const std::function<void()>& b, int pairs, int warmup = 3) {
  std::vector<double> as;
  std::vector<double> bs;
  std::vector<double> ratios;
  for (int i = -std::min(warmup, pairs); i < pairs; ++i) {
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
