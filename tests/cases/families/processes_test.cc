// Every shipped plan, resolved in many fresh processes, has one hash: nothing in it depends on addresses (ASLR), on the
// seed of Lua's hashes, which is made of them, or on the clock.
#include <catch2/catch.hpp>
#include <iostream>
#include <set>

#include "tests/cases/families/family.h"
#include "tests/support/process.h"

namespace moonshard {
namespace {

// An order that depends on addresses or on a hash's seed differs between any two processes with a chance of a half or
// more: so many show it. Under a sanitizer, where each takes seconds, the runtime's own randomness is the only
// difference.
#if defined(__SANITIZE_ADDRESS__)
constexpr int kProcesses = 6;
#else
constexpr int kProcesses = 40;
#endif

// One line a plan: its name, the family's and the hash.
std::string Hashes() {
  const test::ScratchFolder work;
  std::string out;
  for (const Family& family : ReadFamilies(work.path())) {
    for (const char* parallel : {"false", "true"}) {
      const Result<CompiledPlan> plan = Resolve(family, 2, {{"sequence_parallel", parallel}});
      if (plan.ok()) out += plan.value().plan->name + " " + family.name + " " + plan.value().Hash() + "\n";
    }
  }
  return out;
}

TEST_CASE("prints the hashes", "[.hashes]") { std::cout << "<<" << Hashes() << ">>"; }

std::string FromFreshProcess() {
  const test::Outcome done = test::RunExecutable("/proc/self/exe", {"[.hashes]"}, {}, 120);
  INFO(done.ToText());
  REQUIRE(done.code == 0);
  const size_t begin = done.out.find("<<");
  REQUIRE(begin != std::string::npos);
  return done.out.substr(begin + 2, done.out.rfind(">>") - begin - 2);
}

TEST_CASE("many processes give one hash for every shipped plan") {
  const std::string first = FromFreshProcess();
  std::set<std::string> plans;
  for (size_t line = 0; line < first.size(); line = first.find('\n', line) + 1) {
    plans.insert(first.substr(line, first.find(' ', line) - line));
  }
  CHECK(plans.size() >= 24);
  int same = 1;
  while (same < kProcesses && FromFreshProcess() == first) ++same;
  CHECK(same == kProcesses);
}

}  // namespace
}  // namespace moonshard
